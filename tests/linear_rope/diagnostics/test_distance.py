"""Attention by distance, and what rotation does to it in expectation, by their formulas."""

import cmath
import math

import pytest
import torch

from linear_rope import CausalLM, ModelConfig
from linear_rope.diagnostics import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance


def test_the_bound_is_the_definition_s():
    width, base = 8, 100.0
    for distance in (0, 3, 17):
        turns = [cmath.exp(1j * distance * base ** (-2 * i / width)) for i in range(width // 2)]
        expected = sum(abs(sum(turns[: i + 1])) for i in range(width // 2)) * 2 / width
        assert rope_decay_bound(torch.tensor(distance), width, base=base).item() == pytest.approx(expected, rel=1e-12)
    assert rope_decay_bound(torch.tensor([0]), 128).tolist() == [32.5]


def test_the_mask_is_the_mean_cosine():
    expected = (math.cos(5) + math.cos(5 / 10)) / 2
    assert expected_rope_mask(torch.tensor(5), 4, base=100.0).item() == pytest.approx(expected, rel=1e-12)
    assert expected_rope_mask(torch.tensor(0), 64).item() == 1


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_maps_of_positive_attention_are_distributions_over_the_past(attention):
    model = CausalLM(ModelConfig(dim=16, heads=2, layers=3, attention=attention, position="rope-before"))
    maps = attention_maps(model.eval(), torch.arange(12).view(1, 12))
    assert [weights.shape for weights in maps] == [(1, 2, 12, 12)] * 3
    for weights in maps:
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 12))


def test_maps_are_those_of_eval_mode_and_leave_a_model_in_training():
    size = {"dim": 16, "heads": 2, "layers": 2, "num_features": 8, "dropout": 0.5, "redraw_every": 1}
    model, tokens = CausalLM(ModelConfig(**size)).train(), torch.arange(12).view(1, 12)
    found = attention_maps(model, tokens)
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(found, attention_maps(model.eval(), tokens))


def test_weights_are_averaged_by_distance():
    weights = torch.zeros(1, 1, 4, 4)
    weights[0, 0, 2, 2], weights[0, 0, 3, 3] = 1.0, -3.0
    weights[0, 0, 2, 1], weights[0, 0, 3, 2] = 0.5, 0.25
    weights[0, 0, 1, 1] = 100.0  # a query of the first half does not count
    signed, absolute = weight_by_distance(weights)
    assert signed.tolist() == [-1.0, 0.375]
    assert absolute.tolist() == [2.0, 0.375]
