"""Early stopping: of a whole run the weights are kept that were best on the validation split."""

import shutil
from pathlib import Path

import torch
from torch import nn

from experiments.records.record import MetricsLog
from experiments.training.checkpoint import checkpoint_path, read_checkpoint, save_checkpoint
from experiments.training.objectives import Metric


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

    def keep(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights of this step, which was evaluated, if it is the best one."""
        if step and self.step(step) == step:
            save_checkpoint(self._directory, step, model, optimizer)

    def restore(self, model: nn.Module, last: int) -> int:
        """Give a model the best weights up to step ``last``; returns their step.

        Raises ValueError or OSError if they are damaged or gone.
        """
        step = self.step(last)
        model.load_state_dict(read_checkpoint(checkpoint_path(self._directory, step)).model)
        return step

    def remove(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._directory, ignore_errors=True)
