"""Early stopping: of a whole run the weights are kept that were best on the validation split."""

import shutil
from pathlib import Path
from typing import Any

from experiments.records.record import MetricsLog
from experiments.train.checkpoint import checkpoint_path, read_checkpoint, save_checkpoint
from experiments.train.objectives import Metric


class Best:
    """The best evaluation of a run so far, the first of equals, and its weights beside the run's checkpoints.

    It is told by the metrics on record alone, so a run that was stopped has the same one.
    """

    def __init__(self, directory: Path, log: MetricsLog, metric: Metric) -> None:
        self._directory, self._log, self._metric = directory / "best", log, metric

    @property
    def are_kept(self) -> bool:
        """Whether there are weights; none are before the first evaluation, nor when they were removed."""
        return self._directory.is_dir()

    def step(self, last: int) -> int:
        """The step of the best evaluation up to step ``last``, the one before the first step left out."""
        found = self._log.values("validation", self._metric.name)
        better = min if self._metric.better == "lower" else max
        return better((step for step in sorted(found) if 0 < step <= last), key=found.__getitem__)

    def is_at(self, step: int) -> bool:
        """Whether this step, which was evaluated, is the best one so far."""
        return step > 0 and self.step(step) == step

    def keep(self, step: int, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Keep the state dicts of this step."""
        save_checkpoint(self._directory, step, model, optimizer)

    def kept(self, last: int) -> tuple[int, dict[str, Any]]:
        """The best step up to step ``last``, and its weights. Raises ValueError or OSError: damaged or gone."""
        step = self.step(last)
        return step, read_checkpoint(checkpoint_path(self._directory, step)).model

    def remove(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._directory, ignore_errors=True)
