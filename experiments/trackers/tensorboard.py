"""TensorBoard: event files in the run's directory, so that ``tensorboard --logdir COMPARISON`` finds those of all."""

from collections.abc import Mapping

from experiments.trackers.tracker import TrackedRun


class TensorBoard:
    """As Tracker says. A run that goes on adds a file, and TensorBoard shows the files of a directory as one run."""

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
