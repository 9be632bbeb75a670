import math

import pytest

from experiments.judge.statistics import Spread, contrasts, estimate, pooled_spread, summarise
from experiments.records.record import read_comparison
from tests.made_up import make_record

# Student's t with 2 degrees of freedom leaves 2.5 % above 4.302653; divided by the root of 3 that is 2.484138.
HALF_WIDTH_OF_THREE = 2.484138
PAIR = "elu+1-none,elu+1-rope-after"


def summary_of(root):
    return summarise(root, read_comparison(root)).set_index(["variant", "metric"])


def test_estimate_of_three_values():
    result = estimate([1.0, 2.0, 3.0])
    assert (result.n, result.mean, result.std) == (3, 2.0, 1.0)
    assert result.low == pytest.approx(2 - HALF_WIDTH_OF_THREE, abs=1e-6)
    assert result.high == pytest.approx(2 + HALF_WIDTH_OF_THREE, abs=1e-6)
    # Of two spreads the one with the wider interval counts: 1.96 times 3 / √3, not 4.30 times 1 / √3.
    assert estimate([1.0, 2.0, 3.0], pooled=Spread(0.5, 100)) == result
    wide = estimate([1.0, 2.0, 3.0], pooled=Spread(3.0, 10**6))
    assert (wide.mean, wide.high, wide.std) == pytest.approx((2.0, 2 + 1.959966 * math.sqrt(3), 3.0), rel=1e-6)


def test_below_three_values_there_is_no_interval():
    assert estimate([1.0, 3.0]).mean == 2.0
    assert estimate([1.0, 3.0]).std == pytest.approx(math.sqrt(2))
    assert not any(estimate(values).has_interval for values in ([], [1.0], [1.0, 3.0]))
    assert (estimate([]).n, math.isnan(estimate([]).mean)) == (0, True)


def test_the_spread_within_groups_taken_together():
    # Squares 1 + 0 + 1 with two degrees of freedom, and 1 + 1 with one; a single value has none.
    assert pooled_spread([(1.0, 2.0, 3.0), (5.0,), (2.0, 4.0)]) == pytest.approx(Spread(math.sqrt(4 / 3), 3))
    assert pooled_spread([(1.0,), (2.0,)]).degrees == 0


def row_of(root, variant, metric):
    return summary_of(root).loc[variant, metric]


def test_failed_runs_are_counted_and_named_and_never_averaged(make_comparison, tmp_path):
    fates = {("elu+1-rope-after", 1): ("failed", "the loss was not finite at step 40")}
    root = make_comparison(tmp_path, PAIR, fates=fates, loss=lambda name, seed, step: 3.0 + 100 * (seed == 1))
    row = row_of(root, "elu+1-rope-after", "test_bits_per_byte")
    assert (row["n"], row["planned"], row["failed"], row["seeds"], row["mean"]) == (2, 3, 1, "0 2", 3.5)
    assert row["reasons"] == "seed 1: the loss was not finite at step 40"
    assert math.isnan(row["low"])
    assert row_of(root, "elu+1-none", "test_bits_per_byte")["n"] == 3


def test_a_run_without_a_test_figure_does_not_count_as_finished(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "elu+1-none")
    metrics = root / "elu+1-none" / "seed2" / "metrics.jsonl"
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(row for row in rows if '"test"' not in row))
    row = row_of(root, "elu+1-none", "test_bits_per_byte")
    assert (row["n"], row["failed"], row["unfinished"]) == (2, 0, 1)
    assert "no test figure" in row["reasons"]


def test_rope_after_and_before_are_compared_at_equal_settings_only(make_comparison, tmp_path):
    ends = {
        "favor+-rope-before": 3.5,
        "favor+-rope-before@num_features=32": 4.5,
        "favor+-rope-after": 3.0,
        "favor+-rope-after@num_features=32": 3.75,
        "favor+-rope-after@num_features=64": 2.0,
    }
    root = make_comparison(tmp_path, ",".join(ends), loss=lambda name, seed, step: ends[name])
    summary = summary_of(root)
    rows = summary[summary.index.get_level_values("metric") == "test_bits_per_byte_minus_rope_before"]
    assert rows["mean"].droplevel("metric").to_dict() == {
        "favor+-rope-after": -0.5,
        "favor+-rope-after@num_features=32": -0.75,
    }


def test_a_learning_rate_counts_as_a_setting_where_the_name_fixes_it():
    def variant(position, rate, name_goes_on=""):
        name, settings = f"elu+1-rope-{position}{name_goes_on}", {"learning_rate": rate}
        return {"name": name, "kernel": "elu+1", "position": f"rope-{position}", "baseline": "-", "settings": settings}

    variants = [variant("after", 0.1), variant("before", 0.2), variant("after", 0.1, "@learning_rate=0.1")]
    comparison = make_record(variants=variants)
    found = [contrasts(each, comparison, "bits_per_byte") for each in comparison.variants]
    assert found == [[("test_bits_per_byte_minus_rope_before", "elu+1-rope-before")], [], []]
