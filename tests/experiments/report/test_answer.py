"""The sentence that answers a comparison's question, of made-up records."""

import re

import pytest

from experiments.show.rows import read_rows
from experiments.show.words import answer, in_words, setting
from experiments.studies.registry import STUDIES
from tests.made_up import make_record

NONE, AFTER = "favor+-none", "favor+-rope-after"


def test_what_rope_changes_is_said_of_each_kernel_with_its_interval(make_comparison, tmp_path):
    gains = {"favor+-rope-after": -0.3, "favor+-rope-before": -0.1, "elu+1-rope-after": 0.3, "softmax-rope": -0.5}
    gains |= {"elu+1-rope-after@decay=gate@local_conv=4": -0.4}

    def loss(name, seed, step):
        return 3 + gains.get(name, 0.0) + seed / 1000 * (name in gains) * (-1) ** seed

    variants = ",".join(["softmax-none", "favor+-none", "elu+1-none", *gains])
    fates = {("softmax-rope", 1): ("failed", "why")}
    root = make_comparison(tmp_path / "convergence", variants, loss=loss, fates=fates)
    assert answer(read_rows(root, STUDIES["convergence"])) == (
        "RoPE changes the test bits per byte by -0.300 [-0.303, -0.296] for FAVOR+ (after its feature map), +0.300 "
        "[+0.297, +0.304] for elu+1 (after its feature map) and -0.499 for softmax attention. Softmax attention with "
        "RoPE ends lowest, at 3 bits per byte; the best linear variant, elu+1 with RoPE after its feature map, a gate "
        "and a local convolution, has 3.1 bits per byte. (23 of 24 runs have finished; only they count.)"
    )


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("elu+1-selective-before", "elu+1 with selective angles before its feature map"),
        ("elu+1-selective-after@decay=gate", "elu+1 with selective angles after its feature map and a gate"),
        ("softmax-selective", "softmax attention with selective angles"),
        ("softmax-rope@qk_norm=yes", "softmax attention with RoPE and normalised queries and keys"),
    ],
)
def test_a_variant_is_named_in_words(variant, words):
    assert in_words(*make_record(variants=[variant]).variants) == words


@pytest.fixture(scope="module")
def two(make_comparison, tmp_path_factory):
    return make_comparison(tmp_path_factory.mktemp("two"), f"{NONE},{AFTER}")


@pytest.mark.parametrize("name", STUDIES)
def test_an_answer_needs_no_part_of_the_study_but_what_was_run(two, name):
    """A comparison of two variants, whatever the study asks."""
    text = answer(read_rows(two, STUDIES[name]))
    assert not re.search(r"  |nan|None| ,| \.|\{|\}|of \.", text)
    assert text == "" or text.endswith(".")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"variants": [NONE]}, "one seed, which says little, 6,400 tokens of training"),
        ({"variants": [NONE], "seeds": [0, 1, 2]}, "3 seeds, 6,400 tokens of training"),
        ({"variants": [NONE], "config": {"steps": 50_000}}, "3.2 million tokens"),
        ({"variants": [NONE], "config": {"steps": 500_000}}, "32 million tokens"),
        ({"variants": [NONE], "config": {"optimizer": "adamw", "initial_spread": 0}}, "std 0.02 (version 0)."),
        (
            {"variants": [NONE], "config": {"optimizer": "muon", "initial_spread": 0.9}},
            "recipe muon, cosine, spread 0.9.",
        ),
        ({}, "Preset smoke, measured on a processor."),
        ({"machine": {"device": "NVIDIA H200"}}, "Preset smoke, measured on NVIDIA H200."),
    ],
)
def test_the_line_below_says_what_the_numbers_are_of(other, said):
    assert said in setting(make_record(**other))
