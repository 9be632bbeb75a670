"""T5's positions against those of ``transformers`` with the same random weights; nothing is downloaded.

Both sides are float32, whose rounding grows to some 1e-6 over these few products: 1e-5 is what may differ.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import SoftmaxRoPEAttention
from linear_rope.positions import T5Buckets
from tests.linear_rope.tensors import random

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

DIM, HEADS, D, LENGTH = 16, 2, 8, 300
BOTH = pytest.mark.parametrize("causal", [True, False])


@BOTH
def test_t5(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=DIM, num_heads=HEADS, d_kv=D, dropout_rate=0.0, is_decoder=causal, attn_implementation="eager"
    )
    theirs, x = (
        T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval(),
        random(2, LENGTH, DIM).float(),
    )
    with torch.no_grad():  # so large that positions matter
        for seed, parameter in enumerate(theirs.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed).float() / 3)
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    if causal:
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        mask = mask.masked_fill(later, torch.finfo(torch.float32).min)
    weights = {
        "query.weight": theirs.q.weight * D**0.5,  # T5 does not divide its scores by √D
        "key.weight": theirs.k.weight,
        "value.weight": theirs.v.weight,
        "out.weight": theirs.o.weight,
        "score_positions.table.weight": theirs.relative_attention_bias.weight,
    }
    module = SoftmaxRoPEAttention(DIM, HEADS, rope="none", score_positions="t5", causal=causal)
    module.load_state_dict({name: weight.detach().clone() for name, weight in weights.items()}, strict=True)
    torch.testing.assert_close(module(x), theirs(x, mask=mask)[0], rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (64, 1000), (16, 20)])
def test_t5_buckets(causal: bool, buckets: int, most: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-3000, 3001)
    theirs: Callable[..., Tensor] = T5Attention._relative_position_bucket
    expected = theirs(-distance, bidirectional=not causal, num_buckets=buckets, max_distance=most)
    mine = T5Buckets(1, D, causal=causal, buckets=buckets, max_distance=most)
    assert mine.bucket(distance).tolist() == expected.tolist()
