"""Test processes beside each other (``pytest -n``) and all that they start compute with one thread each.

With as many threads each as there are cores, the threads wait for one another: the whole takes four times as long.
Without a GPU Triton's kernels run in its interpreter.
"""

import os
from collections.abc import Iterator

import pytest
import torch
from xdist.scheduler import LoadFileScheduling

from tests.processes import Processes

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
if not torch.cuda.is_available():  # read when Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_xdist_make_scheduler(config, log):
    """Quick tests of a file share what they trained, so one process runs them all, file after file."""
    if config.option.markexpr == "not slow":
        config.option.loadscopereorder = False
        return LoadFileScheduling(config, log)
    return None


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Four that are connected; they start when the first test asks for them."""
    started = Processes(4, tmp_path_factory.mktemp("processes"))
    yield started
    started.end()
