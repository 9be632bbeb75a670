"""performer-pytorch's own models, upgraded in place: their function, and what they leak of the future and padding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FavorPlus, linear_attention
from tests.linear_rope.interop.performers import (
    BOTH,
    DIM,
    EITHER,
    HEADS,
    LENGTH,
    ROUNDING,
    D,
    attention,
    language_model,
    random,
    rotations,
    text,
)
from tests.linear_rope.tensors import assert_near

pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")

from performer_pytorch import CrossAttention
from performer_pytorch.performer_pytorch import apply_rotary_pos_emb

from linear_rope.interop.performer import upgrade


def output_and_gradients(model: nn.Module, *inputs: Any, **options: Any) -> list[Tensor]:
    model.train().zero_grad()
    output = model(*inputs, **options)
    output.square().mean().backward()
    return [output.detach(), torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])]


MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "odd": {"nb_features": 17},
    "generalized": {"generalized_attention": True, "kernel_fn": nn.Softplus()},
    "local": {"local_attn_heads": 2, "local_window_size": 10},
    "all-local": {"local_attn_heads": (HEADS, 0), "local_window_size": 10},
    "reversible": {"reversible": True},
    "learned": {"rotary_position_emb": False, "tie_embed": True},
    "shifted": {"shift_tokens": True, "use_rezero": True, "ff_glu": True, "ff_chunks": 2},
}


@BOTH
@pytest.mark.parametrize("kind", MODELS)
def test_rope_before_keeps_the_function_and_its_gradients(kind: str, causal: bool) -> None:
    model, tokens = language_model(dominated=causal, causal=causal, **MODELS[kind]), text()
    expected = output_and_gradients(model, tokens)
    assert_near(output_and_gradients(upgrade(model, rope="before"), tokens), expected, ROUNDING)


@BOTH
@pytest.mark.parametrize("rotated", [True, False])
def test_rope_before_keeps_a_module_from_the_largest_key_on(rotated: bool, causal: bool) -> None:
    module, pos_emb = attention(causal=causal), rotations() if rotated else None
    x = random(2, LENGTH, DIM) * torch.linspace(2, 0.5, LENGTH)[:, None]
    start = 0
    if causal:
        k = module.to_k(x).view(2, LENGTH, HEADS, D).transpose(1, 2)
        k = k if pos_emb is None else apply_rotary_pos_emb(k, k, pos_emb)[1]
        start = int((k @ module.fast_attention.projection_matrix.T).amax(-1).argmax(-1).max())
        assert 0 < start < LENGTH - 10
    expected = module(x, pos_emb=pos_emb)
    y = upgrade(module, rope="before")(x, pos_emb=pos_emb)
    assert_near(y[:, start:], expected[:, start:], ROUNDING)
    assert not causal or (y - expected)[:, :start].abs().max() > 100 * ROUNDING


def test_rope_before_keeps_the_gradients_of_queries_and_keys_alone() -> None:
    """They are the smallest, and what ε makes of the maxima is a small part of them."""
    module, x, found = attention(), random(2, LENGTH, DIM), []
    for _ in range(2):
        module.zero_grad()
        module(x).square().mean().backward()
        found.append([layer.weight.grad.clone() for layer in (module.to_q, module.to_k)])
        upgrade(module, rope="before")
    assert_near(found[1], found[0], ROUNDING)


@pytest.mark.parametrize("mask", [None, torch.arange(LENGTH).expand(2, -1) < 30])
def test_rope_before_keeps_cross_attention(mask: Tensor | None) -> None:
    module, x, context = attention(CrossAttention), random(2, 7, DIM), random(2, LENGTH, DIM, seed=1)
    # What the peer has where there is padding it has where it was cut off: it keeps padding in its denominator.
    expected = module(x, context=context if mask is None else context[:, :30])
    upgrade(module, rope="before")
    # The peer's models give pos_emb to these too, and nothing comes of it.
    assert_near(module(x, context=context, context_mask=mask, pos_emb=rotations()), expected, ROUNDING)


@pytest.mark.parametrize("generalized", [False, True])
@BOTH
def test_rope_after_is_eq_19_with_the_same_weights(causal: bool, generalized: bool) -> None:
    module, x = attention(causal=causal, generalized_attention=generalized), random(2, LENGTH, DIM)
    upgrade(module, rope="after")
    q, k, v = (layer(x).view(2, LENGTH, HEADS, D).transpose(1, 2) for layer in (module.to_q, module.to_k, module.to_v))
    features = module.feature_map
    if not generalized:
        features = FavorPlus(D, 16)
        features.omega = module.fast_attention.projection_matrix
    y = linear_attention(q, k, v, feature_map=features, rope="after", causal=causal, implementation="reference")
    assert_near(module(x), module.to_out(y.transpose(1, 2).flatten(2)), ROUNDING)


@torch.no_grad()
def change_of_prefix(module: nn.Module, loudness: float) -> float:
    """How far outputs before position 30 move when what follows grows louder, or is cut off for 0; relatively."""
    x, pos_emb = random(2, LENGTH, DIM), rotations()
    y = module(x, pos_emb=pos_emb)[:, :30]
    if loudness:
        x = torch.cat((x[:, :30], loudness * x[:, 30:]), dim=1)
    else:
        x, pos_emb = x[:, :30], pos_emb[:, :30]
    return float((module(x, pos_emb=pos_emb)[:, :30] - y).abs().max() / y.std())


@EITHER
@pytest.mark.parametrize("generalized", [False, True])
def test_the_future_does_not_reach_the_past_any_more(generalized: bool, rope: str) -> None:
    module = attention(causal=True, generalized_attention=generalized)
    if not generalized:
        assert change_of_prefix(module, 100) > 0.1  # the peer
    upgrade(module, rope=rope)
    assert change_of_prefix(module, 100) < ROUNDING
    assert change_of_prefix(module, 0) < ROUNDING


@EITHER
@BOTH
@pytest.mark.parametrize("generalized", [False, True])
def test_padding_has_no_influence(generalized: bool, causal: bool, rope: str) -> None:
    module, pos_emb = attention(causal=causal, generalized_attention=generalized), rotations()
    upgrade(module, rope=rope)
    with torch.no_grad():  # keys of padding, which are their bias, as large as others
        module.to_k.bias.mul_(8)
    x = random(2, 25, DIM)
    expected = output_and_gradients(module, x, pos_emb=pos_emb[:, :25])
    for padding in (torch.arange(LENGTH) >= 25, torch.arange(LENGTH) < 15, torch.arange(LENGTH) % 8 < 3):
        padded = torch.full((2, LENGTH, DIM), torch.inf)
        padded[:, ~padding] = x
        y = module(padded, pos_emb=pos_emb, mask=~padding.expand(2, -1))[:, ~padding]
        gradients = torch.autograd.grad(y.square().mean(), list(module.parameters()))
        assert_near([y.detach(), torch.cat([x.flatten() for x in gradients])], expected, ROUNDING)


@BOTH
def test_padding_at_the_end_has_no_influence_on_local_heads(causal: bool) -> None:
    module = upgrade(attention(causal=causal, local_heads=2, local_window_size=10))
    x, keep = random(2, LENGTH, DIM), torch.arange(LENGTH).expand(2, -1) < 25
    assert_near(module(x, mask=keep)[:, :25], module(x[:, :25], mask=keep[:, :25]), ROUNDING)
