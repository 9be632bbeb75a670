"""The metrics of a model on a split, and what its attention is like."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.config import Config
from experiments.train.group import Group
from experiments.train.objectives import Batch, Objective
from experiments.train.steps import autocast
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.diagnostics import diagnose_model


def on_device(batch: Batch, device: torch.device) -> Batch:
    return tuple(tensor.to(device, non_blocking=True) for tensor in batch)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    split: str,
    windows: int,
    config: Config,
    between_batches: Callable[[], object] = lambda: None,
    group: Group | None = None,
) -> dict[str, float]:
    """The objective's metrics of a model, over at most so many windows of a split; without a group, alone."""
    model.eval()
    device = next(model.parameters()).device
    group = group or Group(device)
    batches = [*zip(*(tensor.split(config.batch_size) for tensor in objective.windows(split, windows)), strict=True)]
    tallies = []
    for batch in group.scatter(batches):
        between_batches()
        with autocast(config, device):
            tallies.append(objective.tally(model, on_device(batch, device)))
    sums: dict[str, Any] = {}
    for counted in group.gather(tallies):
        sums = {name: sums[name] + value if name in sums else value for name, value in counted.items()}
    return objective.metrics(sums)


def attention_statistics(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """How the attention of a model weighs on tokens (B, N) int64: shares are means over the layers, others extremes.

    See linear_rope.diagnostics.AttentionDiagnostics; of denominators it is the one closest to zero. What is not there
    or not finite is left out: all of another library's.
    """
    if not any(isinstance(module, RoPEAttention) for module in model.modules()):
        return {}
    layers = list(diagnose_model(model, tokens).values())
    shares = [layer.nonpositive_denominators for layer in layers if layer.nonpositive_denominators is not None]
    closest = [layer.smallest_denominator for layer in layers if layer.smallest_denominator is not None]
    found = {
        "negative_weights": sum(layer.negative_share for layer in layers) / len(layers),
        "smallest_row_sum": min(layer.row_sums.smallest for layer in layers),
        "largest_row_sum": max(layer.row_sums.largest for layer in layers),
        "nonpositive_denominators": sum(shares) / len(shares) if shares else math.nan,
        "smallest_denominator": min(closest, key=abs, default=math.nan),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}
