"""Verdicts on recall and copying, from made-up accuracies: a task that nobody learnt compares nothing."""

import json
import math
import shutil
import statistics

import pytest
from scipy import stats

from experiments.judge.claims import claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import REFERENCES, declared_claims
from experiments.judge.verdicts import evaluate
from experiments.records.record import read_comparison
from experiments.studies.registry import STUDIES
from tests.made_up import metrics_rows

RECALL, COPYING = STUDIES["recall"], STUDIES["copying"]

ALL_OF_RECALL = REFERENCES["recall"].options.removeprefix("--variants ")
SPREAD = (-0.01, 0.0, 0.01, 0.005, -0.005)


@pytest.fixture
def judge(tmp_path, make_comparison):
    """Rows by key, of a study whose variants have these accuracies: one with a spread over five seeds, or a
    tuple.
    """

    def rows(study, accuracies, otherwise, seeds=5, damage=lambda root: None, **other):
        variants = ALL_OF_RECALL if study is RECALL else ",".join(study.variants)
        root = make_comparison(tmp_path / f"made-up-{len([*tmp_path.iterdir()])}", variants, seeds, **other)
        for path in root.glob("*/*/metrics.jsonl"):
            variant, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed"))
            given = accuracies.get(variant, otherwise)
            shift = SPREAD[seed] if variant in accuracies else SPREAD[-seed]
            accuracy = given[seed] if isinstance(given, tuple) else min(1.0, given + shift)
            path.write_text("".join(json.dumps(row | {"accuracy": accuracy}) + "\n" for row in metrics_rows(path)))
        damage(root)
        comparison = read_comparison(root)
        curves = read_curves(root, comparison)
        declared = declared_claims(claims_of(study), study.name, study.name)
        found = evaluate(declared, root, comparison, curves, reference="made-up")
        return {row.claim.key: row for row in found}

    return rows


def test_recall_that_only_softmax_has_learnt(judge):
    found = judge(RECALL, {"softmax-rope": 1.0, "favor+-none": 0.5}, otherwise=0.25)
    assert found["softmax-rope-solves"].verdict == "supported"
    assert found["softmax-learned-solves"].verdict == "not supported"
    assert {row.verdict for key, row in found.items() if key.endswith("-behind")} == {"supported"}
    assert found["favor+-rope-before-helps"].verdict == "not supported"
    assert found["elu+1-rope-before-helps"].verdict == found["elu+1-order"].verdict == "inconclusive"
    assert "seed 0: neither has begun to learn the task" in found["elu+1-order"].remark
    assert math.isnan(found["elu+1-order"].p)


def test_copying_is_compared_with_softmax_attention_that_copies(judge):
    found = judge(COPYING, {"softmax-rope": 1.0, "elu+1-rope-after": 1.0}, otherwise=0.1)
    for key, verdict in {
        "softmax-rope-copies": "supported",
        "softmax-learned-copies": "not supported",
        "elu+1-rope-after-copies-as-well": "supported",
        "favor+-rope-after-copies-as-well": "not supported",
        "elu+1-learned-copies-as-well": "inconclusive",
        "elu+1-order": "supported",
        "favor+-order": "inconclusive",
    }.items():
        assert found[key].verdict == verdict, key
    assert "softmax-learned has not learnt the task" in found["elu+1-learned-copies-as-well"].remark


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
    found = judge(RECALL, ALL_OR_NOTHING, otherwise=GUESSES, seeds=3)
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


@pytest.mark.parametrize("whole", [True, False])
def test_without_a_run_of_another_variant_nothing_is_judged(judge, whole):
    def damage(root):
        path = root / "favor+-learned" / "seed2" / "metrics.jsonl"
        kept = [{key: row[key] for key in row if key != "accuracy"} for row in metrics_rows(path)]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        if whole:
            shutil.rmtree(path.parent)

    found = judge(RECALL, ALL_OR_NOTHING, otherwise=GUESSES, seeds=3, damage=damage)
    assert {row.verdict for row in found.values()} == {"not run"}
    assert "it is judged when all variants have finished" in found["softmax-rope-solves"].remark


def test_a_failed_run_of_another_variant_leaves_the_spread_unknown(judge):
    # Without the one seed at which elu+1-learned differs every variant agrees, and softmax-rope would be sure to solve
    # it.
    unreliable = {"softmax-rope": SOLVED, "elu+1-learned": (0.25, 1.0, 1.0)}
    whole = judge(RECALL, unreliable, otherwise=GUESSES, seeds=3)["softmax-rope-solves"]
    fates = {("elu+1-learned", 0): ("failed", "why")}
    found = judge(RECALL, unreliable, otherwise=GUESSES, seeds=3, fates=fates)
    assert {whole.verdict} | {row.verdict for row in found.values()} == {"inconclusive"}
    assert (
        found["softmax-rope-solves"].remark
        == "the spread of all variants is not known, as elu+1-learned failed at seed 0"
    )
    assert "elu+1-learned failed: why" in found["elu+1-learned-behind"].remark
