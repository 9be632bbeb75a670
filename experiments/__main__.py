"""``python -m experiments``; see cli.py."""

import io
import sys

from experiments.launch.signals import Stopped, stop_signals_raise


def run() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The name of a file need not be text; standard error writes what it cannot encode in this way by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with stop_signals_raise():
            # Here, because a signal may come while the libraries load.
            from experiments.cli import main

            return main(sys.argv[1:])
    except Stopped as stop:
        print(f"stopped by {stop} before anything began")
        return 128 + stop.signal_number


if __name__ == "__main__":
    sys.exit(run())
