"""Killed anywhere, nothing is lost."""

import random
import signal
import time

import pytest

from tests.made_up import metrics_rows

PHASES = ("start", "training", "evaluation", "checkpoint")
"""a comparison is killed in some or all of them, in an order of its own; then while its report is written"""
REPORT_BEGINS = "writing the report"


def wait_for(comparison, phase, chance):
    """Let the comparison come to a random moment of a phase; False if it ended before."""
    before = comparison.all_rows()
    rows = chance.randint(1, 12)
    conditions = {
        "start": lambda: True,
        "training": lambda: comparison.all_rows() >= before + rows,
        "evaluation": lambda: comparison.all_rows() > before and is_evaluating(comparison),
        "checkpoint": lambda: comparison.all_rows() > before and is_saving(comparison),
        "report": lambda: REPORT_BEGINS in comparison.output,
    }
    if not comparison.wait_until(conditions[phase]):
        return False
    longest = {"start": 4.0, "training": 0.02, "evaluation": 0.0, "checkpoint": 0.002, "report": 1.0}[phase]
    time.sleep(chance.random() * longest)
    return comparison.process.poll() is None


def is_saving(comparison):
    return any(comparison.out.glob("*/seed0/checkpoint/.step*.tmp"))


def is_evaluating(comparison):
    """Whether the last row of a variant is that of a step after which the validation split is evaluated."""
    evaluated = {f'"step": {step},'.encode() for step in range(0, comparison.steps + 1, comparison.evaluate_every)}
    for variant in comparison.variants:
        path = comparison.metrics(variant)
        last = path.read_bytes().split(b"\n")[-2:] if path.exists() else []
        if last[1:] == [b""] and b'"split": "train"' in last[0] and any(step in last[0] for step in evaluated):
            return True
    return False


@pytest.mark.parametrize(
    ("seed", "phases"), [(0, 2), *(pytest.param(seed, len(PHASES), marks=pytest.mark.full) for seed in range(5))]
)
def test_a_comparison_killed_again_and_again_ends_as_if_it_had_not_been(comparison, undisturbed, seed, phases):
    chance = random.Random(seed)
    killed = comparison("--workers", "2")
    for number, phase in enumerate([*chance.sample(PHASES, phases), "report"], start=seed):
        killed.start()
        assert wait_for(killed, phase, chance), f"it ended before the kill in {phase}:\n{killed.output}"
        if number % 2:
            killed.kill()
        else:
            killed.process.kill()  # its workers live on for a moment, while the next run begins
            killed.process.wait()
    assert killed.finish() == undisturbed
    assert killed.leftovers() == []


@pytest.mark.full
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_comparison_stopped_anywhere_says_how_to_go_on_and_does(comparison, undisturbed, number, status):
    chance = random.Random(status)
    stopped = comparison("--workers", "2")
    for phase in ("training", "evaluation", "checkpoint", "report"):
        stopped.start()
        assert wait_for(stopped, phase, chance), stopped.output
        reached = stopped.all_rows()
        stopped.process.send_signal(number)
        assert stopped.wait() == status, stopped.output
        assert f"stopped by {number.name}; the same command goes on from the last checkpoints:" in stopped.output
        assert "  python -m experiments run convergence --preset smoke --data-file" in stopped.output
        # Each of the two workers ends its step, and has a row of training and one of validation at most to write.
        assert stopped.all_rows() <= reached + 2 * 2 * 2
        for variant in stopped.variants:
            if stopped.rows(variant):
                trained = max(row["step"] for row in metrics_rows(stopped.metrics(variant)))
                assert stopped.checkpoints(variant)[-1].name == f"step{trained:08d}", "it is of the step that ended"
    assert stopped.finish() == undisturbed
    assert stopped.leftovers() == []
