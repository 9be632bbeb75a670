"""ALiBi against a softmax that is written out. float64: sums of a few dozen terms, rounded by 1e-16 each."""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, Encoder, EncoderDecoder, ModelConfig, SoftmaxRoPEAttention
from linear_rope.positions.alibi import alibi_slopes
from tests.linear_rope.tensors import in_steps, random

TOLERANCE = 1e-12


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
    visible = torch.ones(9, 9, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    counted = torch.arange(9)
    per_sequence = torch.stack((counted * 3, 50 + counted * counted))
    for positions in (None, counted * 2, per_sequence):
        y = module(x, positions=positions)
        for row in range(2):
            at = counted if positions is None else positions.expand(2, -1)[row]
            expected = written_out(module, x[row], slopes, at, visible)
            torch.testing.assert_close(y[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_takes_up_no_distance_nor_in_the_cache(causal: bool) -> None:
    module, x = make(2, causal=causal), random(3, 12, 8)
    place = torch.arange(12)
    mask = torch.stack((place < 4, place % 3 == 1, (place > 3) & (place < 6))) & (place < 6)
    outputs = [module(x, key_padding_mask=mask)]
    if causal:
        outputs.append(in_steps(module, x, 6, mask[:, :6]))
    for row, keep in enumerate(~mask):
        count = int(keep.sum())
        visible = torch.ones(count, count, dtype=torch.bool)
        visible = visible.tril() if causal else visible
        expected = written_out(module, x[row, keep], [2**-4, 2**-8], torch.arange(count), visible)
        for y in outputs:
            torch.testing.assert_close(y[row, keep], expected, rtol=0, atol=TOLERANCE)


def test_models_tell_positions_by_it_and_have_no_limit() -> None:
    shape = ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, max_length=8, attention="softmax", position="alibi")
    tokens = torch.tensor([[3, 5, 7, 3, 9, 11, 13, 5, 3, 2, 4, 6]])
    for kind in (CausalLM, Encoder):
        torch.manual_seed(0)
        biased = kind(shape).double()
        plain = kind(ModelConfig(**{**vars(shape), "position": "none"})).double()
        plain.load_state_dict(biased.state_dict(), strict=True)
        assert (biased(tokens) - plain(tokens)).abs().max() > 1e-6
    model = EncoderDecoder(shape)
    assert not any(block.cross_attention.alibi for block in model.blocks)
    assert all(block.attention.alibi for block in model.blocks)
