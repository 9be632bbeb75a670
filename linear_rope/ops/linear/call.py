"""What the operator is called with and what it returns, whatever its implementation."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from linear_rope.features.base import Formula, FormulaCall
from linear_rope.features.registry import make_formula


def computed_in(*tensors: Tensor) -> torch.dtype:
    """float32, or float64 if one of them is."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


class Call(NamedTuple):
    """One call of the operator; B batch, H heads, N positions, D and Dv widths, M features.

    Attributes:
        q, k: (B, H, N, D) what the formula maps. Where it is not causal there can be another number of keys, and all
            that belongs to keys has it.
        v: (B, H, N, Dv).
        denominator_q, denominator_k: (B, H, N, M) of the denominator, where q and k are features that were rotated.
        query_scale, key_scale: (B, H, N) logarithms of the scales of given features.
        log_decay: (B, H, N) ln a_t ≤ 0.
        padding: (B, 1, N, 1) bool.
        q_rotation, k_rotation: of the features, (1 or B, 1, N, M / 2, 2).
        memory, normaliser, stabiliser: the state before the first position, as in State.
        constant, numbers, formula: of a FormulaCall.
        denominator: "unrotated", "rotated" or "none".
        causal: False where every query sees every key; then there is no decay and no state before, no ``scale`` in the
            result, and no gradient from the state in it. Native and Triton implementations have that.
        implementation: "chunked", "native", "triton" or "auto".
    """

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None
    denominator_k: Tensor | None
    query_scale: Tensor | None
    key_scale: Tensor | None
    log_decay: Tensor | None
    padding: Tensor | None
    q_rotation: Tensor | None
    k_rotation: Tensor | None
    memory: Tensor | None
    normaliser: Tensor | None
    stabiliser: Tensor | None
    constant: Tensor | None
    numbers: Sequence[float]
    formula: str
    denominator: str
    causal: bool = True
    implementation: str = "auto"

    @property
    def dtype(self) -> torch.dtype:
        """What everything is computed in: float32, or float64 for float64 inputs."""
        return computed_in(self.q, self.k, self.v)

    @property
    def features(self) -> int:
        """M."""
        if self.constant is not None:
            return (1 + any(map(bool, self.numbers[:2]))) * self.constant.shape[0]
        return self.q.shape[-1] * (2 if self.formula == "elu+1" and self.numbers[0] else 1)

    @property
    def exact(self) -> torch.dtype:
        """What scales are in: float64 with a decay, whose sums are as large as a sequence is long, and in the native
        kernel, whose backward pass goes on with what it found."""
        wide = self.log_decay is not None or not self.causal
        return torch.float64 if wide and self.q.device.type != "mps" else self.dtype

    @property
    def has_total(self) -> bool:
        """Whether there is a denominator."""
        return self.denominator != "none"

    @property
    def has_scale(self) -> bool:
        """Whether keys have a scale."""
        return self.key_scale is not None or self.formula == "favor+"

    @property
    def has_exponents(self) -> bool:
        """Whether a gradient of an exponent is asked for."""
        return any(x is not None for x in (self.query_scale, self.key_scale, self.log_decay))

    def make_formula(self) -> Formula:
        """The feature map."""
        return make_formula(FormulaCall(self.formula, self.constant, list(self.numbers)), self.dtype)


class Result(NamedTuple):
    """What the operator returns; what there is not is an empty tensor.

    Attributes:
        output: (B, H, N, Dv), the quotient, or the sum where there is no denominator.
        total: (B, H, N) the denominators.
        scale: (B, H, N) c_i of :mod:`linear_rope.ops.linear.terms`.
        memory, normaliser, stabiliser: the state after the last position.
        weights: (B, H, N, C) inside chunks, for the backward pass.
        memories, normalisers, stabilisers: the state before each block but the first, (blocks, B, H, ...).
    """

    output: Tensor
    total: Tensor
    scale: Tensor
    memory: Tensor
    normaliser: Tensor
    stabiliser: Tensor
    weights: Tensor
    memories: Tensor
    normalisers: Tensor
    stabilisers: Tensor


KEPT = Result._fields[Result._fields.index("weights") :]
"""what an implementation keeps for its backward pass, each as it likes"""


def empty_result(call: Call, **kept: Tensor) -> Result:
    """Memory for a result, which is also its shape for compilers; ``kept`` is what the implementation keeps."""
    batch, heads, length, _ = call.q.shape
    width, features, dtype, exact = call.v.shape[-1], call.features, call.dtype, call.exact
    new, nothing = partial(torch.empty, device=call.q.device), (0,)
    has_total, has_scale = call.has_total, call.has_scale
    return Result(
        # In this layout merging the heads copies nothing.
        output=new((batch, length, heads, width), dtype=dtype).transpose(1, 2),
        total=new((batch, heads, length) if has_total else nothing, dtype=dtype),
        scale=new((batch, heads, length) if has_scale and call.causal else nothing, dtype=exact),
        memory=new((batch, heads, features, width), dtype=dtype),
        normaliser=new((batch, heads, features) if has_total else nothing, dtype=dtype),
        stabiliser=new((batch, heads, 1) if has_scale else nothing, dtype=exact),
        **{name: new(nothing, dtype=dtype) for name in KEPT} | kept,
    )


def check_partners(call: Call) -> None:
    """What one argument says of another, as kernels that take pointers believe it."""
    if (call.denominator_q is None) != (call.denominator_k is None):
        raise ValueError("one of denominator_q and denominator_k is None, the other not; give both or none")
    if call.denominator_q is not None and call.denominator != "unrotated":
        raise ValueError(f'denominator_q is given, and denominator is {call.denominator!r}; give "unrotated"')
    if (call.q_rotation is None) != (call.k_rotation is None):
        raise ValueError("one of q_rotation and k_rotation is None, the other not; give both or none")
    if (call.formula == "favor+") != bool(call.constant is not None and call.constant.numel()):
        came = None if call.constant is None else tuple(call.constant.shape)
        raise ValueError(f"constant is {came} with formula {call.formula!r}; give one row or more to favor+ alone")
    if not call.causal:
        for name in ("log_decay", "memory", "normaliser", "stabiliser"):
            if getattr(call, name) is not None:
                raise ValueError(f"{name} is given, and causal is False; give causal=True, or no {name}")


def numbers_of_map(formula: str, numbers: Sequence[float]) -> tuple[bool, bool, float]:
    """Whether a map is hyperbolic, whether paired, and its ε."""
    if formula == "favor+":
        hyperbolic, paired, eps = numbers
        return bool(hyperbolic), bool(paired), float(eps)
    return False, formula == "elu+1" and bool(numbers[0]), float(numbers[0]) if formula == "relu" else 0.0


class Gradients(NamedTuple):
    """Of the fields of :class:`Call` with these names; None where there is no such field, or it has no gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    denominator_q: Tensor | None
    denominator_k: Tensor | None
    query_scale: Tensor | None
    key_scale: Tensor | None
    log_decay: Tensor | None
    memory: Tensor | None
    normaliser: Tensor | None


def empty_gradients(call: Call) -> Gradients:
    """Memory for gradients."""
    inputs = {name: getattr(call, name) for name in Gradients._fields}
    return Gradients(**{name: None if x is None else torch.empty_like(x) for name, x in inputs.items()})  # type: ignore[arg-type]


def put_exponents(
    gradients: Gradients, call: Call, of_q: Tensor, of_k: Tensor, of_states: Tensor, stretch: int
) -> None:
    """The gradients of scales and decays from those of each query's and key's own exponent, (B, H, N).

    Args:
        of_states: (B, H, stretches) of the exponent of the state after every ``stretch`` positions, and after the last.
    """
    if gradients.query_scale is not None:
        gradients.query_scale.copy_(of_q)
    if gradients.key_scale is not None:
        gradients.key_scale.copy_(of_k)
    if gradients.log_decay is not None and call.log_decay is not None:
        # ln a_t is in the weights of every key before t for every query from t on, and in the state after the last.
        # Stretch by stretch, so that no rounding error travels further.
        resets = call.log_decay.isneginf()
        from_here = _in_stretches(of_q.to(of_states.dtype) - of_k, stretch).flip(-1).cumsum(-1).flip(-1)
        from_here += of_states.unsqueeze(-1)
        # Nothing passes a reset: what has been summed there is rounding errors.
        next_reset = torch.where(_in_stretches(resets, stretch), torch.arange(stretch, device=resets.device), stretch)
        next_reset = next_reset.flip(-1).cummin(-1).values.flip(-1)
        from_here -= torch.nn.functional.pad(from_here, (0, 1)).gather(-1, next_reset)
        gradients.log_decay.copy_(from_here.flatten(2)[..., : resets.shape[-1]].masked_fill(resets, 0))


def _in_stretches(x: Tensor, stretch: int) -> Tensor:
    """(B, H, N) → (B, H, stretches, ``stretch``), the last one filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % stretch)).unflatten(-1, (-1, stretch))


def new_exponents_of_states(
    call: Call, result: Result, grad_memory: Tensor | None, grad_normaliser: Tensor | None, stretch: int
) -> Tensor:
    """``of_states`` of :func:`put_exponents`, of which only the last is known: float64, where the device has it."""
    batch, heads, length, _ = call.q.shape
    dtype = torch.float32 if call.q.device.type == "mps" else torch.float64
    of_states = torch.zeros(batch, heads, -(-length // stretch), dtype=dtype, device=call.q.device)
    of_states[..., -1:] = dot(grad_memory, result.memory) + dot(grad_normaliser, result.normaliser)
    return of_states


def dot(grad: Tensor | None, state: Tensor) -> Tensor | float:
    """(B, H, 1), or zero without a gradient."""
    return 0.0 if grad is None else (grad * state).flatten(2).sum(-1, keepdim=True)
