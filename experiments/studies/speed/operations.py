"""The bare operation, causal linear attention on given features, by us and by others, and what each can be called for.

Axis names: B batch (1 throughout), H heads, N length, D head dimension, M number of features, C chunk size.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.studies.speed.settings import (
    EQ_19,
    FAST_TRANSFORMERS,
    FLA,
    FORWARD,
    OURS,
    PERFORMER,
    SDPA,
    SpeedConfig,
    takes_flash_attention,
)
from linear_rope import linear_attention
from linear_rope.features import GivenFeatures


class Call(NamedTuple):
    """A competitor, ready to be measured.

    Attributes:
        run: one call; what it returns can be dropped.
        returned_bytes: of the output and the gradients, which every competitor has to return.
        facts: what else is to be known about it.
    """

    run: Callable[[], object]
    returned_bytes: int = 0
    facts: dict[str, int] = {}  # noqa: RUF012 (a NamedTuple's default is never changed)


def operation(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    """A competitor's operation on positive q, k of (1, H, N, M), or (1, H, N, D) for softmax, and v (1, H, N, D)."""
    softmax = name == SDPA
    width = config.head_dim if softmax else config.num_features
    place: Any = {"device": config.device, "dtype": config.dtype}
    q, k = (torch.rand(1, config.heads, length, width, **place).requires_grad_() for _ in range(2))
    v = torch.randn(1, config.heads, length, config.head_dim, **place).requires_grad_()
    attention = _operations()[name]

    def forward() -> Tensor:
        with softmax_backend(config):
            return attention(q, k, v)

    return differentiated(direction, forward, [q, k, v], torch.randn_like(v), v)


def differentiated(
    direction: str, forward: Callable[[], Tensor], inputs: list[Tensor], gradient: Tensor, output: Tensor
) -> Call:
    """The forward pass without a graph, or forward and backward; ``output`` is one of the output's size."""
    returned = output.numel() * output.element_size()
    if direction == FORWARD:
        return Call(torch.no_grad()(forward), returned)

    def run() -> object:
        y = forward()
        return y, torch.autograd.grad(y, inputs, gradient.to(y.dtype))

    return Call(run, returned + sum(x.numel() * x.element_size() for x in inputs))


def softmax_backend(config: SpeedConfig) -> contextlib.AbstractContextManager[object]:
    """Within it PyTorch's softmax attention is FlashAttention or raises, where the settings allow FlashAttention."""
    if takes_flash_attention(config):
        backend: contextlib.AbstractContextManager[object] = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
        return backend
    return contextlib.nullcontext()


def _operations() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    given = GivenFeatures()
    return {
        OURS: partial(_ours, feature_map=given, rope="none"),
        EQ_19: partial(_ours, feature_map=given, rope="after"),
        SDPA: partial(F.scaled_dot_product_attention, is_causal=True),
        PERFORMER: _performer,
        FAST_TRANSFORMERS: _fast_transformers,
        FLA: _fla,
    }


def _ours(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return linear_attention(q, k, v, causal=True, **options)


def _performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

    output: Tensor = causal_linear_attention_noncuda(q, k, v)
    return output


def _fast_transformers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fast_transformers.causal_product import CausalDotProduct

    # Its kernel gives the numerator only; this denominator is the one of its attention layer.
    return CausalDotProduct.apply(q, k, v) / ((q * k.cumsum(-2)).sum(-1, keepdim=True) + 1e-6)


def _fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.linear_attn import chunk_linear_attn

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y, _ = chunk_linear_attn(q, k, v, scale=1.0, normalize=False)
    denominator = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (y / denominator).transpose(1, 2)


def performer_bytes(length: int, heads: int, config: SpeedConfig) -> int:
    """What performer-pytorch's causal path without compiled kernels keeps of one layer for its backward pass."""
    return 4 * heads * length * config.num_features * config.head_dim


def why_no_fast_transformers(config: SpeedConfig) -> str | None:
    """Why its kernel cannot be called here; None if it can."""
    try:
        from fast_transformers.causal_product import CausalDotProduct
    except ImportError as error:
        return f"not installed ({error})"
    if CausalDotProduct.dot[config.device] is None:
        return f"it was built without its {config.device} kernel"
    return None if config.precision == "float32" else "its kernels take float32 only"


def why_no_fla(config: SpeedConfig) -> str | None:
    """Why its kernel cannot be called here; None if it can."""
    if config.device != "cuda":
        return "its kernels need a GPU"
    try:
        from fla.ops.linear_attn import chunk_linear_attn  # noqa: F401
    except ImportError as error:
        return f"not installed ({error}); pip install fla-core"
    return None


def operation_flops(length: int, config: SpeedConfig, direction: str, chunk_size: int, *, dense: bool = False) -> int:
    """The fewest floating-point operations of chunked causal linear attention (the strict count), over all heads.

    A head's forward pass builds and reads a state, 4·N·M·D, and takes two products inside the chunks, of which only
    the pairs that the causal mask keeps are needed, (C + 1)/2 of C for a query: N·(C + 1)·(M + D). The backward pass
    costs twice that. Denominator, feature map and recomputation are not counted.

    Args:
        dense: count all C·C pairs of a chunk instead, 2·N·C·(M + D): what whole matrix products calculate.
    """
    chunk = min(chunk_size, length)
    pairs = length * chunk if dense else length * (chunk + 1) // 2
    features, width = config.num_features, config.head_dim
    forward = config.heads * (4 * length * features * width + 2 * pairs * (features + width))
    return forward if direction == FORWARD else 3 * forward
