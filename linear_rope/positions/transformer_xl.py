"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860)."""

import torch
from torch import Tensor, nn

from linear_rope.positions.rotary import Turn, rope_rotation
from linear_rope.positions.scores import ScorePositions, new_matrix


class TransformerXL(ScorePositions):
    """Sinusoids of the distance, projected for the query, with a bias u for the content and v for the position.

    Score (m, n) is (q_mᵀk_n + q_mᵀW R_{m−n} + uᵀk_n + vᵀW R_{m−n}) / √D (section 3.3 of the paper), R_Δ the sinusoid
    of Δ, and W, u and v of each head and layer. The paper's recurrence over segments is left out.

    Args:
        dim: width of R; even.
        heads: H.
        head_dim: D.
    """

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__(head_dim, heads)
        if dim % 2:
            raise ValueError(f"dim is {dim}, but sinusoids are pairs of sine and cosine; give an even number")
        self.dim = dim
        self.projection = new_matrix(dim, heads * head_dim)
        self.content_bias = nn.Parameter(nn.init.normal_(torch.empty(heads, head_dim), std=0.02))
        self.position_bias = nn.Parameter(nn.init.normal_(torch.empty(heads, head_dim), std=0.02))

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        u, v = (bias.to(q.dtype).unsqueeze(-2) for bias in (self.content_bias, self.position_bias))
        matrix = self.projection.weight.to(q.dtype).unflatten(0, (-1, self.head_dim))
        for_sine, for_cosine = ((q + v) @ matrix).unflatten(-1, (-1, 2)).unbind(-1)
        # The sine and cosine of a difference are sums of products: R_{m−n} is never made for a pair.
        turn = Turn(self.dim)
        cosine, sine = rope_rotation(q_positions, turn, q.dtype).unbind(-1)
        at_query = torch.cat((for_cosine * sine - for_sine * cosine, for_sine * sine + for_cosine * cosine), dim=-1)
        cosine, sine = rope_rotation(k_positions, turn, q.dtype).unbind(-1)
        return (u @ k.mT + at_query @ torch.cat((sine, cosine), dim=-1).mT) * self.scale
