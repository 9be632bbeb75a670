"""Other people's models give on a GPU what they give on a CPU."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.linear_rope.interop.performers import EITHER, ROUNDING, language_model, text
from tests.linear_rope.tensors import assert_near
from tests.linear_rope.test_devices import DEVICES

pytestmark = pytest.mark.parametrize("device", DEVICES, ids=str)


def logits_and_gradients(model: Any, tokens: Tensor) -> list[Tensor]:
    logits = model(tokens)
    logits = getattr(logits, "logits", logits)
    logits.square().mean().backward()
    gradients = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
    return [logits.detach().cpu(), gradients.cpu()]


def assert_as_on_a_cpu(model: Any, tokens: Tensor, device: torch.device) -> None:
    expected = logits_and_gradients(copy.deepcopy(model), tokens)
    assert_near(logits_and_gradients(model.to(device), tokens.to(device)), expected, 10 * ROUNDING)


@EITHER
def test_an_upgraded_model_of_performer_pytorch(rope: Any, device: torch.device) -> None:
    from linear_rope.interop.performer import upgrade

    assert_as_on_a_cpu(upgrade(language_model(causal=True), rope=rope), text(), device)


def test_a_model_of_transformers(device: torch.device) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    from linear_rope.interop.transformers import register

    register()
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="linear_rope").eval()
    assert_as_on_a_cpu(model, text(), device)
