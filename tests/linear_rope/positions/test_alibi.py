"""ALiBi against a softmax that is written out. float64: sums of a few dozen terms, rounded by 1e-16 each."""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import EncoderDecoder, ModelConfig, SoftmaxRoPEAttention
from linear_rope.positions.alibi import alibi_slopes
from tests.linear_rope.tensors import assert_near, random


def make(heads: int, **options: bool) -> SoftmaxRoPEAttention:
    torch.manual_seed(0)
    return SoftmaxRoPEAttention(4 * heads, heads, rope="none", alibi=True, **options).double()


def written_out(
    module: SoftmaxRoPEAttention, x: Tensor, slopes: list[float], positions: Tensor, visible: Tensor
) -> Tensor:
    """One sequence (N, dim), head by head; ``visible`` (N, N)."""
    heads = []
    for head, slope in enumerate(slopes):
        at = slice(4 * head, 4 * head + 4)
        q, k, v = (x @ projection.weight[at].T for projection in (module.query, module.key, module.value))
        scores = q @ k.T / 2 - slope * (positions[:, None] - positions[None, :]).abs()
        heads.append(scores.masked_fill(~visible, -math.inf).softmax(-1) @ v)
    return torch.cat(heads, dim=-1) @ module.out.weight.T


def test_slopes_are_the_paper_s() -> None:
    """Section 3 gives those of 8 and 16 heads; the authors' code takes every other slope of 16 for what 8 lack."""
    eight = [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    torch.testing.assert_close(alibi_slopes(16), torch.tensor([2 ** (-power / 2) for power in range(1, 17)]))
    between = torch.tensor([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
    torch.testing.assert_close(alibi_slopes(12), torch.cat((torch.tensor(eight), between)))
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "slopes"), [(2, [2**-4, 2**-8]), (3, [2**-4, 2**-8, 2**-2])])
def test_scores_fall_in_proportion_to_the_distance(heads: int, slopes: list[float], causal: bool) -> None:
    module, x = make(heads, causal=causal), random(2, 9, 4 * heads)
    counted, visible = torch.arange(9), torch.ones(9, 9, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    for positions in (None, counted * 2, torch.stack((counted * 3, 50 + counted * counted))):
        y = module(x, positions=positions)
        for row, at in enumerate((counted if positions is None else positions).expand(2, -1)):
            assert_near(y[row], written_out(module, x[row], slopes, at, visible), 1e-12)


def test_models_have_no_limit_and_no_biases_between_source_and_target() -> None:
    shape = ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, max_length=8, attention="softmax", position="alibi")
    model, tokens = EncoderDecoder(shape), torch.arange(12).view(1, 12)
    assert model(tokens, tokens).shape == (1, 12, 50)
    assert not any(block.cross_attention.alibi for block in model.blocks)
    assert all(block.attention.alibi for block in model.blocks)
