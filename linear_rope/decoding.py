"""What comes next: tokens drawn from a model's scores, and a beam search with what it does to the model's states.

Axis names: B sequences, S sources, K beams, N tokens, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linear_rope.checks import check_at_least
from linear_rope.states import mapped

Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens (S·K, 1), sequences (S·K,), sources (S,)), all int64, → logits (S·K, V) of the tokens that follow.

``sequences`` says which sequence of the step before each one goes on from, ``sources`` which sources of it are left.
"""

LARGEST_PENALTY = 10
"""far beyond what is of use; a much larger one is more than a float holds"""
LOWEST_TEMPERATURE = 1e-6
"""below that only 0: the token that it would draw is the likeliest in any case"""


def check_sampling(temperature: float, top_k: int | None, top_p: float) -> None:
    """Raises ValueError if :func:`sample` cannot draw like that."""
    if temperature != 0 and not LOWEST_TEMPERATURE <= temperature < math.inf:
        raise ValueError(
            f"temperature is {temperature}; give {LOWEST_TEMPERATURE:g} or more, or 0 for the likeliest token"
        )
    if top_k is not None and (not isinstance(top_k, int) or top_k < 0):
        raise ValueError(f"top_k is {top_k!r}; give a whole number of tokens, or None (or 0) for all of them")
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p is {top_p}; give a share of the probability from 0 to 1, which is all of it")


def sampling_probabilities(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> Tensor:
    """What :func:`sample` draws from, as in ``transformers``: first the temperature, then ``top_k``, then ``top_p``.

    Args:
        logits: (..., V), of any floating dtype.
        temperature: what logits are divided by, 1e-6 or more.
        top_k: how many of the likeliest tokens are kept, and all that are as likely as the last of them; None (or 0),
            or more than there are, keeps all.
        top_p: the fewest tokens are kept, the likeliest first, whose probabilities reach this sum; at least one. The
            probabilities are those of the tokens that ``top_k`` has kept.

    Returns:
        (..., V) in float32, or float64 if the logits are: 0 for tokens that are not kept, and a sum of 1.

    Raises:
        ValueError: a number out of its range.
    """
    check_sampling(temperature, top_k, top_p)
    if temperature == 0:
        raise ValueError(f"temperature is 0, which draws nothing; give {LOWEST_TEMPERATURE:g} or more")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if top_k and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1:], -torch.inf)
    # Differences from the largest: divided by a low temperature, the logits themselves could overflow.
    probabilities = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    if top_p == 1:
        return probabilities
    likeliest_first, order = probabilities.sort(dim=-1, descending=True, stable=True)
    reached = likeliest_first.cumsum(-1) >= top_p
    kept = likeliest_first.clone()
    kept[..., 1:] = kept[..., 1:].masked_fill(reached[..., :-1], 0)
    return torch.empty_like(kept).scatter_(-1, order, kept / kept.sum(-1, keepdim=True))


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A token for each sequence of logits (B, V), (B, 1) int64: at a temperature of 0 the likeliest, else one of
    :func:`sampling_probabilities`, which says what the settings are and what it refuses.

    The generator of the draws is on the logits' device; None is PyTorch's global one.
    """
    if temperature == 0:
        check_sampling(temperature, top_k, top_p)
        return logits.argmax(-1, keepdim=True)
    probabilities = sampling_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(probabilities, 1, generator=generator)


def reordered(state: Any, order: Tensor) -> Any:
    """The states of the sequences that ``order`` (B',) int64 names, in that order; they can be named several times.

    A state is tensors whose first dimension counts the sequences, None, and tuples (also named ones) of these.
    """
    return mapped(state, lambda _, x: x.index_select(0, order))


def length_penalty_of(length: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^α, by which a hypothesis' log-probability is divided (Wu et al. 2016, arXiv 1609.08144,
    eq. 14).
    """
    return float(((5 + length) / 6) ** alpha)


def beam_search(
    step: Step,
    sources: int,
    *,
    begin: int,
    end: int,
    beams: int,
    length_penalty: float,
    longest: int,
    device: torch.device,
) -> Tensor:
    """The best sequence found for each source.

    In every step the ``beams`` most probable sequences that have not ended go on. Of the ``beams`` most probable
    continuations those that end are hypotheses, and a source is done when it has ``beams`` of them. The best has the
    largest log-probability over :func:`length_penalty_of` its tokens, the end among them. Where none has ended after
    ``longest`` tokens, the most probable sequence is taken as it is.

    Args:
        step: the model.
        sources: how many.
        begin: the token that every sequence begins with; it is not part of the result.
        end: the token that ends a sequence.
        beams: K; 1 takes the likeliest token each time.
        length_penalty: α of the length penalty; 0 compares log-probabilities.
        longest: most tokens of a result, its end among them.
        device: of the result.

    Returns:
        (sources, N) int64, N up to ``longest``, with ``end`` behind the end.

    Raises:
        ValueError: no beams, no tokens, more beams than half the vocabulary, or a length penalty beyond 0 to 10.
    """
    check_at_least(1, beams=beams, longest=longest)
    if not 0 <= length_penalty <= LARGEST_PENALTY:
        raise ValueError(f"length_penalty is {length_penalty}; give 0 to {LARGEST_PENALTY}")
    found = torch.full((sources, longest), end, device=device)
    if sources == 0:
        return found[:, :0]
    left = torch.arange(sources, device=device)
    kept = left  # of the sources of the step before, those that are left
    tokens = torch.full((sources, 1, 1), begin, device=device)
    sequences = left
    scores = torch.zeros(sources, 1, dtype=torch.float32, device=device)
    best = torch.full((sources,), -torch.inf, dtype=torch.float32, device=device)
    ended = torch.zeros_like(left)
    for length in range(1, longest + 1):
        logits = step(tokens[:, :, -1].reshape(-1, 1), sequences, kept)
        log_probabilities = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        vocabulary, live = log_probabilities.shape[-1], tokens.shape[1]
        if 2 * beams > vocabulary:
            raise ValueError(f"beams is {beams}; give half the vocabulary of {vocabulary} or less")
        together = scores.unsqueeze(-1) + log_probabilities.view(len(left), live, vocabulary)
        # Each sequence has one continuation that ends: of twice as many at least K go on.
        values, places = together.flatten(1).topk(2 * beams)
        parents, new = places // vocabulary, places % vocabulary
        grown = torch.cat((tokens.gather(1, parents.unsqueeze(-1).expand(-1, -1, length)), new.unsqueeze(-1)), dim=2)
        ends = new == end
        ends_now = ends[:, :beams]
        rated = values[:, :beams] / length_penalty_of(length, length_penalty)
        value, place = rated.masked_fill(~ends_now, -torch.inf).max(-1)
        better = value > best
        best = torch.where(better, value, best)
        hypothesis = grown[torch.arange(len(left), device=device), place, 1:]
        found[left[better], :length] = hypothesis[better]
        ended = ended + ends_now.sum(-1)
        scores, chosen = values.masked_fill(ends, -torch.inf).topk(beams)
        tokens = grown.gather(1, chosen.unsqueeze(-1).expand(-1, -1, length + 1))
        parents = parents.gather(1, chosen)
        if length == longest:
            none = best == -torch.inf
            found[left[none]] = tokens[none, 0, 1:]
        going_on = (ended < beams).nonzero().squeeze(-1)
        if len(going_on) == 0:
            break
        kept = going_on
        sequences = (going_on.unsqueeze(-1) * live + parents[going_on]).flatten()
        left, tokens, scores, best, ended = (x[going_on] for x in (left, tokens, scores, best, ended))
    lengths = (found != end).sum(-1)
    return found[:, : min(longest, int(lengths.max()) + 1)]
