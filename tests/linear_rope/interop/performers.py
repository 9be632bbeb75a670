"""Small models of performer-pytorch, as its users make them, for the tests of their upgrade."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.linear_rope.tensors import random as random_doubles

pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")

from performer_pytorch import PerformerLM, SelfAttention
from performer_pytorch.performer_pytorch import FixedPositionalEmbedding

DIM, HEADS, D, LENGTH, TOKENS = 32, 4, 8, 40, 20
BOTH = pytest.mark.parametrize("causal", [True, False])
EITHER = pytest.mark.parametrize("rope", ["before", "after"])
# Both sides are float32, with sums over some ten numbers in each of a few layers, relative to the largest.
ROUNDING = 1e-5


def random(*shape: int, seed: int = 0) -> Tensor:
    return random_doubles(*shape, seed=seed).float()


def attention(kind: type[nn.Module] = SelfAttention, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(DIM, **{"heads": HEADS, "dim_head": D, "nb_features": 16, "qkv_bias": True} | options)


def language_model(*, dominated: bool = False, **options: Any) -> Any:
    """A model, if dominated, whose first token, 0, has the largest key in every layer: no later one exceeds it."""
    torch.manual_seed(0)
    settings = {"num_tokens": TOKENS, "max_seq_len": 64, "dim": DIM, "depth": 2, "heads": HEADS, "dim_head": D}
    model = PerformerLM(**settings | {"nb_features": 16, "qkv_bias": True, "attn_out_bias": True} | options).eval()
    if not dominated:
        return model
    with torch.no_grad():
        for table in model.pos_emb.parameters():
            table.mul_(0.1)  # learned positions would make other keys of a token
        first = model.token_emb.weight[0].mul_(30)
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.to_k.weight += 0.8 * torch.outer(random(module.to_k.out_features, seed=1), first / first.norm())
    return model


def text() -> Tensor:
    tokens = torch.randint(1, TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    return tokens


def rotations() -> Tensor:
    return FixedPositionalEmbedding(D, 64)(random(1, LENGTH, D))
