"""The variants of the first look at a comparison."""

from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.records.schema import NEXT_BYTE
from experiments.studies.convergence.overview import variants

ENDS = {
    "softmax-none": 3.75,
    "softmax-rope": 3.07,
    "favor+-rope-before": 3.57,
    "favor+-rope-after": 3.70,
    "elu+1-rope-before": 3.71,
    "elu+1-rope-after": 3.63,
    "relu-rope-before": 3.66,
    "relu-rope-after": 3.65,
    "elu+1-none": 3.74,
    "favor+-none": 3.73,
}
BEST = ["softmax-rope", "favor+-rope-before", "elu+1-rope-after", "relu-rope-after", "softmax-none"]
FEW = ("elu+1-rope-after", "elu+1-rope-before", "softmax-rope")


@pytest.mark.parametrize(
    ("trained", "planned", "shown"),
    [
        (ENDS, ENDS, BEST),  # of each map the better one
        (ENDS.keys() - {"softmax-none"}, ENDS, []),
        (ENDS.keys() - {"relu-rope-before", "relu-rope-after"}, ENDS, []),
        (FEW, FEW, ["softmax-rope", "elu+1-rope-after", "elu+1-rope-before"]),  # a small comparison as a whole
        (FEW[:2], FEW, []),
        (FEW[:1], FEW[:1], []),
    ],
)
def test_a_few_that_were_all_trained_are_shown(trained, planned, shown):
    rows = [{"variant": name, "metric": "test_bits_per_byte", "n": 3, "mean": ENDS[name]} for name in trained]
    comparison = SimpleNamespace(objective=NEXT_BYTE)
    assert variants(SimpleNamespace(comparison=comparison, variants=planned, summary=pd.DataFrame(rows))) == shown
