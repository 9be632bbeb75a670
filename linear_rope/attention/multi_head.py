"""What every attention module shares: settings, projections, heads, argument checks."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.attention.convolution import ShortConvolution
from linear_rope.attention.head_norm import HeadNorm, OutputNorm
from linear_rope.attention.projected import (
    Carried,
    Projected,
    default_positions,
    following,
    for_heads,
    normed,
    unpadded,
    without_padding,
    zero_at_padding,
)
from linear_rope.checks import check_base, check_choice, check_fraction, check_padding_mask, check_sequences
from linear_rope.ops.linear.prepare import check_decay_values
from linear_rope.positions.decay import Decay, FixedDecay, GatedDecay, make_decay
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.rotary import BASE, Turn
from linear_rope.positions.segments import cut, segments_of
from linear_rope.positions.selective import INITIAL_STD, SelectiveAngles, SelectiveRotation
from linear_rope.positions.tokens import Positions
from linear_rope.positions.xpos import check_rope
from linear_rope.precision import full_precision

Init = TypeVar("Init", bound=Callable[..., None])


class Shared(TypedDict, total=False):
    """What every attention takes beside its own settings, see :class:`linear_rope.LinearRoPEAttention`."""

    kv_heads: int | None
    head_dim: int | None
    rope_base: float
    rope_scaling: RopeScaling | None
    rope_fraction: float
    bias: bool
    dropout: float
    rope_angles: str | SelectiveRotation
    local_conv: int
    short_conv: int
    qk_norm: bool
    output_norm: bool
    output_gate: bool | str


DEFAULTS: dict[str, Any] = {"head_dim": None, "rope_base": BASE, "rope_scaling": None, "bias": False, "dropout": 0.0}
DEFAULTS |= {"rope_fraction": 1.0, "rope_angles": "fixed", "local_conv": 0, "short_conv": 0, "qk_norm": False}
DEFAULTS |= {"kv_heads": None, "output_norm": False, "output_gate": False}
GATES: dict[Any, Callable[[Tensor], Tensor]] = {True: F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}


def takes_shared(init: Init) -> Init:
    """Let ``inspect`` see the arguments that ``**shared`` stands for, and refuse others."""
    own, kinds = signature(init), Shared.__annotations__
    *named, _ = own.parameters.values()
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=kinds[name]) for name in kinds]
    whole = own.replace(parameters=[*named, *shared])

    @wraps(init)
    def checked(self: nn.Module, *arguments: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in whole.parameters:
                raise TypeError(f"{init.__qualname__}() got an unexpected keyword argument {name!r}")
        init(self, *arguments, **keywords)

    checked.__signature__ = whole  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


class RoPEAttention(nn.Module):
    """Multi-head attention whose ``_attend`` and, where it can be causal, ``_continue`` a subclass defines.

    Args:
        dim, heads, causal, decay, rope, shared: see :class:`linear_rope.LinearRoPEAttention`.
        ropes: what ``rope`` may be.
    """

    state_type: type[Any]
    """what it carries from token to token"""
    norms_outputs = False
    """whether each head's output is normalised whatever ``output_norm`` is"""
    rope: Any

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool,
        decay: str | Decay,
        rope: str,
        ropes: tuple[str, ...],
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__()
        settings: dict[str, Any] = DEFAULTS | shared
        head_dim, dropout = settings["head_dim"], settings["dropout"]
        if dim < 1 or heads < 1:
            raise ValueError(f"dim is {dim} and heads is {heads}; give 1 or more of each")
        if head_dim is None and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}; change one of them, or give head_dim")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}; give 0 or more and less than 1")
        for name in ("qk_norm", "output_norm"):
            if not isinstance(settings[name], bool):
                raise ValueError(f"{name} is {settings[name]!r}; give True or False")
        check_base("rope_base", settings["rope_base"])
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        if self.head_dim < 1:
            raise ValueError(f"head_dim is {head_dim}; give 1 or more")
        self.causal = causal
        self.rope = rope
        self.rope_base = settings["rope_base"]
        self.rope_scaling = settings["rope_scaling"]
        self.rope_fraction = settings["rope_fraction"]
        self.kv_heads = groups = heads if settings["kv_heads"] is None else settings["kv_heads"]
        if type(groups) is not int or groups < 1 or heads % groups:
            raise ValueError(f"kv_heads is {groups!r}; give a number that divides heads {heads}, or None for as many")
        width, of_keys = heads * self.head_dim, groups * self.head_dim
        bias = settings["bias"]
        self.query, self.key, self.value = (nn.Linear(dim, each, bias=bias) for each in (width, of_keys, of_keys))
        self.out = nn.Linear(width, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.decay = make_decay(decay, dim, groups)
        self.rotation: SelectiveAngles | None = None
        self.rotation_convolution: ShortConvolution | None = None
        for name in ("local_conv", "short_conv"):
            window = settings[name]
            if not isinstance(window, int) or window < 0 or window == 1:
                raise ValueError(f"{name} is {window!r}; give a whole number of 2 or more, or 0 for none")
        local, short = settings["local_conv"], settings["short_conv"]
        self.local = ShortConvolution(of_keys, local, causal=causal) if local else None
        self.short = ShortConvolution(width + 2 * of_keys, short, causal=causal) if short else None
        self._after_heads(settings["output_norm"], settings["output_gate"], bias=bias)
        self.query_norm: HeadNorm | None = None
        self.key_norm: HeadNorm | None = None
        self.phase: nn.Parameter | None = None
        check_rope(rope, ropes)
        check_scaling(self.rope_scaling, rotates=rope != "none")
        check_fraction("rope_fraction", self.rope_fraction, rotates=rope != "none")
        if rope in ("before", "xpos") and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but RoPE rotates pairs of channels; give an even number")

    def _after_heads(self, output_norm: bool, output_gate: Any, *, bias: bool) -> None:
        """What each head's output goes through before the last projection."""
        if not isinstance(output_gate, (bool, str)) or output_gate not in (False, *GATES):
            raise ValueError(f'output_gate is {output_gate!r}; give False, True or "silu", or "sigmoid"')
        normed = output_norm or self.norms_outputs
        self.output_norm = OutputNorm(self.head_dim, learned=output_norm) if normed else None
        self.gate = nn.Linear(self.dim, self.heads * self.head_dim, bias=bias) if output_gate else None
        self.output_gate = output_gate

    def _gate(self, x: Tensor) -> Tensor | None:
        """What the output of the heads is multiplied by, (B, N, dim) → (B, N, H·D)."""
        return None if self.gate is None else GATES[self.output_gate](self.gate(x))

    def _normalise(self, qk_norm: bool, gain: float = 1.0) -> None:
        """Normalise each head's queries and keys, if ``qk_norm``, with gains that begin at ``gain``."""
        if qk_norm:
            self.query_norm, self.key_norm = HeadNorm(self.heads, gain), HeadNorm(self.kv_heads, gain)

    def _learn_phase(self, rope_phase: str, pairs: int, place: str) -> None:
        """Learn a phase of each key head and pair, if ``rope_phase`` is "learned", where rope is ``place``."""
        check_choice("rope_phase", rope_phase, ("none", "learned"))
        self.rope_phase = rope_phase
        if rope_phase == "none":
            return
        if self.rope != place:
            raise ValueError(
                f'rope_phase is "learned", but rope is "{self.rope}", and a phase of what a matrix gives is in that '
                f'matrix already; give rope="{place}", or rope_phase="none"'
            )
        self.phase = nn.Parameter(torch.zeros(self.kv_heads * pairs))

    def _rotate_by(self, angles: str | SelectiveRotation, width: int) -> None:
        """Take RoPE's angles, or those that the tokens decide, for ``width`` channels of each head."""
        if angles == "fixed":
            return
        settings = SelectiveRotation() if angles == "selective" else angles
        if not isinstance(settings, SelectiveRotation):
            raise ValueError(f'rope_angles is {angles!r}; give "fixed", "selective" or a SelectiveRotation')
        if self.rope == "none":
            raise ValueError(f'rope_angles is {angles!r}, but rope is "none"; give a rope, or rope_angles="fixed"')
        for name in ("rope_scaling", "rope_fraction"):
            if getattr(self, name) != DEFAULTS[name]:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but selective angles are not of positions; leave it out"
                )
        self.rotation = SelectiveAngles(settings, self.dim, self.kv_heads, width, self.rope_base)
        self.rotation_convolution = ShortConvolution(self.kv_heads * width // 2, 4, causal=self.causal)
        if self.rotation.is_paper:
            nn.init.normal_(self.rotation_convolution.weight, std=INITIAL_STD)

    def _turn(self, width: int) -> Turn:
        """RoPE's angles of ``width`` channels."""
        return Turn(width, self.rope_base, self.rope_scaling, self.rope_fraction)

    @property
    def dtype(self) -> torch.dtype | None:
        """Of the weights; None where something that is not known took the place of the projections."""
        weight = getattr(self.query, "weight", None)
        return weight.dtype if isinstance(weight, Tensor) and weight.is_floating_point() else None

    def _begin(self) -> None:
        """What a subclass does at the start of every forward pass."""

    def _along_one_sequence(self) -> list[str]:
        """The arguments that say how the tokens of one sequence stand to each other, and nothing of two."""
        parts = {
            "decay": self.decay,
            "rope_angles": self.rotation,
            "local_conv": self.local,
            "short_conv": self.short,
        }
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
        self._begin()
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
        return zero_at_padding(self._weights(projected), projected.padding)

    def _weights(self, projected: Projected) -> Tensor:
        """→ (B, H, N, K), what the values are multiplied by."""
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
        raise NotImplementedError

    def recall(self, x: Tensor, memory: Any) -> Tensor:
        """What ``forward(x, context=context)`` gives, (B, N, dim) → (B, N, dim), for what :meth:`remember` gave."""
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

    def _queries(self, x: Tensor) -> Tensor:
        """(B, H, N, D), of what reads such a context."""
        return normed(self._in_heads(self.query(x)), self.query_norm)

    def _in_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def project(
        self,
        x: Tensor,
        context: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        positions: Positions | None = None,
        *,
        before: Carried | None = None,
        segments: Tensor | None = None,
    ) -> Projected:
        """What to attend with: from tokens (B, N, dim) to those of ``context``, after what ``before`` carries.

        With ``segments`` there is a decay, which cuts them off from each other.
        """
        x, source = without_padding(x, context, key_padding_mask)
        if positions is None:
            positions = default_positions(x, context, key_padding_mask, segments)
        phase, speeds, short, local = before or Carried()
        q, k, v = self.query(x), self.key(source), self.value(source)
        if self.short is not None:
            together = unpadded(torch.cat((q, k, v), dim=-1), key_padding_mask)
            widths = [each.shape[-1] for each in (q, k, v)]
            q, k, v = (together + self.short(together, key_padding_mask, short, segments)).split(widths, dim=-1)
            short = self.short.window(together, key_padding_mask, short)
        added = None
        if self.local is not None:
            values = unpadded(v, key_padding_mask)
            added = self.local(values, key_padding_mask, local, segments)
            local = self.local.window(values, key_padding_mask, local)
        angles = None
        if self.rotation is not None and self.rotation_convolution is not None:
            with full_precision(x.device):
                inputs = unpadded(self.rotation.inputs(x), key_padding_mask)
                convolved = self.rotation_convolution(inputs, key_padding_mask, speeds, segments)
                speed = self.rotation.speeds(inputs, convolved, self.rotation_convolution.weight)
                speeds = self.rotation_convolution.window(inputs, key_padding_mask, speeds)
                angles, phase = self.rotation(x, speed, key_padding_mask, phase, segments)
        log_decay = self._log_decay(x)
        if segments is not None:
            log_decay = cut(log_decay, segments, self.kv_heads, torch.promote_types(x.dtype, torch.float32))
        q, k, v = map(self._in_heads, (q, k, v))
        # After the convolution, as published: the lengths are to be those that the kernel meets.
        q, k = normed(q, self.query_norm), normed(k, self.key_norm)
        carried = Carried(phase, speeds, short, local)
        padding = key_padding_mask if context is None else None  # that of a context says nothing about the queries
        told = log_decay, angles, added, carried, segments, padding, self._rate(x), self._gate(x)
        return Projected(q, k, v, key_padding_mask, positions, *told)

    def _rate(self, x: Tensor) -> Tensor | None:
        """β of the delta rule, (B, N, dim) → (B, G, N)."""
        return None

    def _log_decay(self, x: Tensor) -> Tensor | None:
        if self.decay is None:
            return None
        log_decay = self.decay(x)
        wanted: tuple[int, ...] = (x.shape[0], self.kv_heads, x.shape[1])
        wanted += () if self.decay.pairs is None else (self.decay.pairs,)
        if log_decay.shape != wanted:
            raise ValueError(f"decay gave ln a_t of shape {tuple(log_decay.shape)}; give {wanted}")
        if type(self.decay) not in (FixedDecay, GatedDecay):  # a subclass may give anything
            check_decay_values(log_decay)
        return log_decay

    def _merge(self, y: Tensor, projected: Projected | None) -> Tensor:
        """The output of the module from that of its heads, (B, H, N, D); what was projected has padding and more."""
        after = Projected(y, y, y) if projected is None else projected
        y = zero_at_padding(y, after.padding)
        y = (y if self.output_norm is None else self.output_norm(y)).transpose(1, 2).flatten(2)
        y = y if after.local is None else y + self._of_all_heads(after.local)
        return self.dropout(self.out(y if after.gate is None else y * after.gate))

    def _of_all_heads(self, x: Tensor) -> Tensor:
        """(B, N, G·D) → (B, N, H·D)."""
        if self.kv_heads == self.heads:
            return x
        return for_heads(self._in_heads(x), self.heads).transpose(1, 2).flatten(2)

    def _check_state(self, x: Tensor, state: Any) -> None:
        """Raises ValueError unless this attention can go on with ``x`` from ``state``."""
        if not isinstance(state, self.state_type):
            raise ValueError(
                f"state is of type {type(state).__name__}; give the {self.state_type.__name__} that prefill gave"
            )
        parts = {"rope_angles": self.rotation, "short_conv": self.short, "local_conv": self.local}
        kept = (state.carried.phase, state.carried.short, state.carried.local)
        for (name, part), what in zip(parts.items(), kept, strict=True):
            self._check_same(name, part, what)
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
