"""Decays: how much of the past an attention head keeps at each token.

A decay gives ln a_t, at most 0, for every head and token. The weight of key n for query m is multiplied by
Π_{n<t≤m} a_t. A decay that is the same at every token is ALiBi's linear bias, exactly: exp(−slope·(m − n)).
"""

from collections.abc import Callable
from typing import Any

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
        pairs: P of features that fade by themselves, half as many as linear attention has features; None for heads.
    """

    def __init__(self, heads: int, pairs: int | None = None) -> None:
        super().__init__()
        self.heads, self.pairs = heads, pairs

    def forward(self, x: Tensor) -> Tensor:
        """ln a_t, (B, N, dim) → (B, H, N), or (B, H, N, P), float32 or float64; a function of each token by itself."""
        raise NotImplementedError


class FixedDecay(Decay):
    """The same decay at every token.

    Args:
        log_kept: (H,), or (H, P), ln a of each head, or pair, at most 0.

    Raises:
        ValueError: one above 0, NaN, or another shape.
    """

    def __init__(self, log_kept: Tensor) -> None:
        if not isinstance(log_kept, Tensor) or log_kept.dim() not in (1, 2):
            raise ValueError(f"log_kept is {log_kept!r}; give a tensor (heads,) or (heads, pairs)")
        super().__init__(*log_kept.shape)
        # No buffer: what the settings say is neither stored with the weights nor rounded or left undefined with them.
        self.log_kept: list[Any] = log_kept.tolist()
        if not bool((log_kept <= 0).all()):
            raise ValueError(f"log_kept is {self.log_kept}; give ln a of each head, 0 or less")

    def forward(self, x: Tensor) -> Tensor:
        log_kept = torch.tensor(self.log_kept, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        return log_kept.unsqueeze(1).expand(x.shape[0], -1, x.shape[1], *log_kept.shape[1:])


class GatedDecay(Decay):
    """A decay that the token decides, a_t = σ(w·x_t + b)^(1/τ) (Yang et al. 2023, arXiv 2312.06635; Dao and Gu 2024,
    arXiv 2405.21060).

    With w = 0 the heads keep 1 − 2^(−e), e spread from 2 to 7, and pairs as "pair-fixed".

    Args:
        dim: width of the tokens.
        heads: H.
        temperature: τ.
        pairs: with a decay of each, as GLA's channels have one (Yang et al. 2023); None for one a head.
    """

    def __init__(self, dim: int, heads: int, *, temperature: float = 1.0, pairs: int | None = None) -> None:
        super().__init__(heads, pairs)
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; give a positive number")
        self.temperature = temperature
        gates = heads * (pairs or 1)
        self.weight = nn.Parameter(torch.empty(gates, dim))
        nn.init.normal_(self.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(gates))
        exponents = _spread(2, 7, heads) if pairs is None else _spread(1, 7, pairs).repeat(heads)
        kept = (1 - torch.exp2(-exponents)) ** temperature
        self.start: list[float] = torch.logit(kept).tolist()

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x.device):
            bias = torch.tensor(self.start, dtype=torch.float64, device=x.device) + self.bias
            logits = F.linear(x.to(dtype), self.weight.to(dtype)) + bias.to(dtype)
            logits = logits.mT if self.pairs is None else logits.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            # logsigmoid wakes a team of threads for any number of logits, in every step of decoding; and compilers take
            # softplus's gradient to lie in memory as what it is of.
            return -F.softplus(-logits.contiguous(), threshold=40.0) / self.temperature

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


PAIR_DECAYS: dict[str, Callable[[int, int, int], Decay]] = {
    "pair": lambda dim, heads, pairs: GatedDecay(dim, heads, pairs=pairs),
    "pair-fixed": lambda dim, heads, pairs: FixedDecay(_kept(_spread(1, 7, pairs)).repeat(heads, 1)),
}
"""of pairs of features: each pair of a head keeps 1 − 2^(−e), e from 1 to 7, where RoPE turns it slower the more; with
"pair" the token adds to that"""


def is_of_pairs(decay: str | Decay) -> bool:
    """Whether pairs of features fade by themselves."""
    return decay.pairs is not None if isinstance(decay, Decay) else decay in [*PAIR_DECAYS]


def make_decay(decay: str | Decay, dim: int, heads: int, pairs: int | None = None) -> Decay | None:
    """The decay of a name, or the one given; None for "none". ``heads`` are those of keys and values.

    Args:
        pairs: of features that an attention has, if it has decays of them.

    Raises:
        ValueError: an unknown name, or a decay of another number of heads or pairs.
    """
    if isinstance(decay, Decay):
        if decay.heads != heads:
            raise ValueError(
                f"decay is made for {decay.heads} heads, the attention has {heads} of keys and values (kv_heads); make "
                "it for as many"
            )
        if decay.pairs not in (None, pairs):
            raise ValueError(f"decay is made for {decay.pairs} pairs of features; {_what_has_pairs(pairs)}")
        return decay
    if decay == "channel":
        raise ValueError(
            "decay is 'channel', which is the delta rule's alone; give a decay of each head, or \"pair\" of features"
        )
    check_choice("decay", decay, ("none", *DECAYS, *PAIR_DECAYS))
    if decay in PAIR_DECAYS:
        if pairs is None:
            raise ValueError(f"decay is {decay!r}, which fades pairs of features; {_what_has_pairs(pairs)}")
        return PAIR_DECAYS[decay](dim, heads, pairs)
    return None if decay == "none" else DECAYS[decay](dim, heads)


def _what_has_pairs(pairs: int | None) -> str:
    if pairs is None:
        return (
            "linear attention, retention and the delta rule have them, if of an even number of features; give a decay "
            "of each head"
        )
    return f"the attention has {pairs}; make it for {pairs}"
