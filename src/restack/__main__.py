"""`python -m restack` is the command line."""

from restack.cli import main

main()
