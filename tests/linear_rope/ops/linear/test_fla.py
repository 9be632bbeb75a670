"""Attention by fla's kernel gives what the oracle gives: on a CPU with what the kernel sums in the kernel's place.

On a CUDA GPU with the extra ``fla`` the kernel is tested itself.
"""

import copy
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, linear_attention
from linear_rope.ops.linear import fla
from tests.linear_rope.ops.linear.test_decay import some_decay, with_decay
from tests.linear_rope.tensors import (
    HEADS,
    SETTINGS,
    TOLERANCES,
    assert_near,
    assert_refused,
    outputs_and_gradients,
    random,
    random_qkv,
    slow_positions,
    some_padding,
)

HAS_KERNEL = torch.cuda.is_available() and importlib.util.find_spec("fla") is not None
NEEDS_KERNEL = pytest.mark.skipif(not HAS_KERNEL, reason="there is no CUDA GPU with fla-core on this machine")


def what_the_kernel_sums(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, None]:
    """``chunk_simple_gla``, whose tensors are (B, N, H, ·), by its definition."""
    assert scale == 1.0
    weights = torch.einsum("bihm,bjhm->bhij", q, k).tril()
    if g is not None:
        sums = g.transpose(1, 2).cumsum(-1)
        weights = weights * (sums.unsqueeze(-1) - sums.unsqueeze(-2)).tril().exp()
    return torch.einsum("bhij,bjhd->bihd", weights, v), None


def some_options(feature_map: FeatureMap, rope: str, denominator: str, length: int, padding: bool) -> dict[str, Any]:
    options: dict[str, Any] = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True)
    options["key_padding_mask"] = some_padding(2, length) if padding else None
    options["positions"] = slow_positions(length) if denominator == "rotated" else None
    return options


@pytest.mark.parametrize("length", [1, 17, 200])
@pytest.mark.parametrize(("decay", "padding"), [("none", True), ("weak", False), ("resets", True)])
def test_it_gives_the_reference_s_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, exact_map: FeatureMap, decay: str, padding: bool, length: int
) -> None:
    """Those of decays too, in float64."""
    monkeypatch.setattr(fla, "_kernel", lambda like: what_the_kernel_sums)
    inputs = random_qkv(2, HEADS, length)
    function = linear_attention
    if decay != "none":
        inputs, function = [*inputs, some_decay(2, length, resets=decay == "resets")], with_decay
    for rope, denominator in SETTINGS if length < 200 else SETTINGS[:1]:
        options = some_options(exact_map, rope, denominator, length, padding)
        expected = gradients(inputs, function, implementation="reference", **options)
        assert_near(gradients(inputs, function, implementation="fla", **options), expected)


def gradients(inputs: list[Tensor], function: Any, **options: Any) -> list[Tensor]:
    """The output, the gradients of q, k, v and all that the map learns, and that of the decay."""
    found = outputs_and_gradients(inputs, function, **options)
    if len(inputs) < 4:
        return found
    log_decay = inputs[3].clone().requires_grad_()
    output = function(*inputs[:3], log_decay, **options)
    return [*found, *torch.autograd.grad(output, log_decay, random(*output.shape, seed=99))]


@pytest.mark.slow
def test_many_chunks_and_large_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "_kernel", lambda like: what_the_kernel_sums)
    q, k, v = random_qkv(1, HEADS, 1500)
    k = k * torch.linspace(0.1, 30, 1500, dtype=torch.float64)[:, None]  # FAVOR+'s scales fall by hundreds
    options: dict[str, Any] = dict(feature_map=FavorPlus(4, 6).double(), causal=True)
    for length_to_lose, decay in (("all", 0.3), ("little", 1e-4)):
        inputs = [q, k, v, some_decay(1, 1500, resets=length_to_lose == "all", strength=decay)]
        expected = gradients(inputs, with_decay, implementation="reference", **options)
        assert_near(gradients(inputs, with_decay, implementation="fla", **options), expected)


@NEEDS_KERNEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["favor+", "elu+1"])
def test_the_kernel_itself_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype) -> None:
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    device, width, length = torch.device("cuda"), 64, 300
    phi: FeatureMap = FavorPlus(width, 128) if name == "favor+" else EluPlusOne()
    inputs = [x.to(dtype) for x in random_qkv(2, HEADS, length, width=width)]
    on_gpu = {"feature_map": copy.deepcopy(phi).to(device)}
    for decay in (False, True):
        function = with_decay if decay else linear_attention
        given = [*inputs, some_decay(2, length).float()] if decay else inputs
        for rope, denominator in (("after", "unrotated"), ("before", "unrotated"), ("after", "none")):
            options = some_options(phi, rope, denominator, length, padding=True)
            exact = [x.double() for x in given]
            expected = outputs_and_gradients(exact, function, implementation="reference", **options)
            moved = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()} | on_gpu
            found = outputs_and_gradients([x.to(device) for x in given], function, implementation="fla", **moved)
            assert_near(found, expected, TOLERANCES[dtype])


def test_where_it_cannot_be_had_it_is_refused() -> None:
    options: dict[str, Any] = dict(feature_map=EluPlusOne(), implementation="fla")
    single = [x.float() for x in random_qkv(1, 1, 4)]
    assert_refused(lambda: linear_attention(*single, causal=True, **options), ["fla", "GPU", "cpu", "chunked"])
    assert_refused(lambda: linear_attention(*single, **options), ["fla", "causal", "False", "auto"])
