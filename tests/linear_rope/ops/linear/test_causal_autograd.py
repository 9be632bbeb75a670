"""Gradients of causal attention: by finite differences, of other orders and transforms, and undisturbed by other calls.

That they are those of the reference is in test_linear_attention.py.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention, linear_attention
from linear_rope.features import Features
from tests.linear_rope.tensors import (
    AUTO_OR_TRITON,
    HEADS,
    MAPS,
    SETTINGS,
    TOLERANCES,
    D,
    Learned,
    M,
    assert_identical,
    assert_near,
    outputs_and_gradients,
    random,
    random_qkv,
    slow_positions,
    some_padding,
    take,
)

BY_KIND = pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])


def leaves(batch: int, length: int, seed: int = 0) -> list[Tensor]:
    return [x.requires_grad_() for x in random_qkv(batch, HEADS, length, seed=seed)]


@pytest.mark.parametrize("length", [1, 70])
def test_gradients_are_those_of_finite_differences(exact_map: FeatureMap, length: int) -> None:
    """Central differences with steps of 1e-6 are off by 1e-12 times third derivatives, and by rounding of 1e-16 / 1e-6;
    both are multiplied by sums over 70·M terms."""
    for rope, denominator in SETTINGS:
        options = dict(rope=rope, denominator=denominator, causal=True, key_padding_mask=some_padding(2, length))
        options["positions"] = slow_positions(length) if denominator == "rotated" else None

        def attend(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor, options: dict[str, Any] = options) -> Tensor:
            return linear_attention(q, k, v, feature_map=exact_map, **options)

        inputs = (*leaves(2, length), *exact_map.parameters())
        assert torch.autograd.gradcheck(attend, inputs, fast_mode=True, atol=1e-6, rtol=1e-5), (rope, denominator)


@pytest.mark.parametrize("norm", [12.0, 40.0])
def test_the_small_number_of_favor_has_the_derivative_of_what_it_adds(norm: float, form: str) -> None:
    """At default settings: what is added to a feature is a share of the largest one, which depends on the input too.

    Taken for a constant, it makes a share of the gradient wrong that grows with the norm.
    """
    q, k, v = random_qkv(1, HEADS, 9)
    q, k = (norm * x / x.norm(dim=-1, keepdim=True) for x in (q, k))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, feature_map=FavorPlus(D, 6).double(), causal=True, implementation=form)

    inputs = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True, atol=1e-6, rtol=1e-5)


def test_second_derivatives_are_right_or_refused(exact_map: FeatureMap, form: str) -> None:
    """Also for a loss that is linear in the output, whose gradient would come back as if it were a constant."""
    qkv = leaves(1, 5)

    def attend(*qkv: Tensor) -> Tensor:
        return linear_attention(*qkv, feature_map=exact_map, causal=True, implementation=form)

    if form in ("chunked", "native"):
        (grad,) = torch.autograd.grad(attend(*qkv).sum(), qkv[:1], create_graph=True)
        with pytest.raises(RuntimeError, match='implementation="reference"'):
            torch.autograd.grad(grad.sum(), qkv[0])
    else:
        assert torch.autograd.gradgradcheck(attend, qkv, fast_mode=True, atol=1e-5)


# What vmap has no rule for it does one by one, and PyTorch's forward-mode derivatives are written in TorchScript.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning", "ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("form", AUTO_OR_TRITON)
@BY_KIND
def test_function_transforms_equal_autograd(name: str, form: str, rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, length = take(form, monkeypatch), 70 if form == "auto" else 9
    options: dict[str, Any] = dict(feature_map=MAPS[name](0.0).to(dtype), rope=rope, causal=True)
    pairs = [[x.to(dtype) for x in random_qkv(2, HEADS, length, seed=seed)] for seed in range(2)]
    upstream = random(*pairs[0][0].shape, seed=99).to(dtype)
    expected = [outputs_and_gradients(pair, **options)[1] for pair in pairs]

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (linear_attention(q, k, v, **options) * upstream).sum()

    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*map(torch.stack, zip(*pairs, strict=True)))
    assert_near(torch.cat([x.flatten(1).double() for x in each], dim=1), torch.stack(expected), TOLERANCES[dtype])
    for implementation in ("chunked", "reference"):
        options["implementation"] = implementation
        _, along = torch.func.jvp(loss, tuple(pairs[0]), tuple(pairs[1]))
        of_gradient = torch.cat([x.flatten() for x in pairs[1]]).double() @ expected[0]
        assert_near(along.double(), of_gradient, 10 * TOLERANCES[dtype])


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("native", ["0", "1"])
def test_the_way_from_the_module_to_the_product_is_short(
    native: str, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most six functions of the library, in four files of ops/linear/, so that it can be read."""
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", native)
    module, ways = LinearRoPEAttention(8, 2, causal=True, decay="gate"), []

    def note(frame: FrameType | None, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in ("bmm", "byref"):  # the latter calls the kernel
            way = []
            while frame is not None:
                file = Path(frame.f_code.co_filename)
                if "linear_rope" in file.parts and "tests" not in file.parts:
                    way.append((file.parent.name, file.name, frame.f_code.co_name))
                frame = frame.f_back
            ways.append(way)

    with torch.set_grad_enabled(gradients):
        sys.setprofile(note)
        try:
            module(torch.zeros(1, 70, 8))
        finally:
            sys.setprofile(None)
    assert ways[0][-1][1:] == ("multi_head.py", "forward")
    assert len(ways[0]) <= 6, ways[0]
    assert len({file for folder, file, _ in ways[0] if folder == "linear"}) <= 4


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("decay", ["none", "gate"])
@pytest.mark.parametrize("name", ["favor+", "elu+1"])
@pytest.mark.parametrize("form", AUTO_OR_TRITON)
def test_an_ensemble_of_modules_goes_through_vmap(
    form: str, name: str, decay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with features of its own, outputs and gradients."""
    dtype = take(form, monkeypatch)
    options: dict[str, Any] = dict(causal=True, feature_map=name, decay=decay)
    modules = [LinearRoPEAttention(8, 2, seed=i, **options).to(dtype) for i in range(3)]
    x = random(2, 70 if form == "auto" else 9, 8).to(dtype)
    parameters, buffers = torch.func.stack_module_state(modules)  # type: ignore[arg-type]

    def loss(parameters: Any, buffers: Any) -> tuple[Tensor, Tensor]:
        y = torch.func.functional_call(modules[0], (parameters, buffers), (x,))
        return y.square().sum(), y

    for native in ("0", "1") if form == "auto" else ("1",):
        monkeypatch.setenv("LINEAR_ROPE_NATIVE", native)
        gradients, outputs = torch.func.vmap(torch.func.grad(loss, has_aux=True))(parameters, buffers)
        for index, module in enumerate(modules):
            y = module(x)
            expected = torch.autograd.grad(y.square().sum(), list(module.parameters()))
            found = [outputs[index], *(x[index] for x in gradients.values())]
            assert_near(found, [y, *expected], TOLERANCES[dtype])


@BY_KIND
def test_other_calls_change_neither_results_nor_pending_backward_passes(name: str) -> None:
    """Also of another length or dtype, without gradients, and after a backward pass of the same call."""
    feature_map, qkv, others = MAPS[name](0.0), leaves(2, 100), [leaves(2, 100, seed=1), leaves(1, 300, seed=2)]
    others.append([x.detach().float().requires_grad_() for x in others[0]])
    for rope, denominator in SETTINGS:
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True)
        expected = outputs_and_gradients(qkv, **options)
        output = linear_attention(*qkv, **options)
        for other in others:
            linear_attention(*other, **options).sum().backward()
            with torch.no_grad():
                linear_attention(*other, **options)
            found = torch.autograd.grad(output, qkv, random(*output.shape, seed=99), retain_graph=True)
            assert_identical([output.flatten(), torch.cat([x.flatten() for x in found])], expected[:2])


@BY_KIND
def test_threads_do_not_disturb_each_other(name: str) -> None:
    """Bit for bit what each call gives alone."""
    options: dict[str, Any] = dict(feature_map=MAPS[name](0.0), causal=True)
    calls = [random_qkv(2, HEADS, 100, seed=seed) for seed in range(2)] * 8
    alone = [outputs_and_gradients(qkv, **options) for qkv in calls[:2]] * 8
    with ThreadPoolExecutor(2) as pool:
        assert_identical(list(pool.map(lambda qkv: outputs_and_gradients(qkv, **options), calls)), alone)


@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_a_redraw_leaves_pending_backward_passes_their_features(rope: str) -> None:
    feature_map, draws = FavorPlus(D, M), [leaves(2, 70, seed=seed) for seed in range(2)]
    separate, outputs = [], []
    options: dict[str, Any] = dict(feature_map=feature_map, rope=rope, causal=True)
    for draw, qkv in enumerate(draws):
        feature_map.redraw(draw)
        separate.append(outputs_and_gradients(qkv, **options)[1])
        outputs.append(linear_attention(*qkv, **options))
    for output, qkv, expected in zip(outputs, draws, separate, strict=True):
        found = torch.autograd.grad(output, qkv, random(*output.shape, seed=99))
        assert_identical(torch.cat([x.flatten() for x in found]), expected)


@pytest.mark.parametrize("changed", ["features", "mask"])
def test_changes_in_place_before_the_backward_pass_are_an_error(changed: str) -> None:
    """Gradients of a mixture of old and new would be silently wrong."""
    feature_map, mask = FavorPlus(D, M), torch.zeros(2, 70, dtype=torch.bool)
    output = linear_attention(*leaves(2, 70), feature_map=feature_map, causal=True, key_padding_mask=mask)
    (feature_map.omega if changed == "features" else mask).fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
def test_what_is_kept_for_backward_is_narrower_than_features(rope: str, denominator: str) -> None:
    heads, width, features = 4, 16, 1024
    for length in (550, 2048):
        storages: dict[int, Any] = {}  # whole ones, each once, and alive, so that no address occurs twice

        def pack(x: Tensor, storages: dict[int, Any] = storages) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
            return x

        options = dict(feature_map=FavorPlus(width, features).double(), rope=rope, denominator=denominator, causal=True)
        qkv = [x.requires_grad_() for x in random_qkv(1, heads, length, width=width)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = linear_attention(*qkv, **options)
        assert output.requires_grad
        assert sum(storage.nbytes() for storage in storages.values()) / 8 < features * heads * length / 2


@pytest.mark.parametrize("causal", [True, False])
def test_an_empty_batch_gives_an_empty_output(feature_map: FeatureMap, causal: bool) -> None:
    qkv = leaves(0, 7)
    output = linear_attention(*qkv, feature_map=feature_map, causal=causal)
    assert output.shape == (0, HEADS, 7, D)
    output.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in qkv)


@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_a_hook_on_a_parameter_of_one_s_own_map_fires_once(rope: str) -> None:
    feature_map, calls = Learned(), []

    def double(grad: Tensor) -> Tensor:
        calls.append(grad)
        return grad * 2

    qkv = leaves(1, 1100)
    y = linear_attention(*qkv, feature_map=feature_map, rope=rope, causal=True)
    (expected,) = torch.autograd.grad(y.sum(), feature_map.weight, retain_graph=True)
    feature_map.weight.register_hook(double)
    y.sum().backward()
    assert len(calls) == 1
    assert_near(feature_map.weight.grad, expected * 2)


@pytest.mark.parametrize("rope", ["after", "before"])
def test_positions_have_gradients(form: str, rope: str) -> None:
    qkv, positions = random_qkv(1, HEADS, 9), torch.arange(9.0, dtype=torch.float64).requires_grad_()

    def attend(positions: Tensor) -> Tensor:
        options = dict(feature_map=EluPlusOne(), rope=rope, causal=True, implementation=form)
        return linear_attention(*qkv, positions=positions, **options)

    assert torch.autograd.gradcheck(attend, (positions,), atol=1e-6)


class Recursive(FeatureMap):
    """A user's map that calls attention itself."""

    def features(self, x: Tensor) -> Features:
        mixed = linear_attention(x, x, x, feature_map=EluPlusOne(), rope="none", causal=True)
        return Features(nn.functional.softplus(mixed) + 0.1, None)


def test_a_map_or_a_hook_may_call_attention() -> None:
    qkv = leaves(1, 100)
    options = dict(feature_map=Recursive(), causal=True)
    expected = outputs_and_gradients(qkv, implementation="reference", **options)
    assert_near(outputs_and_gradients(qkv, **options), expected)
    y = linear_attention(*qkv, feature_map=FavorPlus(D, M), causal=True)
    plain = torch.autograd.grad(y.sum(), qkv, retain_graph=True)
    for x in qkv:
        x.register_hook(lambda grad: grad + 0 * linear_attention(*qkv, feature_map=FavorPlus(D, M), causal=True).sum())
    assert_identical(torch.autograd.grad(y.sum(), qkv), plain)


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_attention_is_right_in_two_threads() -> None:
    feature_map = FavorPlus(D, M)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, feature_map=feature_map, causal=True)

    traced = torch.jit.trace(attend, tuple(random_qkv(2, HEADS, 100)), check_trace=False)
    inputs = [random_qkv(2, HEADS, 100, seed=seed) for seed in range(2)] * 20
    with ThreadPoolExecutor(2) as pool:
        for found, qkv in zip(pool.map(lambda qkv: traced(*qkv), inputs), inputs, strict=True):
            assert_near(found, attend(*qkv))


def test_gradients_can_be_batched() -> None:
    qkv = leaves(1, 9)
    y = linear_attention(*qkv, feature_map=FavorPlus(D, M).double(), causal=True)
    upstream = random(3, *y.shape, seed=99)
    batched = torch.autograd.grad(y, qkv, upstream, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, qkv, each, retain_graph=True) for each in upstream]
    assert_near(batched, [torch.stack(parts) for parts in zip(*one_by_one, strict=True)])
