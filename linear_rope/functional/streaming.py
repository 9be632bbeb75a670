"""The chunked form for training: block after block, from the inputs, so that nothing as wide as the features is kept.

Forward maps a block of positions, sums it and keeps the output, the weights inside its chunks and the states between
them. Backward goes through the blocks from the last to the first, maps each again and differentiates it by hand, and
the map by autograd. Memory is O(N·(D + C) + N·M·D/C), and a block stays in the processor's cache.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.functional.chunked import BLOCK_CHUNKS, CHUNK_SIZE, Saved, block_gradients, block_sums, blocks
from linear_rope.functional.mapped import Mapped, MappedByAutograd, mapped
from linear_rope.functional.mapping import Inputs, Mapping, Region
from linear_rope.functional.recurrent import State
from linear_rope.functional.terms import full_precision, output_gain
from linear_rope.functional.workspace import workspace

# Elements of the features of one block: 4 MB of float32 are about what a processor caches; a GPU wants large batches.
BLOCK_ELEMENTS = {"cpu": 2**20}
OTHER_BLOCK_ELEMENTS = 2**25


def can_stream() -> bool:
    """Whether this call may differentiate by hand; compilers and function transforms need operations they can see."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def stream(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention: (B, H, N, D), (B, H, N, D), (B, H, N, Dv) → (B, H, N, Dv) in the dtype of ``v``.

    Differentiable once, with respect to the inputs and the feature map's parameters.
    """
    held = _held(mapping)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (q, k, v, *held.values())):
        return stream_with_state(mapping, q, k, v)[0]
    output: Tensor = _Stream.apply(mapping, tuple(held), q, k, v, *held.values())
    return output.to(v.dtype)


def stream_with_state(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, State]:
    """:func:`stream` without gradients, and the state after the last position."""
    with torch.no_grad():
        output, state, _ = _forward(mapping, _held(mapping), q, k, v, keep=False)
    return output.to(v.dtype), state


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mapping: Mapping, names: Sequence[str], q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> Tensor:
        output, _, kept = _forward(mapping, dict(zip(names, held, strict=True)), q, k, v, keep=True)
        ctx.mapping = mapping
        ctx.names = names
        ctx.save_for_backward(q, k, v, output, *held, *(x for block in kept for x in block))
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the causal chunked form of linear attention can be differentiated once, and a graph of its gradient "
                '(create_graph=True) was asked for; give implementation="reference" for second derivatives'
            )
        mapping: Mapping = ctx.mapping
        q, k, v, output, *rest = ctx.saved_tensors
        # As they were in the forward pass, whatever the module holds by now: features may have been redrawn.
        held = dict(zip(ctx.names, rest, strict=False))
        kept = rest[len(held) :]
        width = len(Saved._fields) + 1
        map_q, map_k = (mapped(mapping.feature_map, side, held, mapping.dtype) for side in ("queries", "keys"))
        back = mapping.reversed()
        take = workspace(q.device).take

        gradients = tuple(torch.empty_like(x) for x in (q, k, v))
        with full_precision(q.device):
            plan = _plan(mapping, map_q, q)
            for batch, heads in reversed(plan.groups):
                grad_after = None
                for positions in reversed(plan.stretches):
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
        return None, None, *gradients, *_held_gradients(ctx.names, map_q, map_k)


def _forward(
    mapping: Mapping, held: dict[str, Tensor], q: Tensor, k: Tensor, v: Tensor, *, keep: bool
) -> tuple[Tensor, State, list[tuple[Tensor | None, ...]]]:
    """The output, the state after the last position, and if asked for, what the backward of each block needs."""
    map_q, map_k = (mapped(mapping.feature_map, side, held, mapping.dtype) for side in ("queries", "keys"))
    take = workspace(q.device).take
    # Laid out as (B, N, H, D), so that merging the heads copies nothing.
    output = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3], dtype=mapping.dtype).transpose(1, 2)
    plan = _plan(mapping, map_q, q)
    states: list[State] = []
    kept: list[tuple[Tensor | None, ...]] = []
    for batch, heads in plan.groups:
        state = None
        for positions in plan.stretches:
            at = Region(batch, heads, positions)
            terms = mapping.block_terms(_contiguous(mapping.inputs(q, k, v, at)), map_q, map_k, at, take)
            sums, state, saved = block_sums(terms, state, take)
            gain = output_gain(sums, terms.query_scale)
            torch.mul(sums.numerator, 1 if gain is None else gain, out=output[at])
            if keep:
                kept.append((*saved, gain))
        assert state is not None
        states.append(state)
    return output, _joined(states, plan.groups, q), kept


class _Plan(NamedTuple):
    """In what order a call is worked off: for each group of sequences and heads, stretch by stretch."""

    groups: list[tuple[slice, slice]]
    stretches: list[slice]


def _plan(mapping: Mapping, map_q: Mapped, q: Tensor) -> _Plan:
    batch, heads, length, width = q.shape
    features = mapping.feature_map.num_features or width
    elements = BLOCK_ELEMENTS.get(q.device.type, OTHER_BLOCK_ELEMENTS)
    if not map_q.splits:
        chunks = 2 * elements // (batch * heads * features * CHUNK_SIZE)
        return _Plan([(slice(0, batch), slice(0, heads))], blocks(length, max(1, chunks)))
    rows = max(1, elements // (features * min(length, CHUNK_SIZE * BLOCK_CHUNKS)))
    if rows < heads:
        groups = [
            (slice(b, b + 1), slice(h, min(h + rows, heads))) for b in range(batch) for h in range(0, heads, rows)
        ]
    else:
        step = rows // heads
        groups = [(slice(b, min(b + step, batch)), slice(0, heads)) for b in range(0, batch, step)]
    return _Plan(groups, blocks(length))


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


def _held_gradients(names: Sequence[str], map_q: Mapped, map_k: Mapped) -> list[Tensor | None]:
    """The gradients of the feature map's own tensors, which only a map differentiated by autograd has."""
    if not (isinstance(map_q, MappedByAutograd) and isinstance(map_k, MappedByAutograd)):
        return [None] * len(names)
    found = []
    for name in names:
        parts = [side.gradients[name] for side in (map_q, map_k) if name in side.gradients]
        found.append(torch.stack(parts).sum(0) if parts else None)
    return found


def _contiguous(inputs: Inputs) -> Inputs:
    return Inputs(*(x.contiguous() for x in inputs))
