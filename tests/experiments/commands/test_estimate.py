"""How long runs are estimated to take: which variants are measured, and which are taken to be as fast as another."""

import torch

from experiments.commands import estimate
from experiments.presets import get_preset
from experiments.variants import parse_variants

ROPE = "softmax-rope"


def test_only_variants_that_differ_in_nothing_but_their_learning_rate_are_taken_to_be_as_fast(monkeypatch, next_byte):
    measured = []

    def measure(variant, config, objective, device):
        measured.append(variant.name)
        return float(len(measured))

    monkeypatch.setattr(estimate, "_estimated_seconds", measure)
    config = get_preset("smoke").config
    others = [f"{ROPE}@{s}" for s in ("decay=gate", "decay=gate@local_conv=4", "dim=64", "qk_norm=yes")]
    rates = [f"{name}@learning_rate=0.1" for name in (ROPE, *others)]
    variants = parse_variants(",".join([ROPE, *others, *rates]))
    found = estimate.estimated_seconds(variants, config, next_byte(config), torch.device("cpu"))
    assert measured == [ROPE, *others]
    assert [found[name] for name in rates] == [found[name] for name in (ROPE, *others)]
    assert len({*found.values()}) == len(others) + 1
