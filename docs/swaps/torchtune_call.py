"""torchtune 0.6.1 (needs ``torchao < 0.14``): the function that each attention calls. Its models rotate before."""

import torch
from torchtune.models.llama3 import llama3
from torchtune.modules import MultiHeadAttention

from linear_rope import FavorPlus, linear_attention

feature_map = FavorPlus(16, seed=0)


def linear(q, k, v, mask, dropout_p, is_causal):
    assert mask is None
    return linear_attention(q, k, v, feature_map=feature_map, rope="none", causal=is_causal)


model = llama3(vocab_size=256, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=64, max_seq_len=512)
for module in model.modules():
    if isinstance(module, MultiHeadAttention):
        module._attention_call = linear
logits = model(torch.randint(256, (1, 100)))
