"""Heads on an encoder: masked tokens and classes."""

import pytest
import torch

from linear_rope.heads import Classifier, MaskedLM
from linear_rope.model_config import ModelConfig

CONFIG = ModelConfig(vocab_size=11, dim=16, layers=1, heads=2, max_length=12, feature_map="elu+1")
TOKENS = torch.arange(20).view(2, 10) % 11


def test_logits_of_some_places_are_those_of_all():
    model, at = MaskedLM(CONFIG), torch.rand(2, 10) < 0.4
    assert model(TOKENS).shape == (2, 10, 11)
    torch.testing.assert_close(model(TOKENS, at), model(TOKENS)[at])


def test_a_masked_token_is_predicted_from_both_sides():
    model, asked = MaskedLM(CONFIG), torch.zeros(1, 10, dtype=torch.bool)
    asked[0, 5] = True
    logits = model(TOKENS[:1], asked)
    for place in (0, 9):
        other = TOKENS[:1].clone()
        other[0, place] = (other[0, place] + 1) % 11
        assert (model(other, asked) - logits).abs().max() > 1e-6


def test_padding_changes_nothing():
    model, padded = Classifier(CONFIG, 3).eval(), torch.nn.functional.pad(TOKENS, (0, 2), value=7)
    mask = torch.arange(12).expand(2, -1) >= 10
    torch.testing.assert_close(model(padded, mask), model(TOKENS))
    assert model(TOKENS).shape == (2, 3)


def test_a_text_that_is_all_padding_is_finite():
    assert Classifier(CONFIG, 2)(TOKENS, torch.ones(2, 10, dtype=torch.bool)).isfinite().all()


def test_no_outputs_are_refused():
    with pytest.raises(ValueError, match="outputs is 0; give 1 or more"):
        Classifier(CONFIG, 0)
