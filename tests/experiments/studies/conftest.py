"""What the tests of the studies share."""

from pathlib import Path

import pandas as pd
import pytest
import torch

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


def made_alone(make, directory, stem):
    """Saves no figure, which takes the most time; whether there is one is known when it is drawn."""
    with style():
        return make() is not None
