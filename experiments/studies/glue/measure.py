"""What the fine-tuned encoders say of some examples."""

from pathlib import Path

from experiments.records.schema import Comparison
from experiments.training.objectives import Objective


def measure(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    return []
