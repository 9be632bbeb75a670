import pytest
import torch

from experiments import decay
from experiments.decay import EXPECTED_BOUND, MASK_FEATURES, bound_table, mask_table
from linear_rope.diagnostics import expected_rope_mask


def test_the_bound_is_roformer_s_figure_2():
    bound = bound_table().set_index("distance")["bound"]
    assert len(bound) == 257
    for distance, value in EXPECTED_BOUND.items():
        decimals = len(value.partition(".")[2])
        assert f"{bound[distance]:.{decimals}f}" == value


def test_the_mean_of_real_draws_is_the_expected_mask():
    table = mask_table(draws=200, seed=1)
    assert set(table["num_features"]) == set(MASK_FEATURES)
    for row in table.itertuples():
        standard_error = (row.high - row.low) / 2 / 1.972  # Student's t for 199 degrees of freedom
        # 36 comparisons: 4 standard errors are exceeded by chance once in 440 runs, and the draws are fixed.
        assert abs(row.mean - row.expected) < 4 * standard_error
        assert standard_error < 0.05


def test_the_mask_differs_where_it_should():
    """A rotation with another base, or none, would not pass the test above."""
    table = mask_table(draws=200, seed=1)
    far = table[(table["num_features"] == 64) & (table["distance"] == 64)].iloc[0]
    other_base = expected_rope_mask(torch.tensor(64), 64, base=1000.0).item()
    for wrong in (1.0, other_base):
        assert not far["low"] <= wrong <= far["high"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("16,1,0.9,0.95,1.0", "has a mean that is not between low and high"),
        ("15,1,0.9,0.8,1.0", "has an odd num_features"),
        ("16,1,0.9,nan,1.0", "line 2, column low is 'nan'"),
        ("16,9999999,0.9,0.8,1.0", "line 2, column distance is '9999999', expected a whole number from 0 to 1048576"),
    ],
)
def test_a_mask_that_cannot_be_drawn_is_refused_before_a_figure_is(tmp_path, row, message):
    (tmp_path / "mask.csv").write_text(f"num_features,distance,mean,low,high\n{row}\n")
    with pytest.raises(ValueError, match=rf"mask\.csv.*{message}"):
        decay.figures(tmp_path, tmp_path / "output", {}, None, None)
    assert not (tmp_path / "output").exists()
