"""Diagnostics of an attention module, or of every one inside a model, as it is now; nothing in it is changed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.attention.softmax import SoftmaxRoPEAttention
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.diagnostics.statistics import AttentionDiagnostics, measure, warn_of_collapse
from linear_rope.positions.tokens import Positions


def diagnose(
    attention: RoPEAttention,
    x: Tensor,
    key_padding_mask: Tensor | None = None,
    positions: Positions | None = None,
    *,
    context: Tensor | None = None,
    segment_ids: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> AttentionDiagnostics:
    """Measure one attention module on its input. Quadratic in memory: a few (B, H, N, K) matrices.

    Queries and keys are projected in the module's dtype; everything after is float32 (float64 for a float64 module),
    also under autocast. The module is taken in eval mode, without dropout, and left as it was. Warns once in a process
    (:class:`AttentionCollapseWarning`) where FAVOR+ has collapsed.

    Args:
        attention: a LinearRoPEAttention or a SoftmaxRoPEAttention.
        x: (B, N, dim), any floating dtype.
        key_padding_mask: (B, K) bool, True at padding, which is left out whatever it holds. In self-attention it is
            left out as a query too.
        positions: as the module takes them.
        context: (B, K, dim) for cross-attention; then K is its length, and every query counts.
        segment_ids, cu_seqlens: of packed sequences, as the module takes them.

    Raises:
        ValueError: another kind of module, shapes that do not fit, a context for a causal attention, or a mask that
            leaves no key at all; the message says what would do.
    """
    measured = _diagnose(attention, x, key_padding_mask, positions, context, segment_ids, cu_seqlens)
    warn_of_collapse({type(attention).__name__: measured})
    return measured


def diagnose_model(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, AttentionDiagnostics]:
    """Run ``model(*inputs, **kwargs)`` and measure every call of a LinearRoPEAttention or SoftmaxRoPEAttention in it.

    Each layer is measured as by :func:`diagnose`, on what the model gives it: also the memory of cross-attention.
    The model runs in eval mode without gradients, so that no dropout falls and no redraw is counted. Training flags
    are restored and hooks removed, whatever the model raises.

    Args:
        model: any module; attention of other kinds inside it, such as a peer's, is left out.
        *inputs: what it is called with.
        **kwargs: the same.

    Returns:
        By the qualified name of the module, in the order of the calls. A module called again, as with shared layers,
        is called "name#2", "name#3" and so on. A module that the forward pass does not call has no entry.

    Raises:
        ValueError: the model holds no attention that can be measured, or as :func:`diagnose`.
    """
    names: dict[nn.Module, str] = {
        module: name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, LinearRoPEAttention | SoftmaxRoPEAttention)
    }
    if not names:
        raise ValueError(
            f"model is a {type(model).__name__} without attention to measure; give one that holds a "
            "LinearRoPEAttention or a SoftmaxRoPEAttention"
        )
    measured: dict[str, AttentionDiagnostics] = {}
    calls = dict.fromkeys(names, 0)

    def record(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Tensor) -> None:
        assert isinstance(module, RoPEAttention)
        calls[module] += 1
        name = names[module] if calls[module] == 1 else f"{names[module]}#{calls[module]}"
        in_order = ("x", "context", "key_padding_mask", "positions")  # of the attention's own call
        measured[name] = _diagnose(module, **dict(zip(in_order, arguments, strict=False)), **keywords)

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        for module in names:
            stack.callback(module.register_forward_hook(record, with_kwargs=True).remove)
        model(*inputs, **kwargs)
    warn_of_collapse(measured)
    return measured


def _diagnose(attention: RoPEAttention, *call: Any, **named: Any) -> AttentionDiagnostics:
    with evaluating(attention):
        matrices = attention_matrices(attention, *call, **named)
    feature_map = attention.feature_map if isinstance(attention, LinearRoPEAttention) else None
    return measure(matrices, estimates_softmax=feature_map is not None and feature_map.estimates_softmax)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and every module's own flag back afterwards: parts of a model may have been frozen."""
    training = {module: module.training for module in model.modules()}
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module, flag in training.items():
            module.training = flag
