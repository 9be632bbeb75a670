"""The sentence that answers a comparison's question, of made-up records."""

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest

from experiments.report.answer import Findings, answer
from experiments.report.evidence import read_evidence
from experiments.show.words import setting
from experiments.studies.registry import STUDIES
from tests.made_up import DATA, make_record

NONE, AFTER = "favor+-none", "favor+-rope-after"
CLEAR = [-0.299, -0.301, -0.3]


def answered(root, name="convergence"):
    return read_evidence(root / "convergence", STUDIES[name]).answer


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        (CLEAR, "RoPE lowers the loss of FAVOR+ by 0.30 (after its feature map) bits per byte."),
        ([-d for d in CLEAR], "RoPE raises the loss of FAVOR+ by 0.30 (after its feature map) bits per byte."),
        ([-0.3, 0.3, 0.1], "For FAVOR+ RoPE makes no clear difference."),
        ([-0.3, -0.1], "RoPE changed the loss of FAVOR+ by -0.20 bits per byte, with too few seeds for a verdict."),
    ],
)
def test_what_rope_changes_is_said_as_far_as_the_seeds_carry_it(make_reference, differences, said):
    text = answered(make_reference(differences))
    assert text.startswith(said)
    assert re.search(r"FAVOR\+ .* ends lowest, at \d\.\d+ bits per byte", text)


def test_kernels_of_one_answer_are_told_apart(make_comparison, tmp_path):
    gains = {"favor+-rope-after": -0.3, "elu+1-rope-after": 0.3, "relu-rope-after": 0.0, "softmax-rope": -0.5}

    def loss(name, seed, step):
        return 3 + gains.get(name, 0.0) + seed / 1000 * (name in gains) * (-1) ** seed

    variants = "softmax-none,softmax-rope,favor+-none,favor+-rope-after,elu+1-none,elu+1-rope-after"
    fates = {("softmax-rope", 1): ("failed", "why")}
    make_comparison(tmp_path / "convergence", f"{variants},relu-none,relu-rope-after", loss=loss, fates=fates)
    text = answered(tmp_path)
    assert "RoPE lowers the loss of FAVOR+ by 0.30 (after its feature map)" in text
    assert "RoPE raises the loss of elu+1 by 0.30 (after its feature map)" in text
    assert "For relu it makes no clear difference." in text
    assert "RoPE changed the loss of softmax attention by -0.50 bits per byte, with too few seeds" in text
    assert "Softmax attention with RoPE ends lowest, at 3 bits per byte; the best linear variant," in text
    assert text.endswith("(23 of 24 runs have finished; only they count.)")


def test_what_a_decay_changes_is_not_said_to_be_rope_s(make_comparison, tmp_path):
    gated = "elu+1-rope-after@decay=gate@local_conv=4"
    ends = {"elu+1-none": 3.5, "elu+1-rope-after": 3.4, gated: 2.9}
    make_comparison(
        tmp_path / "convergence", ",".join(ends), loss=lambda name, seed, step: ends[name] + seed / 1000 * (-1) ** seed
    )
    text = answered(tmp_path)
    assert text.startswith("RoPE lowers the loss of elu+1 by 0.10 (after its feature map) bits per byte.")
    assert "Elu+1 with RoPE after its feature map, a gate and a local convolution ends lowest" in text


def accuracies(**means):
    """Findings of a study of accuracy: mean by variant; three seeds without spread."""
    comparison = make_record(variants=list(means), seeds=[0, 1, 2], data=[DATA | {"name": "recall-64"}])
    rows = []
    for name, mean in means.items():
        gain = mean - means.get(name.split("-")[0] + "-none", mean)
        for metric, value in (("test_accuracy", mean), ("test_accuracy_minus_baseline", gain)):
            spread = {"low": value - 0.01, "high": value + 0.01, "std": 0.01}
            rows.append({"variant": name, "metric": metric, "n": 3, "mean": value} | spread)
    return Findings(comparison, pd.DataFrame(rows), {}, Path())


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("elu+1-selective-before", "Elu+1 with selective angles before its feature map"),
        ("elu+1-selective-after@decay=gate", "Elu+1 with selective angles after its feature map and a gate"),
        ("softmax-selective", "Softmax attention with selective angles"),
        ("softmax-rope@qk_norm=yes", "Softmax attention with RoPE and normalised queries and keys"),
    ],
)
def test_a_variant_is_named_in_words(make_comparison, tmp_path, variant, words):
    make_comparison(tmp_path / "convergence", variant)
    assert f"{words} ends lowest" in answered(tmp_path)


def test_of_an_accuracy_more_is_better():
    found = accuracies(**{"softmax-none": 0.5, "softmax-rope": 1.0, NONE: 0.4, AFTER: 0.3})
    assert found.comparison.objective.metric == "accuracy"
    assert [variant.name for variant in found.finished] == ["softmax-rope", "softmax-none", NONE, AFTER]
    text = answer(found)
    assert text.startswith("RoPE raises the accuracy of softmax attention by 0.50")
    assert "RoPE lowers the accuracy of FAVOR+ by 0.10 (after its feature map)" in text
    assert "Softmax attention with RoPE ends highest, at 1" in text


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_needs_no_part_of_the_study_but_what_was_run(make_comparison, tmp_path, name):
    """A comparison of two variants, whatever the study asks."""
    root = make_comparison(tmp_path / "convergence", f"{NONE},{AFTER}", experiment=name)
    study = dataclasses.replace(STUDIES[name], measure=lambda *_: [])
    text = read_evidence(root, study).answer
    assert not re.search(r"  |nan|None| ,| \.|\{|\}|of \.", text)
    assert text == "" or text.endswith(".")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"variants": [NONE]}, "one seed, which says little, 6,400 tokens of training"),
        ({"variants": [NONE], "seeds": [0, 1, 2]}, "3 seeds, 6,400 tokens of training"),
        ({"variants": [NONE], "config": {"steps": 50_000}}, "3.2 million tokens"),
        ({"variants": [NONE], "config": {"steps": 500_000}}, "32 million tokens"),
        ({}, "Preset smoke, measured on a processor."),
        ({"machine": {"device": "NVIDIA H200"}}, "Preset smoke, measured on NVIDIA H200."),
    ],
)
def test_the_line_below_says_what_the_numbers_are_of(other, said):
    assert said in setting(make_record(**other))


def test_a_file_of_ones_own_is_named():
    data = {"name": "text", "sha256": "ab", "source": "my.txt", "note": "", "bytes": 1, "splits": {}}
    assert setting(make_record(variants=[NONE], data=[data])).startswith("Test bits per byte on my.txt, ")
