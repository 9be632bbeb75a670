"""Attention kernels by name; one more is a file beside this one and a line here, or an installed package's entry point.

A kernel is a module class. It is made as ``Kernel(dim, heads, causal=...)``, with those of the other settings of
:class:`linear_rope.ModelConfig` that it names as arguments, and called as
``module(x, context=None, key_padding_mask=None, positions=None)``, (B, N, dim) → (B, N, dim). With ``prefill`` and
``step`` a model can generate with it.
"""

from collections.abc import Collection
from typing import Any

from torch import nn

from linear_rope.attention.delta import GatedDelta
from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.retention import Retention
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.attention.windowed import WindowedFavor
from linear_rope.registry import Registry, taken

ATTENTIONS: Registry[type[nn.Module]] = Registry(
    "attention",
    "linear_rope.attentions",
    {
        "softmax": SoftmaxRoPEAttention,
        "linear": LinearRoPEAttention,
        "retention": Retention,
        "delta": GatedDelta,
        "favor+window": WindowedFavor,
    },
    argument=True,
)


POSITIONAL = ("rope", "alibi", "rope_angles", "score_positions")
"""settings that positions are made of"""


def make_attention(
    name: str, dim: int, heads: int, *, causal: bool, needed: Collection[str] = (), **settings: Any
) -> nn.Module:
    """The attention of a name, of ``ATTENTIONS`` or of an installed package's entry points.

    Settings that the kernel does not name as arguments say nothing about it and are left out, but for those ``needed``.

    Raises:
        ValueError: an unknown name, a setting that is needed and not taken, or what the kernel itself refuses.
    """
    kernel = ATTENTIONS[name]
    known = taken(kernel, settings)
    for setting in needed:
        if setting not in known:
            other = "give another position" if setting in POSITIONAL else "leave it out"
            raise ValueError(
                f"{setting} is {settings[setting]!r}, but the attention {name!r} ({kernel.__name__}) takes no "
                f"{setting}; {other}, or give another attention"
            )
    return kernel(dim, heads, causal=causal, **known)
