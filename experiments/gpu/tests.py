"""The tests that a GPU runs otherwise than a CPU; a record for each as it ends."""

import sys
from typing import Any

from experiments.gpu.step import Step

TESTS = """\
tests/linear_rope/ops/linear/test_triton_on_gpu.py
tests/linear_rope/test_devices.py
tests/linear_rope/interop/test_transformers.py::test_a_gpu_gives_what_a_cpu_gives
tests/linear_rope/interop/test_upgrade.py::test_a_gpu_gives_what_a_cpu_gives
tests/experiments/train/test_gpu.py
""".split()


class Recorder:
    """A plugin of pytest."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.step.write(test=report.nodeid, outcome=report.outcome)


def main(step: Step) -> int:
    import pytest

    files, chosen = TESTS, "not -cpu and not [cpu"
    if step.rehearses:
        files, chosen = ["tests/linear_rope/test_devices.py"], "finite and elu and float32"
    # Whatever versions are there, and files whose packages are not there, are not to keep the others from running.
    options = ["-q", "-rs", "-W", "default", "-p", "no:cacheprovider", "-k", chosen]
    statuses = {pytest.main([*options, file], plugins=[Recorder(step)]) for file in files}
    return int(not statuses <= {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED})


if __name__ == "__main__":
    sys.exit(main(Step.of_command()))
