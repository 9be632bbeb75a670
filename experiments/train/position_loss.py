"""The loss of a trained model as a function of the position in its context."""

import itertools
import math

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.config import Config
from experiments.train.objectives import bits_per_byte
from experiments.train.steps import autocast
from linear_rope.model import CausalLM

FIRST_BIN = 16


def bins(length: int) -> list[tuple[int, int]]:
    """The first and last position, inclusive, of ranges that double: 0 to 15, 16 to 31, 32 to 63, ... to the length."""
    doubling = (FIRST_BIN << halving for halving in itertools.count())
    edges = [0, *itertools.takewhile(lambda edge: edge < length, doubling), length]
    return [(first, end - 1) for first, end in itertools.pairwise(edges)]


@torch.no_grad()
def losses_by_position(model: CausalLM, windows: Tensor, config: Config, counted: Tensor | None = None) -> Tensor:
    """Bits per byte of the target at every position, mean over windows (B, N + 1) int64, of a model in eval mode.

    ``counted`` (B, N) bool says which targets count (None: all). Returns (N,) float64; NaN where none counts.
    """
    length = windows.shape[1] - 1
    if counted is None:
        counted = torch.ones(len(windows), length, dtype=torch.bool)
    total = torch.zeros(length, dtype=torch.float64)
    device = next((parameter.device for parameter in model.parameters()), windows.device)
    at_once = max(1, 8192 // length)  # that many tokens
    for tokens, of_tokens in zip(windows.split(at_once), counted.split(at_once), strict=True):
        tokens = tokens.to(device)
        with autocast(config, tokens.device):
            logits = model(tokens[:, :-1]).float()
        nats = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
        total += (nats.double().cpu() * of_tokens).sum(0)
    return total / counted.sum(0) * bits_per_byte(1.0)


def by_bin(losses: Tensor) -> pd.DataFrame:
    """Means over the bins of positions: columns first, last (inclusive), bits_per_byte."""
    rows = [(first, last, losses[first : last + 1].mean().item()) for first, last in bins(len(losses))]
    return pd.DataFrame.from_records(rows, columns=["first", "last", "bits_per_byte"])


def recut(windows: Tensor, length: int) -> Tensor:
    """The same bytes in shorter windows: (B, N + 1) → (B · N / length, length + 1); ``length`` divides N.

    Every target stays a target, and is predicted from less.
    """
    inputs, targets = windows[:, :-1], windows[:, 1:]
    pieces, last = inputs.reshape(-1, length), targets.reshape(-1, length)[:, -1:]
    return torch.cat((pieces, last), dim=1)


def overlapping(spans: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Windows that begin every few tokens of longer ones, and which of their targets every range of positions has.

    The ranges are those of ``bins``, and each has every target that counts equally often: a difference between ranges
    is one of the past that is seen, and none of the text. Targets near the ends of a span do not count.

    Of spans (B, L + 1) int64 and a context of N: (B · number, N + 1) int64 windows and (B · number, N) bool. Nothing
    counts if L is less than 2 · N - 1.
    """
    # It divides the length of every range, so that each holds a target at equally many positions.
    step = math.gcd(FIRST_BIN, context)
    windows = spans.unfold(1, context + 1, step)
    starts = torch.arange(windows.shape[1]) * step
    target = starts[:, None] + torch.arange(context)
    counted = (target >= context - 1) & (target <= starts[-1])
    return windows.flatten(0, 1), counted.repeat(len(spans), 1)
