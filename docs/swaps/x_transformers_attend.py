"""x-transformers: each attention has a module ``attend``; its own rotary embedding is off, RoPE comes after the map."""

import torch
from torch import nn
from x_transformers import Decoder, TransformerWrapper
from x_transformers.attend import Intermediates
from x_transformers.x_transformers import Attention

from linear_rope import FavorPlus, linear_attention


class LinearAttend(nn.Module):
    def __init__(self, head_dim, causal, seed):
        super().__init__()
        self.causal = causal
        self.feature_map = FavorPlus(head_dim, seed=seed)

    def forward(self, q, k, v, mask=None, **others):
        padding = None if mask is None else ~mask[:, 0, 0]
        y = linear_attention(q, k, v, feature_map=self.feature_map, causal=self.causal, key_padding_mask=padding)
        return y, Intermediates()


decoder = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16)
model = TransformerWrapper(num_tokens=256, max_seq_len=512, use_abs_pos_emb=False, attn_layers=decoder)
for layer, module in enumerate(module for module in model.modules() if isinstance(module, Attention)):
    module.attend = LinearAttend(16, causal=True, seed=layer)
logits = model(torch.randint(256, (1, 100)))  # generate with cache_kv=False
