"""The kernels besides FAVOR+, elu+1 and relu: what they compute, padding, causality, and decoding token by token."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from linear_rope import LinearRoPEAttention, apply_rope
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.features import Hedgehog, Taylor
from tests.linear_rope.tensors import (
    FORMS,
    HEADS,
    D,
    assert_near,
    assert_refused,
    in_steps,
    outputs_and_gradients,
    random,
    random_qkv,
    some_padding,
)

DIM = HEADS * D
KERNELS: dict[str, Any] = {
    "hedgehog": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="hedgehog", causal=True, **options),
    "taylor": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="taylor", causal=True, **options),
    "retention": lambda **options: Retention(DIM, HEADS, causal=True, **options),
    "delta": lambda **options: GatedDelta(DIM, HEADS, **options),
    "favor+window": lambda **options: WindowedFavor(DIM, HEADS, window=5, num_features=6, **options),
}
MODULES = {name: (name, {}) for name in KERNELS}
MODULES |= {f"{name}, no rope": (name, {"rope": "none"}) for name in KERNELS}
MODULES |= {f"{name}, normalised": (name, {"qk_norm": True, "short_conv": 4}) for name in KERNELS}
# Without it the gains cancel in the norm of the heads' outputs, and their gradients are rounding.
MODULES["retention, normalised"] = ("retention", {"qk_norm": True, "short_conv": 4, "activation": "silu"})
MODULES |= {f"{name}, no decay": (name, {"decay": "none"}) for name in ("retention", "delta")}
MODULES |= {
    f"retention, {rope} silu": ("retention", {"activation": "silu", "rope": rope}) for rope in ("after", "before")
}
MODULES |= {f"{name}, gate": (name, {"decay": "gate"}) for name in ("hedgehog", "taylor", "retention", "favor+window")}
MODULES |= {f"{name}, before": (name, {"rope": "before"}) for name in ("hedgehog", "taylor")}
MODULES |= {
    f"{name}, all else": (name, {"rope_angles": "selective", "local_conv": 3, "short_conv": 4}) for name in KERNELS
}


def make(name: str) -> Any:
    kernel, options = MODULES[name]
    torch.manual_seed(0)
    module = KERNELS[kernel](**options).double()
    with torch.no_grad():
        for parameter in module.parameters():  # also those that begin with zeros
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


def gradients(y: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(y, wanted, random(*y.shape, seed=99), materialize_grads=True, allow_unused=True))


@pytest.mark.parametrize("name", MODULES)
def test_prefill_and_steps_equal_the_whole_sequence(name: str) -> None:
    module = make(name)
    # Steps are equal to each other, and slow: many of them after short prompts, few around the end of a chunk.
    for length, prompts in ((20, (1, 4)), (67, (63, 65))):
        x = random(2, length, DIM).requires_grad_()
        expected = module(x)
        found = gradients(expected, [x, *module.parameters()])
        for prompt in prompts:
            actual = in_steps(module, x, prompt)
            assert_near([actual, *gradients(actual, [x, *module.parameters()])], [expected, *found])


@pytest.mark.parametrize("name", MODULES)
def test_padding_has_no_influence(name: str) -> None:
    module, x = make(name), random(2, 30, DIM)
    padding = torch.zeros(2, 45, dtype=torch.bool)
    padding[:, [0, 1, 2, 9, 10, 20, *range(30, 36), 42, 43, 44]] = True
    padded = torch.full((2, 45, DIM), 1e3, dtype=torch.float64)
    padded[~padding] = x.flatten(0, 1)
    expected = module(x)
    assert_near(module(padded, key_padding_mask=padding)[~padding].view_as(x), expected)
    y, state = module.prefill(padded[:, :40], padding[:, :40])
    assert_near(y[~padding[:, :40]].view(2, -1, DIM), expected[:, : int((~padding[0, :40]).sum())])
    following = random(2, 1, DIM, seed=7)
    whole = module(torch.cat((x[:, : int((~padding[0, :40]).sum())], following), dim=1))
    assert_near(module.step(following, state)[0], whole[:, -1:])


@pytest.mark.parametrize("kernel", KERNELS)
def test_decoding_carries_on_after_beams_change_places(kernel: str) -> None:
    module, x, order = make(f"{kernel}, all else"), random(3, 12, DIM), torch.tensor([2, 0, 0])
    _, state = module.prefill(x[:, :11])
    beams = tree_map(lambda part: None if part is None else part[order], state)
    assert_near(module.step(x[order, 11:], beams)[0], module(x)[order, 11:])


@pytest.mark.parametrize("gate", ["none", "gate"])
def test_the_state_of_a_window_with_another_decay_is_refused(gate: str) -> None:
    module, x = KERNELS["favor+window"](decay=gate), torch.zeros(1, 9, DIM)
    _, state = KERNELS["favor+window"](decay="gate" if gate == "none" else "none").prefill(x)
    assert_refused(lambda: module.step(x[:, :1], state), ["state", "decay"])


@pytest.mark.parametrize("name", MODULES)
def test_the_prefix_of_the_output_is_the_output_of_the_prefix(name: str) -> None:
    module, x = make(name), random(2, 67, DIM)
    whole = module(x)
    for length in (1, 17, 64):
        assert_near(module(x[:, :length]), whole[:, :length])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_are_finite_at_large_norms(name: str, dtype: torch.dtype) -> None:
    module = make(name).to(dtype)
    norm = 150 if name == "taylor" else 3e3  # beyond, it is refused: features/test_taylor.py
    x = (random(2, 70, DIM) * norm).to(dtype).requires_grad_()
    y = module(x)
    assert y.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(y, [x, *module.parameters()]))


def test_taylor_features_are_the_exponential_up_to_its_second_power() -> None:
    for width in (3, 4):
        q, k = random(5, width), random(7, width, seed=1)
        score = q @ k.T / math.sqrt(width)
        feature_map = Taylor(width)
        assert feature_map(q).shape == (5, feature_map.count(width))
        assert feature_map.count(width) % 2 == 0
        assert_near(feature_map(q) @ feature_map(k).T, 1 + score + score**2 / 2)


def test_hedgehog_features_are_exponentials_of_both_signs() -> None:
    feature_map, x = Hedgehog(4, eps=0.0).double(), random(5, 4)
    with torch.no_grad():
        feature_map.weight.copy_(random(4, 4, seed=1))
    projected = x + x @ feature_map.weight.T
    assert_near(feature_map(x), torch.cat((projected.exp(), (-projected).exp()), dim=-1))


@pytest.mark.parametrize("name", ["retention", "retention, after silu", "retention, normalised"])
def test_retention_is_its_formula(name: str) -> None:
    module, x = make(name), random(2, 33, DIM)
    projected = module.project(x, x)
    positions = torch.arange(33)
    q, k = (each if name == "retention" else each * each.sigmoid() for each in (projected.q, projected.k))
    q, k = (apply_rope(each, positions) for each in (q, k))
    behind = positions.unsqueeze(-1) - positions
    kept = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    fading = torch.where(behind >= 0, kept.view(-1, 1, 1) ** behind.clamp(min=0), 0)
    y = F.rms_norm((q @ k.mT * fading) @ projected.v, (D,), eps=1e-6)
    assert_near(module(x), module.out(y.transpose(1, 2).flatten(2)))


def fading_of(module: Any, x: Tensor) -> Tensor:
    """Π a_t of the tokens after key n up to query m, (B, H, N, N), zero above the diagonal."""
    sums = module.decay(x).cumsum(-1)
    between = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    return between.exp().tril()


@pytest.mark.parametrize("rope", ["after", "none"])
def test_the_gated_delta_rule_is_its_formula(rope: str) -> None:
    module, x = make("delta" if rope == "after" else "delta, no rope"), random(2, 70, DIM)
    q, k, v = (part(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for part in (module.query, module.key, module.value))
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    if rope == "after":
        q, k = (apply_rope(each, torch.arange(70)) for each in (q, k))
    rate, kept = module.rate(x).sigmoid(), module.decay(x).exp()
    memory, outputs = torch.zeros(2, HEADS, D, D, dtype=x.dtype), []
    for t in range(70):
        memory = memory * kept[:, :, t, None, None]
        old = torch.einsum("bhde,bhd->bhe", memory, k[:, :, t])
        told = (v[:, :, t] - old) * rate[:, t, :, None]
        memory = memory + torch.einsum("bhd,bhe->bhde", k[:, :, t], told)
        outputs.append(torch.einsum("bhde,bhd->bhe", memory, q[:, :, t]))
    y = F.rms_norm(torch.stack(outputs, dim=1), (D,), eps=1e-6)
    assert_near(module(x), module.out(y.flatten(2)))


@pytest.mark.parametrize("name", ["favor+window", "favor+window, no rope", "favor+window, gate"])
def test_a_window_with_the_remainder_of_favor_is_its_formula(name: str) -> None:
    module, x = make(name), random(2, 33, DIM)
    q, k, v = (part(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for part in (module.query, module.key, module.value))
    if "no rope" not in name:
        q, k = (apply_rope(each, torch.arange(33)) for each in (q, k))
    behind = torch.arange(33).unsqueeze(-1) - torch.arange(33)
    exact, estimated = (q @ k.mT / math.sqrt(D)).exp(), module.feature_map(q) @ module.feature_map(k).mT
    weights = torch.where(behind < 5, exact, estimated).tril()
    if "gate" in name:
        weights = weights * fading_of(module, x)
    y = weights @ v / weights.sum(-1, keepdim=True)
    assert_near(module(x), module.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("make_map", [Hedgehog, Taylor])
def test_other_maps_have_the_quadratic_reference_s_values_and_gradients(make_map: Any, rope: str) -> None:
    feature_map = make_map(4).double()
    with torch.no_grad():
        for parameter in feature_map.parameters():
            parameter.copy_(random(*parameter.shape, seed=5) / 2)
    for length, causal in ((1, True), (17, True), (70, True), (17, False)):
        options = dict(feature_map=feature_map, rope=rope, causal=causal, key_padding_mask=some_padding(2, length))
        qkv = random_qkv(2, HEADS, length, width=4)
        expected = outputs_and_gradients(qkv, implementation="reference", **options)
        for form in FORMS:
            if causal or form != "recurrent":
                assert_near(outputs_and_gradients(qkv, implementation=form, **options), expected)


def test_the_delta_rule_recalls_what_it_was_told_last() -> None:
    """With β = 1 and no decay, the value under a key is the last one: reading with that key gives it back."""
    module = GatedDelta(DIM, HEADS, rope="none", decay="none").double()
    x = random(1, 6, DIM)
    projected = module.project(x, x)
    key = projected.k[:, :, :1].expand_as(projected.k)
    told = projected._replace(q=key, k=key, rate=torch.ones_like(projected.rate))
    assert_near(module._attend(told, None, None), projected.v)


@pytest.mark.parametrize("kernel", [GatedDelta, WindowedFavor])
def test_what_goes_from_token_to_token_is_causal(kernel: type) -> None:
    with pytest.raises(ValueError, match="give causal=True"):
        kernel(DIM, HEADS, causal=False)
