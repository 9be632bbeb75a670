"""Decays: how much of the past an attention head keeps at each token.

A decay gives ln a_t, at most 0, for every head and token. The weight of key n for query m is multiplied by
Π_{n<t≤m} a_t. A decay that is the same at every token is ALiBi's linear bias, exactly: exp(−slope·(m − n)).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.checks import check_choice
from linear_rope.positions.alibi import alibi_slopes
from linear_rope.precision import full_precision


class Decay(nn.Module):
    """How much is kept; subclass it and define :meth:`forward` for a decay of one's own.

    Args:
        heads: H.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """ln a_t, (B, N, dim) → (B, H, N), float32 or float64; a function of each token by itself."""
        raise NotImplementedError


class FixedDecay(Decay):
    """The same decay at every token.

    Args:
        log_kept: (H,) ln a of each head, at most 0.

    Raises:
        ValueError: one above 0, or NaN.
    """

    def __init__(self, log_kept: Tensor) -> None:
        super().__init__(len(log_kept))
        # No buffer: what the settings say is neither stored with the weights nor rounded or left undefined with them.
        self.log_kept: list[float] = log_kept.tolist()
        if not all(each <= 0 for each in self.log_kept):
            raise ValueError(f"log_kept is {self.log_kept}; give ln a of each head, 0 or less")

    def forward(self, x: Tensor) -> Tensor:
        log_kept = torch.tensor(self.log_kept, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        return log_kept.view(1, -1, 1).expand(x.shape[0], -1, x.shape[1])


class GatedDecay(Decay):
    """A decay that the token decides, a_t = σ(w·x_t + b)^(1/τ) (Yang et al. 2023, arXiv 2312.06635; Dao and Gu 2024,
    arXiv 2405.21060).

    With w = 0 the heads keep 1 − 2^(−e), e spread from 2 to 7.

    Args:
        dim: width of the tokens.
        heads: H.
        temperature: τ.
    """

    def __init__(self, dim: int, heads: int, *, temperature: float = 1.0) -> None:
        super().__init__(heads)
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; give a positive number")
        self.temperature = temperature
        self.weight = nn.Parameter(torch.empty(heads, dim))
        nn.init.normal_(self.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(heads))
        kept = (1 - torch.exp2(-_spread(2, 7, heads))) ** temperature
        self.start: list[float] = torch.logit(kept).tolist()

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x.device):
            bias = torch.tensor(self.start, dtype=torch.float64, device=x.device) + self.bias
            logits = F.linear(x.to(dtype), self.weight.to(dtype)) + bias.to(dtype)
            # logsigmoid wakes a team of threads for any number of logits, in every step of decoding.
            return -F.softplus(-logits, threshold=40.0).mT / self.temperature

    def extra_repr(self) -> str:
        return f"heads={self.heads}, temperature={self.temperature}"


def _spread(first: float, last: float, heads: int) -> Tensor:
    """(H,) evenly from ``first`` to ``last``; the middle for one head."""
    if heads == 1:
        return torch.tensor([(first + last) / 2], dtype=torch.float64, device="cpu")
    return torch.linspace(first, last, heads, dtype=torch.float64, device="cpu")


def _kept(exponents: Tensor) -> Tensor:
    """ln(1 − 2^(−e))."""
    return torch.log1p(-torch.exp2(-exponents))


DECAYS: dict[str, Callable[[int, int], Decay]] = {
    "fixed": lambda dim, heads: FixedDecay(_kept(_spread(1, 7, heads))),
    "alibi": lambda dim, heads: FixedDecay(-alibi_slopes(heads, device="cpu")),
    "retnet": lambda dim, heads: FixedDecay(_kept(5 + torch.arange(heads, dtype=torch.float64, device="cpu"))),
    "gate": GatedDecay,
}
"""called with the width of the tokens and the number of heads: "fixed" keeps 1 − 2^(−e), e from 1 to 7 over the heads;
"alibi" exp(−slope) with ALiBi's slopes; "retnet" 1 − 2^(−5−h) (Sun et al. 2023, arXiv 2307.08621)"""


def make_decay(decay: str | Decay, dim: int, heads: int) -> Decay | None:
    """The decay of a name, or the one given; None for "none".

    Raises:
        ValueError: an unknown name, or a decay of another number of heads.
    """
    if isinstance(decay, Decay):
        if decay.heads != heads:
            raise ValueError(f"decay is made for {decay.heads} heads, the attention has {heads}; make it for {heads}")
        return decay
    check_choice("decay", decay, ("none", *DECAYS))
    return None if decay == "none" else DECAYS[decay](dim, heads)
