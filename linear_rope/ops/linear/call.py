"""What the operator is called with and what it returns, whatever its implementation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap, Formula
from linear_rope.features.elementwise import GIVEN
from linear_rope.features.registry import FORMULAS
from linear_rope.ops.decay import RESET


def computed_in(*tensors: Tensor) -> torch.dtype:
    """float32, or float64 if one of them is."""
    return torch.float64 if torch.float64 in [x.dtype for x in tensors] else torch.float32


class Call(NamedTuple):
    """One attention call; B batch, H heads, N queries, K keys, D and Dv widths, M features.

    :func:`linear_rope.ops.linear.prepare.prepare` makes it of what a user gives; where it has a ``feature_map``,
    :mod:`linear_rope.ops.linear.rotated_features` makes one of features of it, or one that the operator maps itself.

    Attributes:
        q: (B, H, N, D) what is mapped, or features (B, H, N, M).
        k: (B, H, K, D) or (B, H, K, M); zero at padding. Causal calls have N = K.
        v: (B, H, K, Dv), zero at padding.
        denominator_q, denominator_k: features of the denominator, where q and k are features that were rotated.
        query_scale, key_scale: (B, H, N) and (B, H, K), logarithms of the scales of given features; g_j of
            :mod:`linear_rope.ops.linear.definition`, the most negative number at padding.
        log_decay: (B, H, N) ln a_t ≤ 0, zero at padding; of decays of pairs the largest.
        pair_decay: (B, H, N, M / 2) ≤ 0, what pairs of features fade by beyond that; RESET for what forgets all alone.
        denominator_decay: (B, H, N) ≤ 0, what a denominator fades by in place of ``pair_decay``.
        padding: (B, 1, K, 1) bool, True at padding.
        q_rotation, k_rotation: cosine and sine of each pair's angle, by which features turn: (1 or B, 1, N, M / 2, 2),
            and before the operator what can be broadcast to (B, H, N, M / 2, 2).
        memory, key_sum, stabiliser: the state before the first position, as in State.
        constant, numbers, formula: of a FormulaCall.
        denominator: "unrotated", "rotated" or "none".
        causal: False where every query sees every key; then the operator takes no decay and no state before, and gives
            no ``scale`` and no gradient from the state after. Native and Triton implementations have that.
        implementation: "chunked", "native", "triton" or "auto".
        feature_map: by which q and k are still to be mapped; the operator takes none.
        turns_inputs: with a feature map, whether the rotations are of q and k, and not of their features.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None = None
    denominator_k: Tensor | None = None
    query_scale: Tensor | None = None
    key_scale: Tensor | None = None
    log_decay: Tensor | None = None
    pair_decay: Tensor | None = None
    denominator_decay: Tensor | None = None
    padding: Tensor | None = None
    q_rotation: Tensor | None = None
    k_rotation: Tensor | None = None
    memory: Tensor | None = None
    key_sum: Tensor | None = None
    stabiliser: Tensor | None = None
    constant: Tensor | None = GIVEN.constant
    numbers: Sequence[float] = GIVEN.numbers
    formula: str = GIVEN.formula
    denominator: str = "unrotated"
    causal: bool = True
    implementation: str = "auto"
    feature_map: FeatureMap | None = None
    turns_inputs: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What everything is computed in: float32, or float64 for float64 inputs or a map that needs it."""
        wide = self.feature_map is not None and self.feature_map.precision == torch.float64
        return torch.float64 if wide else computed_in(self.q, self.k, self.v)

    @property
    def features(self) -> int:
        """M."""
        return FORMULAS[self.formula].count(self.q.shape[-1], self.constant, self.numbers)

    @property
    def exact(self) -> torch.dtype:
        """What scales are in: float64 with a decay, whose sums are as large as a sequence is long, and in the native
        kernel, whose backward pass goes on with what it found."""
        wide = self.log_decay is not None or not self.causal
        return torch.float64 if wide and self.q.device.type != "mps" else self.dtype

    @property
    def has_denominator(self) -> bool:
        """Whether the output is a quotient."""
        return self.denominator != "none"

    @property
    def shares_weights(self) -> bool:
        """Whether the denominator is the sum of the numerator's own weights; of features."""
        return self.has_denominator and self.denominator_q is None

    @property
    def own_decay(self) -> Tensor | None:
        """What features of a denominator of its own fade by beyond ``log_decay``, (B, H, N, M / 2) or (B, H, N, 1)."""
        return self.pair_decay if self.denominator_decay is None else self.denominator_decay.unsqueeze(-1)

    @property
    def has_scale(self) -> bool:
        """Whether keys have a scale."""
        return self.key_scale is not None or FORMULAS[self.formula].has_scale

    @property
    def has_exponents(self) -> bool:
        """Whether a gradient of an exponent is asked for."""
        return any(x is not None for x in (self.query_scale, self.key_scale, self.log_decay))

    def changed(self, **fields: Any) -> "Call":
        """With other values of some fields: ``_replace``, which PyTorch 2.6 does not compile."""
        values: list[Any] = [fields.get(name, x) for name, x in zip(self._fields, self, strict=True)]
        return Call(*values)

    def new(self, *shape: int, exists: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for a tensor of a result; an empty one where there is none."""
        return torch.empty(shape if exists else (0,), dtype=dtype, device=self.q.device)

    def make_formula(self) -> Formula:
        """The feature map by hand, computed in :attr:`dtype`."""
        constants = () if self.constant is None else (self.constant.to(self.dtype),)
        return FORMULAS[self.formula](*constants, *self.numbers)


class Result(NamedTuple):
    """What the operator returns; what there is not is an empty tensor.

    Attributes:
        output: (B, H, N, Dv), the quotient, or the sum where there is no denominator.
        denominator: (B, H, N).
        scale: (B, H, N) c_i of :mod:`linear_rope.ops.linear.definition`.
        memory, key_sum, stabiliser: the state after the last position.
        weights: (B, H, N, C) inside chunks, for the backward pass.
        memories, key_sums, stabilisers: the state before each block but the first, (blocks, B, H, ...).
    """

    output: Tensor
    denominator: Tensor
    scale: Tensor
    memory: Tensor
    key_sum: Tensor
    stabiliser: Tensor
    weights: Tensor
    memories: Tensor
    key_sums: Tensor
    stabilisers: Tensor


class Upstream(NamedTuple):
    """The gradients of the fields of :class:`Result` with these names; None for zeros, but of the output."""

    output: Tensor
    denominator: Tensor | None = None
    memory: Tensor | None = None
    key_sum: Tensor | None = None


KEPT = Result._fields[Result._fields.index("weights") :]
"""what an implementation keeps for its backward pass, each as it likes"""


def empty_result(call: Call, **kept: Tensor) -> Result:
    """Memory for a result, which is also its shape for compilers; ``kept`` is what the implementation keeps."""
    batch, heads, length, _ = call.q.shape
    width, features, dtype, exact = call.v.shape[-1], call.features, call.dtype, call.exact
    has_denominator, has_scale, new = call.has_denominator, call.has_scale, call.new
    return Result(
        # In this layout merging the heads copies nothing.
        output=new(batch, length, heads, width, dtype=dtype).transpose(1, 2),
        denominator=new(batch, heads, length, exists=has_denominator, dtype=dtype),
        scale=new(batch, heads, length, exists=has_scale and call.causal, dtype=exact),
        memory=new(batch, heads, features, width, dtype=dtype),
        key_sum=new(batch, heads, features, exists=has_denominator, dtype=dtype),
        stabiliser=new(batch, heads, 1, exists=has_scale, dtype=exact),
        **{name: new(0, dtype=dtype) for name in KEPT} | kept,
    )


def check_partners(call: Call) -> None:
    """What one argument says of another, as kernels that take pointers believe it."""
    if (call.denominator_q is None) != (call.denominator_k is None):
        raise ValueError("one of denominator_q and denominator_k is None, the other not; give both or none")
    if call.denominator_q is not None and call.denominator != "unrotated":
        raise ValueError(f'denominator_q is given, and denominator is {call.denominator!r}; give "unrotated"')
    if (call.q_rotation is None) != (call.k_rotation is None):
        raise ValueError("one of q_rotation and k_rotation is None, the other not; give both or none")
    if FORMULAS[call.formula].has_constant != bool(call.constant is not None and call.constant.numel()):
        came = None if call.constant is None else tuple(call.constant.shape)
        raise ValueError(f"constant is {came} with formula {call.formula!r}; give one row or more to favor+ alone")
    if not call.causal:
        for name in ("log_decay", "memory", "key_sum", "stabiliser"):
            if getattr(call, name) is not None:
                raise ValueError(f"{name} is given, and causal is False; give causal=True, or no {name}")
    for name, part in (("pair_decay", "log_decay"), ("denominator_decay", "pair_decay")):
        if getattr(call, name) is not None and getattr(call, part) is None:
            raise ValueError(f"{name} is given without {part}, which it is the rest of; give both")


class Gradients(NamedTuple):
    """Of the fields of :class:`Call` with these names; None where there is no such field, or it has no gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None = None
    denominator_k: Tensor | None = None
    query_scale: Tensor | None = None
    key_scale: Tensor | None = None
    log_decay: Tensor | None = None
    pair_decay: Tensor | None = None
    denominator_decay: Tensor | None = None
    memory: Tensor | None = None
    key_sum: Tensor | None = None


def empty_gradients(call: Call) -> Gradients:
    """Memory for gradients."""
    inputs = {name: getattr(call, name) for name in Gradients._fields}
    return Gradients(**{name: None if x is None else torch.empty_like(x) for name, x in inputs.items()})  # type: ignore[arg-type]


def put_exponents(
    gradients: Gradients, call: Call, of_q: Tensor, of_k: Tensor, of_states: Tensor, stretch: int
) -> None:
    """The gradients of scales and decays from those of each query's and key's own exponent, (B, H, N).

    Where pairs fade by themselves they are (B, H, K, N), as :func:`by_decay` has them, and so are those of states.

    Args:
        of_states: (B, H, stretches) of the exponent of the state after every ``stretch`` positions, and after the last.
    """
    if call.pair_decay is not None:
        _put_pair_decays(gradients, call, of_q, of_k, of_states, stretch)
        of_q, of_k = of_q.sum(2), of_k.sum(2)
    if gradients.query_scale is not None:
        gradients.query_scale.copy_(of_q)
    if gradients.key_scale is not None:
        gradients.key_scale.copy_(of_k)
    if gradients.log_decay is not None and call.log_decay is not None and call.pair_decay is None:
        gradients.log_decay.copy_(_of_decays(of_q, of_k, of_states, call.log_decay.isneginf(), stretch))


def _put_pair_decays(
    gradients: Gradients, call: Call, of_q: Tensor, of_k: Tensor, of_states: Tensor, stretch: int
) -> None:
    assert call.log_decay is not None
    assert call.pair_decay is not None
    decays, pairs = call.pair_decay, call.pair_decay.shape[-1]
    if call.denominator_decay is not None:
        decays = torch.cat((decays, call.denominator_decay.unsqueeze(-1)), dim=-1)
    resets = (decays <= RESET) | call.log_decay.isneginf().unsqueeze(-1)
    found = _of_decays(of_q, of_k, of_states, resets.movedim(-1, 2), stretch)
    # What the head keeps is a factor of all of them.
    for to, part in (
        (gradients.log_decay, found.sum(2)),
        (gradients.pair_decay, found[:, :, :pairs].movedim(2, -1)),
        (gradients.denominator_decay, found[:, :, -1]),
    ):
        if to is not None:
            to.copy_(part)


def by_decay(call: Call, above: Tensor, below: Tensor | None) -> Tensor:
    """The gradients of exponents, which are Σ vector · gradient over the features that fade together.

    Args:
        above: (B, H, N, M), vector times gradient, of what the numerator sums.
        below: of a denominator with features of its own; or None.

    Returns:
        (B, H, N), or (B, H, K, N) where pairs fade by themselves: K is P, and one more for ``denominator_decay``.
    """
    if call.pair_decay is None:
        return above.sum(-1) if below is None else above.sum(-1) + below.sum(-1)
    members = call.pair_decay.shape[-1], -1
    total = above.unflatten(-1, members).sum(-1)
    if below is not None and call.denominator_decay is None:
        total = total + below.unflatten(-1, members).sum(-1)
    elif below is not None:
        total = torch.cat((total, below.sum(-1, keepdim=True)), dim=-1)
    return total.movedim(-1, 2)


def _of_decays(of_q: Tensor, of_k: Tensor, of_states: Tensor, resets: Tensor, stretch: int) -> Tensor:
    """The gradients (..., N) of ln a_t from those of exponents, zero at ``resets``."""
    # ln a_t is in the weights of every key before t for every query from t on, and in the state after the last.
    # Stretch by stretch, so that no rounding error travels further.
    from_here = _in_stretches(of_q.to(of_states.dtype) - of_k, stretch).flip(-1).cumsum(-1).flip(-1)
    from_here += of_states.unsqueeze(-1)
    # Nothing passes a reset: what has been summed there is rounding errors.
    next_reset = torch.where(_in_stretches(resets, stretch), torch.arange(stretch, device=resets.device), stretch)
    next_reset = next_reset.flip(-1).cummin(-1).values.flip(-1)
    from_here -= torch.nn.functional.pad(from_here, (0, 1)).gather(-1, next_reset)
    return from_here.flatten(-2)[..., : resets.shape[-1]].masked_fill(resets, 0)


def _in_stretches(x: Tensor, stretch: int) -> Tensor:
    """(..., N) → (..., stretches, ``stretch``), the last one filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % stretch)).unflatten(-1, (-1, stretch))


def new_exponents_of_states(call: Call, result: Result, of: Upstream, stretch: int) -> Tensor:
    """``of_states`` of :func:`put_exponents`, of which only the last is known: float64, where the device has it."""
    length = call.q.shape[2]
    dtype = torch.float32 if call.q.device.type == "mps" else torch.float64
    last = exponent_of_state(call, of.memory, result.memory, of.key_sum, result.key_sum)
    of_states = torch.zeros(*last.shape[:-1], -(-length // stretch), dtype=dtype, device=call.q.device)
    of_states[..., -1:] = last
    return of_states


def exponent_of_state(
    call: Call, of_memory: Tensor | None, memory: Tensor, of_key_sum: Tensor | None, key_sum: Tensor | None
) -> Tensor:
    """The gradient of the exponent of a state, as :func:`by_decay` has it for N = 1, from that of the state."""
    if call.pair_decay is None:
        return memory.new_zeros(*memory.shape[:2], 1) + _dot(of_memory, memory) + _dot(of_key_sum, key_sum)
    above = torch.zeros_like(memory) if of_memory is None else of_memory * memory
    below = None
    if key_sum is not None and key_sum.numel():
        below = (torch.zeros_like(key_sum) if of_key_sum is None else of_key_sum * key_sum).unsqueeze(2)
    return by_decay(call, above.sum(-1).unsqueeze(2), below)


def _dot(grad: Tensor | None, state: Tensor | None) -> Tensor | float:
    """(B, H, 1), or zero without a gradient."""
    return 0.0 if grad is None or state is None else (grad * state).flatten(2).sum(-1, keepdim=True)
