"""From tokens to the queries, keys and values of heads, and from what heads give to tokens."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from linear_rope.attention.convolution import ShortConvolution
from linear_rope.attention.head_norm import HeadNorm, OutputNorm
from linear_rope.attention.projected import (
    Carried,
    Projected,
    default_positions,
    for_heads,
    normed,
    unpadded,
    without_padding,
    zero_at_padding,
)
from linear_rope.attention.settings import DEFAULTS, GATES, Shared, check_shared
from linear_rope.checks import check_at_least, check_choice, check_fraction
from linear_rope.ops.linear.prepare import check_decay_values
from linear_rope.positions.decay import Decay, FixedDecay, GatedDecay, make_decay
from linear_rope.positions.rope_scaling import check_scaling
from linear_rope.positions.rotary import Turn
from linear_rope.positions.segments import cut
from linear_rope.positions.selective import INITIAL_STD, SelectiveAngles, SelectiveRotation
from linear_rope.positions.tokens import Positions
from linear_rope.positions.xpos import check_rope
from linear_rope.precision import full_precision


class Projections(nn.Module):
    """What is around the kernel of an attention: projections, convolutions, norms, gate, decay and selective angles.

    Args:
        dim, heads, causal, decay, rope, shared: see :class:`linear_rope.LinearRoPEAttention`.
        ropes: what ``rope`` may be.
    """

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
        check_shared(settings)
        check_choice("causal", causal, (True, False))
        self._shared = settings
        head_dim, kv_heads, bias = (settings[name] for name in ("head_dim", "kv_heads", "bias"))
        check_at_least(1, dim=dim, heads=heads)
        if head_dim is None and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}; change one of them, or give head_dim")
        self.dim, self.heads, self.causal, self.rope = dim, heads, causal, rope
        self.head_dim = dim // heads if head_dim is None else head_dim
        check_at_least(1, head_dim=self.head_dim)
        self.rope_base, self.rope_scaling, self.rope_fraction = (
            settings[name] for name in ("rope_base", "rope_scaling", "rope_fraction")
        )
        self.kv_heads = groups = heads if kv_heads is None else kv_heads
        if type(groups) is not int or groups < 1 or heads % groups:
            raise ValueError(f"kv_heads is {groups!r}; give a number that divides heads {heads}, or None for as many")
        width, of_keys = heads * self.head_dim, groups * self.head_dim
        self.query, self.key, self.value = (nn.Linear(dim, each, bias=bias) for each in (width, of_keys, of_keys))
        self.out = nn.Linear(width, dim, bias=bias)
        self.dropout = nn.Dropout(settings["dropout"])
        self.decay = make_decay(decay, dim, groups)
        self.rotation: SelectiveAngles | None = None
        self.rotation_convolution: ShortConvolution | None = None
        local, short = settings["local_conv"], settings["short_conv"]
        self.local = ShortConvolution(of_keys, local, causal=causal) if local else None
        self.short = ShortConvolution(width + 2 * of_keys, short, causal=causal) if short else None
        gained, self.output_gate = settings["output_norm"], settings["output_gate"]
        self.output_norm = OutputNorm(self.head_dim, learned=gained) if gained or self.norms_outputs else None
        self.gate = nn.Linear(dim, width, bias=bias) if self.output_gate else None
        self.query_norm: HeadNorm | None = None
        self.key_norm: HeadNorm | None = None
        self.phase: nn.Parameter | None = None
        check_rope(rope, ropes)
        check_scaling(self.rope_scaling, rotates=rope != "none")
        check_fraction("rope_fraction", self.rope_fraction, rotates=rope != "none")
        if rope in ("before", "xpos") and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, but RoPE rotates pairs of channels; give an even number")

    def _normalise(self, gain: float = 1.0) -> None:
        """Normalise each head's queries and keys, if that is asked for, with gains that begin at ``gain``."""
        if self._shared["qk_norm"]:
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

    def _choose_angles(self, width: int) -> None:
        """Take RoPE's angles, or those that the tokens decide, for ``width`` channels of each head."""
        angles = self._shared["rope_angles"]
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
        log_decay = self._log_decay(x, key_padding_mask)
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

    def _log_decay(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor | None:
        """(B, G, N), or (B, G, N, P) of pairs; 0 at padding, where nothing is forgotten."""
        if self.decay is None:
            return None
        log_decay = self.decay(x)
        wanted: tuple[int, ...] = (x.shape[0], self.kv_heads, x.shape[1])
        wanted += () if self.decay.pairs is None else (self.decay.pairs,)
        if log_decay.shape != wanted:
            raise ValueError(f"decay gave ln a_t of shape {tuple(log_decay.shape)}; give {wanted}")
        if type(self.decay) not in (FixedDecay, GatedDecay):  # a subclass may give anything
            check_decay_values(log_decay)
        if key_padding_mask is None:
            return log_decay
        return log_decay.masked_fill(key_padding_mask.view(x.shape[0], 1, x.shape[1], *[1] * (log_decay.dim() - 3)), 0)

    def _gate(self, x: Tensor) -> Tensor | None:
        """What the output of the heads is multiplied by, (B, N, dim) → (B, N, H·D)."""
        return None if self.gate is None else GATES[self.output_gate](self.gate(x))

    def _merge(self, y: Tensor, projected: Projected) -> Tensor:
        """The output of the module from that of its heads, (B, H, N, D); what was projected has padding and more."""
        y = zero_at_padding(y, projected.padding)
        y = (y if self.output_norm is None else self.output_norm(y)).transpose(1, 2).flatten(2)
        y = y if projected.local is None else y + self._of_all_heads(projected.local)
        return self.dropout(self.out(y if projected.gate is None else y * projected.gate))

    def _of_all_heads(self, x: Tensor) -> Tensor:
        """(B, N, G·D) → (B, N, H·D)."""
        if self.kv_heads == self.heads:
            return x
        return for_heads(self._in_heads(x), self.heads).transpose(1, 2).flatten(2)
