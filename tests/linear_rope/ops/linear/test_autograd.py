"""Gradients: by finite differences, of other orders and transforms, and undisturbed by other calls.

That they are those of the reference is in test_linear_attention.py. What vmap has no rule for it does one by one, and
PyTorch's forward-mode derivatives are written in TorchScript.
"""

import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from linear_rope import (
    CausalLM,
    EluPlusOne,
    FavorPlus,
    FeatureMap,
    LinearRoPEAttention,
    ModelConfig,
    apply_rope,
    linear_attention,
)
from linear_rope.distributed import linear_attention as distributed_attention
from linear_rope.features import Features
from tests.linear_rope.attention.modules import ALL_NORMED, made
from tests.linear_rope.tensors import (
    AUTO_OR_TRITON,
    FORMS,
    HEADS,
    MAPS,
    SETTINGS,
    TOLERANCES,
    D,
    Learned,
    M,
    assert_identical,
    assert_near,
    assert_refused,
    attended,
    in_steps,
    outputs_and_gradients,
    random,
    random_qkv,
    take,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning"),
]
CAUSAL = pytest.mark.parametrize("causal", [True, False])
BY_KIND = pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])
# Central differences with steps of 1e-6 are off by 1e-12 times third derivatives, and by rounding of 1e-16 / 1e-6; both
# are multiplied by sums over 70·M terms.
CLOSE: dict[str, Any] = {"fast_mode": True, "atol": 1e-6, "rtol": 1e-5}


def leaves(batch: int, length: int, seed: int = 0) -> list[Tensor]:
    return [x.requires_grad_() for x in random_qkv(batch, HEADS, length, seed=seed)]


@pytest.mark.parametrize("norm", [12.0, 40.0])
def test_the_small_number_of_favor_has_the_derivative_of_what_it_adds(norm: float, form: str) -> None:
    """At default settings: what is added to a feature is a share of the largest one, which depends on the input too.

    Taken for a constant, it makes a share of the gradient wrong that grows with the norm.
    """
    q, k, v = random_qkv(1, HEADS, 9)
    q, k = (norm * x / x.norm(dim=-1, keepdim=True) for x in (q, k))

    def attend(*qkv: Tensor) -> Tensor:
        return attended(*qkv, feature_map=FavorPlus(D, 6).double(), causal=True, implementation=form)

    assert torch.autograd.gradcheck(attend, [x.requires_grad_() for x in (q, k, v)], **CLOSE)


@pytest.mark.parametrize("rope", ["after", "before"])
def test_positions_have_gradients(form: str, rope: str) -> None:
    qkv, positions = random_qkv(1, HEADS, 9), torch.arange(9.0, dtype=torch.float64).requires_grad_()
    options: dict[str, Any] = dict(feature_map=EluPlusOne(), rope=rope, causal=True, implementation=form)
    assert torch.autograd.gradcheck(lambda at: attended(*qkv, positions=at, **options), (positions,), **CLOSE)


@BY_KIND
def test_second_derivatives_are_right_or_refused(name: str, form: str) -> None:
    """Also for a loss that is linear in the output, whose gradient would come back as if it were a constant."""
    qkv, feature_map = leaves(1, 5), MAPS[name](0.0)

    def attend(*qkv: Tensor) -> Tensor:
        return attended(*qkv, feature_map=feature_map, causal=True, implementation=form)

    if form in ("chunked", "native"):
        (grad,) = torch.autograd.grad(attend(*qkv).sum(), qkv[:1], create_graph=True)
        with pytest.raises(RuntimeError, match='implementation="reference"'):
            torch.autograd.grad(grad.sum(), qkv[0])
    else:
        assert torch.autograd.gradgradcheck(attend, qkv, fast_mode=True, atol=1e-5)


@pytest.mark.parametrize("form", AUTO_OR_TRITON)
@BY_KIND
def test_function_transforms_equal_autograd(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, length = take(form, monkeypatch), 70 if form == "auto" else 9
    pairs = [[x.to(dtype) for x in random_qkv(2, HEADS, length, seed=seed)] for seed in range(2)]
    upstream = random(*pairs[0][0].shape, seed=99).to(dtype)
    for rope in ("after", "before", "none"):
        options: dict[str, Any] = dict(feature_map=MAPS[name](0.0).to(dtype), rope=rope, causal=True)
        expected = [outputs_and_gradients(pair, **options)[1] for pair in pairs]

        def loss(*qkv: Tensor, options: dict[str, Any] = options) -> Tensor:
            return (attended(*qkv, **options) * upstream).sum()

        each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*map(torch.stack, zip(*pairs, strict=True)))
        assert_near(torch.cat([x.flatten(1).double() for x in each], dim=1), torch.stack(expected), TOLERANCES[dtype])
        for implementation in ("chunked", "reference"):
            options["implementation"] = implementation
            _, along = torch.func.jvp(loss, tuple(pairs[0]), tuple(pairs[1]))
            of_gradient = torch.cat([x.flatten() for x in pairs[1]]).double() @ expected[0]
            assert_near(along.double(), of_gradient, 10 * TOLERANCES[dtype])


@pytest.mark.parametrize("name", ["favor+", "elu+1"])
@pytest.mark.parametrize("form", AUTO_OR_TRITON)
def test_an_ensemble_of_modules_goes_through_vmap(form: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with features of its own, outputs and gradients."""
    dtype = take(form, monkeypatch)
    tokens = random(2, 70 if form == "auto" else 9, 8).to(dtype)
    for decay, native in itertools.product(("none", "gate"), ("0", "1") if form == "auto" else ("1",)):
        monkeypatch.setenv("LINEAR_ROPE_NATIVE", native)
        options: dict[str, Any] = dict(causal=True, feature_map=name, decay=decay)
        modules = [LinearRoPEAttention(8, 2, seed=i, **options).to(dtype) for i in range(3)]
        parameters, buffers = torch.func.stack_module_state(modules)  # type: ignore[arg-type]

        def loss(parameters: Any, buffers: Any, first: nn.Module = modules[0]) -> tuple[Tensor, Tensor]:
            y = torch.func.functional_call(first, (parameters, buffers), (tokens,))
            return y.square().sum(), y

        gradients, outputs = torch.func.vmap(torch.func.grad(loss, has_aux=True))(parameters, buffers)
        for index, module in enumerate(modules):
            y = module(tokens)
            expected = torch.autograd.grad(y.square().sum(), list(module.parameters()))
            found = [outputs[index], *(each[index] for each in gradients.values())]
            assert_near(found, [y, *expected], TOLERANCES[dtype])


@pytest.mark.parametrize("implementation", ["chunked", "auto"])
def test_positions_angles_and_decays_of_each_of_many_calls_go_through_vmap(implementation: str) -> None:
    """Which are one for both sequences of a call, and others in another call; nobody reads their values."""
    q, k, v = random_qkv(2, HEADS, 70)
    several = {
        "positions": torch.arange(70) * torch.tensor([[1], [3], [0]]),
        "angles": random(3, 1, 1, 70, D // 2, seed=91),
        "log_decay": -random(3, 2, HEADS, 70).abs(),
    }
    for name, values in several.items():

        def attend(x: Tensor, name: str = name) -> Tensor:
            options: dict[str, Any] = {name: x, "causal": True, "implementation": implementation}
            return linear_attention(q, k, v, feature_map=EluPlusOne(), **options)

        assert_near(torch.func.vmap(attend)(values), torch.stack([attend(x) for x in values]))
    on_meta = [x.to("meta") for x in (q, k, v, several["log_decay"][0])]
    attended(*on_meta, feature_map=EluPlusOne(), causal=True, implementation=implementation)


def test_gradients_can_be_batched() -> None:
    qkv = leaves(1, 9)
    y = linear_attention(*qkv, feature_map=FavorPlus(D, M).double(), causal=True)
    upstream = random(3, *y.shape, seed=99)
    batched = torch.autograd.grad(y, qkv, upstream, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(y, qkv, each, retain_graph=True) for each in upstream]
    assert_near(batched, [torch.stack(parts) for parts in zip(*one_by_one, strict=True)])


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("native", ["0", "1"])
def test_the_way_from_the_module_to_the_product_is_short(
    native: str, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five functions of the library, with the operator six, in four files of ops/linear/: it can be read."""
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
    assert len(ways[0]) <= 5 + gradients, ways[0]
    assert len({file for folder, file, _ in ways[0] if folder == "linear"}) <= 4


@BY_KIND
def test_other_calls_change_neither_results_nor_pending_backward_passes(name: str) -> None:
    """Also of another length or dtype, without gradients, and after a backward pass of the same call."""
    feature_map, qkv, others = MAPS[name](0.0), leaves(2, 100), [leaves(2, 100, seed=1), leaves(1, 300, seed=2)]
    others.append([x.detach().float().requires_grad_() for x in others[0]])
    for rope, denominator in SETTINGS:
        options: dict[str, Any] = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True)
        expected = outputs_and_gradients(qkv, **options)
        output = attended(*qkv, **options)
        for other in others:
            attended(*other, **options).sum().backward()
            with torch.no_grad():
                attended(*other, **options)
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
        outputs.append(attended(*qkv, **options))
    for output, qkv, expected in zip(outputs, draws, separate, strict=True):
        found = torch.autograd.grad(output, qkv, random(*output.shape, seed=99))
        assert_identical(torch.cat([x.flatten() for x in found]), expected)


@pytest.mark.parametrize("changed", ["features", "mask"])
def test_changes_in_place_before_the_backward_pass_are_an_error(changed: str) -> None:
    """Gradients of a mixture of old and new would be silently wrong."""
    feature_map, mask = FavorPlus(D, M), torch.zeros(2, 70, dtype=torch.bool)
    output = attended(*leaves(2, 70), feature_map=feature_map, causal=True, key_padding_mask=mask)
    (feature_map.omega if changed == "features" else mask).fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize(("rope", "denominator"), [SETTINGS[0], SETTINGS[1], SETTINGS[3]])
def test_what_is_kept_for_backward_is_narrower_than_features(rope: str, denominator: str) -> None:
    heads, width, features, length = 4, 16, 1024, 550
    storages: dict[int, Any] = {}  # whole ones, each once, and alive, so that no address occurs twice

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    options: dict[str, Any] = dict(feature_map=FavorPlus(width, features).double(), rope=rope, denominator=denominator)
    qkv = [x.requires_grad_() for x in random_qkv(1, heads, length, width=width)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        assert attended(*qkv, causal=True, **options).requires_grad
    assert sum(storage.nbytes() for storage in storages.values()) / 8 < features * heads * length / 2


@CAUSAL
@pytest.mark.parametrize("shape", [(0, HEADS, 7, D), (2, 0, 7, D)])
def test_no_sequences_and_no_heads_have_gradients(form: str, shape: tuple[int, ...], causal: bool) -> None:
    qkv = [torch.empty(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for ids in (None, torch.arange(7).expand(shape[0], 7)):
        output = attended(*qkv, feature_map=FavorPlus(D, M), causal=causal, implementation=form, segment_ids=ids)
        assert output.shape == shape
        assert [x.shape for x in torch.autograd.grad(output.sum(), qkv)] == [x.shape for x in qkv]


@CAUSAL
@pytest.mark.parametrize("implementation", [*FORMS[1:], *AUTO_OR_TRITON[1:]])
def test_a_given_gradient_can_lie_anywhere_in_memory(implementation: str, causal: bool) -> None:
    qkv = [x.float().requires_grad_() for x in random_qkv(2, HEADS, 70)]
    output = attended(*qkv, feature_map=FavorPlus(D, M), causal=causal, implementation=implementation)
    x = random(*output.shape, seed=99).float()
    heads_inside = x.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (x.repeat_interleave(2, dim=-1)[..., ::2], heads_inside, x[:, :1, :, :1].expand(x.shape)):
        found, expected = (
            torch.autograd.grad(output, qkv, upstream, retain_graph=True) for upstream in (given, given.contiguous())
        )
        assert_near(found, expected, TOLERANCES[torch.float32])


class Recursive(FeatureMap):
    """A user's map that calls attention itself."""

    def features(self, x: Tensor) -> Features:
        mixed = linear_attention(x, x, x, feature_map=EluPlusOne(), rope="none", causal=True)
        return Features(nn.functional.softplus(mixed) + 0.1, None)


def test_a_map_or_a_hook_may_call_attention_and_a_hook_on_a_parameter_fires_once() -> None:
    qkv, phi = leaves(1, 100), FavorPlus(D, M)
    options: dict[str, Any] = dict(feature_map=Recursive(), causal=True)
    expected = outputs_and_gradients(qkv, implementation="reference", **options)
    assert_near(outputs_and_gradients(qkv, **options), expected)
    y = attended(*qkv, feature_map=phi, causal=True)
    plain = torch.autograd.grad(y.sum(), qkv, retain_graph=True)
    for x in qkv:
        x.register_hook(lambda grad: grad + 0 * attended(*qkv, feature_map=phi, causal=True).sum())
    assert_identical(torch.autograd.grad(y.sum(), qkv), plain)

    learned, calls = Learned(), []
    y = attended(*leaves(1, 1100), feature_map=learned, causal=True)
    (of_weight,) = torch.autograd.grad(y.sum(), learned.weight, retain_graph=True)
    learned.weight.register_hook(lambda grad: calls.append(grad) or grad * 2)  # type: ignore[func-returns-value]
    y.sum().backward()
    assert len(calls) == 1
    assert_near(learned.weight.grad, of_weight * 2)


# Forward mode: derivatives are those of finite differences, or refused by an error that says what to do.
Function = Callable[..., Tensor]
STEP = 1e-5
TOLERANCE = 1e-6
"""of central differences in float64: STEP² times a third derivative, and rounding over STEP"""


def by_differences(function: Function, inputs: list[Tensor], tangents: list[Tensor]) -> Tensor:
    with torch.no_grad():
        ahead, behind = (
            function(*(x + sign * STEP * t for x, t in zip(inputs, tangents, strict=True))) for sign in (1, -1)
        )
    return (ahead - behind) / (2 * STEP)


def with_duals(function: Function, inputs: list[Tensor], tangents: list[Tensor]) -> Tensor:
    with forward_ad.dual_level():
        output = function(*(forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)))
        tangent = forward_ad.unpack_dual(output).tangent
    assert tangent is not None
    return tangent


def with_jvp(function: Function, inputs: list[Tensor], tangents: list[Tensor]) -> Tensor:
    return torch.func.jvp(function, tuple(inputs), tuple(tangents))[1]


def with_jacfwd(function: Function, inputs: list[Tensor], tangents: list[Tensor]) -> Tensor:
    def along(share: Tensor) -> Tensor:
        return function(*(x + share * t for x, t in zip(inputs, tangents, strict=True)))

    return torch.func.jacfwd(along)(torch.zeros((), dtype=torch.float64))


WAYS = (with_duals, with_jvp, with_jacfwd)


def inputs_and_tangents(length: int = 11) -> tuple[list[Tensor], list[Tensor]]:
    """q, k, v and ln a_t."""
    inputs = [*random_qkv(1, HEADS, length), -random(1, HEADS, length, seed=3).abs()]
    return inputs, [random(*x.shape, seed=10 + seed) for seed, x in enumerate(inputs)]


@pytest.mark.parametrize("form", ["auto", "reference", "recurrent"])
@pytest.mark.parametrize("name", ["favor+", "plain"])  # with a scale and without: all else is PyTorch's
def test_forward_mode_of_every_implementation(name: str, form: str) -> None:
    feature_map, (inputs, tangents) = MAPS[name](0.0).double(), inputs_and_tangents()
    for causal, (rope, denominator), count in itertools.product((True, False), SETTINGS[::2], (3, 4)):
        options: dict[str, Any] = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
        options |= {"implementation": form, "positions": torch.arange(11) / 100}

        def attend(*inputs: Tensor, options: dict[str, Any] = options) -> Tensor:
            return attended(*inputs, **options)

        expected = by_differences(attend, inputs[:count], tangents[:count])
        for way in WAYS if form == "auto" else WAYS[:1]:
            assert_near(way(attend, inputs[:count], tangents[:count]), expected, TOLERANCE)


def test_forward_mode_over_more_than_one_block_and_of_positions() -> None:
    inputs, tangents = inputs_and_tangents(1100)

    def attend(*inputs: Tensor) -> Tensor:
        return attended(*inputs, feature_map=MAPS["favor+"](0.0).double(), causal=True)

    assert_near(with_duals(attend, inputs, tangents), by_differences(attend, inputs, tangents), TOLERANCE)
    x, at, tangent = random(1, 5, 4), [torch.arange(5, dtype=torch.float64)], [random(5, seed=1)]
    for way in WAYS:
        expected = by_differences(lambda at: apply_rope(x, at), at, tangent)
        assert_near(way(lambda at: apply_rope(x, at), at, tangent), expected, TOLERANCE)


@pytest.mark.skipif("native" not in FORMS, reason="the native kernel is not built")
@pytest.mark.parametrize("way", WAYS)
def test_the_native_form_is_refused_or_left_to_chunked(way: Callable[..., Tensor]) -> None:
    (*qkv, _), (*tangents, _) = inputs_and_tangents()
    options: dict[str, Any] = dict(feature_map=EluPlusOne(), implementation="native")
    refused = ["native", "tangent", "chunked"]
    assert_refused(lambda: way(lambda *qkv: attended(*qkv, causal=True, **options), qkv, tangents), refused)
    expected = by_differences(lambda *qkv: attended(*qkv, **options), qkv, tangents)
    assert_near(way(lambda *qkv: attended(*qkv, **options), qkv, tangents), expected, TOLERANCE)
    # Tensors without a tangent are none of its business.
    with forward_ad.dual_level():
        attended(*qkv, causal=True, **options)


MODULES: list[tuple[str, bool, dict[str, Any]]] = [
    *((kernel, causal, {}) for kernel in ("favor+", "softmax") for causal in (True, False)),
    *(("elu+1", True, ALL_NORMED), ("taylor", False, ALL_NORMED)),
    *(("softmax", True, ALL_NORMED), ("softmax", False, {"rope": "none", "score_positions": "t5"})),
    *(("retention", True, {}), ("delta", True, {}), ("favor+window", True, {"window": 3, "decay": "gate"})),
]


@pytest.mark.parametrize(("kernel", "causal", "options"), MODULES)
def test_forward_mode_of_modules(kernel: str, causal: bool, options: dict[str, Any]) -> None:
    module = made(kernel, causal=causal, **options)
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[1, [0, 1, 2, 6]] = True
    x, tangent = [random(2, 11, 8)], [random(2, 11, 8, seed=1)]
    for padding in (None, mask):

        def of(x: Tensor, padding: Tensor | None = padding) -> Tensor:
            y: Tensor = module(x, key_padding_mask=padding)
            return y

        expected = by_differences(of, x, tangent)
        for way, grad in zip(WAYS, (True, False, True), strict=True):
            with torch.set_grad_enabled(grad):
                assert_near(way(of, x, tangent).detach(), expected, TOLERANCE)
    if module.causal:
        for way in WAYS[:2]:
            with torch.no_grad():
                found = way(lambda x: in_steps(module, x, 5), x, tangent)
            assert_near(found, by_differences(module, x, tangent), TOLERANCE)


def test_forward_mode_of_a_model_s_parameters_and_of_gradients() -> None:
    torch.manual_seed(0)
    model = CausalLM(ModelConfig(vocab_size=11, dim=8, heads=2, layers=2, position="rope-after")).double()
    names, parameters = zip(*((name, x.detach()) for name, x in model.named_parameters()), strict=True)
    tangents = [random(*x.shape, seed=seed) for seed, x in enumerate(parameters)]
    tokens = torch.arange(9).unsqueeze(0)

    def logits(*parameters: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (tokens,))
        return found

    expected = by_differences(logits, list(parameters), tangents)
    for way in WAYS[:2]:
        assert_near(way(logits, list(parameters), tangents), expected, TOLERANCE)

    def gradients(*parameters: Tensor) -> Tensor:
        found = torch.func.grad(lambda x: logits(*x).square().mean())(parameters)
        return torch.cat([x.flatten() for x in found])

    # In reverse the kernels are by hand; both ways together give the products of the Hessian.
    expected = by_differences(gradients, list(parameters), tangents)
    assert_near(with_jvp(gradients, list(parameters), tangents), expected, 1e-4)


def test_processes_pass_no_tangents(tmp_path: Any) -> None:
    (*qkv, _), (*tangents, _) = inputs_and_tangents()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for causal, way in itertools.product((True, False), WAYS[:2]):

            def call(causal: bool = causal, way: Any = way) -> Tensor:
                options: dict[str, Any] = dict(group=None, feature_map=EluPlusOne(), causal=causal)
                found: Tensor = way(lambda *qkv: distributed_attention(*qkv, **options), qkv, tangents)
                return found

            assert_refused(call, ["tangent", "processes", "linear_rope.linear_attention"])
    finally:
        torch.distributed.destroy_process_group()
