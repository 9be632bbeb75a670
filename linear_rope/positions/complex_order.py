"""Complex-order embeddings (Wang et al. 2020, arXiv 1912.12333, ICLR 2020)."""

import math

import torch
from torch import Tensor, nn

from linear_rope.positions.absolute import EmbeddingPositions
from linear_rope.positions.rotary import rope_frequencies, rotate
from linear_rope.positions.tables import PositionTable
from linear_rope.small_calls import cosine_and_sine


class ComplexOrder(EmbeddingPositions):
    """Each word is a wave of its own: r·exp(i(ω·m + ϑ)) at position m, for every pair of channels (section 2 of the
    paper).

    The two halves of a word's embedding are the real and imaginary parts of r·exp(iϑ), so amplitude r and phase ϑ
    are what the embedding holds anyway and its position turns it. The frequencies ω of each word are learned as what
    they differ by from RoPE's θ_i. The paper's network goes on in complex numbers; this one in the two halves.

    Args:
        vocab_size: number of words.
        dim: model width; even.
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim is {dim}, but its halves are real and imaginary parts; give an even number")
        self.dim = dim
        self.frequencies = PositionTable(vocab_size, dim // 2)
        nn.init.normal_(self.frequencies.weight, std=0.02)

    def embed(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        shared = rope_frequencies(self.dim, device=x.device)
        frequencies = self.frequencies(tokens).to(shared.dtype) + shared
        angles = torch.remainder(positions.to(shared.dtype).unsqueeze(-1) * frequencies, 2 * math.pi)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return rotate(x.to(dtype), cosine_and_sine(angles.to(dtype)), layout="half").to(x.dtype)
