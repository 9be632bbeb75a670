"""The trackers: a new one is a file beside this one and a line here, or an installed package's entry point."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec

from experiments.extensions import Registry
from experiments.records.schema import MetricsRow
from experiments.trackers.tensorboard import TensorBoard
from experiments.trackers.tracker import TrackedRun, Tracker
from experiments.trackers.trackio import Trackio
from experiments.trackers.wandb import WandB

TRACKERS: Registry[Callable[[TrackedRun], Tracker]] = Registry(
    "tracker", "linear_rope.trackers", {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
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
        self._note = note
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            self._try(name, lambda name=name: self._trackers.update({name: TRACKERS[name](run)}))  # type: ignore[misc]

    def follow(self, row: MetricsRow) -> None:
        """Tell all of a row that is on record."""
        metrics = {f"{row.split}/{name}": value for name, value in row.metrics.items()}
        for name, tracker in list(self._trackers.items()):
            self._try(name, lambda tracker=tracker: tracker.log(row.step, metrics))  # type: ignore[misc]

    def __exit__(self, *exception: object) -> None:
        for name, tracker in list(self._trackers.items()):
            self._try(name, tracker.finish)

    def _try(self, name: str, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as error:
            self._trackers.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._note(f"the tracker {name} failed and was left out ({reason}); metrics.jsonl has all of it")
