"""Verdicts on recall, from made-up accuracies: the spread of all variants together counts too."""

import json
import math
import shutil
import statistics

import pytest
from scipy import stats

from experiments.judge.claims import claims_of
from experiments.judge.references import REFERENCES
from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from tests.made_up import metrics_rows

RECALL = STUDIES["recall"]

ALL_OF_RECALL = REFERENCES["recall"].options.removeprefix("--variants ")


@pytest.fixture
def judge(tmp_path, make_comparison):
    """Rows by key, of three seeds of all variants of recall: some with these accuracies, the others guess."""

    def rows(accuracies, damage=lambda root: None, **other):
        root = tmp_path / f"made-up-{len([*tmp_path.iterdir()])}"
        make_comparison(root, ALL_OF_RECALL, 3, name="recall", **other)
        for path in root.glob("*/*/metrics.jsonl"):
            variant, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed"))
            accuracy = accuracies.get(variant, GUESSES)[seed]
            path.write_text("".join(json.dumps(row | {"accuracy": accuracy}) + "\n" for row in metrics_rows(path)))
        damage(root)
        return read_rows(root, RECALL).claims

    return rows


GUESSES, SOLVED = (0.25, 0.25, 0.25), (1.0, 1.0, 1.0)
ALL_OR_NOTHING = {
    "softmax-learned": (1.0, 0.25, 1.0),
    "softmax-rope": SOLVED,
    "elu+1-learned": (0.25, 1.0, 1.0),
    "elu+1-rope-before": SOLVED,
    "elu+1-rope-after": GUESSES,
}
"""some variants of recall, three seeds; within two of them accuracies differ, and the others guess"""
RECALLING = len(ALL_OF_RECALL.split(","))
SPREAD_WITHIN = math.sqrt(sum(map(statistics.variance, ALL_OR_NOTHING.values())) / RECALLING)


def test_three_seeds_that_agree_are_judged_by_the_spread_of_all_variants(judge):
    found = judge(ALL_OR_NOTHING)
    solves, order = found["softmax-rope-solves"], found["elu+1-order"]
    half = stats.t.ppf(0.975, 2 * RECALLING) * SPREAD_WITHIN / math.sqrt(3)
    assert (solves.estimate.low, solves.estimate.high) == pytest.approx((1 - half, 1.0))
    assert (order.estimate.mean, order.estimate.high) == pytest.approx((-0.75, -0.75 + half * math.sqrt(2)))
    # Equal accuracies of 256 windows, of an answer each, have a spread of their own, with two degrees of freedom.
    # The larger p counts.
    family = sum(claim.family == "rope" for claim in claims_of(RECALL))
    t = [0.76 * math.sqrt(3) / std for std in (1 / 256, SPREAD_WITHIN * math.sqrt(2))]
    p = max(stats.t.sf(t[0], 2), stats.t.sf(t[1], 2 * RECALLING))
    assert order.p == pytest.approx(family * 2 * p, rel=1e-9)
    assert (solves.verdict, order.verdict) == ("inconclusive", "not supported")


def test_without_a_run_of_another_variant_nothing_is_judged(judge):
    def damage(root):
        shutil.rmtree(root / "favor+-learned" / "seed2")

    found = judge(ALL_OR_NOTHING, damage=damage)
    assert {row.verdict for row in found.values()} == {"not run"}
    assert "it is judged when all variants have finished" in found["softmax-rope-solves"].remark


def test_a_failed_run_of_another_variant_leaves_the_spread_unknown(judge):
    # Without the one seed at which elu+1-learned differs every variant agrees, and softmax-rope would be sure to solve
    # it.
    unreliable = {"softmax-rope": SOLVED, "elu+1-learned": (0.25, 1.0, 1.0)}
    whole = judge(unreliable)["softmax-rope-solves"]
    fates = {("elu+1-learned", 0): ("failed", "why")}
    found = judge(unreliable, fates=fates)
    assert {whole.verdict} | {row.verdict for row in found.values()} == {"inconclusive"}
    assert (
        found["softmax-rope-solves"].remark
        == "the spread of all variants is not known, as elu+1-learned failed at seed 0"
    )
    assert "elu+1-learned failed: why" in found["elu+1-learned-behind"].remark
