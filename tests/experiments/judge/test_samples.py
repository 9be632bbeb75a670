"""What the claims are judged on, from curves whose ends and areas are worked out by hand."""

import pytest

from experiments.judge.curves import read_curves
from experiments.judge.runs import Runs
from experiments.judge.samples import by_seed, gap_closed, paired_average, steps_saved
from experiments.records.record import read_comparison

BASELINE, AFTER = "favor+-none", "favor+-rope-after"
ENDS = {"favor+-none": [3.0, 3.0, 3.0], "favor+-rope-after": [2.5, 2.75, 3.5], "softmax-rope": [2.0, 2.5, 3.0]}


def sample_of(read, root):
    comparison = read_comparison(root)
    return read(root, comparison, Runs(root, comparison, read_curves(root, comparison)))


@pytest.fixture
def straight(make_comparison, tmp_path):
    """A comparison whose curves fall on a straight line, over 100 steps, to ``ENDS``."""
    return make_comparison(
        tmp_path, ",".join(ENDS), loss=lambda name, seed, step: 8 + (ENDS[name][seed] - 8) * step / 100
    )


def test_samples_of_straight_curves(straight):
    # At step 80 the curves are at 3.6 and 3.8: they come down to 3 between 80 and 100. One stays above.
    saved = sample_of(steps_saved(AFTER, BASELINE), straight)
    assert saved.values == {0: 0.0, 1: 0.0, 2: 0.0}
    assert saved.notes == (f"1 of 3 seeds never reached {BASELINE}'s final loss and count as 0",)
    gap = sample_of(gap_closed(AFTER, BASELINE, "softmax-rope"), straight)
    assert gap.values == pytest.approx({0: 0.5, 1: 0.5})
    assert gap.lost == ("seed 2: softmax-rope is not better than favor+-none, so there is no gap to close",)
    # A straight line averages to half the sum of its ends, 8 and ENDS: the differences are half those of the ends.
    average = sample_of(paired_average(AFTER, BASELINE), straight)
    assert average.values == pytest.approx({0: -0.25, 1: -0.125, 2: 0.25})
    assert sample_of(steps_saved("softmax-rope", "softmax-learned"), straight) is None, "it is no part of it"


def test_the_share_of_steps_saved_by_a_variant_that_is_faster(make_comparison, tmp_path):
    # Twice as steep: half way down at step 50, and the first evaluation from there on is at step 60.
    steepness = {BASELINE: 1, AFTER: 2}
    make_comparison(tmp_path, ",".join(steepness), loss=lambda name, seed, step: 8 - steepness[name] * step / 25)
    values = sample_of(steps_saved(AFTER, BASELINE), tmp_path).values
    assert values == pytest.approx({0: 0.4, 1: 0.4, 2: 0.4})


def test_a_table_counts_for_the_seeds_at_which_all_variants_finished(make_comparison, tmp_path):
    fates = {(AFTER, 1): ("failed", "why"), (BASELINE, 2): ("running", None)}
    make_comparison(tmp_path, f"{BASELINE},{AFTER}", 5, fates=fates)
    table = {0: 0.5, 1: 0.5, 2: 0.5, 4: 0.25}
    sample = sample_of(by_seed((AFTER, BASELINE), lambda *_: table.get), tmp_path)
    assert sample.values == {0: 0.5, 4: 0.25}
    assert sample.lost == (f"seed 1: {AFTER} failed: why",)
    assert sample.unfinished == 2
