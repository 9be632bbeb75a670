"""Sums of logarithmic decays, L_i = Σ_{t ≤ i} ln a_t, as precise at token 100,000 as at token 100.

a_t = 0 is a reset: what came before is forgotten. Its logarithm is −∞, and −∞ − (−∞) is no number, so resets are
counted apart, and keys count only for queries of the same segment between resets. So are very negative logarithms, as
masks have them: a sum that holds one has no digits left for the others.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.tracing import is_for_onnx, is_watched

RESET = -1e4
"""ln a_t up to this is a reset; exp of less than a tenth of it is zero also in float64"""
ROWS = 32
"""of a matrix of differences, made at a time"""


def with_resets(log_decay: Tensor) -> Tensor:
    """ln a_t with −∞ for every reset, as the operator takes it: float64, where the device has it."""
    log_decay = log_decay.masked_fill(log_decay <= RESET, -torch.inf)
    return log_decay if log_decay.device.type == "mps" else log_decay.double()


class PairDecays(NamedTuple):
    """Attributes:
    head: (B, H, N), the largest ln a of the pairs at each token, a constant for autograd.
    pairs: (B, H, N, P) ≤ 0, ln a − ``head``; RESET where a pair forgets and others do not.
    mean: (B, H, N) ≤ 0, the mean of ``pairs``.
    """

    head: Tensor
    pairs: Tensor
    mean: Tensor


def split(log_decay: Tensor, dtype: torch.dtype) -> PairDecays:
    """ln a of pairs (B, H, N, P) as what the head keeps and, in ``dtype``, what each pair does of that.

    What is computed depends on the sum of both alone, so that its whole gradient is that of the pairs.
    """
    wide = log_decay if log_decay.device.type == "mps" else log_decay.double()
    within = wide.clamp(min=RESET)
    head = within.detach().amax(-1)
    forgets = (within <= RESET) & (head > RESET).unsqueeze(-1)
    pairs = (within - head.unsqueeze(-1)).masked_fill(forgets, RESET)
    return PairDecays(head, pairs.to(dtype), pairs.mean(-1).to(dtype))


def of_features(exponent: Tensor, features: int) -> Tensor:
    """exp of what pairs have, (..., P) → (..., M): the same for the features of a pair; P may be 1."""
    of_pair = exponent.exp().unsqueeze(-1)  # repeat_interleave fails in ONNX
    return of_pair.expand(*exponent.shape, features // exponent.shape[-1]).flatten(-2)


class Faded(NamedTuple):
    """Attributes:
    sums: (..., N) float64 (float32 on devices without it), Σ of the ln a_t that are no reset up to each position.
    segment: (..., N) int64, the number of resets up to and with each position.
    """

    sums: Tensor
    segment: Tensor


def faded(log_decay: Tensor) -> Faded:
    """The sums of ``log_decay`` (..., N), differentiable; no gradient reaches a reset."""
    wide = torch.float32 if log_decay.device.type == "mps" else torch.float64
    resets = log_decay <= RESET
    return Faded(log_decay.masked_fill(resets, 0).to(wide).cumsum(-1), resets.cumsum(-1))


def fading(log_decay: Tensor, dtype: torch.dtype, *, causal: bool) -> Tensor:
    """−|L_i − L_j| for queries i and keys j, (..., N) → (..., N, N) in ``dtype``.

    −∞ where a reset lies between them, and with ``causal`` at later keys.
    """
    sums, segment = faded(log_decay)
    hidden = torch.ones(sums.shape[-1], sums.shape[-1], dtype=torch.bool, device=sums.device).triu(1)
    # What follows takes as long as all the rest; where it can be seen that there is no reset it is left out.
    is_whole = log_decay.device.type == "cpu" and not is_watched() and not bool(segment.any())
    if is_whole and not sums.requires_grad:
        between = _differences(sums, dtype)
        return between.masked_fill_(hidden, -torch.inf) if causal else between.mul_(torch.where(hidden, -1, 1))
    between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(dtype)
    if not causal:
        # |x| has no derivative at 0, but the sums up to two tokens have, also where nothing is forgotten between them.
        between = between * torch.where(hidden, -1, 1)
    if is_whole:
        return between.masked_fill(hidden, -torch.inf) if causal else between
    apart = segment.unsqueeze(-1) != segment.unsqueeze(-2)
    return between.masked_fill(apart | hidden if causal else apart, -torch.inf)


def _differences(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """x_i − x_j, (..., N) → (..., N, N), a few rows at a time, so that the wide ones stay in the cache."""
    differences = torch.empty(*sums.shape, sums.shape[-1], dtype=dtype, device=sums.device)
    for rows, part in zip(differences.split(ROWS, dim=-2), sums.split(ROWS, dim=-1), strict=True):
        rows.copy_(part.unsqueeze(-1) - sums.unsqueeze(-2))
    return differences


def running_maximum(x: Tensor, segment: Tensor | None, chunk: int) -> Tensor:
    """The running maximum of ``x`` (S, N), within its segment if there are any.

    ONNX has no such operation, and no loop over a length that is not known: there N is up to ``chunk`` or a multiple,
    and it is made within chunks and of their ends.
    """
    if not is_for_onnx():
        return x.cummax(-1).values if segment is None else segmented_maximum(x, segment)
    segment = torch.zeros_like(x, dtype=torch.int64) if segment is None else segment
    if isinstance(x.shape[1], int) and x.shape[1] <= chunk:
        return segmented_maximum(x, segment)
    segment = segment.unflatten(1, (-1, chunk))
    within = segmented_maximum(x.unflatten(1, (-1, chunk)), segment)
    end, last = within[..., -1], segment[..., -1]
    number = torch.arange(end.shape[1], device=x.device)
    seen = (number <= number.unsqueeze(1)) & (last.unsqueeze(1) == last.unsqueeze(2))
    until = torch.where(seen, end.unsqueeze(1), -torch.inf).amax(-1)
    until, last = F.pad(until, (1, 0))[:, :-1, None], F.pad(last, (1, 0), value=-1)[:, :-1, None]
    return torch.maximum(within, torch.where(segment == last, until, -torch.inf)).flatten(1)


def segmented_maximum(x: Tensor, segment: Tensor) -> Tensor:
    """The running maximum of ``x`` (..., N) within its segment, over twice as many positions in each step."""
    length, step = x.shape[-1], 1
    while step < length:
        same = segment[..., step:] == segment[..., :-step]
        further = torch.where(same, x[..., :-step], -torch.inf)
        x = torch.cat((x[..., :step], torch.maximum(x[..., step:], further)), dim=-1)
        step *= 2
    return x
