"""Forward-mode derivatives are those of finite differences, or are refused by an error that says what to do."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from linear_rope import CausalLM, ModelConfig, apply_rope, linear_attention
from linear_rope.distributed import linear_attention as distributed_attention
from tests.linear_rope.attention.modules import ADDITIONS, made
from tests.linear_rope.tensors import FORMS, HEADS, MAPS, SETTINGS, D, assert_near, assert_refused, in_steps, random

Function = Callable[..., Tensor]
STEP = 1e-5
TOLERANCE = 1e-7
"""of central differences in float64: STEP² times a third derivative, and rounding over STEP"""
ALL = "all normed"
MODULES: list[tuple[str, bool, dict[str, Any]]] = [
    *((kernel, causal, {}) for kernel in ("favor+", "softmax") for causal in (True, False))
]
MODULES += [("elu+1", True, ADDITIONS[ALL]), ("taylor", False, ADDITIONS[ALL]), ("softmax", True, ADDITIONS[ALL])]
MODULES += [("softmax", False, {"rope": "none", "score_positions": "t5"}), ("retention", True, {}), ("delta", True, {})]
MODULES += [("favor+window", True, {"window": 3}), ("favor+window", True, {"window": 3, "decay": "gate"})]


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
    inputs = [random(1, HEADS, length, D, seed=seed) for seed in range(3)]
    inputs.append(-random(1, HEADS, length, seed=3).abs())
    return inputs, [random(*x.shape, seed=10 + seed) for seed, x in enumerate(inputs)]


@pytest.mark.parametrize("form", ["auto", *(form for form in FORMS if form != "native")])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("favor+", "elu+1", "learned"))) for name in MAPS],
)
def test_of_every_map_and_implementation(name: str, form: str) -> None:
    feature_map, (inputs, tangents) = MAPS[name](0.0).double(), inputs_and_tangents()
    for causal in (True, False):
        for rope, denominator in SETTINGS:
            for decays in (False, True):

                def attended(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, options: Any = None) -> Tensor:
                    return linear_attention(
                        q, k, v, log_decay=log_decay if options["decays"] else None, **options["of"]
                    )

                of = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
                of |= {"implementation": form, "positions": torch.arange(11) / 100}
                options = {"decays": decays, "of": of}
                expected = by_differences(lambda *x, o=options: attended(*x, options=o), inputs, tangents)
                for way in WAYS if form == "auto" else WAYS[:1]:
                    found = way(lambda *x, o=options: attended(*x, options=o), inputs, tangents)
                    assert_near(found, expected, 10 * TOLERANCE)


def test_over_more_than_one_block() -> None:
    inputs, tangents = inputs_and_tangents(1100)
    feature_map = MAPS["favor+"](0.0).double()

    def attended(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
        return linear_attention(q, k, v, feature_map=feature_map, causal=True, log_decay=log_decay)

    assert_near(with_duals(attended, inputs, tangents), by_differences(attended, inputs, tangents), TOLERANCE)


@pytest.mark.skipif("native" not in FORMS, reason="the native kernel is not built")
@pytest.mark.parametrize("way", WAYS)
def test_the_native_form_is_refused_or_left_to_chunked(way: Callable[..., Tensor]) -> None:
    (q, k, v, _), tangents = inputs_and_tangents()
    for causal in (True, False):

        def attended(*qkv: Tensor, causal: bool = causal) -> Tensor:
            feature_map = MAPS["elu+1"](0.0)
            return linear_attention(*qkv, feature_map=feature_map, causal=causal, implementation="native")

        if causal:
            assert_refused(lambda of=attended: way(of, [q, k, v], tangents[:3]), ["native", "tangent", "chunked"])
        else:
            assert_near(
                way(attended, [q, k, v], tangents[:3]), by_differences(attended, [q, k, v], tangents[:3]), TOLERANCE
            )
    # Tensors without a tangent are none of its business.
    with forward_ad.dual_level():
        linear_attention(q, k, v, feature_map=MAPS["elu+1"](0.0), causal=True, implementation="native")


@pytest.mark.parametrize(("kernel", "causal", "options"), MODULES)
def test_of_modules(kernel: str, causal: bool, options: dict[str, Any]) -> None:
    module = made(kernel, causal=causal, **options)
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[1, [0, 1, 2, 6]] = True
    x, tangent = [random(2, 11, 8)], [random(2, 11, 8, seed=1)]
    for padding in (None, mask):

        def of(x: Tensor, padding: Tensor | None = padding) -> Tensor:
            y: Tensor = module(x, key_padding_mask=padding)
            return y

        expected = by_differences(of, x, tangent)
        for way in WAYS:
            assert_near(way(of, x, tangent).detach(), expected, 10 * TOLERANCE)
            with torch.no_grad():
                assert_near(way(of, x, tangent), expected, 10 * TOLERANCE)
    if module.causal:
        for way in WAYS[:2]:
            with torch.no_grad():
                found = way(lambda x: in_steps(module, x, 5), x, tangent)
            assert_near(found, by_differences(module, x, tangent), 10 * TOLERANCE)


def test_of_a_model_s_parameters_and_of_gradients() -> None:
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
        assert_near(way(logits, list(parameters), tangents), expected, 10 * TOLERANCE)

    def gradients(*parameters: Tensor) -> Tensor:
        found = torch.func.grad(lambda x: logits(*x).square().mean())(parameters)
        return torch.cat([x.flatten() for x in found])

    # In reverse the kernels are by hand; both ways together give the products of the Hessian.
    expected = by_differences(gradients, list(parameters), tangents)
    assert_near(with_jvp(gradients, list(parameters), tangents), expected, 1e-4)


def test_of_positions() -> None:
    x, at = random(1, 5, 4), [torch.arange(5, dtype=torch.float64)]
    tangent = [random(5, seed=1)]
    for way in WAYS:
        assert_near(
            way(lambda at: apply_rope(x, at), at, tangent),
            by_differences(lambda at: apply_rope(x, at), at, tangent),
            TOLERANCE,
        )


def test_processes_pass_no_tangents(tmp_path: Any) -> None:
    (q, k, v, _), tangents = inputs_and_tangents()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for causal in (True, False):
            options: dict[str, Any] = dict(group=None, feature_map=MAPS["elu+1"](0.0), causal=causal)
            for way in WAYS[:2]:
                assert_refused(
                    lambda way=way, options=options: way(
                        lambda *qkv: distributed_attention(*qkv, **options), [q, k, v], tangents[:3]
                    ),
                    ["tangent", "processes", "linear_rope.linear_attention"],
                )
    finally:
        torch.distributed.destroy_process_group()
