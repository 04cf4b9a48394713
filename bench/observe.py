"""All that observing is measured by, one after the other: lens, curves, probe.

    python bench/observe.py                 all of it
    python bench/observe.py lens curves     these parts
    python bench/observe.py probe -- --quick

What follows `--` goes to each part; each is a script of its own beside this one, with options of
its own. The parts run in processes of their own, so that none finds the memory that another left.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("lens", "curves", "probe")


def main() -> int:
    """Run the parts; ends with the worst of their exit codes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (all)")
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    parts = parser.parse_args(given[:at]).parts or list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; known: {', '.join(PARTS)}")
    code = 0
    for number, part in enumerate(parts):
        print(("\n" if number else "") + f"== {part}\n", flush=True)
        script = Path(__file__).with_name(f"{part}.py")
        done = subprocess.run([sys.executable, str(script), *given[at + 1 :]], check=False)
        code = max(code, done.returncode)
    return code


if __name__ == "__main__":
    sys.exit(main())
