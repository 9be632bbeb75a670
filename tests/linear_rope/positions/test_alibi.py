"""ALiBi's slopes, and the models with it. (Its scores: test_attention.py.)"""

import torch

from linear_rope import EncoderDecoder, ModelConfig
from linear_rope.positions.alibi import alibi_slopes


def test_slopes_are_the_paper_s() -> None:
    """Section 3 gives those of 8 and 16 heads; the authors' code takes every other slope of 16 for what 8 lack."""
    eight = [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    torch.testing.assert_close(alibi_slopes(16), torch.tensor([2 ** (-power / 2) for power in range(1, 17)]))
    between = torch.tensor([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
    torch.testing.assert_close(alibi_slopes(12), torch.cat((torch.tensor(eight), between)))
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]


def test_models_have_no_limit_and_no_biases_between_source_and_target() -> None:
    shape = ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, max_length=8, attention="softmax", position="alibi")
    model, tokens = EncoderDecoder(shape), torch.arange(12).view(1, 12)
    assert model(tokens, tokens).shape == (1, 12, 50)
    assert not any(block.cross_attention.alibi for block in model.blocks)
    assert all(block.attention.alibi for block in model.blocks)
