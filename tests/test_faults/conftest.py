"""Everything here provokes faults for real, so it is slow. ``-m "slow and not full"`` runs a sample."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase

from tests.made_up import repeated_rows

PROJECT = Path(__file__).parents[2]
PATIENCE = 120
"""seconds that anything waited for may take on a busy machine"""
FUZZING = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": [Phase.generate],  # no shrinking: the traceback shows the one change that failed
    "suppress_health_check": list(HealthCheck),
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


class Comparison:
    """A small comparison that real processes work on: three variants of about 80 records each, in ``out``."""

    variants = ("softmax-rope", "favor+-rope-after", "elu+1-rope-after")
    steps = 60
    checkpoint_every = 4
    evaluate_every = 5

    def __init__(self, out, output_path, text, *options):
        self.out = out
        self.output_path = output_path
        self.command = [sys.executable, "-m", "experiments", "run", "convergence", "--preset", "smoke"]
        self.command += ["--data-file", str(text)]
        self.command += ["--variants", ",".join(self.variants), "--out", str(out)]
        self.command += ["--steps", str(self.steps), "--evaluate-every", str(self.evaluate_every), "--log-every", "1"]
        self.command += ["--checkpoint-every", str(self.checkpoint_every), "--evaluation-windows", "24", *options]
        self.process = None

    def start(self):
        """Start the command in a process group of its own; its output goes to a file."""
        pipes = {"stderr": subprocess.STDOUT, "start_new_session": True}
        with open(self.output_path, "wb") as output:
            self.process = subprocess.Popen(self.command, cwd=PROJECT, stdout=output, **pipes)
        return self

    @property
    def output(self):
        return self.output_path.read_text()

    def wait(self):
        """The exit status, when the command has ended."""
        return self.process.wait(timeout=PATIENCE)

    def finish(self):
        """Give the command, which has to succeed; returns the results."""
        assert self.start().wait() == 0, self.output
        return self.results()

    def kill(self):
        """Kill all of its processes at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_until(self, condition):
        """True when the condition holds, False if the command ended before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, self.output
            time.sleep(0.001)
        return True

    def directory(self, variant):
        return self.out / variant / "seed0"

    def metrics(self, variant):
        return self.directory(variant) / "metrics.jsonl"

    def rows(self, variant):
        path = self.metrics(variant)
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def all_rows(self):
        return sum(self.rows(variant) for variant in self.variants)

    def checkpoints(self, variant):
        return sorted((self.directory(variant) / "checkpoint").glob("step*"))

    def results(self):
        """All that must not depend on what happened on the way: the records, the summary, the final weights."""
        found = {}
        for variant in self.variants:
            found[variant, "metrics"] = repeated_rows(self.metrics(variant))
            for name in ("model.safetensors", "optimizer.pt"):
                checkpoint = self.directory(variant) / "checkpoint" / f"step{self.steps:08d}"
                found[variant, name] = (checkpoint / name).read_bytes()
        with open(self.out / "summary.csv", newline="") as file:
            found["summary"] = [row for row in csv.DictReader(file) if row["metric"] != "tokens_per_second"]
        for path in self.out.glob("*.csv"):  # what was measured on the trained models
            if path.name not in ("summary.csv", "curves.csv"):
                found[path.name] = path.read_bytes()
        return found

    def leftovers(self):
        return [path for path in self.out.rglob(".*") if path.name != ".lock"]


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text"
    path.write_text("".join(f"{n} bottles of beer on the wall, {n} bottles of beer\n" for n in range(500)))
    return path


@pytest.fixture
def comparison(tmp_path, text):
    """A function that makes a Comparison in a new directory, or in the one given."""
    made = []

    def make(*options, out=None):
        output = tmp_path / f"output {len(made)}"
        made.append(Comparison(out or tmp_path / f"comparison {len(made)}", output, text, *options))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.poll() is None:
            each.kill()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, text):
    """The results of a comparison that nothing happened to."""
    directory = tmp_path_factory.mktemp("undisturbed")
    whole = Comparison(directory / "whole", directory / "output", text, "--workers", "2")
    results = whole.finish()
    for variant in whole.variants:
        recorded = [(row["step"], row["split"]) for row in results[variant, "metrics"]]
        assert len(set(recorded)) == len(recorded) == whole.steps + whole.steps // whole.evaluate_every + 2
    assert whole.leftovers() == []
    return results
