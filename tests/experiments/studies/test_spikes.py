import pandas as pd
import pytest

from experiments.studies.denominator.spikes import BEFORE, HEIGHT, spike_share


def share(*after):
    """Of records that follow ten at 2 bits per byte."""
    return spike_share(pd.Series([2.0] * BEFORE + list(after)))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([2.0], 0.0),
        ([2 + HEIGHT], 1.0),
        ([2.49], 0.0),
        ([1.0], 0.0),
        ([4.0, 2.0, 2.0, 2.0], 0.25),
        # The mean before the second is 2.2, before the third 2.25.
        ([4.0, 2.5, 2.8], 2 / 3),
    ],
)
def test_the_share_of_records_half_a_bit_above_the_mean_of_the_ten_before(after, expected):
    assert share(*after) == pytest.approx(expected)
