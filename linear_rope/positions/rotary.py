"""Rotary position embedding, RoPE (Su et al. 2021, arXiv 2104.09864)."""

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from linear_rope.checks import check_base
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.tokens import Positions, align_positions, positions_of_both, token_positions
from linear_rope.small_calls import cosine_and_sine
from linear_rope.tracing import has_tangent, is_watched

Layout = Literal["interleaved", "half"]

FEW = 64
"""positions whose rotations are kept, at most"""
STRETCH = 256
"""positions of a table from whose rows the rotations of few positions are made"""


def rope_frequencies(
    width: int,
    *,
    base: float = 10000.0,
    device: torch.device | str | None = None,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """The angle per position of every rotated pair, θ_i = base^(−2i/width) (section 3.2.2 of the paper).

    Args:
        width: number of channels that are rotated; even.
        base: the slowest pair turns about ``base`` times slower than the fastest.
        device: where to make them.
        scaling: for sequences longer than those of training, see :mod:`linear_rope.positions.rope_scaling`.

    Returns:
        (width / 2,) float64, radians per position. (float32 on devices without float64.)

    Raises:
        ValueError: ``width`` is not a positive even number, or ``base`` is not a positive finite number.
    """
    if width < 2 or width % 2:
        raise ValueError(f"RoPE rotates pairs of channels: width is {width}, give a positive even number")
    check_base("base", base)
    exponents = torch.arange(0, width, 2, dtype=_angle_dtype(device), device=device) / width
    frequencies = base**-exponents
    return frequencies if scaling is None else scaling.scale(frequencies)


def rope_rotation(
    positions: Tensor,
    width: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Cosine and sine of every pair's angle at every position.

    The angles are computed in float64 and reduced to one turn before they are rounded: a bfloat16 position is wrong
    beyond 256, and a float32 angle is off by 0.004 radians at position 100,000.

    Args:
        positions: (...,) integers or floats.
        width: number of channels that are rotated; even.
        base, scaling: see :func:`rope_frequencies`.
        dtype: of the result; float32 or float64.

    Returns:
        (..., width / 2, 2): cosine and sine.
    """
    make = _frequencies if _may_keep(positions, scaling) else rope_frequencies
    frequencies = make(width, base=base, device=positions.device, scaling=scaling)
    angles = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies
    angles = torch.remainder(angles, 2 * math.pi).to(dtype)
    return cosine_and_sine(angles)


def rope_table(
    length: int,
    width: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """:func:`rope_rotation` of the positions 0, 1, ..., length − 1, with the trigonometry of about 2·√length of them.

    Position a·s + b turns by the product of the rotations of a·s and b, which adds one rounding.
    """
    if torch.compiler.is_compiling():
        # A length that is a symbol has no square root.
        return rope_rotation(torch.arange(length, device=device), width, base=base, dtype=dtype, scaling=scaling)
    step = max(1, math.isqrt(length))
    fine, coarse = (
        rope_rotation(positions, width, base=base, dtype=dtype, scaling=scaling)
        for positions in (torch.arange(step, device=device), torch.arange(0, length, step, device=device))
    )
    table = rotate(coarse.flatten(-2).unsqueeze(1).expand(-1, step, -1), fine)
    return table.flatten(0, 1)[:length].unflatten(-1, (-1, 2))


def _may_keep(x: Tensor, scaling: RopeScaling | None) -> bool:
    """Whether what is made for ``x`` can serve the next call: it holds numbers, and nobody follows how it is made.

    A scaling of one's own may compare equal to another one.
    """
    is_known = scaling is None or type(scaling).__module__ == RopeScaling.__module__
    return is_known and type(x) in (Tensor, nn.Parameter) and not is_watched()


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _frequencies(width: int, *, base: float, device: torch.device, scaling: RopeScaling | None) -> Tensor:
    return rope_frequencies(width, base=base, device=device, scaling=scaling)


@lru_cache(maxsize=2)  # the layers of a model use one, which can be large
@torch.inference_mode(False)
def _table(
    length: int, width: int, *, base: float, dtype: torch.dtype, device: torch.device, scaling: RopeScaling | None
) -> Tensor:
    return rope_table(length, width, base=base, dtype=dtype, device=device, scaling=scaling)


def rotation_at(
    positions: Tensor, width: int, *, base: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    """:func:`rope_rotation`; that of few positions is kept, because all layers of a model decode the same ones."""
    are_few = positions.device.type == "cpu" and positions.numel() <= FEW
    if not are_few or positions.requires_grad or has_tangent(positions) or not _may_keep(positions, scaling):
        return rope_rotation(positions, width, base=base, dtype=dtype, scaling=scaling)
    numbers = (positions.item(),) if positions.numel() == 1 else tuple(positions.flatten().tolist())
    return _rotation_at(numbers, width, base=base, dtype=dtype, scaling=scaling).view(*positions.shape, width // 2, 2)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _rotation_at(
    positions: tuple[float, ...], width: int, *, base: float, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    if not positions or not all(position >= 0 and position == int(position) for position in positions):
        exact = torch.tensor(positions, dtype=torch.float64, device="cpu")
        return rope_rotation(exact, width, base=base, dtype=dtype, scaling=scaling)
    # A product, for the trigonometry of so few numbers wakes a team of threads, which takes longer than all the rest.
    fine = _stretch(0, 1, width, base=base, scaling=scaling)
    turned = []
    for position in map(int, positions):
        coarse = _stretch(position // STRETCH**2 * STRETCH**2, STRETCH, width, base=base, scaling=scaling)
        turned.append(coarse[position // STRETCH % STRETCH] * fine[position % STRETCH])
    return torch.view_as_real(torch.stack(turned)).to(dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _stretch(first: int, step: int, width: int, *, base: float, scaling: RopeScaling | None) -> Tensor:
    """The rotations of 256 positions, first, first + step, ..., as (256, width / 2) complex numbers."""
    positions = torch.arange(first, first + step * STRETCH, step, device="cpu")
    return torch.view_as_complex(rope_rotation(positions, width, base=base, dtype=torch.float64, scaling=scaling))


def rotate(x: Tensor, rotation: Tensor, *, layout: Layout = "interleaved") -> Tensor:
    """Rotate pairs of channels by given angles.

    Args:
        x: (..., N, width), float32 or float64.
        rotation: of :func:`rope_rotation`, of the dtype of ``x``; broadcastable to (..., N, width / 2, 2).
        layout: "interleaved" pairs channels (2i, 2i+1), as the paper does; "half" pairs (i, i + width/2).

    Returns:
        (..., N, width).
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
    *,
    width: int,
    base: float,
    dtype: torch.dtype,
    scaling: RopeScaling | None = None,
    magnitude: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rotations of queries and keys, each broadcastable to (B, H, length, width / 2, 2).

    Args:
        q, k: (B, H, N, D) and (B, H, K, D); only their shapes and device matter.
        positions: see :func:`linear_rope.linear_attention`.
        key_padding_mask: (B, K) or None.
        width: number of channels that are rotated; even.
        base: θ_i = base^(−2i/width).
        dtype: of the result.
        scaling: see :mod:`linear_rope.positions.rope_scaling`.
        magnitude: what is rotated is multiplied by it too.
    """
    if positions is not None:
        q_positions, k_positions = positions_of_both(positions, q, k)
        k_rotation = rotation_at(k_positions, width, base=base, dtype=dtype, scaling=scaling)
        k_rotation = k_rotation if magnitude == 1 else k_rotation * magnitude
        if q_positions is k_positions:
            return k_rotation, k_rotation
        q_rotation = rotation_at(q_positions, width, base=base, dtype=dtype, scaling=scaling)
        return (q_rotation if magnitude == 1 else q_rotation * magnitude), k_rotation
    queries, keys = q.shape[-2], k.shape[-2]
    make = _table if _may_keep(q, scaling) else rope_table
    table = make(max(queries, keys), width, base=base, dtype=dtype, device=q.device, scaling=scaling)
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
    base: float = 10000.0,
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
    aligned = align_positions(positions, x)
    dtype = torch.promote_types(x.dtype, torch.float32)
    rotation = rotation_at(aligned, x.shape[-1], base=base, dtype=dtype, scaling=scaling)
    return rotate(x.to(dtype), rotation, layout=layout).to(x.dtype)


def _angle_dtype(device: torch.device | str | None) -> torch.dtype:
    # Apple's GPU has no float64.
    return torch.float32 if device is not None and torch.device(device).type == "mps" else torch.float64
