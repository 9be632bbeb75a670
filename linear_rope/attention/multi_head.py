"""What every attention module can do: attend, show its weights, and go on from token to token."""

from typing import Any

import torch
from torch import Tensor

from linear_rope.attention.projected import Projected, following, normed, without_padding, zero_at_padding
from linear_rope.attention.projections import Projections
from linear_rope.checks import check_padding_mask, check_sequences
from linear_rope.positions.segments import segments_of
from linear_rope.positions.tokens import Positions
from linear_rope.states import mapped


class RoPEAttention(Projections):
    """Multi-head attention whose ``_attend`` and, where it can be causal, ``_continue`` a subclass defines."""

    state_type: type[Any]
    """what it carries from token to token"""

    def _along_one_sequence(self) -> list[str]:
        """The arguments that say how the tokens of one sequence stand to each other, and nothing of two."""
        parts = {"decay": self.decay, "rope_angles": self.rotation, "local_conv": self.local, "short_conv": self.short}
        return [name for name, part in parts.items() if part is not None]

    def _attend(self, projected: Projected) -> Tensor:
        """→ (B, H, N, Dv), for values of any width."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        positions: Positions | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Attend from every token to the tokens of ``context``, or of ``x`` itself.

        Args:
            x: (B, N, dim).
            context: (B, K, dim), or None for self-attention.
            key_padding_mask: (B, K) bool, True at padding, which has no influence whatever it holds.
            positions: (N,) or (B, N), counted from 0, or a pair of these for queries and keys. Default: the count of
                unpadded tokens before each one, in its segment. Selective angles, decays and convolutions do not read
                them.
            segment_ids: (B, N) integers, equal within a segment: sequences that are packed one behind the other. No
                state, decay, convolution or position crosses from one to the next. For self-attention.
            cu_seqlens: (K + 1,) int32, the same for B = 1: where each segment begins and, last, the last one ends.

        Returns:
            (B, N, dim); zeros (plus the output bias) at padding of ``x`` itself, and for a token that sees no key.

        Raises:
            ValueError: shapes that do not fit, a context for a causal attention or with segments, or a segment that
                comes back.
        """
        self.check_inputs(x, context, key_padding_mask)
        segments = segments_of(segment_ids, cu_seqlens, x, key_padding_mask, context)
        if (feature_map := getattr(self, "feature_map", None)) is not None:
            feature_map.maybe_redraw()
        projected = self.project(x, context, key_padding_mask, positions, segments=segments)
        return self._merge(self._attend(projected), projected)

    def check_inputs(self, x: Tensor, context: Tensor | None, key_padding_mask: Tensor | None) -> None:
        """Raises ValueError unless they are what :meth:`forward` takes."""
        check_sequences("x", x, self.dim, self.dtype)
        if context is not None:
            check_sequences("context", context, self.dim, x.dtype)
            if context.shape[0] != x.shape[0]:
                raise ValueError(f"x has {x.shape[0]} sequences and context {context.shape[0]}; give equally many")
            if self.causal:
                raise ValueError(
                    "context was given, but the attention is causal; leave it out, or make it with causal=False"
                )
            if alone := self._along_one_sequence():
                raise ValueError(
                    f"context was given, but the attention has {' and '.join(alone)}, which a sequence has along "
                    "itself; make it without"
                )
        check_padding_mask(key_padding_mask, *(x if context is None else context).shape[:2])

    def attention_weights(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        positions: Positions | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """The weight of every value in every output of self-attention, (B, H, N, N): the heads give weights @ v.

        That is before norm and gate of the output, and before a local convolution and the values that
        ``score_positions`` may have. Quadratic in memory; for looking at, not for training. For linear attention with
        RoPE after the map these are the signed weights of RoFormer eq. 19, whose rows need not sum to one. Rows and
        columns of padding are zero. The arguments are those of :meth:`forward`.
        """
        self.check_inputs(x, None, key_padding_mask)
        segments = segments_of(segment_ids, cu_seqlens, x, key_padding_mask)
        projected = self.project(x, None, key_padding_mask, positions, segments=segments)
        return zero_at_padding(self.weights(projected), projected.padding)

    def weights(self, projected: Projected) -> Tensor:
        """→ (B, H, N, K), what the values are multiplied by; of queries that are padding too."""
        # Attention is linear in its values: the identity as values gives the weights, whatever the implementation.
        k = projected.k
        identity = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        return self._attend(projected._replace(v=identity))

    def prefill(self, x: Tensor, key_padding_mask: Tensor | None = None, *, state: Any = None) -> tuple[Tensor, Any]:
        """The whole prompt at once, or the next piece of it.

        Args:
            x: (B, N, dim).
            key_padding_mask: (B, N) bool, True at padding.
            state: from the piece before; None at the beginning. Pieces of any length give what the whole gives.

        Returns:
            (B, N, dim), and the state that :meth:`step`, or the next piece, goes on from.

        Raises:
            ValueError: shapes that do not fit, an attention that is not causal, or a state of another attention.
        """
        self._check_causal("prefill")
        self.check_inputs(x, None, key_padding_mask)
        if state is not None:
            self._check_state(x, state)
        return self._advance(x, key_padding_mask, state)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token (B, 1, dim) more: its output, and the state for the next one."""
        self._check_causal("step")
        check_sequences("x", x, self.dim, self.dtype)
        self._check_state(x, state)
        if x.shape[1] != 1:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; step takes one token a sequence: give ({x.shape[0]}, 1, {self.dim}), "
                "or more to prefill with this state"
            )
        return self._advance(x, None, state)

    def _advance(self, x: Tensor, key_padding_mask: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """The output of tokens that follow those in ``state``, and the state after them."""
        positions, position = following(x, key_padding_mask, state)
        before = None if state is None else state.carried
        projected = self.project(x, None, key_padding_mask, positions, before=before)
        y, parts = self._continue(projected, state)
        state = self.state_type(**parts, position=position, carried=projected.carried)
        return self._merge(y, projected), state

    def _continue(self, projected: Projected, state: Any) -> tuple[Tensor, dict[str, Any]]:
        """The output of the heads after ``state``, and what is the kernel's own in the state after them.

        The positions are (B, N), or None without a state: they are counted from 0.
        """
        raise NotImplementedError

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> Any:
        """What :meth:`recall` reads of the tokens of ``context`` (B, K, dim), computed once: tuples of tensors, whose
        first dimension is B. Raises ValueError for a causal attention, or one that tells positions.
        """
        self._keys_and_values(context, key_padding_mask)
        raise NotImplementedError

    def recall(self, x: Tensor, memory: Any) -> Tensor:
        """What ``forward(x, context=context)`` gives, (B, N, dim) → (B, N, dim), for what :meth:`remember` gave."""
        check_sequences("x", x, self.dim, self.dtype)
        mapped(memory, lambda _, kept: self._check_sources(x, kept))
        q = normed(self._in_heads(self.query(x)), self.query_norm)
        projected = Projected(q, q, q, gate=self._gate(x))
        return self._merge(self._read(projected, memory), projected)

    @staticmethod
    def _check_sources(x: Tensor, kept: Tensor) -> Tensor:
        if kept.shape[0] != x.shape[0]:
            raise ValueError(f"x has {x.shape[0]} sequences and memory is of {kept.shape[0]}; give equally many")
        return kept

    def _read(self, projected: Projected, memory: Any) -> Tensor:
        """The output of the heads, whose queries read a context that :meth:`remember` has kept."""
        raise NotImplementedError

    def _keys_and_values(self, context: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, G, K, D) each, of a context without positions."""
        if self.causal or self._along_one_sequence() or getattr(self, "rope", "none") != "none":
            raise ValueError(
                "remember was called, but the attention is causal or tells positions, which a context that is read "
                'token by token has not; make it with causal=False and rope="none", without decay or convolutions'
            )
        check_sequences("context", context, self.dim, self.dtype)
        check_padding_mask(key_padding_mask, *context.shape[:2])
        _, source = without_padding(context, None, key_padding_mask)
        return normed(self._in_heads(self.key(source)), self.key_norm), self._in_heads(self.value(source))

    def _check_state(self, x: Tensor, state: Any) -> None:
        """Raises ValueError unless this attention can go on with ``x`` from ``state``."""
        if not isinstance(state, self.state_type):
            raise ValueError(
                f"state is of type {type(state).__name__}; give the {self.state_type.__name__} that prefill gave"
            )
        self._check_same("rope_angles", self.rotation, state.carried.phase)
        for name, kept in (("short_conv", state.carried.short), ("local_conv", state.carried.local)):
            self._check_equal(name, 0 if kept is None else kept.shape[1] + 1, self._shared[name])
        if state.position.shape[0] != x.shape[0]:  # len would make a number of a symbol
            raise ValueError(
                f"x has shape {tuple(x.shape)}, and the state is that of {len(state.position)} sequences; give "
                f"({len(state.position)}, {x.shape[1]}, {self.dim})"
            )

    @staticmethod
    def _check_same(name: str, part: object, kept: object) -> None:
        """Raises ValueError if the attention has ``part`` and the state kept nothing of one, or the other way round."""
        if (part is None) != (kept is None):
            raise ValueError(f"state is that of an attention with another {name}; give one that prefill gave here")

    @staticmethod
    def _check_equal(name: str, came: object, wanted: object) -> None:
        """Raises ValueError if the state was made with another value of what the attention has as ``wanted``."""
        if came != wanted:
            raise ValueError(
                f"state is that of an attention with another {name}: {came}, and here it is {wanted}; give one that "
                "prefill gave here"
            )

    def _check_causal(self, method: str) -> None:
        if not self.causal:
            raise ValueError(f"{method} needs a causal attention; make it with causal=True")
