"""What is measured of models trained on generated sequences once they are trained: nothing."""

from pathlib import Path

from experiments.records.schema import Comparison
from experiments.training.objectives import NextToken


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Nothing: accuracies are recorded in training. Returns a sentence if none are."""
    if objective.primary.name == "accuracy":
        return []
    name = objective.corpus.name
    return [f"--data {name} is a text, in which nothing is asked: no accuracy was measured; give --data recall-64"]
