"""Rotary position embedding, RoPE (Su et al. 2021, arXiv 2104.09864)."""

import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.checks import check_base, check_fraction
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.tokens import Positions, align_positions, positions_of_both, token_positions
from linear_rope.small_calls import cosine_and_sine
from linear_rope.tracing import has_tangent, is_watched

Layout = Literal["interleaved", "half"]

BASE = 10000.0
"""of which the angles are powers, unless another is given"""

FEW = 64
"""positions whose rotations are kept, at most"""
STRETCH = 256
"""positions of a table from whose rows the rotations of few positions are made"""


def rope_frequencies(
    width: int,
    *,
    base: float = BASE,
    device: torch.device | str | None = None,
    scaling: RopeScaling | None = None,
    fraction: float = 1.0,
) -> Tensor:
    """The angle per position of every pair, θ_i = base^(−2i/width) (section 3.2.2 of the paper).

    With a ``fraction`` (GPT-NeoX: Black et al. 2022, arXiv 2204.06745) the even number nearest to that share of
    ``width``, of two the multiple of 4, and at least 2, takes its place; the pairs behind so many channels have the
    angle 0.

    Returns:
        (width / 2,) float64, radians per position. (float32 on devices without float64.)

    Raises:
        ValueError: ``width`` is not a positive even number, ``base`` not a positive finite one, or ``fraction`` not
            above 0 and at most 1.
    """
    if width < 2 or width % 2:
        raise ValueError(f"RoPE rotates pairs of channels: width is {width}, give a positive even number")
    check_base("base", base)
    check_fraction("fraction", fraction)
    # Apple's GPU has no float64.
    dtype = torch.float32 if device is not None and torch.device(device).type == "mps" else torch.float64
    rotated = max(2, 2 * round(fraction * width / 2))
    exponents = torch.arange(0, rotated, 2, dtype=dtype, device=device) / rotated
    frequencies = base**-exponents
    frequencies = frequencies if scaling is None else scaling.scale(frequencies)
    return frequencies if rotated == width else F.pad(frequencies, (0, (width - rotated) // 2))


class Turn(NamedTuple):
    """By which angles pairs of channels turn; the arguments of :func:`rope_frequencies`."""

    width: int
    base: float = BASE
    scaling: RopeScaling | None = None
    fraction: float = 1.0

    def frequencies(self, device: torch.device) -> Tensor:
        """(width / 2,), radians per position."""
        width, base, scaling, fraction = self
        return rope_frequencies(width, base=base, device=device, scaling=scaling, fraction=fraction)

    def may_keep(self, x: Tensor) -> bool:
        """Whether what is made for ``x`` can serve the next call: it holds numbers, and nobody follows how it is made.

        A scaling of one's own may compare equal to another one.
        """
        is_known = self.scaling is None or type(self.scaling).__module__ == RopeScaling.__module__
        return is_known and type(x) in (Tensor, nn.Parameter) and not is_watched()


ROPE = Turn(2)
"""as published, for any width that takes the place of this one"""


def rope_rotation(positions: Tensor, turn: Turn, dtype: torch.dtype = torch.float32) -> Tensor:
    """Cosine and sine of every pair's angle, (...,) positions → (..., width / 2, 2) in float32 or float64.

    The angles are computed in float64 and reduced to one turn before they are rounded: a bfloat16 position is wrong
    beyond 256, and a float32 angle is off by 0.004 radians at position 100,000. Raises ValueError for one that is not
    finite, on a CPU where nothing traces the call.
    """
    is_seen = positions.is_floating_point() and positions.device.type == "cpu" and not is_watched()
    if is_seen and not bool(positions.isfinite().all()):
        raise ValueError(f"positions hold {positions[~positions.isfinite()][0].item()}; give finite numbers")
    make = _frequencies if turn.may_keep(positions) else Turn.frequencies
    frequencies = make(turn, positions.device)
    angles = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies
    angles = torch.remainder(angles, 2 * math.pi).to(dtype)
    return cosine_and_sine(angles)


def rope_table(length: int, turn: Turn, dtype: torch.dtype, device: torch.device) -> Tensor:
    """:func:`rope_rotation` of the positions 0, 1, ..., length − 1, with the trigonometry of about 2·√length of them.

    Position a·s + b turns by the product of the rotations of a·s and b, which adds one rounding.
    """
    if torch.compiler.is_compiling():
        # A length that is a symbol has no square root.
        return rope_rotation(torch.arange(length, device=device), turn, dtype)
    step = max(1, math.isqrt(length))
    fine, coarse = (
        rope_rotation(positions, turn, dtype)
        for positions in (torch.arange(step, device=device), torch.arange(0, length, step, device=device))
    )
    table = rotate(coarse.flatten(-2).unsqueeze(1).expand(-1, step, -1), fine)
    return table.flatten(0, 1)[:length].unflatten(-1, (-1, 2))


_frequencies = lru_cache(maxsize=8)(torch.inference_mode(False)(Turn.frequencies))
_table = lru_cache(maxsize=2)(torch.inference_mode(False)(rope_table))  # layers of a model use one, which can be large


def rotation_at(positions: Tensor, turn: Turn, dtype: torch.dtype) -> Tensor:
    """:func:`rope_rotation`; that of few positions is kept, because all layers of a model decode the same ones."""
    # Asked last, because of a symbol it would say that it is small.
    are_few = turn.may_keep(positions) and positions.device.type == "cpu" and positions.numel() <= FEW
    if not are_few or positions.requires_grad or has_tangent(positions):
        return rope_rotation(positions, turn, dtype)
    numbers = (positions.item(),) if positions.numel() == 1 else tuple(positions.flatten().tolist())
    return _rotation_at(numbers, turn, dtype).view(*positions.shape, turn.width // 2, 2)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _rotation_at(positions: tuple[float, ...], turn: Turn, dtype: torch.dtype) -> Tensor:
    if not positions or not all(0 <= position < math.inf and position == int(position) for position in positions):
        return rope_rotation(torch.tensor(positions, dtype=torch.float64, device="cpu"), turn, dtype)
    # A product, for the trigonometry of so few numbers wakes a team of threads, which takes longer than all the rest.
    fine = _stretch(0, 1, turn)
    turned = []
    for position in map(int, positions):
        coarse = _stretch(position // STRETCH**2 * STRETCH**2, STRETCH, turn)
        turned.append(coarse[position // STRETCH % STRETCH] * fine[position % STRETCH])
    return torch.view_as_real(torch.stack(turned)).to(dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _stretch(first: int, step: int, turn: Turn) -> Tensor:
    """The rotations of 256 positions, first, first + step, ..., as (256, width / 2) complex numbers."""
    positions = torch.arange(first, first + step * STRETCH, step, device="cpu")
    return torch.view_as_complex(rope_rotation(positions, turn, torch.float64))


def rotate(x: Tensor, rotation: Tensor, *, layout: Layout = "interleaved") -> Tensor:
    """``x`` (..., N, width), float32 or float64, its pairs of channels turned by the cosines and sines of
    :func:`rope_rotation`, of its dtype and broadcastable to (..., N, width / 2, 2).

    The layout "interleaved" pairs channels (2i, 2i+1), as the paper does; "half" pairs (i, i + width/2).
    """
    if layout == "interleaved" and not torch.compiler.is_compiling():
        # A pair is a complex number: one pass over memory instead of six. Compilers fuse the real form instead.
        turn = torch.view_as_complex(rotation.contiguous())
        return torch.view_as_real(_as_complex(x) * turn).flatten(-2)
    cosine, sine = rotation.unbind(-1)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else x.chunk(2, dim=-1)
    rotated = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.stack(rotated, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(rotated, dim=-1)


def _as_complex(x: Tensor) -> Tensor:
    x = x.contiguous()
    # A view that begins in the middle of a pair is no sequence of complex numbers.
    x = x.clone() if x.storage_offset() % 2 else x
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def rotations(
    q: Tensor,
    k: Tensor,
    positions: Positions | None,
    key_padding_mask: Tensor | None,
    turn: Turn,
    dtype: torch.dtype,
    magnitude: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rotations of queries and keys, each broadcastable to (B, H, length, width / 2, 2), times ``magnitude``.

    Args:
        q, k: (B, H, N, D) and (B, H, K, D); only their shapes and device matter.
        positions: see :func:`linear_rope.linear_attention`.
        key_padding_mask: (B, K) or None.
    """
    if positions is not None:
        q_positions, k_positions = positions_of_both(positions, q, k)
        k_rotation = rotation_at(k_positions, turn, dtype)
        k_rotation = k_rotation if magnitude == 1 else k_rotation * magnitude
        if q_positions is k_positions:
            return k_rotation, k_rotation
        q_rotation = rotation_at(q_positions, turn, dtype)
        return (q_rotation if magnitude == 1 else q_rotation * magnitude), k_rotation
    queries, keys = q.shape[-2], k.shape[-2]
    make = _table if turn.may_keep(q) else rope_table
    table = make(max(queries, keys), turn, dtype, q.device)
    table = table if magnitude == 1 else table * magnitude
    k_rotation = table[:keys]
    q_rotation = k_rotation if queries == keys else table[:queries]
    if key_padding_mask is not None:
        k_rotation = table[token_positions(keys, key_padding_mask, k.device)].unsqueeze(1)
        q_rotation = k_rotation if queries == keys else q_rotation
    return q_rotation, k_rotation


def apply_rope(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = BASE,
    layout: Layout = "interleaved",
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Rotate ``x`` by its positions: pair i at position m turns by m·θ_i (RoFormer, eq. 15).

    Args:
        x: (..., N, width), any floating dtype; ``width`` is the head dimension before a feature map, the number of
            features after it.
        positions: (N,), or (B, N) for ``x`` of shape (B, ..., N, width); integers or floats, counted from 0.
        base: θ_i = base^(−2i/width).
        layout: "interleaved" pairs channels (2i, 2i+1), as the paper does; "half" pairs (i, i + width/2).
        scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`; its magnitude is left out.

    Returns:
        (..., N, width) in the dtype of ``x``; angles and products are float32 or better whatever that dtype is.

    Raises:
        ValueError: odd width, unknown layout, or positions whose shape does not fit.
    """
    if layout not in ("interleaved", "half"):
        raise ValueError(f"layout is {layout!r}; choose 'interleaved' or 'half'")
    if x.dim() < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; give (..., N, width)")
    if not x.is_floating_point():
        raise ValueError(f"x has dtype {x.dtype}; give a floating-point tensor")
    check_scaling(scaling, rotates=True, name="scaling")
    aligned = align_positions(positions, x)
    dtype = torch.promote_types(x.dtype, torch.float32)
    rotation = rotation_at(aligned, Turn(x.shape[-1], base, scaling), dtype)
    return rotate(x.to(dtype), rotation, layout=layout).to(x.dtype)
