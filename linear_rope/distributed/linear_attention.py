"""Linear attention over a sequence whose parts are in different processes."""

import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linear_rope.checks import check_choice
from linear_rope.distributed.positions import global_positions
from linear_rope.distributed.states import Part, part_of, received
from linear_rope.features.base import FeatureMap
from linear_rope.ops.linear.both_ways import one_pass, two_passes
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import finished
from linear_rope.ops.linear.operator import with_state
from linear_rope.ops.linear.prepare import (
    Rotation,
    check_angles_alone,
    check_arguments,
    check_decay_values,
    prepare,
)
from linear_rope.ops.linear.rotated_features import Denominator, PairDenominator, Rope, mapped
from linear_rope.ops.linear.state import State, output_of_state
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.rotary import BASE, Turn
from linear_rope.positions.tokens import Positions
from linear_rope.precision import full_precision


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | None,
    feature_map: FeatureMap,
    denominator: Denominator = "unrotated",
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    log_decay: Tensor | None = None,
    pair_denominator: PairDenominator = "same",
    rope: Rope = "after",
    rope_base: float = BASE,
    rope_scaling: RopeScaling | None = None,
    rope_fraction: float = 1.0,
    positions: Positions | None = None,
    angles: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """:func:`linear_rope.linear_attention` of a sequence that is split over the processes of a group, in rank order.

    Every process calls it with its own part of all tensors and masks, and with the same feature map and settings; parts
    can have different lengths. A state of M × Dv numbers a head is what passes between them, whatever the length
    (LASP-2, arXiv 2502.07563): one all-gather, and one for the gradients; with a decay and without ``causal`` one for
    each direction. Where positions are to be counted, the numbers of tokens pass too.

    Outputs and gradients are those of the whole sequence in one process. What several processes hold a copy of, such
    as a feature map's parameters, gets in each the gradient from its own part: the sum over the group is the whole's.

    Args:
        group: a process group of torch.distributed, or None for the default one.
        positions: of this part, in the whole sequence. Default: the count of unpadded tokens before each one, those
            of the parts before included.
        implementation: "chunked", "native" or "auto".

    Returns:
        (B, H, N, Dv), this part's.

    Raises:
        ValueError: as there, or no such group. If only one process raises it, the others wait until they time out.
    """
    _check_group(group)
    check_arguments(q, k, v, feature_map, causal, key_padding_mask)
    turn = Turn(q.shape[-1], rope_base, rope_scaling, rope_fraction)
    check_angles_alone(angles, positions, turn)
    check_choice("implementation", implementation, ("auto", "chunked", "native"))
    if pair_denominator == "head" and not causal:
        raise ValueError('pair_denominator is "head" without causal, whose states do not pass; give "same", or causal')
    if positions is None and angles is None and rope != "none":
        positions = global_positions(q, k, key_padding_mask, group)
    with full_precision(q.device):
        call = Call(q, k, v, log_decay=log_decay, denominator=denominator, causal=causal, feature_map=feature_map)
        call = prepare(call, key_padding_mask, positions, Rotation(rope, turn, angles), pair_denominator)
        check_decay_values(call.log_decay)
        if causal:
            y, _ = with_state(call, _state_before(call, group), implementation)
        else:
            y = _both_ways(call, group, implementation)
        return finished(y, denominator).to(v.dtype)


def _check_group(group: dist.ProcessGroup | None) -> None:
    """Raises ValueError unless this process can talk to others in ``group``."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            f"group is {group!r}, but no processes are connected; call torch.distributed.init_process_group first, and "
            "give its group, or None for all processes"
        )
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"group is {group!r}, which process {dist.get_rank()} does not belong to; give a group that it is in"
        )


def _state_before(call: Call, group: dist.ProcessGroup | None) -> State:
    def own() -> Part:
        one = None if call.q_rotation is None else call.q_rotation[..., :1, :, :]
        return part_of(mapped(call._replace(q=call.q[:, :, :1], q_rotation=one)))

    # The keys are mapped again in the backward pass, so that nothing as wide as the features is kept.
    return received(checkpoint(own, use_reentrant=False, preserve_rng_state=False), "before", group)


def _both_ways(call: Call, group: dist.ProcessGroup | None, implementation: str) -> Tensor:
    call = mapped(call)
    if call.log_decay is None:
        return output_of_state(call, received(part_of(call), "all", group))
    before = received(part_of(call), "before", group)
    after = received(part_of(call, from_the_end=True), "after", group)
    return two_passes(call, one_pass(before, implementation), one_pass(after, implementation))
