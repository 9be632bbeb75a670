"""Numbers do not depend on ``torch.set_default_dtype``, when a model is made or when it is called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, Encoder, EncoderDecoder, ModelConfig
from linear_rope.diagnostics import diagnose_model, expected_rope_mask, rope_decay_bound
from linear_rope.features import FEATURE_MAPS, make_feature_map
from linear_rope.positions import POSITIONS
from linear_rope.positions.alibi import alibi_slopes
from linear_rope.positions.decay import DECAYS
from tests.linear_rope.attention.modules import SCORES
from tests.linear_rope.tensors import FORMS, assert_identical, attended, random_qkv

OF = {"softmax": {"rope-after", "selective-after"}, "linear": {"xpos", "pope", *SCORES}}
"""positions that a kernel has not"""
CONFIGS: list[dict[str, Any]] = [
    {"attention": attention, "position": position}
    for attention, others in OF.items()
    for position in POSITIONS
    if position not in others
]
CONFIGS += [{"attention": attention, "position": "none"} for attention in ("retention", "delta", "favor+window")]
CONFIGS += [{"attention": "linear", "position": "none", "feature_map": name} for name in FEATURE_MAPS]
CONFIGS += [{"attention": "linear", "position": "none", "decay": name} for name in DECAYS]
CONFIGS += [{"attention": "softmax", "position": "none", "decay": "gate", "local_conv": 3, "short_conv": 3}]
CONFIGS += [{"attention": "linear", "position": "rope-after", "qk_norm": True}]
# Slopes of up to eight heads are powers of two, which every dtype has.
CONFIGS += [{"attention": attention, "position": "alibi", "dim": 32, "heads": 16} for attention in OF]
TOKENS = torch.arange(2 * 9).view(2, 9) % 11
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)


def under(dtype: torch.dtype, function: Callable[[], Any]) -> Any:
    torch.set_default_dtype(dtype)
    try:
        return function()
    finally:
        torch.set_default_dtype(torch.float32)


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(**{"vocab_size": 11, "dim": 16, "heads": 2, "layers": 1, "max_length": 32} | settings)


def outputs(model: CausalLM) -> list[Tensor]:
    return [model(TOKENS), model.generate(TOKENS[:, :4], 3, temperature=0)]


@pytest.mark.parametrize("settings", CONFIGS, ids=lambda settings: " ".join(map(str, settings.values())))
def test_of_every_kernel_and_position(settings: dict[str, Any]) -> None:
    if settings["position"] == "floater":
        pytest.importorskip("torchdiffeq")
    model = CausalLM(config(**settings)).eval()
    expected = outputs(model)
    for dtype in (torch.float64, torch.bfloat16):
        assert_identical(under(dtype, lambda: outputs(model)), expected)
        made = under(dtype, lambda: CausalLM(config(**settings))).float().eval()
        made.load_state_dict(model.state_dict())
        assert_identical(under(dtype, lambda made=made: outputs(made)), expected)


@DTYPES
def test_of_every_implementation(dtype: torch.dtype) -> None:
    inputs = [*(x.float() for x in random_qkv(2, 2, 9)), -torch.rand(2, 2, 9)]
    for name, form, causal in (
        (name, form, causal) for name in FEATURE_MAPS for form in FORMS for causal in (True, False)
    ):
        options: dict[str, Any] = {"feature_map": make_feature_map(name, 4), "implementation": form, "causal": causal}
        expected = attended(*inputs, **options)
        assert_identical(under(dtype, lambda options=options: attended(*inputs, **options)), expected)


@DTYPES
def test_of_translation_and_diagnostics(dtype: torch.dtype) -> None:
    translator = EncoderDecoder(config(position="none")).eval()
    encoder, distances = Encoder(config(attention="softmax", position="alibi")), torch.arange(9)
    assert under(dtype, lambda: diagnose_model(encoder, TOKENS)) == diagnose_model(encoder, TOKENS)
    for numbers in (
        lambda: translator.translate(TOKENS, begin=1, end=2, beams=2, longest=5),
        lambda: alibi_slopes(16),
        lambda: rope_decay_bound(distances, 8),
        lambda: expected_rope_mask(distances, 8),
    ):
        assert_identical(under(dtype, numbers), numbers())
