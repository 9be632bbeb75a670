"""The absolute position encodings."""

import math
from dataclasses import replace

import pytest
import torch

from linear_rope import CausalLM, Encoder, ModelConfig
from linear_rope.positions.absolute import LearnedPositions, SinusoidalPositions


def test_sinusoids_are_those_of_vaswani_et_al() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same (section 3.5)."""
    dim = 12
    positions = [0, 1, 7, 300, 5000]
    angles = [[position / 10000 ** (2 * i / dim) for i in range(dim // 2)] for position in positions]
    expected = torch.tensor([[f(a) for a in row for f in (math.sin, math.cos)] for row in angles], dtype=torch.float64)
    actual = SinusoidalPositions(dim)(torch.tensor(positions))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(SinusoidalPositions(dim)(torch.tensor([positions] * 2)), actual.expand(2, -1, -1))


def test_learned_positions_look_up_their_table() -> None:
    positions = LearnedPositions(6, 4)
    at = torch.tensor([[0, 5, 2], [1, 1, 0]])
    torch.testing.assert_close(positions(at), positions.table.weight[at])
    assert positions(torch.arange(6)).requires_grad


def test_models_with_learned_positions_refuse_longer_sequences() -> None:
    tokens = torch.zeros(1, 41, dtype=torch.int64)
    learned = ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, max_length=40, position="learned")
    for kind in (CausalLM, Encoder):
        assert kind(learned)(tokens[:, :40]).shape[1] == 40
        with pytest.raises(ValueError, match=r"41 positions, .* ends at 40; make the model with a larger max_length"):
            kind(learned)(tokens)
        assert kind(replace(learned, position="rope-after"))(tokens).shape[1] == 41
    model = CausalLM(learned)
    # The last token is not read.
    assert model.generate(tokens[:, :30], 11).shape[1] == 41
    with pytest.raises(ValueError, match=r"length is 12 after a prompt of 30, .* ends at 40; give a smaller length"):
        model.generate(tokens[:, :30], 12)
