"""performer-pytorch's attention inside a :class:`linear_rope.CausalLM`."""

import contextlib
import io

import torch
from einops import rearrange
from torch import Tensor, nn


class PerformerPytorchAttention(nn.Module):
    """``performer_pytorch.SelfAttention`` with its own rotary embedding, which it applies before its feature map.

    It is called as this library's modules are. Two things are the peer's own: in causal mode the stabiliser of its
    keys is a maximum over all positions with a constant added after it, so the future leaks into the past; and the
    path without compiled kernels keeps N·M·D numbers a head for the backward pass.

    Args:
        dim: width of the inputs and outputs.
        heads: number of heads; divides ``dim``.
        num_features: random features a head.
        max_length: positions in its rotary table.
        rotary: False passes no positions at all.
        causal: a token sees itself and those before it.
        seed: of the random features (the peer draws from the global generator, which is restored afterwards).

    Raises:
        ImportError: performer-pytorch is not installed.
        ValueError: a padding mask, or a sequence longer than ``max_length``.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        num_features: int,
        max_length: int,
        rotary: bool = True,
        causal: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        from performer_pytorch import SelfAttention
        from performer_pytorch.performer_pytorch import FixedPositionalEmbedding

        self.max_length = max_length
        # The peer decomposes its projection on the CPU and copies it back, which the meta device cannot do.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
            torch.manual_seed(seed)
            attention = SelfAttention(
                dim,
                causal=causal,
                heads=heads,
                dim_head=dim // heads,
                nb_features=num_features,
                feature_redraw_interval=None,
                attn_out_bias=False,
            )
        # Projections under this library's names start with the weights that equal names have in its own models. The
        # peer's module itself is kept out of the module tree, or every weight would be in the state dict twice.
        self.query, self.key, self.value, self.out = attention.to_q, attention.to_k, attention.to_v, attention.to_out
        self.fast_attention = attention.fast_attention
        self._unregistered = (attention,)
        self.rotary = FixedPositionalEmbedding(dim // heads, max_length) if rotary else None

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """(B, N, dim) → (B, N, dim); ``positions`` are 0, 1, 2, ... whatever is given, as the peer has no others."""
        if key_padding_mask is not None:
            raise ValueError(
                "key_padding_mask was given, but performer-pytorch keeps padding in its denominator; trim it"
            )
        return self._unregistered[0](x, pos_emb=self._rotations(x))

    def attention_weights(self, x: Tensor) -> Tensor:
        """The weight of every value in every output, (B, H, N, N), from the peer's own path with identity values."""
        from performer_pytorch.performer_pytorch import apply_rotary_pos_emb

        heads = self._unregistered[0].heads
        q, k = (rearrange(project(x), "b n (h d) -> b h n d", h=heads) for project in (self.query, self.key))
        rotations = self._rotations(x)
        if rotations is not None:
            q, k = apply_rotary_pos_emb(q, k, rotations)
        identity = torch.eye(x.shape[1], dtype=q.dtype, device=x.device).expand(*q.shape[:2], -1, -1)
        return self.fast_attention(q, k, identity)

    def _rotations(self, x: Tensor) -> Tensor | None:
        if x.shape[1] > self.max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the rotary table ends at {self.max_length}")
        return None if self.rotary is None else self.rotary(x)
