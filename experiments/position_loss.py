"""The loss of a trained model as a function of the position in its context."""

import itertools

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.config import Config
from experiments.tasks.language_model import bits_per_byte
from experiments.train import next_token_logits
from linear_rope.model import CausalLM

TOKENS_AT_ONCE = 8192
FIRST_BIN = 16


def bins(length: int) -> list[tuple[int, int]]:
    """The first and last position, inclusive, of ranges that double: 0 to 15, 16 to 31, 32 to 63, ... to the length."""
    edges = [0]
    edge = FIRST_BIN
    while edge < length:
        edges.append(edge)
        edge *= 2
    return [(first, end - 1) for first, end in itertools.pairwise([*edges, length])]


@torch.no_grad()
def losses_by_position(model: CausalLM, windows: Tensor, config: Config) -> Tensor:
    """Bits per byte of the target at every position, mean over windows.

    Args:
        model: in eval mode.
        windows: (B, N + 1) int64, of any length N.
        config: for its precision.

    Returns:
        (N,) float64.
    """
    length = windows.shape[1] - 1
    total = torch.zeros(length, dtype=torch.float64)
    device = next((parameter.device for parameter in model.parameters()), windows.device)
    for tokens in windows.split(max(1, TOKENS_AT_ONCE // length)):
        tokens = tokens.to(device)
        logits = next_token_logits(model, tokens, config)
        nats = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
        total += nats.double().sum(0).cpu()
    return total / len(windows) * bits_per_byte(1.0)


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


def overlapping(spans: Tensor, context: int) -> Tensor:
    """Windows that begin every few tokens of longer ones: (B, L + 1) → (B · number, context + 1).

    They begin so close to each other that the ranges of positions of ``bins`` are about the same bytes, except for
    the ends of a span (and the first ranges of long contexts), and a difference between positions is not one between
    texts.
    """
    return spans.unfold(1, context + 1, max(FIRST_BIN, context // 16)).flatten(0, 1)
