"""Trackers show the numbers of a run elsewhere (TensorBoard, say) while it trains; metrics.jsonl stays the truth.

A tracker is told a row once that row is on the disk, and never again: a run that goes on tells only what is new. A new
one is a class and a line here, or an installed package's entry point.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from experiments.extensions import Registry
from experiments.records.files import read_file, write_atomically
from experiments.records.schema import MetricsRow


class TrackedRun(NamedTuple):
    """What a tracker is made with."""

    comparison: Path
    """absolute directory of the comparison"""
    directory: Path
    """the run's own, inside of it"""
    variant: str
    seed: int
    config: Mapping[str, Any]
    """what the run is trained with"""

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"

    @property
    def project(self) -> str:
        """The comparison's name as services take it: ASCII letters, digits and . _ -, at most 128 of them."""
        return re.sub(r"[^\w.-]", "-", self.comparison.name, flags=re.ASCII)[:128]

    def id(self) -> str:
        """Made once and kept in the run's directory: a run that goes on, also in a copy, has it still, and one of
        another comparison never has, were its name and its place the same.
        """
        path = self.directory / "tracked"
        if not path.exists():
            write_atomically(path, uuid.uuid4().hex[:16])
        return read_file(path, "remove it").decode()


class Tracker(Protocol):
    """Made with a TrackedRun, which may have been tracked before. What it raises ends it, and not the run.

    A class may name the module it cannot do without in ``needs``.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take metrics, each named ``split/name``, after so many optimiser steps; steps may come out of order."""
        ...

    def finish(self) -> None:
        """The run goes no further in this process."""
        ...


class TensorBoard:
    """Event files in the run's directory, so that ``tensorboard --logdir COMPARISON`` finds those of all.

    A run that goes on adds a file, and TensorBoard shows the files of a directory as one run.
    """

    needs = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # or what a killed run has told of would be lost

    def finish(self) -> None:
        self._writer.close()


class _Service:
    _run: Any

    def finish(self) -> None:
        self._run.finish()


class WandB(_Service):
    """Weights & Biases, offline unless WANDB_MODE says otherwise: ``wandb sync`` uploads what is in a run's directory.

    A run that goes on has the same id.
    """

    needs = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_CACHE_DIR", str(run.directory / "wandb" / "cache"))
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", run.project),
            group=run.variant,
            name=str(run),
            id=run.id(),
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(run.directory)),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=dict(run.config),
            # The run's own log has what it prints, and its record the code and the machine.
            settings=wandb.Settings(
                console="off", disable_code=True, disable_git=True, disable_job_creation=True, x_disable_stats=True
            ),
        )
        # Its own steps only ascend; those of a run that is tested in between do not.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})


class Trackio(_Service):
    """trackio: one database of all runs, in the comparison's directory unless TRACKIO_DIR says otherwise.

    A run that goes on is resumed, by its name.
    """

    needs = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.comparison / "trackio"))  # before the import, which reads it
        import trackio

        self._run = trackio.init(
            # Names that begin with registry- or end with _system and the like it keeps for itself.
            re.sub("^(?=registry-)", "run-", run.project.replace("_", "-"), flags=re.IGNORECASE),
            name=f"{run} ({run.id()[:8]})",
            group=run.variant,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)


TRACKERS: Registry[Callable[[TrackedRun], Tracker]] = Registry(
    "tracker", "linear_rope.trackers", {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}, argument=True
)


def parse_trackers(names: str | None) -> list[str]:
    """The trackers of a comma-separated list. Raises ValueError for one that is unknown, or lacks its package."""
    found = [] if names is None else list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in found:
        needs = getattr(TRACKERS[name], "needs", None)
        if needs is not None and find_spec(needs) is None:
            raise ValueError(
                f'--tracker {name} needs the package {needs}, which is not installed; give pip install "{needs}", or '
                "leave the tracker out"
            )
    return found


class Trackers(AbstractContextManager["Trackers"]):
    """Those of a run. One that fails is told of once, to ``note``, and no more asked."""

    def __init__(self, names: Sequence[str], run: TrackedRun, note: Callable[[str], None]) -> None:
        self._note, self._trackers = note, dict[str, Tracker]()
        for name in names:
            with self._left_out_if_it_fails(name):
                self._trackers[name] = TRACKERS[name](run)

    def follow(self, row: MetricsRow) -> None:
        """Tell all of a row that is on record."""
        metrics = {f"{row.split}/{name}": value for name, value in row.metrics.items()}
        for name, tracker in [*self._trackers.items()]:
            with self._left_out_if_it_fails(name):
                tracker.log(row.step, metrics)

    def __exit__(self, *exception: object) -> None:
        for name, tracker in [*self._trackers.items()]:
            with self._left_out_if_it_fails(name):
                tracker.finish()

    @contextmanager
    def _left_out_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._note(f"the tracker {name} failed and was left out ({reason}); metrics.jsonl has all of it")
