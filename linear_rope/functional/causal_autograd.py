"""The chunked form for training: block after block, from the inputs, so that nothing as wide as the features is kept.

Forward maps a block of positions, sums it and keeps the output, the weights inside its chunks and the state before it.
Backward goes through the blocks from the last to the first, maps each again and differentiates it by hand. With blocks
of L positions it keeps O(D + C + M·D/L) numbers for each position and head, and the rotations, M for each position.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.functional.chunked import BLOCK_CHUNKS, CHUNK_SIZE, Saved, block_gradients, block_sums, blocks
from linear_rope.functional.mapped import Mapped, check_map, has_derivative_by_hand, mapped
from linear_rope.functional.recurrent import State
from linear_rope.functional.rotated_features import Inputs, Mapping, Region
from linear_rope.functional.terms import full_precision, output_gain
from linear_rope.functional.workspace import workspace

# Elements of the features of one block: 4 MB of float32 are about what a processor caches; a GPU wants large batches.
BLOCK_ELEMENTS = {"cpu": 2**20}
OTHER_BLOCK_ELEMENTS = 2**25


def stream(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention: (B, H, N, D), (B, H, N, D), (B, H, N, Dv) → (B, H, N, Dv) in the dtype of ``v``.

    Differentiable once, with respect to the inputs and the feature map's parameters.
    """
    held = _held(mapping)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (q, k, v, *held.values())):
        return stream_with_state(mapping, q, k, v)[0]
    call = _Call.begin(mapping, held, q)
    if not call.by_hand:
        check_map(mapping.feature_map, held, q)
    turns = (mapping.padding, mapping.q_rotation, mapping.k_rotation)
    output: Tensor = _Stream.apply(call, q, k, v, *turns, *held.values())
    return output.transpose(1, 2).to(v.dtype)


def stream_with_state(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, State]:
    """:func:`stream` without gradients, and the state after the last position."""
    held = _held(mapping)
    call = _Call.begin(mapping, held, q)
    with torch.no_grad():
        output, states, _ = _forward(call, mapping, held, q, k, v, keep=False)
    return output.transpose(1, 2).to(v.dtype), _joined(states, call.groups, q)


class _Call(NamedTuple):
    """What is decided when a call begins, and holds for its backward pass.

    Attributes:
        mapping: without its tensors.
        names: of the feature map's parameters and buffers.
        by_hand: whether the feature map's derivative is.
        groups: the sequences and heads that are worked on together.
        stretches: the positions that are, one after another.
    """

    mapping: Mapping
    names: tuple[str, ...]
    by_hand: bool
    groups: list[tuple[slice, slice]]
    stretches: list[slice]

    @classmethod
    def begin(cls, mapping: Mapping, held: dict[str, Tensor], q: Tensor) -> "_Call":
        by_hand = has_derivative_by_hand(mapping.feature_map, held)
        without_tensors = replace(mapping, padding=None, q_rotation=None, k_rotation=None)
        return cls(without_tensors, tuple(held), by_hand, *_plan(mapping, q, splits=by_hand))

    def maps(self, held: dict[str, Tensor]) -> tuple[Mapped, Mapped]:
        """The feature map for queries and for keys, with the tensors ``held``."""
        q, k = (
            mapped(self.mapping.feature_map, side, held, self.mapping.dtype, by_hand=self.by_hand)
            for side in ("queries", "keys")
        )
        return q, k


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        q_rotation: Tensor | None,
        k_rotation: Tensor | None,
        *held: Tensor,
    ) -> Tensor:
        mapping = replace(call.mapping, padding=padding, q_rotation=q_rotation, k_rotation=k_rotation)
        named = dict(zip(call.names, held, strict=True))
        output, _, kept = _forward(call, mapping, named, q, k, v, keep=True)
        ctx.call = call
        # All of it, so that a change in place before the backward pass is an error and not a wrong gradient.
        tensors = (q, k, v, output, padding, q_rotation, k_rotation, *held)
        ctx.save_for_backward(*tensors, *(x for block in kept for x in block))
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the causal chunked form of linear attention can be differentiated once, and a graph of its gradient "
                '(create_graph=True) was asked for; give implementation="reference" for second derivatives'
            )
        call: _Call = ctx.call
        q, k, v, output, padding, q_rotation, k_rotation, *rest = ctx.saved_tensors
        mapping = replace(call.mapping, padding=padding, q_rotation=q_rotation, k_rotation=k_rotation)
        back = mapping.reversed()
        # The map's tensors as they were in the forward pass: features may have been redrawn since.
        held, kept = dict(zip(call.names, rest, strict=False)), rest[len(call.names) :]
        map_q, map_k = call.maps(held)
        take = workspace(q.device).take
        output, grad_output = output.transpose(1, 2), grad_output.transpose(1, 2)
        width = len(Saved._fields) + 1

        gradients = tuple(torch.empty_like(x) for x in (q, k, v))
        with full_precision(q.device):
            for batch, heads in reversed(call.groups):
                grad_after = None
                for positions in reversed(call.stretches):
                    at = Region(batch, heads, positions)
                    *saved, gain = kept[-width:]
                    del kept[-width:]
                    inputs = _contiguous(mapping.inputs(q, k, v, at))
                    terms = mapping.block_terms(inputs, map_q, map_k, at, take)
                    grad_numerator = grad_output[at].to(mapping.dtype)
                    if gain is not None:
                        grad_numerator = grad_numerator * gain
                    grad_denominator = -(grad_numerator * output[at]).sum(-1) if terms.has_denominator else None
                    of_terms, grad_after = block_gradients(
                        terms, Saved(*saved), grad_numerator, grad_denominator, grad_after, take
                    )
                    parts = back.input_gradients(inputs, terms, of_terms, map_q, map_k, at)
                    for whole, part in zip(gradients, parts, strict=True):
                        whole[at] = part
        return None, *gradients, None, None, None, *_held_gradients(held, map_q, map_k)


def _forward(
    call: _Call, mapping: Mapping, held: dict[str, Tensor], q: Tensor, k: Tensor, v: Tensor, *, keep: bool
) -> tuple[Tensor, list[State], list[tuple[Tensor | None, ...]]]:
    """The output (B, N, H, D), each group's last state, and if asked for, what backward needs of each block."""
    map_q, map_k = call.maps(held)
    take = workspace(q.device).take
    # In this layout merging the heads copies nothing.
    output = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3], dtype=mapping.dtype)
    states: list[State] = []
    kept: list[tuple[Tensor | None, ...]] = []
    for batch, heads in call.groups:
        state = None
        for positions in call.stretches:
            at = Region(batch, heads, positions)
            terms = mapping.block_terms(_contiguous(mapping.inputs(q, k, v, at)), map_q, map_k, at, take)
            sums, state, saved = block_sums(terms, state, take)
            gain = output_gain(sums, terms.query_scale)
            torch.mul(sums.numerator, 1 if gain is None else gain, out=output.transpose(1, 2)[at])
            if keep:
                kept.append((*saved, gain))
        assert state is not None
        states.append(state)
    return output, states, kept


def _plan(mapping: Mapping, q: Tensor, *, splits: bool) -> tuple[list[tuple[slice, slice]], list[slice]]:
    """The groups and stretches of a call whose feature map can, or cannot, map some heads without the others."""
    batch, heads, length, width = q.shape
    features = mapping.feature_map.count(width)
    elements = BLOCK_ELEMENTS.get(q.device.type, OTHER_BLOCK_ELEMENTS)
    if not splits:
        chunks = 2 * elements // (batch * heads * features * CHUNK_SIZE)
        return [(slice(0, batch), slice(0, heads))], blocks(length, max(1, chunks))
    rows = max(1, elements // (features * min(length, CHUNK_SIZE * BLOCK_CHUNKS)))
    if rows < heads:
        groups = [
            (slice(b, b + 1), slice(h, min(h + rows, heads))) for b in range(batch) for h in range(0, heads, rows)
        ]
    else:
        step = rows // heads
        groups = [(slice(b, min(b + step, batch)), slice(0, heads)) for b in range(0, batch, step)]
    return groups, blocks(length)


def _joined(states: list[State], groups: list[tuple[slice, slice]], q: Tensor) -> State:
    """The state of all sequences and heads from those of the groups."""
    if len(states) == 1:
        return states[0]

    def join(parts: Sequence[Tensor]) -> Tensor:
        whole = parts[0].new_empty(*q.shape[:2], *parts[0].shape[2:])
        for group, part in zip(groups, parts, strict=True):
            whole[group] = part
        return whole

    memory, normaliser, stabiliser = zip(*states, strict=True)
    return State(
        join(memory),
        None if normaliser[0] is None else join(normaliser),
        None if stabiliser[0] is None else join(stabiliser),
    )


def _held(mapping: Mapping) -> dict[str, Tensor]:
    feature_map = mapping.feature_map
    return dict(feature_map.named_parameters()) | dict(feature_map.named_buffers())


def _held_gradients(held: dict[str, Tensor], map_q: Mapped, map_k: Mapped) -> list[Tensor | None]:
    """The gradients of the feature map's own tensors, which only a map differentiated by autograd has."""
    found = []
    for name, x in held.items():
        parts = [side.gradients[name] for side in (map_q, map_k) if name in side.gradients]
        found.append(sum(parts[1:], start=parts[0]).to(x.dtype) if parts else None)
    return found


def _contiguous(inputs: Inputs) -> Inputs:
    return Inputs(*(x.contiguous() for x in inputs))
