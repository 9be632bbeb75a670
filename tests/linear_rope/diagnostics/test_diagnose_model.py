"""Diagnostics of whole models: each layer on its own input, and the model is left as it was."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from linear_rope import Encoder, EncoderDecoder, LinearRoPEAttention, ModelConfig
from linear_rope.diagnostics import diagnose, diagnose_model
from linear_rope.interop.roformer import RoFormerEncoder
from tests.linear_rope.tensors import random


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_every_layer_of_a_model_is_measured_on_its_input(attention):
    config = ModelConfig(dim=16, heads=2, layers=2, num_features=8, attention=attention, position="rope-before")
    model, tokens = Encoder(config).double(), torch.arange(14).view(2, 7)
    mask = torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])
    measured = diagnose_model(model, tokens, key_padding_mask=mask)
    assert list(measured) == ["blocks.0.attention", "blocks.1.attention"]
    block = model.blocks[0]
    normed = block.attention_norm(model.embedding(tokens, torch.arange(7)))
    assert measured["blocks.0.attention"] == diagnose(block.attention, normed, mask)
    packed = diagnose_model(model, tokens[:1], segment_ids=torch.tensor([[0] * 3 + [1] * 4]))["blocks.0.attention"]
    assert packed == diagnose(block.attention, normed[:1], cu_seqlens=torch.tensor([0, 3, 7]))
    assert list(diagnose_model(RoFormerEncoder(config), tokens)) == list(measured)  # it calls with segment_ids=None


def test_cross_attention_of_a_model_is_measured():
    model = EncoderDecoder(ModelConfig(dim=16, heads=2, layers=1, num_features=8))
    measured = diagnose_model(model, torch.arange(9).view(1, 9), torch.arange(5).view(1, 5))
    assert list(measured) == ["encoder.blocks.0.attention", "blocks.0.attention", "blocks.0.cross_attention"]
    attention, x, context = (LinearRoPEAttention(8, 2), *(random(1, n, 8).float() for n in (3, 6)))
    measured = diagnose_model(attention, x, context=context)
    assert measured == {"LinearRoPEAttention": diagnose(attention, x, context=context)}


class Repeating(nn.Module):
    """One attention layer called twice, inside a model of the user's own."""

    def __init__(self):
        super().__init__()
        self.shared = LinearRoPEAttention(8, 2, redraw_every=1, dropout=0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.fails = False
        self.gradients = True

    def forward(self, x):
        self.gradients = torch.is_grad_enabled()
        y = self.shared(self.frozen(self.shared(x=x, key_padding_mask=None)))
        if self.fails:
            raise RuntimeError("after the attention")
        return y


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_called_twice_has_two_entries_and_the_model_is_left_as_it_was(fails):
    model, x = Repeating(), random(1, 5, 8).float()
    model(x)
    model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    generator = torch.get_rng_state()
    measured = diagnose_model(model, x)
    assert list(measured) == ["shared", "shared#2"]
    assert measured["shared"] == diagnose(model.shared, x)
    model.fails = fails
    with pytest.raises(RuntimeError, match="after the attention") if fails else nullcontext():
        diagnose_model(model, x)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert "shared.feature_map._extra_state" in state  # the count of redraws
    assert [module.training for module in model.modules()] == flags
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not model.gradients
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
    model.fails = False
    model.eval()
    assert measured["shared#2"] == diagnose(model.shared, model.shared(x).detach())


def test_dropout_in_a_projection_autocast_and_bfloat16_change_little():
    attention, x = LinearRoPEAttention(16, 2, num_features=8, causal=True), random(1, 8, 16).float()
    expected = diagnose(attention, x)
    # bfloat16 rounds weights, inputs, q and k: each by 2⁻⁹ relative, and the exponentials by a few times as much.
    low = diagnose(attention.bfloat16(), x.bfloat16()).kernel_error
    assert low == pytest.approx(expected.kernel_error, rel=0.05)
    attention = LinearRoPEAttention(16, 2)
    expected = diagnose(attention, x)
    attention.query = nn.Sequential(attention.query, nn.Dropout(0.5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diagnose(attention, x) == expected
