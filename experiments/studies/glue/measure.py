"""What the fine-tuned encoders say of some examples."""

from pathlib import Path

import pandas as pd

from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.answers import SHOWN as SHOWN
from experiments.studies.answers import collect_answers, samples_of
from experiments.train.classification import Classification
from experiments.train.objectives import Objective


def measure(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """Write answers.csv; returns sentences about what could not be measured."""
    if not isinstance(objective, Classification):
        return [f"--data {objective.corpus.name} is no labelled texts: no answers were collected; give --data mrpc"]
    return collect_answers(root, comparison, objective)


def samples(rows: Rows) -> pd.DataFrame:
    """The table of samples: who says what, an answer a row, of each that some variant gives."""

    def told(said: "pd.Series[str]") -> dict[str, str]:
        return {f"said: {answer}": ", ".join(said.index[said == answer]) for answer in said.unique()}

    return samples_of(rows, told)
