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


def test_paired_difference_is_free_of_what_seeds_share(make_comparison, tmp_path):
    ends = {"elu+1-none": [3.0, 4.0, 5.0], "elu+1-rope-after": [2.9, 3.8, 4.7]}
    root = make_comparison(tmp_path, PAIR, loss=lambda name, seed, step: ends[name][seed])
    row = row_of(root, "elu+1-rope-after", "test_bits_per_byte_minus_baseline")
    assert (row["n"], row["mean"]) == (3, pytest.approx(-0.2))
    assert row["high"] == pytest.approx(-0.2 + 0.1 * HALF_WIDTH_OF_THREE, abs=1e-6)


def test_steps_and_tokens_to_the_baseline_of_the_same_seed(make_comparison, tmp_path):
    losses = {
        ("elu+1-none", 0): [8, 6, 5, 4.5, 4.2, 4.0],
        ("elu+1-none", 1): [8, 6, 5, 4.5, 4.2, 3.5],
        ("elu+1-none", 2): [8, 6, 5, 4.5, 4.2, 4.1],
        ("elu+1-rope-after", 0): [8, 5, 4.0, 4.2, 3.8, 3.7],  # 40
        ("elu+1-rope-after", 1): [8, 5, 4.0, 3.9, 3.8, 3.4],  # 100
        ("elu+1-rope-after", 2): [8, 4.1, 4.0, 3.9, 3.8, 3.7],  # 20
    }
    root = make_comparison(tmp_path, PAIR, loss=lambda name, seed, step: losses[name, seed][step // 20])
    summary = summary_of(root)
    steps = summary.loc["elu+1-rope-after", "steps_to_baseline"]
    assert (steps["n"], steps["reached"], steps["unit"]) == (3, 3, "steps")
    assert steps["mean"] == pytest.approx(160 / 3)
    assert summary.loc["elu+1-rope-after", "tokens_to_baseline"]["mean"] == pytest.approx(64 * 160 / 3)
    assert summary.loc["elu+1-none", "steps_to_baseline"]["mean"] == 100
    assert summary.loc["elu+1-none", "validation_bits_per_byte"]["mean"] == pytest.approx((4.0 + 3.5 + 4.1) / 3)


def test_a_seed_that_never_reaches_the_baseline_is_counted_and_leaves_no_mean(make_comparison, tmp_path):
    root = make_comparison(tmp_path, PAIR, loss=lambda name, seed, step: 3.0 if name == "elu+1-none" else 4.0 - seed)
    row = row_of(root, "elu+1-rope-after", "steps_to_baseline")
    assert (row["n"], row["reached"], math.isnan(row["mean"])) == (3, 2, True)


def test_failed_runs_are_counted_and_named_and_never_averaged(make_comparison, tmp_path):
    fates = {("elu+1-rope-after", 1): ("failed", "the loss was not finite at step 40")}
    root = make_comparison(tmp_path, PAIR, fates=fates, loss=lambda name, seed, step: 3.0 + 100 * (seed == 1))
    row = row_of(root, "elu+1-rope-after", "test_bits_per_byte")
    assert (row["n"], row["planned"], row["failed"], row["seeds"], row["mean"]) == (2, 3, 1, "0 2", 3.5)
    assert row["reasons"] == "seed 1: the loss was not finite at step 40"
    assert math.isnan(row["low"])
    assert row_of(root, "elu+1-none", "test_bits_per_byte")["n"] == 3


@pytest.mark.parametrize("failed", PAIR.split(","))
def test_a_failure_leaves_its_seed_out_of_every_comparison_with_the_baseline(make_comparison, tmp_path, failed):
    summary = summary_of(make_comparison(tmp_path, PAIR, fates={(failed, 0): ("failed", "why")}))
    for metric in ("test_bits_per_byte_minus_baseline", "steps_to_baseline", "tokens_to_baseline"):
        row = summary.loc["elu+1-rope-after", metric]
        assert (row["n"], row["seeds"]) == (2, "1 2")


def test_a_run_without_a_test_figure_does_not_count_as_finished(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "elu+1-none")
    metrics = root / "elu+1-none" / "seed2" / "metrics.jsonl"
    rows = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(row for row in rows if '"test"' not in row))
    row = row_of(root, "elu+1-none", "test_bits_per_byte")
    assert (row["n"], row["failed"], row["unfinished"]) == (2, 0, 1)
    assert "no test figure" in row["reasons"]


def test_throughput_is_the_median_of_a_run_s_records_and_the_position_table_is_counted_apart(make_comparison, tmp_path):
    summary = summary_of(make_comparison(tmp_path, "elu+1-none,elu+1-learned"))
    row = summary.loc["elu+1-none", "tokens_per_second"]
    assert (row["n"], row["mean"], row["std"]) == (3, 1070.0, 10.0)  # at steps 20 to 100: 1000 + 10 · seed + step
    means = summary["mean"].unstack("metric")[["parameters", "position_parameters"]]
    assert means.T.to_dict("list") == {"elu+1-none": [1000, 0], "elu+1-learned": [1064, 64]}


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
