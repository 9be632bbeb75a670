import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.run.signals import Stopped, stop_signals_are_blocked, stop_signals_are_collected, stop_signals_raise


def test_a_stop_signal_raises_where_the_main_thread_is():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM") as stopped, stop_signals_raise():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_collected_signals_do_nothing_else_and_those_that_waited_come():
    with stop_signals_raise(), stop_signals_are_blocked():
        signal.raise_signal(signal.SIGINT)
        with stop_signals_are_collected() as received:
            assert received == [signal.SIGINT]
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGINT, signal.SIGTERM]


def test_another_thread_leaves_signals_as_they_are():
    def handlers():
        with stop_signals_raise():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers).result() is signal.getsignal(signal.SIGTERM)


STOPPED_WHILE_NUMPY_LOADS = """
import os, signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "numpy.linalg" and sys.meta_path.pop(0):
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder)
from experiments.__main__ import run
sys.exit(run())
"""


def test_a_stop_while_pytorch_loads_is_as_any_other():
    words = ["run", "speed", "--preset", "smoke", "--plan"]
    command = [sys.executable, "-c", STOPPED_WHILE_NUMPY_LOADS, *words]
    process = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (128 + signal.SIGTERM, "")
    assert "stopped by SIGTERM" in process.stdout
