"""The Triton kernels where every query sees every key, against the oracle in float64; tolerances: test_triton.py."""

import importlib.util

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, linear_attention
from linear_rope.ops.linear import native
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.triton_form import settings
from tests.linear_rope.ops.linear import test_triton as causal
from tests.linear_rope.ops.linear.test_random_calls import Sizes, compare
from tests.linear_rope.ops.linear.test_triton import (
    DEVICE,
    GRADIENTS,
    LENGTH,
    MAPS,
    OUTPUTS,
    VALUES,
    WIDTH,
    assert_close,
    named,
    results_and_gradients,
    some_qkv,
)
from tests.linear_rope.tensors import SETTINGS, random, slow_positions

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
short_chunks, pieces = causal.short_chunks, causal.pieces


def assert_form(*arguments: object, **options: object) -> list[Tensor]:
    return causal.assert_form(*arguments, causal=False, **options)  # type: ignore[arg-type]


def other_keys(length: int, batch: int = 1, heads: int = 1, *, positive: bool = False) -> list[Tensor]:
    """As many keys as ``LENGTH``, another number of queries."""
    _, k, v = some_qkv(batch, heads=heads, positive=positive)
    return [some_qkv(batch, length, heads, positive=positive)[0], k, v]


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
@pytest.mark.parametrize("kind", MAPS)
def test_values_and_gradients_are_the_oracle_s(kind: str, rope: str, denominator: str) -> None:
    if (kind, rope) == ("given", "before"):
        pytest.skip("what is rotated before it is given is not positive")
    length = 21
    positions = slow_positions(length) if denominator == "rotated" else None
    tensors = named(some_qkv(length=length, positive=kind == "given"))
    assert_form(tensors, kind, rope=rope, denominator=denominator, positions=positions)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("denominator", ["unrotated", "none"])
@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 70])
def test_queries_of_another_sequence(kind: str, length: int, denominator: str) -> None:
    """In pieces, of which there are others for queries and for keys."""
    positions = random(length, seed=12) * 9, random(LENGTH, seed=13) * 9
    assert_form(named(other_keys(length)), kind, positions=positions, denominator=denominator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["favor+", "favor+hyperbolic", "elu+1"])
def test_half_precision(kind: str, dtype: torch.dtype) -> None:
    assert_form(named(some_qkv()), kind, dtype)


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
def test_padding_has_no_influence(kind: str) -> None:
    """Also where it is all that there is: then outputs are zero."""
    qkv = some_qkv(3)
    mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    mask[0, :18] = mask[1, [3, 16, 36]] = mask[2] = True
    qkv[1][0, :, 5] *= 50  # the largest scale is that of padding
    clean = assert_form(named(qkv), kind, key_padding_mask=mask)
    assert not clean[0][2].any()
    padded = [qkv[0], *(x.masked_fill(mask[:, None, :, None], torch.inf) for x in qkv[1:])]
    options = {"feature_map": MAPS[kind]().to(DEVICE), "key_padding_mask": mask.to(DEVICE)}
    x = [x.float().to(DEVICE) for x in padded]
    assert torch.equal(linear_attention(*x, implementation="triton", **options), clean[0])


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("at", [0, 20, 36])
def test_one_key_outweighs_all_others(at: int, in_pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest scale, in the first, a middle or the last chunk, of which no other factor is more than 1e-38."""
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 if in_pieces else 8)
    q, k, v = some_qkv()
    k[:, :, at] = random(WIDTH, seed=14)
    k[:, :, :at] += 12
    k[:, :, at + 1 :] += 12  # of norm 38: scales around −200
    assert_form(named([q, k, v]), "favor+")


@pytest.mark.usefixtures("pieces")
def test_the_bits_do_not_depend_on_the_sequences_beside_it_nor_on_the_run() -> None:
    qkv = other_keys(70, batch=2)
    both = assert_form(named(qkv), "favor+", rope="none")
    assert all(map(torch.equal, both, assert_form(named(qkv), "favor+", rope="none")))
    upstream = random(*both[0].shape, seed=9).to(both[0])[1:]
    leaves = [x[1:].float().to(DEVICE).requires_grad_() for x in qkv]
    output = linear_attention(*leaves, feature_map=MAPS["favor+"]().to(DEVICE), rope="none", implementation="triton")
    second = [output.detach(), *torch.autograd.grad(output, leaves, upstream)]
    assert all(torch.equal(x[1:], y) for x, y in zip(both, second, strict=True))


@pytest.mark.parametrize("way", ["spread", "heads inside", "transposed"])
def test_where_a_tensor_lies_in_memory_does_not_matter(way: str) -> None:
    def moved(x: Tensor) -> Tensor:
        if way == "spread":
            return x.repeat_interleave(2, dim=-1)[..., ::2]
        if way == "heads inside":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        return x.mT.contiguous().mT

    qkv = [moved(x.float().to(DEVICE)) for x in other_keys(20, heads=2)]
    grad = moved(random(1, 2, 20, VALUES, seed=9).float().to(DEVICE))
    found = []
    for x in (qkv, [x.contiguous() for x in qkv]):
        leaves = [y.detach().requires_grad_() for y in x]
        output = linear_attention(*leaves, feature_map=EluPlusOne(), rope="none", implementation="triton")
        found.append([output, *torch.autograd.grad(output, leaves, grad if not found else grad.clone())])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
def test_every_element_is_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not is NaN."""
    tensors = named(other_keys(50, batch=2))
    clean = assert_form(tensors, kind, rope="none")
    for function in ("empty", "empty_like"):
        make = getattr(torch, function)

        def poisoned(*arguments, make=make, **options):
            x = make(*arguments, **options)
            return x.fill_(torch.nan) if x.is_floating_point() else x

        monkeypatch.setattr(torch, function, poisoned)
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1)
    assert all(x.isfinite().all() for x in assert_form(tensors, kind, rope="none"))
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 8)
    assert all(map(torch.equal, assert_form(tensors, kind, rope="none"), clean))


NO_STATE = dict.fromkeys(("log_decay", "memory", "key_sum", "stabiliser")) | {"causal": False}


def everything(denominator: str = "unrotated") -> Call:
    """FAVOR+ of 20 queries and 37 keys."""
    call = causal.everything(denominator)._replace(**NO_STATE)
    return call._replace(q=call.q[:, :, :20], q_rotation=call.q_rotation[:, :, :20])


def with_features() -> Call:
    call = causal.with_features()._replace(**NO_STATE)
    return call._replace(**{name: getattr(call, name)[:, :, :20] for name in ("q", "denominator_q", "query_scale")})


def without_scales() -> Call:
    call = causal.without_scales()._replace(**NO_STATE)
    return call._replace(q=call.q[:, :, :20])


@pytest.mark.skipif(native.library() is None, reason="no native kernel here")
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        everything,
        lambda: everything("rotated"),
        lambda: everything("none"),
        with_features,
        lambda: with_features()._replace(denominator_q=None, denominator_k=None, denominator="none"),
        lambda: with_features()._replace(query_scale=None, key_scale=None),
        without_scales,
    ],
)
def test_the_operator_s_results_are_the_native_ones(make, in_pieces: bool, monkeypatch) -> None:
    """Outputs, totals, the sums and gradients; own denominators, given scales, rotations of their own and padding."""
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 if in_pieces else 8)
    call = make()
    loose = 30 if call.denominator == "rotated" else 1  # as in test_triton.py
    wanted = "output", "denominator"
    expected = results_and_gradients(call, "native", torch.float64, torch.device("cpu"), wanted)
    got = results_and_gradients(call, "triton", torch.float32, DEVICE, wanted)
    largest = max(float(x.abs().max()) for x in expected[1].values())
    assert expected[0].keys() == got[0].keys()
    for name, x in expected[0].items():
        assert_close(got[0][name], x, loose * OUTPUTS[torch.float32], max(1.0, float(x.abs().max())))
    for name, x in expected[1].items():
        assert_close(got[1][name], x, loose * GRADIENTS[torch.float32], largest)


SIZES = Sizes((1, 2), (1, 2), (1, 2, 7, 16, 17, 33, 47), (70,), (2, 6, 8, 20), (1, 3, 8, 20), (2, 6, 16, 18), 0.0)


@pytest.mark.parametrize("part", range(3))
def test_random_calls_agree_with_the_oracle(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 + part % 2)
    for seed in range(part, 15, 3):
        compare(seed, torch.float32, "triton", SIZES)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_random_calls_agree_with_the_oracle(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 + part % 2)
    for seed in range(100 + part, 300, 4):
        compare(seed, torch.float32, "triton", SIZES)
