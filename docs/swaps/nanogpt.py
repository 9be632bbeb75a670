"""nanoGPT's block with linear attention: one line in place of ``F.scaled_dot_product_attention``."""

import torch
from torch import nn

from linear_rope import EluPlusOne, LinearRoPEAttention, linear_attention


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.feature_map = EluPlusOne()
        self.decay = LinearRoPEAttention.recommended(n_embd, n_head).decay

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        # y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = linear_attention(q, k, v, feature_map=self.feature_map, log_decay=self.decay(x), causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


y = CausalSelfAttention(64, 4)(torch.randn(2, 100, 64))
