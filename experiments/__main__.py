"""``python -m experiments``; see cli.py."""

import sys

from experiments.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
