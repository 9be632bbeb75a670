"""Whether the arguments of a call of linear attention fit each other."""

from torch import Tensor

from linear_rope.checks import check_padding_mask
from linear_rope.features.base import FeatureMap
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.tokens import Positions
from linear_rope.tracing import is_watched


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, causal: bool, key_padding_mask: Tensor | None
) -> None:
    """Raises ValueError unless these fit each other, as :func:`linear_rope.linear_attention` says."""
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


def check_angles_alone(angles: Tensor | None, positions: Positions | None, rope_scaling: RopeScaling | None) -> None:
    """Raises ValueError where angles are given and what they take the place of is too."""
    for name, x in (("positions", positions), ("rope_scaling", rope_scaling)):
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
