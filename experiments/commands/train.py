"""The train command: what a launcher runs, on this machine or another."""

from experiments.options import TrainOptions
from experiments.trackers.registry import parse_trackers


def train(options: TrainOptions) -> int:
    """Train one run to its end. Returns the exit status. Raises ValueError if the directory is no run's."""
    trackers = parse_trackers(options.tracker)
    from experiments.run.job import train_directory

    return train_directory(options.directory, trackers)
