"""Golden losses: 20 training steps of every variant give the losses that golden_losses.json holds.

After a change that is meant to move them, and after an update of PyTorch or NumPy whose random numbers are others, the
file is written anew, from the root of the repository, by

    PYTHONPATH=. python tests/experiments/train/test_golden.py

With names of variants behind it writes those alone: a new kernel has no losses on record until then.
"""

import itertools
import json
import platform
import re
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.studies.registry import STUDIES
from experiments.train import loop as train
from experiments.train.objectives import NextByte
from experiments.variants import VARIANTS, get_variant
from linear_rope import kernels
from tests.made_up import metrics_rows
from tests.training import train_run

GOLDEN = Path(__file__).with_name("golden_losses.json")
PACKAGES = ("torch", "numpy", "performer-pytorch")

# The context is more than the 64 of a chunk, so that a state is carried on. At the default learning rate, attention is
# still so even after 20 steps that positions hardly move a loss.
CONFIG = Config(
    **{"layers": 1, "dim": 64, "heads": 2, "num_features": 16, "context": 70, "batch_size": 2, "steps": 20},
    **{"learning_rate": 3e-3, "warmup_steps": 4, "log_every": 1, "evaluate_every": 20, "checkpoint_every": 20},
    **{"evaluation_windows": 3, "test_windows": 3},
)
MODERN = replace(CONFIG, optimizer="muon", schedule="trapezoid", initial_spread=0.9)

TOLERANCE = 4e-5
"""How far a loss, in nats or bits per byte, may be off.

Other processors sum in another order and so round otherwise. What that grows to in 20 steps was measured: with every
initial weight multiplied by 1 + 2^-23 or 1 - 2^-23, about a unit in the last place of float32, for three draws of the
signs, the losses of a variant move by its ``moved_by_rounding`` in the file, at most a tenth of this tolerance.
Any two variants are at least four tolerances apart, but those of softmax attention and of its second-order Taylor
series, which are the same while scores are small.
"""
NORMALISED = ("retention", "delta")
"""Kernels without a denominator: the first token's output is its value times a product that may be next to zero, and
is divided by its root mean square, so rounding can turn it round. Their tolerance is ten times what that was measured
to move."""
SENSITIVE = ("softmax-t5",)
"""Likewise: gradients of biases that hardly matter are next to zero, and Adam divides them by their own size."""
OF_EITHER_KERNEL = (
    *(f"{kernel}-rope-{place}" for kernel in ("favor+", "elu+1", "relu") for place in ("before", "after")),
    *("favor+hyperbolic-rope-after", "elu+1+paired-rope-after", "elu+1-selective-after"),
    *("elu+1-alibi", "favor+-alibi"),
)
WITH_SETTINGS = (
    "softmax-rope@decay=fixed",
    "softmax-rope@decay=gate@local_conv=4",
    "elu+1-rope-after@decay=fixed",
    "elu+1-rope-after@decay=gate@local_conv=4",
    "elu+1-rope-after@decay=gate@short_conv=4",
    "elu+1-selective-after@decay=gate",
    "favor+-rope-before@decay=gate",
    "retention-rope-after@decay=retnet",
    "delta-rope-after@decay=gate",
    "delta-none@decay=channel",
    "favor+-rope-after@qk_norm=yes",
    "softmax-rope@output_norm=yes@output_gate=yes",
    "elu+1-rope-after@denominator=none@output_norm=yes",
    "elu+1-rope-after@kv_heads=1",
    "elu+1-rope-after@rope_fraction=0.5",
    "hybrid-3to1-rope@layers=4",
    "elu+1-rope-after@denominator=abs",
)
WITH_MUON = "softmax-rope, muon", "elu+1-rope-after@decay=fixed, muon"
"""in the recipe of language models"""
ALONE = [name for name, variant in VARIANTS.items() if not variant.pattern]
ALL = {name: get_variant(name.removesuffix(", muon")) for name in (*ALONE, *WITH_SETTINGS, *WITH_MUON)}
RECORDED = {name: ALL[name] for name in json.loads(GOLDEN.read_text())["losses"]}
NEW = {ALL[name].kernel for name in ALL.keys() - RECORDED} - {variant.kernel for variant in RECORDED.values()}
QUICK = {
    *OF_EITHER_KERNEL,
    *WITH_MUON,
    "elu+1-rope-after@decay=fixed",
    "elu+1-rope-after@decay=gate@local_conv=4",
    *STUDIES["convergence"].variants,
}
ALIKE = (
    {"softmax-rope", "softmax-xpos"},
    {"softmax-t5", "softmax-huang"},
    {"hedgehog-none", "hedgehog-rope-before"},
)
"""Two tolerances apart: over 70 positions xPos decays little, few of the distances were seen often, and what Hedgehog
rotates before its map hardly shows while its features are nearly even."""


def made_text() -> bytes:
    """Words drawn by a linear congruential generator, so that no library's random numbers are in it."""
    words = (b"the ", b"linear ", b"attention ", b"rotates ", b"by an ", b"angle.\n")
    state, text = 1, []
    for _ in range(3000):
        state = (1103515245 * state + 12345) % 2**31
        text.append(words[state // 65536 % len(words)])
    return b"".join(text)


def train_variant(variant, directory):
    """The losses of a run: of every step in nats per byte, of the evaluations in bits per byte."""
    corpus = corpus_of_text("text", made_text(), "made by the test", "")
    task = NextByte(corpus, CONFIG.context, CONFIG.batch_size)
    config = ALL[variant].config(MODERN if variant in WITH_MUON else CONFIG)
    train_run(directory, ALL[variant], 0, config, task)
    losses = {"validation": [], "train": [], "test": []}
    for row in metrics_rows(directory / "metrics.jsonl"):
        losses[row["split"]].append(row["loss"] if row["split"] == "train" else row["bits_per_byte"])
    return losses


def differences(losses, others):
    """(size, split, index) of every difference."""
    return [
        (abs(a - b), split, index)
        for split in losses
        for index, (a, b) in enumerate(zip(losses[split], others[split], strict=True))
    ]


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    "variant", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECORDED]
)
def test_twenty_steps_give_the_losses_on_record(golden, tmp_path, variant):
    check(golden, tmp_path, variant)


@pytest.mark.parametrize("variant", OF_EITHER_KERNEL)
def test_the_chunked_form_gives_the_losses_of_the_native_kernel(golden, tmp_path, variant, monkeypatch):
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")
    check(golden, tmp_path, variant)


def check(golden, tmp_path, variant):
    made, expected = train_variant(variant, tmp_path), golden["losses"][variant]
    assert [len(made[split]) for split in ("validation", "train", "test")] == [2, 20, 1]
    tolerance = tolerance_of(golden, variant)
    off = [found for found in differences(made, expected) if found[0] > tolerance]
    versions = f"made with {golden['versions']}, here {versions_here()}"
    assert not off, f"the first of {len(off)} that are off by more than {tolerance}: {off[0]}; {versions}"


def test_the_tolerance_is_far_above_rounding_and_far_below_what_a_variant_changes(golden):
    assert golden["losses"].keys() == golden["moved_by_rounding"].keys()
    assert {name for name in ALL if ALL[name].kernel not in NEW} == set(RECORDED)
    moved = golden["moved_by_rounding"].items()
    steady = {name for name in RECORDED if RECORDED[name].kernel not in NORMALISED and name not in SENSITIVE}
    assert 10 * max(by for variant, by in moved if variant in steady) <= TOLERANCE
    for variant, other in itertools.combinations(RECORDED, 2):
        if {RECORDED[variant].kernel, RECORDED[other].kernel} == {"softmax", "taylor"}:
            continue
        apart, _, _ = max(differences(golden["losses"][variant], golden["losses"][other]))
        tolerances = 2 if {variant, other} in ALIKE else 4
        assert apart >= tolerances * max(tolerance_of(golden, variant), tolerance_of(golden, other)), (variant, other)


def test_the_record_says_which_kernel_made_its_losses(golden):
    assert golden["versions"].keys() == versions_here().keys()


def tolerance_of(golden, variant):
    return max(TOLERANCE, 10 * golden["moved_by_rounding"][variant])


def versions_here():
    packages = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **packages, "native kernel": kernels()["native"]}


def moved_by_rounding(variant, losses):
    """How far the losses move if every weight of the model begins a unit in the last place off."""
    build, moved = train.build_model, []

    def build_off(*arguments):
        model = build(*arguments)
        for weight in model.parameters():
            signs = 2 * torch.randint(2, weight.shape, generator=generator) - 1
            weight.data = (weight.data.double() * (1 + 2.0**-23 * signs)).float()
        return model

    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "build_model", build_off)
            moved += differences(losses, train_variant(variant, Path(directory)))
    return max(moved)[0]


def write_golden_losses(names):
    """Those of ``names``; of all variants if there are none."""
    record = {"made by": "PYTHONPATH=. python tests/experiments/train/test_golden.py", "versions": versions_here()}
    there = json.loads(GOLDEN.read_text())
    losses, moved = (there["losses"], there["moved_by_rounding"]) if names else ({}, {})
    for variant in names or ALL:
        with tempfile.TemporaryDirectory() as directory:
            made = train_variant(variant, Path(directory))
        losses[variant] = {split: [round(x, 7) for x in xs] for split, xs in made.items()}
        moved[variant] = float(f"{moved_by_rounding(variant, made):.1e}")
        print(f"{variant}: moved by rounding {moved[variant]:.1e}", flush=True)
    record |= {"moved_by_rounding": moved, "losses": losses}
    # Every list on one line, so that a diff shows what moved.
    text = re.sub(r"\[[^\]]*\]", lambda found: json.dumps(json.loads(found.group())), json.dumps(record, indent=2))
    GOLDEN.write_text(text + "\n")


if __name__ == "__main__":
    write_golden_losses(sys.argv[1:])
