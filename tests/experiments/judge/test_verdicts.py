"""From values with known effects to verdicts; and no file that is missing makes one."""

import math
import shutil
from pathlib import Path

import pytest
from scipy import stats

from experiments.cli import main
from experiments.judge.claims import Claim, claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import command
from experiments.judge.samples import Sample, paired_primary
from experiments.judge.verdicts import evaluate
from experiments.records.record import read_comparison
from experiments.report.claims_page import read_sections
from experiments.studies.registry import STUDIES
from tests.made_up import make_record

BASELINE, AFTER, BEFORE = "favor+-none", "favor+-rope-after", "favor+-rope-before"
KEY = f"{AFTER}-loss"
FAMILY = sum(claim.family == "none" for claim in claims_of(STUDIES["convergence"]))
SMALL_NOISE = (0.001, -0.001, 0.0005, -0.0005, 0.0)
"""of mean 0; its t at the margin of 0.01 is 28, so p with four degrees of freedom is 5e-6"""


def rows_of(results):
    """key → row of the reference convergence"""
    sections = read_sections({"convergence": STUDIES["convergence"]}, results)
    return {row.claim.key: row for section in sections for row in section.rows if row.reference == "convergence"}


def shifted(mean, noise=SMALL_NOISE):
    return [mean + each for each in noise]


@pytest.mark.parametrize(
    ("variant", "fate", "verdict", "remark"),
    [
        (AFTER, ("failed", "why"), "inconclusive", f"1 of 5 seeds have no value: seed 3: {AFTER} failed: why"),
        (BASELINE, ("failed", "why"), "inconclusive", f"1 of 5 seeds have no value: seed 3: {BASELINE} failed: why"),
        (AFTER, ("running", None), "not run", "1 of 5 seeds are missing or unfinished"),
    ],
)
def test_a_seed_that_did_not_finish_leaves_no_verdict(make_reference, variant, fate, verdict, remark):
    row = rows_of(make_reference(shifted(-0.3), fates={(variant, 3): fate}))[KEY]
    assert (row.verdict, row.remark, row.estimate.n) == (verdict, remark, 4)
    assert math.isnan(row.p)  # it counts as 1 in Holm's method: fewer values could have a smaller p
    assert (row.data, "100 steps of 64 tokens, context 32, " in row.size) == ("made-up-text", True)


@pytest.mark.parametrize("gone", [f"convergence/{AFTER}/seed2", "convergence"])
def test_what_is_missing_is_not_run_and_the_command_is_told(make_reference, capsys, gone):
    results = make_reference(shifted(-0.3))
    shutil.rmtree(results / gone)
    row = rows_of(results)[KEY]
    assert row.verdict == "not run"
    assert main(["claims", "--results", str(results)]) == 0
    assert command("convergence") in capsys.readouterr().out


@pytest.mark.parametrize(("split", "step"), [("validation", 0), ("train", 60)])
def test_a_finished_seed_that_lacks_a_record_is_not_run(make_reference, split, step):
    results = make_reference(shifted(-0.5))
    path = results / "convergence" / "favor+-rope-after" / "seed1" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lost = f'{{"step": {step}, "tokens": {64 * step}, "split": "{split}"'
    kept = [line for line in lines if not line.startswith(lost)]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept))
    row = rows_of(results)[KEY]
    assert (row.verdict, row.remark) == ("not run", "1 of 5 seeds are missing or unfinished")


def test_the_correction_counts_every_declared_claim(make_reference):
    differences = shifted(-0.01, [0.004, -0.002, 0.001, -0.003, 0.0])
    row = rows_of(make_reference(differences))[KEY]
    p = stats.ttest_1samp(differences, 0, alternative="less").pvalue
    assert FAMILY > 2
    assert row.p == pytest.approx(2 * FAMILY * p, rel=1e-6)
    assert f"n = 5 seeds, adjusted p = {2 * FAMILY * p:.2g}" in row.measured
    assert row.estimate.mean == pytest.approx(-0.01, abs=1e-12)


def judged(values, region, margin, claim=None, **sample):
    """The row of a claim on its own; ``claim`` has more of its fields."""
    found = Sample(dict(enumerate(values)), **{"planned": len(values)} | sample)
    claim = Claim("key", "It is so.", "none found", "amount", region, margin, lambda *_: found, **(claim or {}))
    comparison = make_record(data=[], variants=[], preset="cpu", config={"answers": 100})
    (row,) = evaluate([claim], Path(), comparison, read_curves(Path(), comparison), reference="made-up")
    return row


LARGE_NOISE = [0.3, -0.3, 0.2, -0.2, 0.0]
BELOW, WITHIN = (-math.inf, 0.0), (-0.05, 0.05)
TOO_LITTLE = "it lies in the range, but by less than the smallest amount that matters"


@pytest.mark.parametrize(
    ("region", "values", "verdict", "remark"),
    [
        (BELOW, shifted(-0.3), "supported", ""),
        (BELOW, shifted(0.3), "not supported", ""),
        (BELOW, shifted(0.0), "not supported", ""),
        (BELOW, shifted(-0.2, LARGE_NOISE), "inconclusive", ""),
        (BELOW, shifted(-0.0095), "supported", ""),
        (BELOW, shifted(-0.007), "not supported", TOO_LITTLE),
        (BELOW, [-0.3, -0.3001], "inconclusive", "too few seeds: 2, and 3 are needed"),
        (WITHIN, shifted(-0.025), "supported", ""),
        (WITHIN, shifted(0.1), "not supported", ""),
        (WITHIN, shifted(-0.0475), "not supported", TOO_LITTLE),
    ],
)
def test_the_verdict_follows_the_rule(region, values, verdict, remark):
    row = judged(values, region, 0.01)
    assert (row.verdict, row.remark, row.estimate.n) == (verdict, remark, len(values))


@pytest.mark.parametrize(
    ("values", "verdict", "measured"),
    [
        ([0.05] * 3, "not supported", "+0.050, n = 3 seeds, exact"),
        ([0.2, 0.3, 4.0], "supported", "+1.500 on average (+0.200 to +4.000), n = 3 seeds, exact"),
        ([0.0, 0.0, 3.0], "inconclusive", "+1.000 on average (+0.000 to +3.000), n = 3 seeds, exact"),
        ([0.2, 0.3], "inconclusive", "+0.250 on average (+0.200 to +0.300), n = 2 seeds, exact"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_all_values_of_something_exact_have_to_agree(values, verdict, measured):
    row = judged(values, (0.0, math.inf), 0.1, {"kind": "exact"})
    assert (row.verdict, row.measured) == (verdict, measured)
    assert verdict == "inconclusive" or row.p == 0


def test_equal_values_of_something_measured_decide_nothing():
    row = judged([0.2] * 5, (0.0, math.inf), 0.1)
    assert (row.verdict, row.remark) == ("inconclusive", "all values are equal")
    assert row.measured == "+0.200, n = 5 seeds"


def test_the_resolution_is_the_least_standard_deviation():
    # Accuracies of 100 answers, all at 96 % for three seeds: the error of the mean is 0.01/√3, and t is √3.
    row = judged([0.96] * 3, (0.95, math.inf), 0.02, {"resolution": 0.01})
    assert row.p == pytest.approx(2 * stats.t.sf(3**0.5, 2), rel=1e-6)
    assert row.verdict == "inconclusive"
    half = stats.t.ppf(0.975, 2) * 0.01 / 3**0.5
    assert (row.estimate.low, row.estimate.high) == pytest.approx((0.96 - half, 0.96 + half))
    assert judged([0.96] * 3, (0.5, math.inf), 0.02, {"resolution": 0.01}).verdict == "supported"


@pytest.mark.parametrize(
    ("study", "key", "config", "resolution"),
    [
        ("convergence", "softmax-steps", {"steps": 5, "evaluate_every": 40}, 1),
        ("recall", "elu+1-order", {"context": 256, "test_windows": 10**6}, 1 / (3000 * 16)),
        ("denominator", "relu-spikes", {"steps": 400, "log_every": 5}, 1 / 70),
    ],
)
def test_what_a_value_can_resolve_in_a_comparison(study, key, config, resolution):
    (claim,) = (claim for claim in claims_of(STUDIES[study]) if claim.key == key)
    assert claim.of(make_record(config=config)).resolution == pytest.approx(resolution)


@pytest.mark.parametrize(
    ("outcomes", "p", "verdict", "remark"),
    [
        ([0] * 5, math.nan, "inconclusive", "0 of 5 seeds differed, and a sign test needs 6"),
        ([1] * 5, 2 / 2**5, "inconclusive", "5 of 5 seeds differed, and a sign test needs 6"),
        ([1] * 6 + [0] * 4, 2 / 2**6, "supported", ""),
        ([-1] * 6, 2 / 2**6, "not supported", ""),
        # At least 8 of 9: 1 + 9 of 2^9 ways.
        ([1] * 8 + [-1], 2 * 10 / 2**9, "supported", ""),
        ([1] * 3 + [-1] * 3, 1.0, "inconclusive", ""),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_outcomes_are_judged_by_the_exact_sign_test(outcomes, p, verdict, remark, sign):
    region = (0, math.inf) if sign > 0 else (-math.inf, 0)
    row = judged([sign * outcome for outcome in outcomes], region, 0.1, {"kind": "count"})
    assert row.p == pytest.approx(p, rel=1e-12, nan_ok=True)
    assert (row.verdict, row.remark) == (verdict, remark)
    assert "[" not in row.measured
    assert row.claim.criterion.endswith("; sign test")


def test_what_was_not_measured_on_the_comparison_names_its_own_data():
    row = judged(shifted(0.3), (0.0, math.inf), 0.1, {"data": "N(0, 1) inputs", "size": "one head"})
    assert (row.reference, row.data, row.size) == ("made-up", "N(0, 1) inputs", "one head")
    assert judged(shifted(0.3), (0.0, math.inf), 0.1).size == "preset cpu"
    assert judged([0.5, 0.6], (0.0, math.inf), 0.1, unit_of_sample="draws").remark.startswith("too few draws: 2")
    assert judged([0.5], (0.0, math.inf), 0.1, planned=4).remark == "3 of 4 seeds are missing or unfinished"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"region": (-math.inf, math.inf)}, "region is"),
        ({"region": (math.nan, 1.0)}, "region is"),
        ({"region": (0.0, 1.0), "margin": 0.5}, "margin is 0.5"),
        ({"margin": 0.0}, "margin is 0.0"),
        ({"kind": "count", "region": (0.1, math.inf)}, "region is .*for a count"),
        ({"resolution": math.nan}, "resolution is nan"),
    ],
)
def test_what_cannot_be_judged_is_refused(fields, said):
    given = {"region": (0, math.inf), "margin": 1, "sample": lambda *_: None}
    with pytest.raises(ValueError, match=said):
        Claim("key", "It is so.", "none found", "amount", **given | fields)
    with pytest.raises(ValueError, match=r"values\[1\] is nan; give a finite number"):
        Sample({0: 0.5, 1: math.nan}, planned=2)
    claim = Claim("key", "It is so.", "none found", "amount", **given)
    with pytest.raises(ValueError, match="CLAIMS has a key twice: key"):
        evaluate([claim, claim], Path(), None, None, reference="made-up")


EITHER = {"sample": paired_primary("softmax-rope", "softmax-none"), "resolution": 1e-6}
ALIKE = Claim("alike", "s", "none found", "q", (-0.02, math.inf), 0.01, **EITHER)
BETTER = Claim("better", "s", "none found", "q", (0, math.inf), 0.001, **EITHER)
ACCURACY = {"name": "labels", "metric": "accuracy", "unit": "share", "better": "higher", "vocabulary": 300}


@pytest.mark.parametrize(
    ("ends", "floor", "alike", "better"),
    [
        ((0.80, 0.80), 0.70, "supported", "not supported"),
        ((0.80, 0.80), 0.80, "inconclusive", "inconclusive"),
        ((0.80, 0.80), 0.7999, "inconclusive", "inconclusive"),  # within what three seeds tell
        ((0.81, 0.80), 0.805, "inconclusive", "supported"),
        ((0.80, 0.81), 0.805, "inconclusive", "not supported"),
        ((0.60, 0.81), 0.805, "not supported", "not supported"),  # one has learnt something, and the other not
    ],
)
def test_what_has_learnt_nothing_is_on_a_par_with_nothing(make_comparison, tmp_path, ends, floor, alike, better):
    def accuracy(variant, seed, step):
        # Of the test split 0.5 more is made up.
        return ends[variant == "softmax-none"] - 0.5 + (0.0, 0.0005, -0.0005)[seed]

    variants, other = "softmax-none,softmax-rope", {"objective": ACCURACY, "floors": {"accuracy": floor}}
    root = make_comparison(tmp_path, variants, loss=accuracy, **other)
    comparison = read_comparison(root)
    rows = evaluate([ALIKE, BETTER], root, comparison, read_curves(root, comparison), reference="")
    assert [row.verdict for row in rows] == [alike, better]
    for row in rows:
        assert row.estimate.n == 3, "what was measured is shown all the same"
        assert (f"to know nothing {floor:.3f}" in row.remark) == (row.verdict == "inconclusive")
