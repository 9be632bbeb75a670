"""Positions against the modules of ``transformers`` with the same random weights; nothing is downloaded.

Both sides are float32, whose rounding grows to some 1e-6 over these few products: 1e-5 is what may differ.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import SoftmaxRoPEAttention
from linear_rope.positions import Deberta, T5Buckets, TransformerXL
from tests.linear_rope.tensors import random

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

DIM, HEADS, D, LENGTH = 16, 2, 8, 300
BOTH = pytest.mark.parametrize("causal", [True, False])


def inputs(length: int = LENGTH) -> Tensor:
    return random(2, length, DIM).float()


def causal_mask(length: int = LENGTH) -> Tensor:
    """(1, 1, N, N) bool, True where a query sees a key."""
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


def large(module: nn.Module) -> Any:
    """The module with weights so large that positions matter to its output."""
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed).float() / 3)
    return module.eval()


def ours(positions: Any, causal: bool, weights: dict[str, Tensor]) -> SoftmaxRoPEAttention:
    module = SoftmaxRoPEAttention(DIM, HEADS, rope="none", score_positions=positions, causal=causal)
    module.load_state_dict({name: weight.detach().clone() for name, weight in weights.items()}, strict=True)
    return module


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@BOTH
def test_t5(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=DIM, num_heads=HEADS, d_kv=D, dropout_rate=0.0, is_decoder=causal, attn_implementation="eager"
    )
    theirs, x = large(T5Attention(config, has_relative_attention_bias=True, layer_idx=0)), inputs()
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    if causal:
        mask = mask.masked_fill(~causal_mask(), torch.finfo(torch.float32).min)
    weights = {
        "query.weight": theirs.q.weight * D**0.5,  # T5 does not divide its scores by √D
        "key.weight": theirs.k.weight,
        "value.weight": theirs.v.weight,
        "out.weight": theirs.o.weight,
        "score_positions.table.weight": theirs.relative_attention_bias.weight,
    }
    assert_equal(ours("t5", causal, weights)(x), theirs(x, mask=mask)[0])


@BOTH
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (64, 1000), (16, 20)])
def test_t5_buckets(causal: bool, buckets: int, most: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-3000, 3001)
    theirs: Callable[..., Tensor] = T5Attention._relative_position_bucket
    expected = theirs(-distance, bidirectional=not causal, num_buckets=buckets, max_distance=most)
    mine = T5Buckets(1, D, causal=causal, buckets=buckets, max_distance=most)
    assert mine.bucket(distance).tolist() == expected.tolist()


@BOTH
@pytest.mark.parametrize("most", [4, 200])
def test_deberta(causal: bool, most: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = transformers.DebertaV2Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=most,
        position_buckets=-1,
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    theirs, x = large(DisentangledSelfAttention(config)), inputs()
    with torch.no_grad():
        for layer in (theirs.pos_key_proj, theirs.pos_query_proj):
            layer.bias.zero_()  # eq. 2 of the paper has none
    table = random(2 * most, DIM, seed=50).float()
    mask = causal_mask().float() if causal else torch.ones(1, 1, LENGTH, LENGTH)
    expected = theirs(x, mask, rel_embeddings=table)[0]
    positions = Deberta(DIM, HEADS, D, max_distance=most)
    module = SoftmaxRoPEAttention(DIM, HEADS, rope="none", score_positions=positions, causal=causal, bias=True)
    with torch.no_grad():
        module.out.weight.copy_(torch.eye(DIM))
        module.out.bias.zero_()
        for mine, other in (
            (module.query, theirs.query_proj),
            (module.key, theirs.key_proj),
            (module.value, theirs.value_proj),
        ):
            mine.load_state_dict(other.state_dict())
        positions.query.weight.copy_(theirs.pos_query_proj.weight)
        positions.key.weight.copy_(theirs.pos_key_proj.weight)
        positions.table.weight.copy_(table)
    assert_equal(module(x), expected)


@BOTH
def test_transformer_xl_is_xlnet_s(causal: bool) -> None:
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    config = transformers.XLNetConfig(
        vocab_size=10, d_model=DIM, n_layer=1, n_head=HEADS, d_inner=8, dropout=0.0, attn_type="bi"
    )
    model, x = XLNetModel(config), inputs()
    theirs = large(model.layer[0].rel_attn)
    r = model.relative_positional_encoding(LENGTH, LENGTH, bsz=2)
    hidden = (~causal_mask()[0, 0]).float()[:, :, None, None].expand(-1, -1, 2, 1) if causal else None
    expected = theirs(x.transpose(0, 1), None, hidden, None, r, None)[0].transpose(0, 1)
    # XLNet's sinusoids are first all sines, then all cosines; ours are pairs.
    order = torch.arange(DIM).view(2, -1).mT.flatten()
    weights = {
        name: getattr(theirs, letter).flatten(1).mT for name, letter in [("query.weight", "q"), ("key.weight", "k")]
    }
    weights |= {
        "value.weight": theirs.v.flatten(1).mT,
        "out.weight": theirs.o.flatten(1),
        "score_positions.projection.weight": theirs.r.flatten(1).mT[:, order],
        "score_positions.content_bias": theirs.r_w_bias,
        "score_positions.position_bias": theirs.r_r_bias,
    }
    y = ours(TransformerXL(DIM, HEADS, D), causal, weights)(x)
    assert_equal(theirs.layer_norm(y + x), expected)
