"""The absolute position encodings, complex-order embeddings, and ALiBi's slopes. (Its scores: test_formulas.py.)"""

import cmath
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from linear_rope import CausalLM, Encoder, EncoderDecoder, ModelConfig
from linear_rope.positions import ComplexOrder
from linear_rope.positions.absolute import LearnedPositions, SinusoidalPositions
from linear_rope.positions.alibi import alibi_slopes
from tests.linear_rope.tensors import assert_near, assert_refused, random

SMALL: dict[str, Any] = {"vocab_size": 50, "dim": 16, "layers": 1, "heads": 2}


def test_sinusoids_are_those_of_vaswani_et_al() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same (section 3.5)."""
    dim, positions = 12, [0, 1, 7, 300, 5000]
    angles = [[position / 10000 ** (2 * i / dim) for i in range(dim // 2)] for position in positions]
    expected = torch.tensor([[f(a) for a in row for f in (math.sin, math.cos)] for row in angles], dtype=torch.float64)
    actual = SinusoidalPositions(dim)(torch.tensor(positions))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(SinusoidalPositions(dim)(torch.tensor([positions] * 2)), actual.expand(2, -1, -1))


def test_learned_positions_look_up_their_table_and_models_refuse_longer_sequences() -> None:
    positions, at = LearnedPositions(6, 4), torch.tensor([[0, 5, 2], [1, 1, 0]])
    torch.testing.assert_close(positions(at), positions.table.weight[at])
    assert positions(at).requires_grad
    tokens, learned = torch.zeros(1, 41, dtype=torch.int64), ModelConfig(**SMALL, max_length=40, position="learned")
    for kind in (CausalLM, Encoder):
        assert kind(learned)(tokens[:, :40]).shape[1] == 40
        model = kind(learned)
        assert_refused(lambda model=model: model(tokens), ["41 positions", "ends at 40", "a larger max_length"])
        assert kind(replace(learned, position="rope-after"))(tokens).shape[1] == 41
    model = CausalLM(learned)
    assert model.generate(tokens[:, :30], 11).shape[1] == 41  # the last token is not read
    assert_refused(lambda: model.generate(tokens[:, :30], 12), ["length is 12 after a prompt of 30", "ends at 40"])


def test_alibi_s_slopes_are_the_paper_s() -> None:
    """Section 3 gives those of 8 and 16 heads; the authors' code takes every other slope of 16 for what 8 lack."""
    eight = [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    torch.testing.assert_close(alibi_slopes(16), torch.tensor([2 ** (-power / 2) for power in range(1, 17)]))
    between = torch.tensor([2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
    torch.testing.assert_close(alibi_slopes(12), torch.cat((torch.tensor(eight), between)))
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    # Models have no limit, and no biases between source and target.
    model = EncoderDecoder(ModelConfig(**SMALL, max_length=8, attention="softmax", position="alibi"))
    assert model(torch.arange(12).view(1, 12), torch.arange(12).view(1, 12)).shape == (1, 12, 50)
    assert all(block.attention.alibi and not block.cross_attention.alibi for block in model.blocks)


@pytest.mark.parametrize("positions", [torch.arange(17), torch.tensor([[0, 1, 2], [5, 100_000, 3]])])
def test_a_complex_embedding_is_amplitude_frequency_and_phase(positions: torch.Tensor) -> None:
    """r·exp(i(ω·m + ϑ)), real parts first. At position 100,000 an angle is off by 1e5 · 1e-16."""
    torch.manual_seed(0)
    words, half = 11, 3
    module, table = ComplexOrder(words, 2 * half).double(), random(words, 2 * half).requires_grad_()
    tokens = torch.randint(words, (2, positions.shape[-1]), generator=torch.Generator().manual_seed(0))
    found = module.embed(table[tokens], tokens, positions)
    expected, held = torch.empty(*tokens.shape, 2 * half, dtype=torch.float64), table.detach()
    for row, column in torch.cartesian_prod(torch.arange(2), torch.arange(tokens.shape[1])).tolist():
        word, at = int(tokens[row, column]), int(positions.expand(tokens.shape)[row, column])
        for i in range(half):
            amplitude, phase = cmath.polar(complex(held[word, i], held[word, i + half]))
            frequency = 10000 ** (-i / half) + float(module.frequencies.weight.detach()[word, i])
            wave = amplitude * cmath.exp(1j * (frequency * at + phase))
            expected[row, column, i], expected[row, column, i + half] = wave.real, wave.imag
    assert_near(found, expected)
    # A rotation leaves the length of a gradient as it is, so no tensor is without one.
    gradients = torch.autograd.grad(found.square().sum() + found.sum(), [table, module.frequencies.weight])
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    plain, waves = (CausalLM(ModelConfig(dim=16, position=position)).embedding for position in ("none", "complex"))
    same, at = torch.tensor([[7, 7]]), torch.arange(2)
    assert_near(waves(same, at)[:, 0], plain(same, at)[:, 0], 1e-6)
    assert (waves(same, at)[:, 1] - plain(same, at)[:, 1]).abs().max() > 1e-3
