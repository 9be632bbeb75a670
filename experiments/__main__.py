"""``python -m experiments``; see cli.py."""

import io
import sys

from experiments.cli import main

if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a file need not be text; standard error writes what it cannot encode in this way by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
