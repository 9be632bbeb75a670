"""The attention modules: what they compute, how they go on token by token, and how they are saved."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FavorPlus, LinearRoPEAttention, SoftmaxRoPEAttention, apply_rope, linear_attention
from tests.linear_rope.tensors import (
    AUTO_OR_TRITON,
    HEADS,
    SCALINGS,
    D,
    Learned,
    Plain,
    assert_identical,
    assert_near,
    in_steps,
    random,
    take,
)

DIM = HEADS * D
SCORES = ("shaw", "transformer-xl", "t5", "tupe", "deberta", "huang")
MODULES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, no rope": {"rope": "none"},
    "softmax, alibi": {"rope": "none", "alibi": True},
    "softmax, yarn": {"rope_scaling": SCALINGS["yarn"]},
    **{f"softmax, {name}": {"rope": "none", "score_positions": name} for name in SCORES},
    "favor+, after": {},
    "favor+, before": {"rope": "before"},
    "favor+, no rope": {"rope": "none"},
    "hyperbolic": {"feature_map": "favor+hyperbolic"},
    "paired": {"feature_map": "favor+paired"},
    "elu+1, paired": {"feature_map": "elu+1+paired"},
    "no denominator": {"denominator": "none"},
    "elu+1, rotated": {"feature_map": "elu+1", "denominator": "rotated"},
    "relu": {"feature_map": "relu"},
    "favor+, after, ntk": {"rope_scaling": SCALINGS["ntk"]},
    "favor+, before, yarn": {"rope": "before", "rope_scaling": SCALINGS["yarn"]},
    "learned": {"feature_map": Learned()},
    "plain": {"feature_map": Plain()},
}

IN_CONTEXT = [name for name, options in MODULES.items() if "score_positions" not in options]
"""those that attend to another sequence too; the formulas of the others are in test_scores.py"""


def make(name: str, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    options = copy.deepcopy(MODULES[name]) | options
    if name.startswith("softmax"):
        return SoftmaxRoPEAttention(DIM, HEADS, **options).double()
    return LinearRoPEAttention(DIM, HEADS, seed=seed, **options).double()


def heads_of(projection: nn.Linear, x: Tensor) -> Tensor:
    """(B, N, dim) → (B, H, N, D)."""
    return projection(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)


@pytest.mark.parametrize("name", [name for name in IN_CONTEXT if name.startswith("softmax")])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax_attention_is_its_formula(causal: bool, name: str) -> None:
    module, x, counted = make(name, causal=causal, rope_base=100.0, bias=True), random(2, 9, DIM), torch.arange(9)
    for positions in (None, 2 * counted, torch.stack((counted, 3 * counted + 50))):
        at = (counted if positions is None else positions).expand(2, -1)
        q, k, v = (heads_of(projection, x) for projection in (module.query, module.key, module.value))
        if module.rope == "before":
            q, k = (apply_rope(y, at, base=100.0, scaling=module.rope_scaling) for y in (q, k))
        scores = q @ k.mT / math.sqrt(D)
        if module.rope_scaling:
            scores = scores * (0.1 * math.log(4) + 1) ** 2  # YaRN's temperature, for a factor of 4
        if module.alibi:
            distance = (at[:, None, :, None] - at[:, None, None, :]).abs()
            scores = scores - torch.tensor([2**-4, 2**-8])[:, None, None] * distance
        if causal:
            scores = scores.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
        expected = module.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        assert_near(module(x, positions=positions), expected)
        assert_near(module.attention_weights(x, positions=positions), scores.softmax(-1))


@pytest.mark.parametrize("causal", [True, False])
def test_linear_attention_module_is_the_function_between_projections(causal: bool) -> None:
    options: dict[str, Any] = {"rope": "before", "denominator": "none", "causal": causal, "rope_base": 50.0}
    module = LinearRoPEAttention(DIM, HEADS, head_dim=6, num_features=10, seed=5, bias=True, **options).double()
    x = random(2, 70, DIM)
    q, k, v = (heads_of(projection, x) for projection in (module.query, module.key, module.value))
    y = linear_attention(q, k, v, feature_map=FavorPlus(6, 10, seed=5), implementation="reference", **options)
    assert_near(module(x), module.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("name", IN_CONTEXT)
def test_cross_attention_reads_the_context(name: str) -> None:
    module, x, context = make(name), random(2, 5, DIM), random(2, 9, DIM, seed=1)
    y = module(x, context)
    assert y.shape == x.shape
    for changed in (2 * context, context[:, :8]):
        assert (module(x, changed) - y).abs().max() > 1e-3
    padded, mask = torch.cat((context, 5 * x), dim=1), torch.arange(14).expand(2, -1) >= 9
    assert_near(module(x, padded, key_padding_mask=mask), y)
    # A query sees the context only, not the other queries.
    assert_near(module(x[:, 2:], context, positions=(torch.arange(2, 5), torch.arange(9))), y[:, 2:])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_weights_reproduce_the_output(causal: bool, name: str) -> None:
    module, x = make(name, causal=causal), random(2, 70, DIM)
    mask = torch.arange(70).expand(2, -1) >= torch.tensor([[70], [50]])
    for held, padding in ((x, None), (x.masked_fill(mask[..., None], math.nan), mask)):
        weights = module.attention_weights(held, key_padding_mask=padding)
        assert weights.shape == (2, HEADS, 70, 70)
        seen = x if padding is None else x.masked_fill(padding[..., None], 0)
        y = weights @ heads_of(module.value, seen)
        if name == "softmax, shaw":  # adds to the values by distance, with the same weights
            counted = torch.arange(70) if padding is None else ((~padding).cumsum(-1) - 1).clamp(min=0)[:, None]
            y = y + module.score_positions.values(weights, counted, counted)
        y = module.out(y.transpose(1, 2).flatten(2))
        assert_near(y, module(held, key_padding_mask=padding))
        if causal:
            assert not weights.triu(1)[..., :50, :].any()
    assert not weights[1, :, :50, 50:].any()


def gradients(y: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    upstream, options = random(*y.shape, seed=99), {"allow_unused": True, "materialize_grads": True}
    return list(torch.autograd.grad(y, wanted, upstream, retain_graph=True, **options))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_prefill_and_steps_equal_the_whole_sequence(name: str, grad: bool) -> None:
    module, x = make(name, causal=True), random(2, 67, DIM).requires_grad_()
    with torch.set_grad_enabled(grad):
        expected = module(x)
        for prompt in (1, 63, 65):
            actual = in_steps(module, x, prompt)
            assert_near(actual, expected)
            if grad:
                assert_near(*(gradients(y, [x, *module.parameters()]) for y in (actual, expected)))


@pytest.mark.parametrize("name", MODULES)
def test_no_sequences_give_none(name: str) -> None:
    module, x = make(name, causal=True), random(0, 5, DIM)
    assert module(x).shape == in_steps(module, x, 3).shape == (0, 5, DIM)
    module(x).sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in module.parameters())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("feature_map", ["favor+", "elu+1"])
def test_steps_follow_a_long_prompt(feature_map: str, grad: bool) -> None:
    """Longer, and with more features, than what an implementation works on at a time."""
    features = 512 if feature_map == "favor+" else None
    module = make("favor+, after", feature_map=feature_map, num_features=features, causal=True)
    x, mask = random(2, 1103, DIM), torch.arange(1103) % torch.tensor([[2000], [3]]) == 1
    mask[:, 1100:] = False
    with torch.set_grad_enabled(grad):
        assert_near(in_steps(module, x, 1100, mask[:, :1100]), module(x, key_padding_mask=mask))


def test_dropout_of_a_model_in_evaluation_can_be_switched_on() -> None:
    """As for Monte Carlo dropout."""
    attention, x = LinearRoPEAttention(8, 2, dropout=0.5).eval(), random(1, 5, 8).float()
    assert torch.equal(attention(x), attention(x))
    attention.dropout.train()
    assert not torch.equal(attention(x), attention(x))


def test_a_state_of_another_denominator_is_refused() -> None:
    with_sums, without = (LinearRoPEAttention(8, 2, causal=True, denominator=each) for each in ("unrotated", "none"))
    x = random(1, 5, 8).float()
    for module, other in ((with_sums, without), (without, with_sums)):
        _, state = other.prefill(x)
        with pytest.raises(ValueError, match="that of an attention with another denominator"):
            module.step(x[:, :1], state)


def tensors_in(state: Any) -> list[Tensor]:
    """Those of a nested tuple."""
    return [state] if isinstance(state, Tensor) else [x for part in state or () for x in tensors_in(part)]


@pytest.mark.parametrize("name", MODULES)
def test_the_state_of_linear_attention_does_not_grow_and_is_float32_or_better(name: str) -> None:
    module, x = make(name, causal=True).bfloat16(), random(1, 200, DIM).bfloat16()
    states = [module.prefill(x[:, :prompt])[1] for prompt in (1, 10, 199)]
    states += [module.step(x[:, :1], state)[1] for state in states]
    sizes = {sum(tensor.numel() for tensor in tensors_in(state)) for state in states}
    dtypes = {tensor.dtype for tensor in tensors_in(states)}
    linear = isinstance(module, LinearRoPEAttention)
    assert (len(sizes) == 1) == linear
    assert not linear or dtypes == {torch.float32, torch.int64}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("held", ["loud", "inf", "nan"])
def test_padding_has_no_influence_on_outputs_steps_or_weight_gradients(held: str, name: str) -> None:
    place = torch.arange(15)
    mask = torch.stack((place < 4, (place >= 8) & (place < 12), place % 4 == 2, place < 0))
    mask[:, 12:] = False
    for causal in (True, False):
        module, x = make(name, causal=causal), random(4, 15, DIM)
        padded = x.clone()
        padded[mask] = 20 * x[mask] if held == "loud" else float(held)
        expected = torch.cat([module(x[row : row + 1, keep])[0] for row, keep in enumerate(~mask)])
        outputs = [module(padded, key_padding_mask=mask)]
        outputs += [in_steps(module, padded, 12, mask[:, :12])] if causal else []
        for y in outputs:
            assert_near(y[~mask], expected)
            assert_near(*(gradients(z, list(module.parameters())) for z in (y[~mask], expected)))


@pytest.mark.parametrize("name", MODULES)
def test_a_sequence_of_padding_gives_zeros_and_finite_gradients(name: str) -> None:
    for causal in (True, False):
        module, x = make(name, causal=causal), random(2, 6, DIM).requires_grad_()
        y = module(x, key_padding_mask=torch.tensor([[True], [False]]).expand(2, 6))
        assert not y[0].any()
        found = gradients(y, [x, *module.parameters()])
        assert all(gradient.isfinite().all() for gradient in found)
        assert not found[0][0].any()


@pytest.mark.parametrize("name", MODULES)
def test_state_dicts_hold_each_weight_once_and_load_strictly_and_copies_are_independent(name: str) -> None:
    module, other, x = make(name), make(name, seed=3), random(2, 9, DIM)
    state, expected = module.state_dict(), module(x)
    tensors = [value.data_ptr() for value in state.values() if value.numel() > 1]
    assert len(tensors) == len(set(tensors))
    assert (other(x) - expected).abs().max() > 1e-3
    other.load_state_dict(copy.deepcopy(state), strict=True)
    twin = copy.deepcopy(module)
    for same in (other, twin):
        assert_identical(same(x), expected)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.mul_(2)
    assert_identical(module(x), expected)


@pytest.mark.parametrize("form", AUTO_OR_TRITON)
@pytest.mark.parametrize("name", MODULES)
def test_autocast_is_finite_and_close(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The projections are bfloat16 (8 bits: 0.4 %); features, angles, sums and denominators stay float32."""
    take(form, monkeypatch)
    for causal in (True, False):
        module, x = make(name, causal=causal).float(), random(2, 130, DIM).float().requires_grad_()
        expected = module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = [module(x), *([in_steps(module, x, 129)] if causal else [])]
        for y in outputs:
            assert y.dtype == torch.bfloat16
            assert_near(y.float(), expected, 0.05)
        assert torch.autograd.grad(outputs[0].float().square().sum(), x)[0].isfinite().all()


def test_dropout_acts_in_training_only() -> None:
    module, x = make("favor+, after", dropout=0.5), random(1, 5, DIM)
    assert (module(x) == 0).any()
    module.eval()
    assert not (module(x) == 0).any()
    assert_identical(module(x), module(x))
