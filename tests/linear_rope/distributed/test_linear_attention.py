"""A sequence in parts gives what it gives in one process: against the oracle, on 2 and 4 processes.

The same numbers are summed in another order, so the tolerances are those of ops/linear/test_linear_attention.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import linear_rope
from linear_rope import EluPlusOne, YaRN
from tests.linear_rope.tensors import (
    HEADS,
    MAPS,
    SETTINGS,
    TOLERANCES,
    D,
    M,
    assert_near,
    assert_refused,
    random,
    random_qkv,
    slow_positions,
    some_decay,
    some_pair_decay,
)
from tests.processes import Processes

# One position; whole chunks of 64, and not; more than one of them.
PARTS = {2: (70, 33), 4: (5, 64, 1, 67)}
NEEDS_TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA GPUs on this machine")
CAUSAL = pytest.mark.parametrize("causal", [True, False])
OF_EVERY_DENOMINATOR = [*SETTINGS[:3], *SETTINGS[-2:]]


def padding_across(parts: Sequence[int]) -> Tensor:
    """Padding from the end of the first part to the next but one's beginning, and here and there."""
    mask = random(2, sum(parts), seed=80) > 0.8
    mask[0, parts[0] - 3 : parts[0] + parts[1] + 2] = True
    mask[:, 0] = False
    return mask


def attended(
    function: Callable[..., Tensor],
    parts: Sequence[int],
    own: slice,
    dtype: torch.dtype,
    *,
    feature_map: str,
    decay: str | None = None,
    padding: bool | str = False,
    angles: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Some positions' output, gradients of their tensors, and gradients of what the map learns.

    Gradients are of the output's product with fixed numbers.

    Args:
        parts: their lengths, which decide the numbers of the whole sequence.
        own: the positions that ``function`` gets.
        decay: "weak", "resets", which also forgets, "strong", "pairs" of features, or None.
        padding: True for some across the parts, "left" for all of the first part and some of the next.
        angles: how many are given for each position.
        device: where it is computed; what is returned is on the CPU.
    """
    length, made = sum(parts), MAPS[feature_map](0.0).to(device)
    tensors = dict(zip("qkv", random_qkv(2, HEADS, length), strict=True))
    if decay is not None:
        tensors["log_decay"] = some_decay(2, length, resets=decay == "resets")
    if decay == "pairs":
        tensors["log_decay"] = some_pair_decay(2, length, made.count(D) // 2)
    if decay == "strong":
        tensors["log_decay"][..., parts[0] + 2] = torch.tensor([[-50.0, -100], [-1000, -1e20]])
        tensors["log_decay"][..., length - 3] = torch.tensor([[-1e20, torch.finfo(torch.float32).min], [-100, -50]])
    if angles:
        tensors["angles"] = random(2, 1, length, angles, seed=81)
    if padding:
        mask = torch.arange(length).expand(2, -1) < parts[0] + 2 if padding == "left" else padding_across(parts)
        options["key_padding_mask"] = mask[:, own].to(device)
    if options.get("denominator") == "rotated":
        options["positions"] = slow_positions(length)[own].to(device)
    leaves = {name: x[:, :, own].to(device, dtype).requires_grad_() for name, x in tensors.items()}
    output = function(**leaves, feature_map=made, **options)
    upstream = random(2, HEADS, length, D, seed=99)[:, :, own].to(device, dtype)
    learned = [x for x in made.parameters() if x.requires_grad]
    inputs = [*leaves.values(), *learned]
    found = torch.autograd.grad(output, inputs, upstream, allow_unused=True, materialize_grads=True)
    found = [x.cpu() for x in found]
    return output.detach().cpu(), found[: len(leaves)], found[len(leaves) :]


def attended_part(
    group: dist.ProcessGroup, parts: Sequence[int], dtype: torch.dtype, settings: list[dict[str, Any]]
) -> list[tuple[Tensor, list[Tensor], list[Tensor]]]:
    """What one process of the group computes, for its own part."""
    rank = dist.get_rank(group)
    own = slice(sum(parts[:rank]), sum(parts[: rank + 1]))
    function = linear_rope.distributed.linear_attention
    # Of several GPUs, one for each process.
    settings = [each | {"device": f"cuda:{rank}"} if each.get("device") == "cuda" else each for each in settings]
    return [attended(function, parts, own, dtype, group=group, **each) for each in settings]


def check(
    processes: Processes, parts: Sequence[int], settings: list[dict[str, Any]], dtype: torch.dtype = torch.float64
) -> None:
    """Parts together give what the oracle gives for the whole in float64."""
    everyones = processes.run(len(parts), attended_part, parts, dtype, settings)
    for each, found in zip(settings, zip(*everyones, strict=True), strict=True):
        oracle = {**each, "implementation": "reference", "device": "cpu"}
        output, of_tensors, of_map = attended(linear_rope.linear_attention, parts, slice(None), torch.float64, **oracle)
        outputs, tensors, maps = zip(*found, strict=True)
        assert_near(torch.cat(outputs, dim=2).double(), output, TOLERANCES[dtype])
        whole = [torch.cat(pieces, dim=2) for pieces in zip(*tensors, strict=True)]
        # As one vector with one scale: some gradients are zero but for rounding.
        assert_near(one_vector(whole), one_vector(of_tensors), TOLERANCES[dtype])
        if of_map:
            shares = [sum(pieces) for pieces in zip(*maps, strict=True)]
            assert_near(one_vector(shares), one_vector(of_map), TOLERANCES[dtype])


def one_vector(tensors: list[Any]) -> Tensor:
    return torch.cat([x.flatten().double() for x in tensors])


@pytest.mark.parametrize(("feature_map", "count"), [("plain", 2), ("favor+", 4), ("learned", 2)])
@CAUSAL
def test_parts_give_what_the_whole_gives(processes: Processes, feature_map: str, causal: bool, count: int) -> None:
    common = dict(feature_map=feature_map, causal=causal)
    settings = [
        common | dict(rope=rope, denominator=denominator, decay=decay, padding=padding)
        for rope, denominator in (OF_EVERY_DENOMINATOR if feature_map == "favor+" else SETTINGS[::3])
        for decay, padding in ((None, True), ("resets", True), ("pairs", True))
    ]
    settings += [common | dict(decay="pairs", pair_denominator="head")] if causal else []
    check(processes, PARTS[count], [*settings, common | dict(decay="weak")])


@CAUSAL
def test_angles_and_scaled_positions(processes: Processes, causal: bool) -> None:
    common = dict(feature_map="favor+", causal=causal, padding=True, decay="weak")
    scaling = YaRN(4.0, original_length=64, beta=8.0)
    settings = [common | dict(rope="after", angles=3), common | dict(rope="before", angles=D // 2)]
    settings += [common | dict(rope=rope, rope_scaling=scaling) for rope in ("after", "before")]
    check(processes, PARTS[4], settings)


@CAUSAL
@pytest.mark.parametrize("implementation", ["auto", "chunked"])
def test_single_precision(processes: Processes, implementation: str, causal: bool) -> None:
    common = dict(causal=causal, implementation=implementation)
    settings = [
        common | dict(feature_map=feature_map, decay=decay, padding=padding)
        for feature_map in ("favor+", "elu+1")
        for decay, padding in ((None, True), ("resets", True), ("strong", "left"))
    ]
    check(processes, PARTS[4], settings, torch.float32)


@NEEDS_TWO_GPUS
@CAUSAL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_on_two_gpus(processes: Processes, dtype: torch.dtype, causal: bool) -> None:
    common = dict(causal=causal, padding=True, device="cuda")
    settings = [
        common | dict(feature_map=feature_map, decay=decay)
        for feature_map in ("favor+", "elu+1")
        for decay in (None, "weak")
    ]
    check(processes, PARTS[2], settings, dtype)


def messages_of(group: dist.ProcessGroup, parts: Sequence[int], options: dict[str, Any]) -> list[int]:
    """The bytes of each message of one process, forwards and backwards."""
    sizes, send = [], dist.all_gather

    def counted(received: list[Tensor], message: Tensor, **options: Any) -> None:
        sizes.append(message.nbytes)
        send(received, message, **options)

    dist.all_gather = counted
    try:
        attended_part(group, parts, torch.float64, [options])
    finally:
        dist.all_gather = send
    return sizes


@pytest.mark.parametrize(
    ("options", "forwards", "backwards"),
    [
        (dict(causal=True), 1, 1),
        (dict(causal=False), 1, 1),
        (dict(causal=True, decay="weak"), 1, 1),
        (dict(causal=False, decay="weak"), 2, 2),
    ],
)
def test_states_are_all_that_passes(
    processes: Processes, options: dict[str, Any], forwards: int, backwards: int
) -> None:
    """However long the sequence is: a state, the scales and how it fades; where positions are counted, the tokens."""
    batch, number, scales = 2, 8, 2 if "decay" in options else 1
    state = batch * HEADS * M * (D + 1)
    of_state = [number * (state + batch * HEADS * scales)] * forwards + [number * state] * backwards
    for parts in ((5, 3), (300, 200)):
        for rope, counts in (("none", []), ("after", [number * (2 + batch)])):
            settings = options | dict(feature_map="favor+", rope=rope)
            assert processes.run(2, messages_of, parts, settings) == [counts + of_state] * 2


def cross_attended(group: dist.ProcessGroup, queries: Sequence[int], keys: Sequence[int]) -> Tensor:
    """The output of one process's part where there are not as many keys as queries."""
    rank = dist.get_rank(group)
    q, k, v = random_qkv(2, HEADS, sum(queries), sum(keys))
    at, of_keys = (slice(sum(parts[:rank]), sum(parts[: rank + 1])) for parts in (queries, keys))
    mask = padding_across(keys)[:, of_keys]
    k, v = k[:, :, of_keys], v[:, :, of_keys]
    call = linear_rope.distributed.linear_attention
    return call(q[:, :, at], k, v, group=group, feature_map=EluPlusOne(), key_padding_mask=mask)


def test_other_numbers_of_keys_than_of_queries(processes: Processes) -> None:
    queries, keys = (6, 1), (3, 20)
    q, k, v = random_qkv(2, HEADS, sum(queries), sum(keys))
    options: dict[str, Any] = dict(feature_map=EluPlusOne(), key_padding_mask=padding_across(keys))
    found = processes.run(2, cross_attended, queries, keys)
    assert_near(torch.cat(found, dim=2), linear_rope.linear_attention(q, k, v, **options))


def refused(group: dist.ProcessGroup) -> None:
    rank = dist.get_rank(group)
    call, feature_map = linear_rope.distributed.linear_attention, EluPlusOne()
    qkv = random_qkv(1, 1, 4)
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    words = ["group is -100", f"process {rank} does not belong to"]
    assert_refused(lambda: call(*qkv, group=outside, feature_map=feature_map), words)
    for implementation in ("reference", "recurrent"):
        words = ["implementation", implementation, "chunked"]
        assert_refused(
            lambda name=implementation: call(*qkv, group=group, feature_map=feature_map, implementation=name), words
        )
    assert_refused(lambda: call(qkv[0], qkv[1][:, :, 1:], qkv[2], group=group, feature_map=feature_map), ["k", "v"])
    # Seven of each, but not in each part, so padding is counted for neither.
    q, k, v = random_qkv(1, 1, 4 - rank, 3 + rank)
    mask = torch.zeros(1, 3 + rank, dtype=torch.bool)
    mask[0, 2] = True
    assert_refused(
        lambda: call(q, k, v, group=group, feature_map=feature_map, key_padding_mask=mask), ["positions", "[4, 3]"]
    )


def test_what_cannot_be_is_refused_in_every_process(processes: Processes) -> None:
    processes.run(2, refused)


def test_a_group_is_needed() -> None:
    def call() -> Tensor:
        return linear_rope.distributed.linear_attention(*random_qkv(1, 1, 4), group=None, feature_map=EluPlusOne())

    assert_refused(call, ["group", "None", "init_process_group"])
