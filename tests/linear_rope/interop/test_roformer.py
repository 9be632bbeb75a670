"""The weights of transformers' RoFormer in this library's encoder; nothing is downloaded."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import ModelConfig
from linear_rope.interop.transformers import RoFormerEncoder
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS, LENGTH = 30, 20
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 3,
}


def text() -> Tensor:
    return torch.randint(3, TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))


def roformer(**options: Any) -> Any:
    sizes = SIZES | options
    torch.manual_seed(0)
    model = transformers.RoFormerModel(transformers.RoFormerConfig(vocab_size=TOKENS, **sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) / 5)
    return model


def test_roformer_s_weights_give_its_outputs() -> None:
    model, tokens = roformer(), text()
    mask = torch.arange(LENGTH).expand(2, -1) < torch.tensor([[LENGTH], [13]])
    types = torch.arange(LENGTH).expand(2, -1) // 7
    encoder = RoFormerEncoder.from_transformers(model)
    assert not encoder.training
    # 1e-5, of numbers of about one.
    assert (encoder(tokens) - model(tokens).last_hidden_state).abs().max() < 1e-5
    expected = model(tokens, attention_mask=mask.long(), token_type_ids=types).last_hidden_state
    assert (encoder(tokens, ~mask, types) - expected)[mask].abs().max() < 1e-5
    with_holes = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.6
    expected = model(tokens, attention_mask=with_holes.long()).last_hidden_state
    assert (encoder(tokens, ~with_holes) - expected)[with_holes].abs().max() < 1e-5
    again = RoFormerEncoder(encoder.config, token_types=3).eval()
    again.load_state_dict(encoder.state_dict(), strict=True)
    assert_identical(again(tokens), encoder(tokens))


def test_a_fresh_encoder_is_that_of_its_seed() -> None:
    one, same, other = (RoFormerEncoder(ModelConfig(seed=seed, initial_std=0.5)).state_dict() for seed in (0, 0, 1))
    assert_identical(same, one)
    for name in ("blocks.0.attention.query.weight", "token_types.weight"):
        assert not torch.equal(one[name], other[name])
        assert_near(one[name].std(), torch.tensor(0.5), 0.2)


def test_roformer_s_weights_around_linear_attention() -> None:
    encoder = RoFormerEncoder.from_transformers(
        roformer(), attention="linear", position="rope-after", feature_map="favor+"
    )
    encoder(text()).square().mean().backward()
    assert encoder.blocks[0].attention.query.bias.grad.any()


@pytest.mark.parametrize("options", [{"rotary_value": True}, {"hidden_act": "relu"}, {"embedding_size": 16}])
def test_another_roformer_is_refused(options: dict[str, Any]) -> None:
    assert_refused(lambda: RoFormerEncoder.from_transformers(roformer(**options)), [*options])
    assert_refused(lambda: RoFormerEncoder.from_transformers(nn.Linear(2, 2)), ["Linear", "RoFormerModel"])
