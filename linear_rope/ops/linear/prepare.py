"""From the arguments of a call of linear attention to a :class:`Call`: checks, padding, positions and decay."""

import math
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from linear_rope.checks import check_base, check_choice, check_fraction, check_padding_mask
from linear_rope.features.base import FeatureMap
from linear_rope.ops.decay import split, with_resets
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import without_abs
from linear_rope.ops.linear.rotated_features import Denominator, PairDenominator, Rope
from linear_rope.positions.rope_scaling import check_scaling
from linear_rope.positions.rotary import ROPE, Turn, rotations
from linear_rope.positions.tokens import Positions, check_positions
from linear_rope.positions.xpos import check_rope
from linear_rope.small_calls import cosine_and_sine
from linear_rope.tracing import is_watched


class Rotation(NamedTuple):
    """How queries and keys, or their features, turn.

    Attributes:
        rope, angles: as in :func:`linear_rope.linear_attention`.
        turn: by which angles, where none are given; its width is that of what turns, whatever it says.
    """

    rope: Rope = "after"
    turn: Turn = ROPE
    angles: Tensor | None = None


def prepare(
    call: Call,
    key_padding_mask: Tensor | None,
    positions: Positions | None,
    rotation: Rotation,
    pair_denominator: PairDenominator = "same",
) -> Call:
    """What is to be mapped and summed, from the tensors, denominator and feature map of a user's call.

    Keys and values are zero at padding, and decays are as :func:`linear_rope.ops.decay.with_resets` has them. The
    other arguments are those of :func:`linear_rope.linear_attention`. What a call of the denominator "abs" gives is
    still to go through :func:`linear_rope.ops.linear.definition.finished`.
    """
    q, k, v, feature_map, log_decay = call.q, call.k, call.v, call.feature_map, call.log_decay
    assert feature_map is not None
    rope, turn, _ = rotation
    check_rope(rope, ("after", "before", "none"))
    check_choice("denominator", call.denominator, get_args(Denominator))
    check_base("rope_base", turn.base)
    check_scaling(turn.scaling, rotates=rope != "none")
    check_fraction("rope_fraction", turn.fraction, rotates=rope != "none")
    check_positions(positions, q, k)
    feature_map.check_width(q)
    padding, (q_rotation, k_rotation) = None, _rotations(call, key_padding_mask, positions, rotation)
    check_decay(log_decay, q, k, feature_map)
    of_pairs = log_decay is not None and log_decay.dim() == 4
    given = f"log_decay of {'pairs' if of_pairs else 'heads'}"
    check_pair_denominator(pair_denominator, call.denominator, given, of_pairs=of_pairs)
    v, denominator = without_abs(v, call.denominator)
    if log_decay is not None and key_padding_mask is not None:
        at_padding = key_padding_mask.view(q.shape[0], 1, q.shape[2], *[1] * (log_decay.dim() - 3))
        log_decay = log_decay.masked_fill(at_padding, 0)
    pair_decay = mean_decay = None
    if log_decay is not None and of_pairs:
        log_decay, pair_decay, mean_decay = split(log_decay, call.dtype)
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, :, None]
        # Before the map: what padding holds, also infinity, must reach neither an output nor a gradient.
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    return call.changed(
        k=k,
        v=v,
        log_decay=None if log_decay is None else with_resets(log_decay),
        pair_decay=pair_decay,
        denominator_decay=mean_decay if pair_denominator == "head" else None,
        padding=padding,
        q_rotation=q_rotation,
        k_rotation=k_rotation,
        denominator=denominator,
        turns_inputs=rope == "before",
    )


def _rotations(
    call: Call, key_padding_mask: Tensor | None, positions: Positions | None, rotation: Rotation
) -> tuple[Tensor | None, Tensor | None]:
    """Those of queries and keys, or of their features."""
    (rope, turn, angles), q, feature_map = rotation, call.q, call.feature_map
    assert feature_map is not None
    if rope == "none":
        if angles is not None:
            raise ValueError('angles were given, but rope is "none"; give rope="after" or "before", or no angles')
        return None, None
    width = feature_map.count(q.shape[-1]) if rope == "after" else q.shape[-1]
    if width % 2:
        what = "the head dimension" if rope == "before" else "the number of features"
        settable = "head_dim" if rope == "before" or feature_map.num_features is None else "num_features"
        raise ValueError(
            f'rope="{rope}" rotates pairs, but {what} is {width}; give an even {settable}, such as {width + 1}'
        )
    if angles is not None:
        given = _given_rotation(angles, call, width)
        return given, given
    magnitude = 1.0
    if rope == "before" and turn.scaling is not None:  # queries and keys have one each
        magnitude = math.sqrt(feature_map.score_scale(turn.scaling.magnitude**2))
    return rotations(q, call.k, positions, key_padding_mask, turn._replace(width=width), call.dtype, magnitude)


def _given_rotation(angles: Tensor, call: Call, width: int) -> Tensor:
    batch, heads, length, _ = call.q.shape
    if call.k.shape[2] != length:
        raise ValueError(
            f"angles was given, but there are {length} queries and {call.k.shape[2]} keys, which cannot turn alike; "
            "give positions, a pair"
        )
    if (
        not isinstance(angles, Tensor)
        or angles.dim() != 4
        or angles.shape[2:] != (length, width // 2)
        or any(given not in (1, needed) for given, needed in zip(angles.shape[:2], (batch, heads), strict=True))
    ):
        came = tuple(angles.shape) if isinstance(angles, Tensor) else type(angles).__name__
        raise ValueError(f"angles is {came}; give radians of shape ({batch}, {heads}, {length}, {width // 2})")
    if not angles.is_floating_point():
        raise ValueError(f"angles has dtype {angles.dtype}; give floating-point radians")
    return cosine_and_sine(angles.to(torch.promote_types(angles.dtype, call.dtype))).to(call.dtype)


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, causal: bool, key_padding_mask: Tensor | None
) -> None:
    """Raises ValueError unless these fit each other, as :func:`linear_rope.linear_attention` says."""
    check_choice("causal", causal, (True, False))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is of type {type(x).__name__}; give a tensor (batch, heads, length, width)")
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; give (batch, heads, length, width)")
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}; give a floating-point tensor")
        if x.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {x.device}; move them to one device")
        if x.shape[2] == 0:
            raise ValueError(f"{name} has length 0; give at least one position")
        if x.shape[3] == 0:
            raise ValueError(f"{name} has width 0; give at least one channel")
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q has shape {tuple(q.shape)} and k {tuple(k.shape)}; their batch, heads and width must be equal"
        )
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; their batch, heads and length must be equal"
        )
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal=True needs as many keys as queries; there are {q.shape[2]} queries, {k.shape[2]} keys"
        )
    check_padding_mask(key_padding_mask, k.shape[0], k.shape[2])
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(f"feature_map is {feature_map!r}; give a FeatureMap, such as FavorPlus({q.shape[-1]}, seed=0)")


def check_angles_alone(angles: Tensor | None, positions: Positions | None, turn: Turn) -> None:
    """Raises ValueError where angles are given and what they take the place of is too."""
    fraction = None if turn.fraction == 1 else turn.fraction
    for name, x in (("positions", positions), ("rope_scaling", turn.scaling), ("rope_fraction", fraction)):
        if angles is not None and x is not None:
            raise ValueError(f"{name} was given beside angles, which take its place; leave one of them out")


def check_decay_values(log_decay: Tensor | None) -> None:
    """Raises ValueError for a positive one, where that costs next to nothing; of one that is zero at padding."""
    if log_decay is None or log_decay.device.type != "cpu" or is_watched():
        return
    # Also false for what is no number.
    if not bool((log_decay <= 0).all()):
        came = "NaN" if bool(log_decay.isnan().any()) else f"{float(log_decay.detach().max()):g}"
        raise ValueError(f"log_decay holds {came}; give ln a_t ≤ 0, of shares a_t from 0 to 1 that are kept")


def check_decay(log_decay: Tensor | None, q: Tensor, k: Tensor, feature_map: FeatureMap) -> None:
    """Raises ValueError unless it is None or ln a_t of every token, or of every pair of its features."""
    if log_decay is None:
        return
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"log_decay was given, but there are {q.shape[2]} queries and {k.shape[2]} keys, which are not on one "
            "axis to fade along; give no log_decay"
        )
    features = feature_map.count(q.shape[-1])
    whole, each = tuple(q.shape[:3]), (*q.shape[:3], features // 2)
    fits = isinstance(log_decay, Tensor) and log_decay.is_floating_point() and log_decay.shape in (whole, each)
    if not fits or (log_decay.dim() == 4 and features % 2):
        came = tuple(log_decay.shape) if isinstance(log_decay, Tensor) else type(log_decay).__name__
        pairs = f", or {each} for the pairs of features" if features % 2 == 0 else ""
        raise ValueError(f"log_decay is {came}; give a floating-point tensor of shape {whole}{pairs}, ln a ≤ 0")


def check_pair_denominator(pair_denominator: str, denominator: str, given: str, *, of_pairs: bool) -> None:
    """Raises ValueError where it means nothing; ``given`` says which decay is."""
    check_choice("pair_denominator", pair_denominator, ("same", "head"))
    if pair_denominator == "head" and (denominator != "unrotated" or not of_pairs):
        raise ValueError(
            'pair_denominator is "head", which is how the unrotated denominator fades below decays of pairs; there '
            f"are denominator {denominator!r} and {given}; give a decay of pairs and "
            'denominator="unrotated", or pair_denominator="same"'
        )
