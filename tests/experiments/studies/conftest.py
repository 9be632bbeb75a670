"""What the tests of the studies share: made-up comparisons are opened, judged and drawn."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments.judge.claims import claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import declared_claims
from experiments.judge.verdicts import evaluate
from experiments.records.record import read_comparison
from experiments.show.rows import Rows
from experiments.show.style import style

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def one_thread():
    """Threads that wait for each other make small matrices many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write(table, root, rows):
    """The table of a study, of rows of its columns."""
    table.write(root, pd.DataFrame(rows, columns=table.columns))


def opened(root):
    comparison = read_comparison(root)
    return root, comparison, read_curves(root, comparison)


def made_alone(make, directory, stem):
    """Saves no figure, which takes the most time; whether there is one is known when it is drawn."""
    with style():
        return make() is not None


def judged(study, root, comparison, curves, reference=None):
    """The rows of its claims, by key; of those that are judged on a reference, if one is named."""
    reference = reference or study.name
    declared = declared_claims(claims_of(study), reference, study.name)
    rows = evaluate(declared, root, comparison, curves, reference=reference)
    return {row.claim.key: row for row in rows}


def rows_of(study, root, comparison, curves, reference=None):
    """What the report of a study is made of."""
    claims = judged(study, root, comparison, curves, reference).values()
    return Rows(root, study, comparison, curves, claims)
