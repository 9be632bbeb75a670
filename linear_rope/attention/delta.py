"""The gated delta rule as an attention module."""

from typing import Any, Literal, NamedTuple, Unpack

from torch import Tensor, nn

from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.projected import Carried, Projected, for_heads, of_groups
from linear_rope.attention.settings import Shared, takes_shared
from linear_rope.checks import check_choice
from linear_rope.features.elementwise import GivenFeatures
from linear_rope.ops.decay import with_resets
from linear_rope.ops.delta.chunked import delta_rule
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.prepare import Rotation, prepare
from linear_rope.ops.linear.rotated_features import Rope, mapped
from linear_rope.positions.decay import Decay, GatedDecay, is_of_pairs, make_decay
from linear_rope.positions.selective import of_length_one
from linear_rope.precision import full_precision
from linear_rope.states import savable


@savable()
class DeltaState(NamedTuple):
    """What the delta rule carries from token to token; its size does not grow.

    Attributes:
        memory: (B, G, D, D) what stands under each key.
        position: (B,) int64, position of the next token.
        carried: by rotation and convolutions.
    """

    memory: Tensor
    position: Tensor
    carried: Carried = Carried()


class GatedDelta(RoPEAttention):
    """The gated delta rule (Yang et al. 2024, arXiv 2412.06464), causal, its gate being ``output_gate``.

    Queries and keys have length 1, RoPE rotates them after that, and every head's output is divided by its root mean
    square, to which ``output_norm`` adds gains. With ``decay="none"`` it is the delta rule itself (arXiv 2406.06484).
    Its loop over chunks is unrolled by compilers: ``torch.compile`` makes another graph for
    another number of chunks, and ``torch.export`` takes one length.

    What is not told of here is as in :class:`LinearRoPEAttention`. ``qk_norm`` changes nothing and adds nothing: the
    length is 1 anyway, a gain of the queries would cancel in the division, and one of the keys would be a factor of β,
    which is the token's own.

    Args:
        rope: "after" (or "before", which is the same here) rotates queries and keys; "none".
        causal: has to be True.
        decay: as there; "gate", the token's, is the default. "channel" is one of each channel that the token sets, for
            ``rope="none"`` (Kimi Delta Attention: Kimi Team 2025, arXiv 2510.26692, whose gate is of low rank); "pair"
            and "pair-fixed" are of each pair of channels.
        beta_range: β is from 0 to "one", σ of a linear map of the token, or to "two", 2σ: what stands under a key can
            change its sign, so that the state's transitions have eigenvalues from −1 to 1 (Grazzi et al. 2024, arXiv
            2411.12537).
    """

    state_type = DeltaState
    norms_outputs = True

    @takes_shared
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rope: Rope = "after",
        causal: bool = True,
        decay: str | Decay = "gate",
        beta_range: Literal["one", "two"] = "one",
        **shared: Unpack[Shared],
    ) -> None:
        if not causal:
            raise ValueError("causal is False, but the delta rule goes from token to token; give causal=True")
        of_pairs = is_of_pairs(decay)
        of_heads = "none" if of_pairs or decay == "channel" else decay
        super().__init__(dim, heads, causal, of_heads, rope, ("after", "before", "none"), **shared)
        if decay == "channel" or (isinstance(decay, Decay) and decay.pairs == self.head_dim):
            if rope != "none":
                raise ValueError(
                    f'decay is {decay!r}, of channels, and rope is "{rope}", but channels that fade by '
                    'themselves cannot be turned as a pair; give rope="none", or decay="pair"'
                )
            channels = GatedDecay(dim, self.kv_heads, pairs=self.head_dim) if decay == "channel" else decay
            self.decay = make_decay(channels, dim, self.kv_heads, self.head_dim)
        elif of_pairs:
            self.decay = make_decay(decay, dim, self.kv_heads, None if self.head_dim % 2 else self.head_dim // 2)
        if rope == "after" and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but rope rotates pairs of channels; give an even number")
        check_choice("beta_range", beta_range, ("one", "two"))
        self.beta_range = beta_range
        self.rate = nn.Linear(dim, self.kv_heads)
        self._choose_angles(self.head_dim)

    def _rate(self, x: Tensor) -> Tensor:
        rate: Tensor = self.rate(x).sigmoid().mT
        return 2 * rate if self.beta_range == "two" else rate

    def _sum(self, projected: Projected, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output of the heads in the dtype of the values, and the memory after the last token."""
        mask, projected = projected.key_padding_mask, projected.by_query()
        assert projected.rate is not None
        with full_precision(projected.q.device):
            q, k = of_length_one(projected.q), of_length_one(projected.k)
            call = Call(q, k, projected.v, denominator="none", feature_map=GivenFeatures())
            rotation = Rotation("none" if self.rope == "none" else "after", self._turn(2), projected.angles)
            terms = mapped(prepare(call, mask, projected.positions, rotation))
            rate, log_decay = projected.rate.to(terms.q.dtype), projected.log_decay
            if log_decay is not None:
                of_channel = log_decay.dim() == 3 or log_decay.shape[-1] == q.shape[-1]
                log_decay = with_resets(log_decay if of_channel else log_decay.repeat_interleave(2, dim=-1))
            if mask is not None:
                rate = rate.masked_fill(mask[:, None], 0)
            memory = None if memory is None else memory.to(terms.q.dtype)
            told = terms.q, terms.k, terms.v, rate, log_decay
            if terms.q.shape[2] > 1 or self.kv_heads == self.heads:
                y, memory = delta_rule(*told, for_heads(memory, self.heads))
                memory = of_groups(memory, self.kv_heads)
            else:  # one token: the queries of a group read what it leaves
                q, k, v, rate, log_decay = (of_groups(x, self.kv_heads) for x in told)
                _, memory = delta_rule(q, k, v, rate, log_decay, memory)
                y = (terms.q.unflatten(1, (self.kv_heads, -1)).squeeze(3) @ memory).flatten(1, 2).unsqueeze(2)
        return y.to(projected.v.dtype), memory

    def _attend(self, projected: Projected) -> Tensor:
        return self._sum(projected)[0]

    def _check_state(self, x: Tensor, state: DeltaState) -> None:
        super()._check_state(x, state)
        self._check_equal("kv_heads", state.memory.shape[1], self.kv_heads)
        self._check_equal("head_dim", state.memory.shape[2], self.head_dim)

    def _continue(self, projected: Projected, state: DeltaState | None) -> tuple[Tensor, dict[str, Any]]:
        y, memory = self._sum(projected, None if state is None else state.memory)
        return y, {"memory": memory}

    def extra_repr(self) -> str:
        return f"rope={self.rope!r}"
