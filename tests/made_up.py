"""Records made up for tests: what a test does not say is anything that will do."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from experiments.cli import app
from experiments.objects import Job
from experiments.options import RunOptions, run_options
from experiments.records import environment
from experiments.records.record import WALL_CLOCK
from experiments.records.schema import Comparison
from experiments.report import report
from experiments.run.job import train_directory
from experiments.run.registry import LAUNCHERS
from experiments.show import style
from experiments.variants import parse_variants

DATA = {
    "name": "made-up-text",
    "sha256": "ab" * 32,
    "source": "made up",
    "note": "Not real text.",
    "bytes": 9000,
    "splits": {"train": 8100, "validation": 450, "test": 450},
}


def variant_fields(name: str, **other: Any) -> dict[str, Any]:
    """A variant as comparison.json has it; of a name that there is not, with empty words."""
    try:
        (known,) = parse_variants(name)
        fields = dict(vars(known))
    except ValueError:
        kernel, _, position = name.partition("@")[0].partition("-")
        fields = {"name": name, "description": "", "kernel": kernel, "position": position, "baseline": name}
    table = 64 * (fields["position"] == "learned")
    return fields | {"parameters": 1000 + table, "position_parameters": table} | other


def comparison_fields(**other: Any) -> dict[str, Any]:
    """A comparison.json; variants may be names."""
    fields: dict[str, Any] = {
        "name": "made-up",
        "experiment": "convergence",
        "preset": "smoke",
        "command": "python -m experiments run convergence --preset smoke",
        "config": {},
        "variants": [],
        "seeds": [0],
        "git": {"commit": "0123abc", "dirty": False},
        "versions": {"torch": "2.13.0"},
        "machine": {"cpu": "a processor", "cores": 2, "memory_gib": 8, "device": "cpu"},
        "evaluated_windows": {"validation": 48, "test": 256},
        "data": [DATA],
        "created": "2026-01-02T03:04:05Z",
        "notes": [],
    }
    fields |= other
    fields["variants"] = [variant_fields(**({"name": v} if isinstance(v, str) else v)) for v in fields["variants"]]
    if fields["variants"]:
        needed = {"steps": 100, "batch_size": 2, "context": 32, "log_every": 20, "evaluate_every": 20}
        fields["config"] = needed | fields["config"]
    return fields


def make_record(**other: Any) -> Comparison:
    """The same as the record that is read of it."""
    return msgspec.convert(comparison_fields(**other), Comparison)


def over(status: int | str | None) -> Any:
    """A launcher's process that has ended."""
    return SimpleNamespace(poll=lambda: status, stop=None)


class Here:
    """A launcher whose runs are trained in this process: most of a small run is the start of its own."""

    room = 1

    def __init__(self, **_: object) -> None:
        pass

    def start(self, jobs: Sequence[Job]) -> list[Any]:
        return [over(_train(job)) for job in jobs]


def _train(job: Job) -> int:
    with (job.directory / "log.txt").open("a") as log, redirect_stdout(log), redirect_stderr(log):
        return train_directory(job.directory)


@contextmanager
def trained_here() -> Iterator[None]:
    """What the command line trains is trained in this process, whose code is hashed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LAUNCHERS._items, "local", Here)
        patch.setattr(environment, "code_sha256", cache(environment.code_sha256))
        yield


@contextmanager
def undrawn() -> Iterator[None]:
    """Reports are written without their pictures, which take most of the time of a small comparison."""

    def save(make: object, directory: Path, stem: str) -> bool:
        directory.mkdir(exist_ok=True)
        (directory / f"{stem}.svg").touch()
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save_figure", save)
        yield


@contextmanager
def quick() -> Iterator[None]:
    """Both, and no curves to click on, for tests of other things than how runs are started and what pictures show."""
    with undrawn(), trained_here(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "interactive", lambda rows: None)
        yield


def loss_in_shares(objective: Any, model: Any, batch: Any) -> Any:
    """The loss of a batch from those of its first third and the rest, as processes put theirs together."""
    shares = [tuple(x[: len(x) // 3] for x in batch), tuple(x[len(x) // 3 :] for x in batch)]
    weighed = sum(objective.loss(model, share) * objective.scored(share) for share in shares)
    return weighed / sum(map(objective.scored, shares))


def metrics_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl as they stand there."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def repeated_rows(path: Path) -> list[dict[str, Any]]:
    """The same without what differs from run to run on one machine: a run that is made again has them once more."""
    return [{key: value for key, value in row.items() if key not in WALL_CLOCK} for row in metrics_rows(path)]


def run_options_of(*words: object) -> RunOptions:
    """The options of ``run`` that these words of a command give."""
    texts = ["run", *map(str, words)]
    _, bound, _ = app.parse_args(texts, print_error=False, exit_on_error=False)
    return run_options(next(iter(bound.args), None), bound.kwargs.get("given", {}), tuple(texts))
