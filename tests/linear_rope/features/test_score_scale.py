"""The scale that a model gives to its scores: maps of scores take it, others take no notice; against the definition."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FeatureMap, LinearRoPEAttention, YaRN, apply_rope, linear_attention
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.features import FEATURE_MAPS, Features, make_feature_map
from tests.linear_rope.tensors import FORMS, assert_near, random, random_qkv

WIDTH, LENGTH = 4, 9
YARN = YaRN(8.0, original_length=4)
OF_SCORES = {"taylor", "favor+", "favor+hyperbolic", "favor+paired"}


def weights(name: str, feature_map: FeatureMap, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The weights of the definition, in float64, before they are divided by their sum."""
    q, k = q.double(), k.double()
    if name == "taylor":
        score = scale * q @ k.mT / math.sqrt(q.shape[-1])
        return 1 + score + score.square() / 2
    root = math.sqrt(scale) if name in OF_SCORES else 1.0
    return feature_map(root * q) @ feature_map(root * k).mT


def attended(weights: Tensor, v: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_yarn_s_temperature_is_for_maps_of_scores(name: str) -> None:
    feature_map, (q, k, v) = make_feature_map(name, WIDTH).double(), random_qkv(2, 2, LENGTH, width=WIDTH)
    at = torch.arange(LENGTH)
    turned = (apply_rope(x, at, scaling=YARN) for x in (q, k))
    expected = attended(weights(name, feature_map, *turned, YARN.magnitude**2), v)
    for form in FORMS:
        options: dict[str, Any] = dict(feature_map=feature_map, implementation=form, rope="before")
        assert_near(linear_attention(q, k, v, **options, rope_scaling=YARN), expected, 1e-5)  # FAVOR+'s ε is 1e-6


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_diagnostics_have_the_same_scale(name: str) -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(8, 2, feature_map=name, rope="before", rope_scaling=YARN).double()
    x = random(2, LENGTH, 8)
    found = attention_matrices(module, x, None, None, None)
    assert_near(found.weights, module.attention_weights(x))
    assert_near(found.kernel, found.weights)


class Own(FeatureMap):
    """One of a user's own, which says that it is of scores."""

    of_scores = True

    def features(self, x: Tensor) -> Features:
        return Features((x * x.shape[-1] ** -0.25).exp(), None)


def test_a_map_of_one_s_own_says_whether_it_is_of_scores() -> None:
    q, k, v = random_qkv(1, 2, LENGTH, width=WIDTH)
    q, k = (YARN.magnitude * apply_rope(x, torch.arange(LENGTH), scaling=YARN) / WIDTH**0.25 for x in (q, k))
    expected = attended(q.exp() @ k.exp().mT, v)
    q, k, v = random_qkv(1, 2, LENGTH, width=WIDTH)
    assert_near(linear_attention(q, k, v, feature_map=Own(), rope="before", rope_scaling=YARN), expected)


@pytest.mark.parametrize("name", ["taylor", "elu+1", "hedgehog"])
def test_a_model_of_transformers_with_a_scale_of_its_own(name: str) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    from linear_rope.interop.transformers import convert

    def by_definition(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
        scale = options["scaling"] * math.sqrt(q.shape[-1])
        y = attended(weights(name, make_feature_map(name, q.shape[-1]), q, k, scale).tril(), v.double())
        return y.to(q.dtype).transpose(1, 2), None

    transformers.AttentionInterface.register("definition", by_definition)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=16, n_layer=3, n_head=4, n_positions=16, scale_attn_by_inverse_layer_idx=True
    )
    tokens = torch.randint(0, 30, (2, 12), generator=torch.Generator().manual_seed(0))
    outputs = []
    for implementation in ("eager", "definition"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
        if implementation == "eager":
            convert(model, name)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(8)  # so that attention matters to what comes out
        outputs.append(model(tokens).logits)
    assert_near(*outputs, 1e-5)
