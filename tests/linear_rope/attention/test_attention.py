"""The attention modules: what they compute, how they go on token by token, how they are saved, and what they refuse."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FavorPlus, LinearRoPEAttention, SoftmaxRoPEAttention, linear_attention

DIM, HEADS = 16, 2
MODULES: dict[str, Callable[..., Any]] = {
    "softmax": lambda **options: SoftmaxRoPEAttention(DIM, HEADS, **options),
    "softmax, no rope": lambda **options: SoftmaxRoPEAttention(DIM, HEADS, rope="none", **options),
    "softmax, alibi": lambda **options: SoftmaxRoPEAttention(DIM, HEADS, rope="none", alibi=True, **options),
    "favor+, after": lambda **options: LinearRoPEAttention(DIM, HEADS, **options),
    "favor+, before": lambda **options: LinearRoPEAttention(DIM, HEADS, rope="before", **options),
    "hyperbolic": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="favor+hyperbolic", **options),
    "paired": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="favor+paired", **options),
    "elu+1, paired": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="elu+1+paired", **options),
    "no denominator": lambda **options: LinearRoPEAttention(DIM, HEADS, denominator="none", **options),
    "elu+1, rotated": lambda **options: LinearRoPEAttention(
        DIM, HEADS, feature_map="elu+1", denominator="rotated", **options
    ),
    "relu": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="relu", **options),
}
LINEAR = [name for name in MODULES if not name.startswith("softmax")]


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return MODULES[name](**options).double()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads_of(projection: nn.Linear, x: Tensor) -> Tensor:
    """(B, N, dim) → (B, H, N, D)."""
    return projection(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.detach().abs().max()))


@pytest.mark.parametrize("rope", ["before", "none"])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax_attention_is_its_formula_with_complex_rotation(causal: bool, rope: str) -> None:
    module = SoftmaxRoPEAttention(DIM, HEADS, rope=rope, causal=causal, rope_base=100.0, bias=True).double()
    x = random(2, 9, DIM)
    positions = torch.stack((torch.arange(9), 3 * torch.arange(9) + 50))
    q, k, v = (heads_of(projection, x) for projection in (module.query, module.key, module.value))
    theta = torch.tensor([100.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    turn = torch.polar(torch.ones(2, 1, 9, 4, dtype=torch.float64), positions[:, None, :, None] * theta)
    if rope == "none":
        turn = torch.ones_like(turn)
    q, k = (torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn for y in (q, k))
    scores = torch.einsum("bhmi,bhni->bhmn", q, k.conj()).real / math.sqrt(8)
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


@pytest.mark.parametrize("name", MODULES)
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
        y = module.out((weights @ heads_of(module.value, seen)).transpose(1, 2).flatten(2))
        assert_near(y, module(held, key_padding_mask=padding))
        if causal:
            assert not weights.triu(1)[..., :50, :].any()
    assert not weights[1, :, :50, 50:].any()


@pytest.mark.parametrize("name", MODULES)
def test_prefill_and_steps_equal_the_whole_sequence(name: str) -> None:
    module, x = make(name, causal=True), random(2, 80, DIM)
    expected = module(x)
    for prompt in (1, 63, 65):
        y, state = module.prefill(x[:, :prompt])
        outputs = [y]
        for index in range(prompt, 80):
            y, state = module.step(x[:, index : index + 1], state)
            outputs.append(y)
        assert_near(torch.cat(outputs, dim=1), expected)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("held", [20.0, math.nan])
def test_steps_after_a_padded_prompt_equal_those_after_its_tokens(held: float, name: str) -> None:
    module, x = make(name, causal=True), random(4, 30, DIM)
    place = torch.arange(20)
    mask = torch.stack((place < 7, place >= 15, place % 3 == 1, place < 0))
    x[:, :20][mask] = held
    y, state = module.prefill(x[:, :20], key_padding_mask=mask)
    steps = []
    for index in range(20, 30):
        step, state = module.step(x[:, index : index + 1], state)
        steps.append(step)
    for row, keep in enumerate(~mask):
        tokens = torch.cat((x[row, :20][keep], x[row, 20:]))[None]
        expected = module(tokens)
        assert_near(y[row][keep], expected[0, :-10])
        assert_near(torch.cat(steps, dim=1)[row], expected[0, -10:])


def size_of(state: Any) -> int:
    """Numbers in all tensors of a nested tuple."""
    return state.numel() if isinstance(state, Tensor) else sum(map(size_of, state or ()))


@pytest.mark.parametrize("name", LINEAR)
def test_the_state_of_linear_attention_does_not_grow(name: str) -> None:
    module, x = make(name, causal=True), random(1, 200, DIM)
    sizes = set()
    for prompt in (1, 10, 199):
        _, state = module.prefill(x[:, :prompt])
        sizes.add(size_of(state))
        _, state = module.step(x[:, :1], state)
        sizes.add(size_of(state))
    assert len(sizes) == 1
    assert size_of(make("softmax", causal=True).prefill(x)[1]) > 2 * 200 * DIM


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("held", ["loud", "inf", "nan"])
def test_padding_has_no_influence_on_outputs_or_weight_gradients(held: str, name: str) -> None:
    place = torch.arange(12)
    mask = torch.stack((place < 4, place >= 8, place % 4 == 2, place < 0))
    upstream = random(4, 12, DIM, seed=1)
    for causal in (True, False):
        module, x = make(name, causal=causal), random(4, 12, DIM)
        padded = x.clone()
        padded[mask] = 20 * x[mask] if held == "loud" else float(held)
        rows = [(x[row, keep], upstream[row, keep]) for row, keep in enumerate(~mask)]
        expected = torch.cat([module(tokens[None])[0] for tokens, _ in rows])
        y = module(padded, key_padding_mask=mask)[~mask]
        assert_near(y, expected)
        weights = list(module.parameters())
        actual_gradients = torch.autograd.grad((y * upstream[~mask]).sum(), weights)
        gradients = torch.autograd.grad((expected * torch.cat([part for _, part in rows])).sum(), weights)
        for actual, wanted in zip(actual_gradients, gradients, strict=True):
            assert_near(actual, wanted)


@pytest.mark.parametrize("name", MODULES)
def test_a_sequence_of_padding_gives_zeros_and_finite_gradients(name: str) -> None:
    for causal in (True, False):
        module, x = make(name, causal=causal), random(2, 6, DIM).requires_grad_()
        mask = torch.tensor([[True], [False]]).expand(2, 6)
        y = module(x, key_padding_mask=mask)
        assert not y[0].any()
        y.square().sum().backward()
        assert x.grad is not None
        assert all(gradient.isfinite().all() for gradient in (x.grad, *(p.grad for p in module.parameters())))
        assert not x.grad[0].any()


@pytest.mark.parametrize("name", MODULES)
def test_state_dict_holds_each_weight_once_and_loads_strictly(name: str) -> None:
    module = make(name, causal=True)
    state = module.state_dict()
    tensors = [value.data_ptr() for value in state.values() if value.numel() > 1]
    assert len(tensors) == len(set(tensors))
    other = MODULES[name](causal=True, **({"seed": 3} if "omega" in str(state.keys()) else {})).double()
    x = random(2, 9, DIM)
    assert (other(x) - module(x)).abs().max() > 1e-3
    other.load_state_dict(copy.deepcopy(state), strict=True)
    torch.testing.assert_close(other(x), module(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", MODULES)
def test_a_deep_copy_is_equal_and_independent(name: str) -> None:
    module, x = make(name), random(2, 9, DIM)
    twin, expected = copy.deepcopy(module), module(x)
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.mul_(2)
    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODULES)
def test_autocast_is_finite_and_close(name: str) -> None:
    """The projections are bfloat16 (8 bits: 0.4 %); features, angles, sums and denominators stay float32."""
    for causal in (True, False):
        module, x = make(name, causal=causal).float(), random(2, 300, DIM).float().requires_grad_()
        expected = module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x)
            assert y.dtype == torch.bfloat16
            prefix, state = module.prefill(x) if causal else (y, None)
            if causal:
                step, _ = module.step(x[:, :1], state)
                assert step.isfinite().all()
        assert_near(prefix.float(), expected, 0.05)
        assert_near(y.float(), expected, 0.05)
        (gradient,) = torch.autograd.grad(y.float().square().sum(), x)
        assert gradient.isfinite().all()


def test_dropout_acts_in_training_only() -> None:
    module, x = make("favor+, after", dropout=0.5), random(1, 5, DIM)
    assert (module(x) == 0).any()
    module.eval()
    assert not (module(x) == 0).any()
    torch.testing.assert_close(module(x), module(x), rtol=0, atol=0)
