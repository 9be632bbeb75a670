"""``python -m experiments``, or ``linear-rope`` where it is installed; see cli.py."""

import io
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from experiments.run.signals import Stopped, stop_signals_raise


def run() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal has every character; standard error writes what it cannot encode in this way by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Bytes that are no text are kept, as in arguments, and a carriage return within a line ends none.
        sys.stdin.reconfigure(errors="surrogateescape", newline="\n")
    try:
        with stop_signals_raise(), ExitStack() as end:
            _give_matplotlib_a_place(end)
            # Here, because a signal may come while the libraries load.
            from experiments.cli import main

            return main(sys.argv[1:])
    except Stopped as stop:
        print(f"stopped by {stop} before anything began")
        return 128 + stop.signal_number


def _give_matplotlib_a_place(end: ExitStack) -> None:
    """Where it could keep nothing (no home, or one that cannot be written), it would say so in every process."""
    if "MPLCONFIGDIR" in os.environ:
        return
    for variable, usual in {"XDG_CONFIG_HOME": "~/.config", "XDG_CACHE_HOME": "~/.cache"}.items():
        place = Path(os.environ.get(variable) or Path(os.path.expanduser(usual)), "matplotlib")
        nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
        if not os.access(nearest, os.W_OK | os.X_OK) or nearest == nearest.parent:
            os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="matplotlib-")
            end.callback(shutil.rmtree, os.environ["MPLCONFIGDIR"], ignore_errors=True)
            return


if __name__ == "__main__":
    sys.exit(run())
