"""Verdicts on recall and copying, from made-up accuracies: a task that nobody learnt compares nothing."""

import json
import math

import pytest

from experiments import copying, recall
from experiments.claims import evaluate
from experiments.curves import read_curves
from experiments.record import read_metrics
from experiments.references import NARROW_ARMS
from experiments.report import read_comparison

SPREAD = (-0.01, 0.0, 0.01, 0.005, -0.005)


@pytest.fixture
def judge(tmp_path, make_comparison):
    """Rows by key, of an experiment whose arms have these accuracies, with a spread over five seeds."""

    def rows(experiment, accuracies, otherwise):
        arms = (*experiment.VARIANTS, *([NARROW_ARMS] if experiment is recall else []))
        root = make_comparison(tmp_path / "made-up", ",".join(arms), len(SPREAD))
        for path in root.glob("*/*/metrics.jsonl"):
            arm, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed"))
            shift = SPREAD[seed] if arm in accuracies else SPREAD[-seed]
            accuracy = min(1.0, accuracies.get(arm, otherwise) + shift)
            path.write_text("".join(json.dumps(row | {"accuracy": accuracy}) + "\n" for row in read_metrics(path)))
        comparison = read_comparison(root)
        curves = read_curves(root, comparison)
        found = evaluate(experiment.CLAIMS, root, comparison, curves, reference="made-up", command="run")
        return {row.claim.key: row for row in found}

    return rows


def test_recall_that_only_softmax_has_learnt(judge):
    found = judge(recall, {"softmax-rope": 1.0, "favor+-none": 0.5}, otherwise=0.25)
    assert found["softmax-rope-solves"].verdict == "supported"
    assert found["softmax-learned-solves"].verdict == "not supported"
    assert {row.verdict for key, row in found.items() if key.endswith("-behind")} == {"supported"}
    assert found["favor+-rope-before-helps"].verdict == "not supported"
    assert found["elu+1-rope-before-helps"].verdict == "inconclusive"
    assert found["elu+1-order"].verdict == "inconclusive"
    assert "seed 0: neither has begun to learn the task" in found["elu+1-order"].remark
    assert math.isnan(found["elu+1-order"].p)


def test_recall_that_no_arm_has_learnt_says_nothing_of_any(judge):
    found = judge(recall, {}, otherwise=0.25)
    rest = {row.verdict for key, row in found.items() if not key.endswith("-solves")}
    assert rest == {"inconclusive"}
    assert "softmax-rope has not learnt the task (" in found["elu+1-none-behind"].remark


def test_an_arm_that_recalls_more(judge):
    found = judge(recall, {"softmax-rope": 1.0, "elu+1-rope-after": 0.9, "relu-rope-after": 1.0}, otherwise=0.25)
    assert found["elu+1-order"].verdict == found["elu+1-rope-after-helps"].verdict == "supported"
    assert found["relu-rope-after-behind"].verdict == "not supported"


def test_recall_by_width(judge):
    wide = {"softmax-learned": 1.0, "elu+1-none": 0.9, "favor+-none": 0.6}
    found = judge(recall, wide | {"softmax-rope@dim=32": 1.0, "favor+-none@dim=32": 0.7}, otherwise=0.25)
    solves = {key: row.verdict for key, row in found.items() if key.endswith("-solves")}
    assert solves == {
        "softmax-learned-solves": "supported",
        "softmax-rope-solves": "not supported",
        "softmax-learned@dim=32-solves": "not supported",
        "softmax-rope@dim=32-solves": "supported",
    }
    verdicts = {key: row.verdict for key, row in found.items() if key.endswith("-width")}
    known = {"elu+1-none-width": "supported", "favor+-none-width": "not supported"}
    assert verdicts == dict.fromkeys(verdicts, "inconclusive") | known
    assert len(verdicts) == 6


def test_copying_is_compared_with_softmax_attention_that_copies(judge):
    found = judge(copying, {"softmax-rope": 1.0, "elu+1-rope-after": 1.0}, otherwise=0.1)
    as_well = {arm: found[f"{arm}-copies-as-well"].verdict for arm in ("elu+1-rope-after", "favor+-rope-after")}
    assert found["softmax-rope-copies"].verdict == as_well["elu+1-rope-after"] == "supported"
    assert found["softmax-learned-copies"].verdict == as_well["favor+-rope-after"] == "not supported"
    assert found["elu+1-order"].verdict == "supported"
    assert found["favor+-order"].verdict == "inconclusive"
    assert found["elu+1-learned-copies-as-well"].verdict == "inconclusive"
    assert "softmax-learned has not learnt the task" in found["elu+1-learned-copies-as-well"].remark
