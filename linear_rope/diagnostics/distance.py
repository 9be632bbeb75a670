"""How attention depends on distance: the published bound, the mask that FAVOR+ expects, and what a model does."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from linear_rope.diagnostics.diagnose import evaluating
from linear_rope.positions.rotary import BASE, rope_frequencies


def rope_decay_bound(distances: Tensor, width: int, *, base: float = BASE) -> Tensor:
    """The bound on RoPE's scores by distance, (2/d)·Σ_j |S_j| with S_j = Σ_{i<j} e^{i·Δ·θ_i} (RoFormer, section 3.4.3).

    Args:
        distances: Δ = m − n, any shape.
        width: d, the number of rotated channels; even.
        base: θ_i = base^(−2i/d).

    Returns:
        float64 of the shape of ``distances``; d/4 + 1/2 at distance 0. RoFormer's Figure 2 has d = 128.
    """
    angles = distances.double().unsqueeze(-1) * rope_frequencies(width, base=base, device=distances.device)
    partial_sums = torch.polar(torch.ones_like(angles), angles).cumsum(-1)
    return partial_sums.abs().mean(-1)


def expected_rope_mask(distances: Tensor, num_features: int, *, base: float = BASE) -> Tensor:
    """c(Δ) = (2/M)·Σ_i cos(Δθ_i): what RoPE after the map does to FAVOR+'s score in expectation over the features.

    The features are exchangeable, so the sine cross terms of a rotated pair cancel in the mean, and
    E[(R_m φ(q))ᵀ(R_n φ(k))] = exp(qᵀk/√D)·c(m − n): a fixed mask over distance, whatever the content.

    Args:
        distances: Δ, any shape.
        num_features: M; even.
        base: θ_i = base^(−2i/M).

    Returns:
        float64 of the shape of ``distances``, 1 at distance 0.
    """
    angles = distances.double().unsqueeze(-1) * rope_frequencies(num_features, base=base, device=distances.device)
    return angles.cos().mean(-1)


@torch.no_grad()
def attention_maps(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """The attention weights of every self-attention layer of a model on some tokens, in eval mode.

    Args:
        model: holds attention modules with ``attention_weights``, as a :class:`linear_rope.CausalLM` does.
        tokens: (B, N) int64, what ``model`` is called with.

    Returns:
        A (B, H, N, N) tensor a layer, in the order of the calls. For linear attention with RoPE after the map these
        are the signed weights of RoFormer eq. 19.
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        maps.append(module.attention_weights(arguments[0]))  # type: ignore[operator]

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for module in model.modules():
            if hasattr(module, "attention_weights"):
                stack.callback(module.register_forward_hook(record).remove)
        model(tokens)
    return maps


def weight_by_distance(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weight, and the mean of its absolute value, that a query gives to the key Δ positions before it.

    Averaged over the batch, the heads and the queries of the second half, so that every distance is averaged over
    the same queries.

    Args:
        weights: (B, H, N, N) attention weights, causal or not; N at least 2.

    Returns:
        Two tensors of shape (N // 2,) for the distances 0, 1, ..., N // 2 − 1.
    """
    length = weights.shape[-1]
    half = length // 2
    queries = torch.arange(length - half, length, device=weights.device)
    keys = queries.unsqueeze(-1) - torch.arange(half, device=weights.device)
    chosen = weights[..., queries.unsqueeze(-1), keys]
    return chosen.mean(dim=(0, 1, 2)), chosen.abs().mean(dim=(0, 1, 2))
