"""Linear attention over a sequence whose parts are in different processes."""

from dataclasses import replace

import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from linear_rope.checks import check_choice
from linear_rope.distributed.gather import check_group
from linear_rope.distributed.positions import global_positions
from linear_rope.distributed.states import Part, part_of, received
from linear_rope.features.base import FeatureMap
from linear_rope.ops.linear.arguments import check_angles_alone, check_arguments, check_decay_values
from linear_rope.ops.linear.bidirectional import two_passes
from linear_rope.ops.linear.linear_attention import one_pass, prepare, with_state
from linear_rope.ops.linear.recurrent import State, read_state
from linear_rope.ops.linear.rotated_features import Denominator, Inputs, Rope
from linear_rope.ops.linear.terms import attention_output
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.tokens import Positions
from linear_rope.precision import full_precision


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | None,
    feature_map: FeatureMap,
    rope: Rope = "after",
    denominator: Denominator = "unrotated",
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    positions: Positions | None = None,
    rope_base: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    log_decay: Tensor | None = None,
    angles: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """:func:`linear_rope.linear_attention` of a sequence that is split over the processes of a group, in rank order.

    Every process calls it, with its own part; parts can have different lengths, and all else is alike. A state of
    M × Dv numbers a head is what passes between them, whatever the length (LASP-2, arXiv 2502.07563): one all-gather,
    and one for the gradients; with a decay and without ``causal`` one for each direction. Where positions are to be
    counted, the numbers of tokens pass too.

    Outputs and gradients are those of the whole sequence in one process. What several processes hold a copy of, such
    as a feature map's parameters, gets in each the gradient from its own part: the sum over the group is the whole's.

    ``rope``, ``denominator``, ``causal``, ``rope_base`` and ``rope_scaling`` are as there, the same in every process.

    Args:
        q: (B, H, N, D) queries of this part, N ≥ 1.
        k: (B, H, K, D) keys of this part.
        v: (B, H, K, Dv) values of this part.
        group: a process group of torch.distributed, or None for the default one.
        feature_map: the same in every process, with the same weights or random features.
        key_padding_mask: (B, K) bool, of this part.
        positions: of this part, in the whole sequence. Default: the count of unpadded tokens before each one, those
            of the parts before included.
        log_decay: (B, H, N), of this part.
        angles: (B, H, N, width / 2), of this part.
        implementation: "chunked", "native" or "auto".

    Returns:
        (B, H, N, Dv), this part's.

    Raises:
        ValueError: as there, or no such group. If only one process raises it, the others wait until they time out.
    """
    check_group(group)
    check_arguments(q, k, v, feature_map, causal, key_padding_mask)
    check_angles_alone(angles, positions, rope_scaling)
    check_choice("implementation", implementation, ("auto", "chunked", "native"))
    if positions is None and angles is None and rope != "none":
        positions = global_positions(q, k, key_padding_mask, group)
    with full_precision(q.device):
        inputs = prepare(
            q,
            k,
            v,
            feature_map=feature_map,
            rope=rope,
            denominator=denominator,
            key_padding_mask=key_padding_mask,
            positions=positions,
            rope_base=rope_base,
            rope_scaling=rope_scaling,
            log_decay=log_decay,
            angles=angles,
        )
        check_decay_values(inputs.log_decay)
        if causal:
            return with_state(inputs, _state_before(inputs, group), implementation)[0].to(v.dtype)
        return _both_ways(inputs, group, implementation).to(v.dtype)


def _state_before(inputs: Inputs, group: dist.ProcessGroup | None) -> State:
    def own() -> Part:
        one = None if inputs.q_rotation is None else inputs.q_rotation[..., :1, :, :]
        return part_of(replace(inputs, q=inputs.q[:, :, :1], q_rotation=one).terms())

    # The keys are mapped again in the backward pass, so that nothing as wide as the features is kept.
    return received(checkpoint(own, use_reentrant=False, preserve_rng_state=False), "before", group)


def _both_ways(inputs: Inputs, group: dist.ProcessGroup | None, implementation: str) -> Tensor:
    terms = inputs.terms(causal=False)
    if terms.log_decay is None:
        return attention_output(read_state(terms, received(part_of(terms), "all", group)), terms.query_scale)
    before = received(part_of(terms), "before", group)
    after = received(part_of(terms, from_the_end=True), "after", group)
    return two_passes(
        terms,
        one_pass(inputs.denominator, before, implementation),
        one_pass(inputs.denominator, after, implementation),
    )
