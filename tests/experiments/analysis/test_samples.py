"""What the claims are judged on, from curves whose ends and areas are worked out by hand."""

import pytest

from experiments.analysis.curves import read_curves
from experiments.analysis.runs import Runs
from experiments.analysis.samples import by_seed, gap_closed, paired_average, steps_saved
from experiments.records.record import read_comparison

BASELINE, AFTER, BEFORE = "favor+-none", "favor+-rope-after", "favor+-rope-before"
ENDS = {"favor+-none": [3.0, 3.0, 3.0], "favor+-rope-after": [2.5, 2.75, 3.5], "softmax-rope": [2.0, 2.5, 3.0]}


def runs_of(root):
    comparison = read_comparison(root)
    return Runs(root, comparison, read_curves(root, comparison))


def sample_of(read, make_comparison, root):
    """The sample of made-up curves that fall on a straight line, over 100 steps, to ``ENDS``."""
    make_comparison(root, ",".join(ENDS), loss=lambda name, seed, step: 8 + (ENDS[name][seed] - 8) * step / 100)
    comparison = read_comparison(root)
    return read(root, comparison, runs_of(root))


def test_the_share_of_steps_saved_by_a_variant_that_is_not_faster(make_comparison, tmp_path):
    # At step 80 the curves are at 3.6 and 3.8: they come down to 3 between 80 and 100. One stays above.
    sample = sample_of(steps_saved(AFTER, BASELINE), make_comparison, tmp_path / "one")
    assert sample.values == {0: 0.0, 1: 0.0, 2: 0.0}
    assert sample.notes == (f"1 of 3 seeds never came down to {BASELINE}'s final loss and count as 0",)


def test_the_share_of_steps_saved_by_a_variant_that_is_faster(make_comparison, tmp_path):
    def loss(name, seed, step):
        return 8 - step / 25 * (2 if name == AFTER else 1)

    make_comparison(tmp_path, f"{BASELINE},{AFTER}", loss=loss)
    comparison = read_comparison(tmp_path)
    # Twice as steep: half way down at step 50, and the first evaluation from there on is at step 60.
    values = steps_saved(AFTER, BASELINE)(tmp_path, comparison, runs_of(tmp_path)).values
    assert values == pytest.approx({0: 0.4, 1: 0.4, 2: 0.4})


def test_the_share_of_the_gap_that_is_closed(make_comparison, tmp_path):
    sample = sample_of(gap_closed(AFTER, BASELINE, "softmax-rope"), make_comparison, tmp_path / "run")
    assert sample.values == pytest.approx({0: 0.5, 1: 0.5})
    assert sample.lost == ("seed 2: softmax-rope is not better than favor+-none, so there is no gap to close",)


def test_the_average_of_a_curve_is_its_area_over_its_steps(make_comparison, tmp_path):
    # A straight line averages to half the sum of its ends, 8 and ENDS: the differences are half those of the ends.
    sample = sample_of(paired_average(AFTER, BASELINE), make_comparison, tmp_path / "run")
    assert sample.values == pytest.approx({0: -0.25, 1: -0.125, 2: 0.25})


def test_a_table_counts_for_the_seeds_at_which_all_variants_finished(make_comparison, tmp_path):
    fates = {(AFTER, 1): ("failed", "why"), (BASELINE, 2): ("running", None)}
    make_comparison(tmp_path, f"{BASELINE},{AFTER}", 5, fates=fates)
    comparison = read_comparison(tmp_path)
    table = {0: 0.5, 1: 0.5, 2: 0.5, 4: 0.25}
    sample = by_seed((AFTER, BASELINE), lambda *_: table.get)(tmp_path, comparison, runs_of(tmp_path))
    assert sample.values == {0: 0.5, 4: 0.25}
    assert sample.lost == (f"seed 1: {AFTER} failed: why",)
    assert sample.unfinished == 2


def test_a_variant_that_is_not_part_of_the_comparison_has_no_sample(make_comparison, tmp_path):
    assert sample_of(steps_saved("softmax-rope", "softmax-learned"), make_comparison, tmp_path / "run") is None
