"""The linear attention module: projections around :func:`linear_rope.linear_attention`, and decoding."""

from typing import Any, Literal, NamedTuple, Self, Unpack, get_args

import torch
from torch import Tensor

from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Carried, Projected, for_heads, of_groups
from linear_rope.attention.settings import Shared, takes_shared
from linear_rope.checks import check_choice
from linear_rope.features.base import FeatureMap
from linear_rope.features.registry import make_feature_map
from linear_rope.ops.decay import with_resets
from linear_rope.ops.linear import native
from linear_rope.ops.linear.both_ways import both_ways
from linear_rope.ops.linear.call import Call, computed_in
from linear_rope.ops.linear.definition import finished, without_abs
from linear_rope.ops.linear.operator import attend, check_scale, has_step, step, with_state
from linear_rope.ops.linear.prepare import Rotation, check_pair_denominator, prepare
from linear_rope.ops.linear.rotated_features import Denominator, PairDenominator, Rope, mapped
from linear_rope.ops.linear.state import State, add_key, by_groups, of_heads, output_of_state, sum_keys
from linear_rope.positions.decay import Decay, is_of_pairs, make_decay
from linear_rope.positions.pope import with_phase
from linear_rope.positions.rotary import rotation_at
from linear_rope.precision import full_precision
from linear_rope.states import moved, savable
from linear_rope.tracing import are_plain, has_tangent, is_watched


@savable()
class LinearAttentionState(NamedTuple):
    """What a causal linear attention carries from token to token; its size does not grow.

    Attributes:
        sums: the state of the recurrence.
        position: (B,) int64, position of the next token.
        carried: by rotation and convolutions.
    """

    sums: State
    position: Tensor
    carried: Carried = Carried()


class LinearRoPEAttention(RoPEAttention):
    """Multi-head linear attention with rotary positions after the feature map (RoFormer, arXiv 2104.09864, eq. 19).

    The defaults are the Performer of that equation. For language models and encoders :meth:`recommended` is better.

    Args:
        dim: width of the inputs and outputs.
        heads: number of heads H.
        head_dim: D; default dim / heads.
        kv_heads: G, heads of keys and values, each for H / G query heads (grouped queries: Ainslie et al. 2023, arXiv
            2305.13245), default H. Decays, selective angles and what is carried from token to token are theirs. A map
            is one for the heads of a group.
        feature_map: "favor+", "favor+hyperbolic", "favor+paired", "elu+1", "elu+1+paired", "relu", "hedgehog",
            "taylor", or a :class:`FeatureMap` for vectors of width D.
        num_features: M for the random maps; even, default the even number next to D·ln D.
        rope: "after" rotates the mapped queries and keys; "before" rotates and then maps; "none".
        denominator: "unrotated" (eq. 19), "rotated" (the sum Σ w of the numerator's own weights), "none", or
            "abs", max(|Σ w|, 1) (mLSTM, arXiv 2405.04517).
        causal: a token sees itself and those before it.
        rope_base: θ_i = rope_base^(−2i/width).
        rope_scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`. It is not in the state dict, so weights can be loaded into a
            module with another one.
        rope_fraction: share of the width whose pairs, the first ones, are rotated, in (0, 1], see
            :func:`linear_rope.linear_attention`.
        bias: of the four projections.
        dropout: on the output, in training.
        redraw_every: training-mode forward passes between redraws of the random features; None draws once. The count
            and the features are part of the state dict.
        seed: of the random features that are drawn here, which come from a generator of their own.
        decay: how much of the past each head keeps at each token: "none" all of it; "fixed", "alibi" and "retnet" a
            share that is the head's; "gate" one that the token decides; or a :class:`Decay`, see
            :mod:`linear_rope.positions.decay`. A token keeps exp(−slope) with "alibi", which is ALiBi. "pair" and
            "pair-fixed" keep a share of each pair of features, those that are rotated after the map: a pair that turns
            fast forgets fast, at first, and with "pair" the token decides as with "gate".
        pair_denominator: with a decay of pairs, whether the unrotated denominator fades as they do, "same", or by the
            mean of their ln a, "head".
        rope_angles: "fixed" are RoPE's; "selective" those that the tokens decide, or a :class:`SelectiveRotation`.
        local_conv: tokens in a weighted sum of values that is added to the heads' output (LePE, arXiv 2405.16605);
            0 for none.
        short_conv: tokens in a weighted sum of queries, keys and values that is added to each; 0 for none.
        qk_norm: divide each head's queries and keys by their root mean square, before map and rotation and after the
            short convolution, and multiply them by a learned gain of the head, see :attr:`FeatureMap.initial_gain`.
        output_norm: divide each head's output by its root mean square, and multiply it by a learned gain of each
            channel (RetNet, GLA). A positive denominator cancels in it, up to its ε of 1e-6.
        output_gate: multiply the output, channel by channel, by SiLU (True or "silu"; RetNet, GLA) or "sigmoid" (Qiu
            et al. 2025, arXiv 2505.06708) of a linear map of the tokens, after norm and local convolution.
        rope_phase: "learned" adds a phase of each head and pair to the angles of the numerator's scores, for
            ``rope="after"``; it begins at 0, see :mod:`linear_rope.positions.pope`. "none".

    Raises:
        ValueError: names the argument, what came, and what would do.
    """

    state_type = LinearAttentionState

    @takes_shared
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        feature_map: str | FeatureMap = "favor+",
        num_features: int | None = None,
        rope: Rope = "after",
        denominator: Denominator = "unrotated",
        causal: bool = False,
        redraw_every: int | None = None,
        seed: int = 0,
        decay: str | Decay = "none",
        pair_denominator: PairDenominator = "same",
        rope_phase: Literal["none", "learned"] = "none",
        **shared: Unpack[Shared],
    ) -> None:
        # Of pairs it is made when it is known how many there are.
        of_pairs = is_of_pairs(decay)
        of_heads = "none" if of_pairs else decay
        super().__init__(dim, heads, causal, of_heads, rope, ("after", "before", "none"), **shared)
        check_choice("denominator", denominator, get_args(Denominator))
        self.denominator: Denominator = denominator
        self.feature_map = make_feature_map(
            feature_map, self.head_dim, num_features=num_features, redraw_every=redraw_every, seed=seed
        )
        self._check_map(self.feature_map)
        features = self.feature_map.count(self.head_dim)
        if rope == "after" and features % 2:
            name = "head_dim" if features == self.head_dim and num_features is None else "num_features"
            raise ValueError(
                f'{name} is {features}, but rope="after" rotates pairs of features; give an even number, such as '
                f"{features + 1}"
            )
        if of_pairs:
            self.decay = make_decay(decay, dim, self.kv_heads, features // 2 if features % 2 == 0 else None)
        check_pair_denominator(pair_denominator, denominator, f"decay {decay!r}", of_pairs=of_pairs)
        self.pair_denominator: PairDenominator = pair_denominator
        self._normalise(self.feature_map.initial_gain)
        self._learn_phase(rope_phase, features // 2, "after")
        self._choose_angles(features if rope == "after" else self.head_dim)

    @classmethod
    def recommended(cls, dim: int, heads: int, causal: bool = True, **settings: Any) -> Self:
        """What README's table recommends where nothing else is known: elu+1, RoPE after its map, and a fixed decay.

        ``settings`` are other arguments of the class.
        """
        return cls(dim, heads, causal=causal, **{"feature_map": "elu+1", "decay": "fixed"} | settings)

    def _check_map(self, feature_map: FeatureMap) -> None:
        """Raises ValueError unless a map that is given fits the heads."""
        if feature_map.head_dim not in (None, self.head_dim):
            raise ValueError(
                f"feature_map was made for head_dim {feature_map.head_dim}, but the heads have {self.head_dim}; "
                f"make it with head_dim={self.head_dim}"
            )
        weights = (*feature_map.parameters(), *feature_map.buffers())
        if self.kv_heads < self.heads and any(each.shape[-3:-2] == (self.heads,) for each in weights):
            raise ValueError(
                f"kv_heads is {self.kv_heads}, but feature_map has weights of each of {self.heads} heads, and the "
                "heads of a group share their keys; give a map of no heads, or kv_heads=None"
            )

    def _attend(self, projected: Projected) -> Tensor:
        with full_precision(projected.q.device):
            if not self.causal and self.decay is None:
                # The segments are sums of their own.
                projected = projected._replace(log_decay=None)
            call = self.prepared(projected)
            y = attend(call).output if self.causal else both_ways(call, segments=projected.segments)
        return finished(y, self.denominator).to(projected.v.dtype)

    def prepared(self, projected: Projected) -> Call:
        projected = projected.by_query()
        call = Call(
            projected.q,
            projected.k,
            projected.v,
            log_decay=projected.log_decay,
            denominator=self.denominator,
            causal=self.causal,
            feature_map=self.feature_map,
        )
        rotation = Rotation(self.rope, self._turn(2), projected.angles)
        call = prepare(call, projected.key_padding_mask, projected.positions, rotation, self.pair_denominator)
        if self.phase is not None and call.k_rotation is not None:
            phase = for_heads(self.phase.unflatten(0, (1, self.kv_heads, -1)), call.k.shape[1]).flatten()
            call = call._replace(k_rotation=with_phase(call.k_rotation, phase))
        return call

    def _check_state(self, x: Tensor, state: LinearAttentionState) -> None:
        super()._check_state(x, state)
        _, groups, features, width = state.sums.memory.shape
        self._check_equal("kv_heads", groups, self.kv_heads)
        self._check_equal("feature_map, num_features or head_dim", features, self.feature_map.num_features or features)
        has_key_sum = self.denominator not in ("none", "abs")
        self._check_same("denominator", self.denominator if has_key_sum else None, state.sums.key_sum)
        if width != self.head_dim + (self.denominator == "abs"):
            raise ValueError(
                "state is that of an attention with another denominator or head_dim; give one that prefill gave here"
            )

    def _continue(self, projected: Projected, state: LinearAttentionState | None) -> tuple[Tensor, dict[str, Any]]:
        call = None if state is None else self._one_more(projected, state.sums)
        stepped = None if call is None else step(call)
        if stepped is not None:
            y, *parts = stepped
            sums = State(*parts)  # type: ignore[arg-type]
        else:
            with full_precision(projected.q.device):
                call = self.prepared(projected)
                y, sums = self._next(call, None if state is None else state.sums)
        return finished(y, self.denominator).to(projected.v.dtype), {"sums": sums}

    def _one_more(self, projected: Projected, state: State) -> Call | None:
        """One token after a state as :func:`step` takes it; None where more is to be done than it does.

        The module's settings were checked when the prompt was read.
        """
        q, k, v, key_padding_mask, positions, log_decay, angles, *_ = projected
        formula = self.feature_map.formula()
        if (
            formula is None
            or self.rope == "before"
            or self.phase is not None
            or angles is not None
            or (log_decay is not None and log_decay.dim() == 4)
            or key_padding_mask is not None
            or q.shape[2] > 1
            or q.shape[1] != k.shape[1]
            or not q.numel()
            or state.memory.dtype != computed_in(q, k, v)
            or not are_plain(q, k, v, log_decay, *state)
            or torch.is_grad_enabled()
            or is_watched()
            or has_tangent(q, k, v, log_decay, *state)
            or not has_step(state.memory.dtype, q.device)
        ):
            return None
        rotation = None
        if self.rope == "after" and isinstance(positions, Tensor):
            turn = self._turn(self.feature_map.count(self.head_dim))
            rotation = rotation_at(positions.unsqueeze(1), turn, state.memory.dtype)
        v, denominator = without_abs(v, self.denominator)
        call = Call(
            q,
            k,
            v,
            log_decay=None if log_decay is None else with_resets(log_decay),
            q_rotation=rotation,
            k_rotation=rotation,
            **state._asdict(),
            **formula._asdict(),
            denominator=denominator,
        )
        check_scale(state, call.has_scale)
        return call

    def _next(self, call: Call, state: State | None) -> tuple[Tensor, State]:
        """The output of more tokens, and the state after them."""
        if state is not None and state.memory.dtype != call.dtype:
            state = moved(state, None, call.dtype)
        is_native = self.kv_heads == self.heads and not is_watched() and native.takes(call.dtype, call.q.device)
        if state is None or call.q.shape[2] > 1 or is_native:
            y, state = with_state(call, for_heads(state, self.heads))
            return y, of_groups(state, self.kv_heads)
        call = by_groups(mapped(call), self.kv_heads)
        check_scale(state, call.key_scale is not None)
        state = add_key(state, call, 0)
        return of_heads(output_of_state(call, state), self.heads), state

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> State:
        """The sums over the keys and values of a context, whose size does not depend on how many there are."""
        k, v = self._keys_and_values(context, key_padding_mask)
        with full_precision(context.device):
            return sum_keys(mapped(self.prepared(Projected(k, k, v, key_padding_mask))))

    def _read(self, projected: Projected, memory: State) -> Tensor:
        with full_precision(projected.q.device):
            y = output_of_state(by_groups(mapped(self.prepared(projected)), self.kv_heads), memory)
        return finished(of_heads(y, self.heads), self.denominator).to(projected.q.dtype)

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}, denominator={self.denominator!r}, causal={self.causal}"
