"""What the fine-tuned encoders say of some examples."""

from pathlib import Path

from experiments.records.schema import Comparison
from experiments.studies.answers import SHOWN as SHOWN
from experiments.studies.answers import collect_answers
from experiments.train.classification import Classification
from experiments.train.objectives import Objective


def measure(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """Write answers.csv; returns sentences about what could not be measured."""
    if not isinstance(objective, Classification):
        return [f"--data {objective.corpus.name} is no labelled texts: no answers were collected; give --data mrpc"]
    return collect_answers(root, comparison, objective)
