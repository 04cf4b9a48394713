"""The papers and their successors: trials as data, findings, figures and verdicts."""
