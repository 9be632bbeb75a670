"""Modules and models in ONNX: onnxruntime gives what PyTorch does, also at lengths that were not traced."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import LinearRoPEAttention, SoftmaxRoPEAttention
from tests.linear_rope.tensors import assert_near

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter about itself
DIM, HEADS, ROUNDING = 16, 2, 1e-5
DYNAMIC = torch.export.Dim.DYNAMIC


def outputs(file: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(file)
    names = [each.name for each in session.get_inputs()]
    given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, given)]


def causal(feature_map: str, **settings: Any) -> nn.Module:
    return LinearRoPEAttention(DIM, HEADS, feature_map=feature_map, causal=True, **settings)


ATTENTIONS = [
    *[pytest.param(causal(name), id=name) for name in ("elu+1", "favor+")],
    pytest.param(causal("favor+", decay="gate"), id="favor+ that fades"),
    pytest.param(SoftmaxRoPEAttention(DIM, HEADS, causal=True), id="softmax"),
]
SLOW = [
    causal("relu"),
    *[causal(name, decay="gate") for name in ("elu+1", "relu")],
    causal("favor+paired", rope="before", decay="fixed", bias=True),
    causal("elu+1", denominator="none", qk_norm=True, short_conv=3, local_conv=3),
    causal("elu+1", rope_angles="selective"),
    LinearRoPEAttention(DIM, HEADS, feature_map="favor+"),
    SoftmaxRoPEAttention(DIM, HEADS, causal=True, decay="gate"),
]


@pytest.mark.parametrize("module", [*ATTENTIONS, *[pytest.param(each, marks=pytest.mark.slow) for each in SLOW]])
@torch.no_grad()
def test_an_attention_gives_the_same_at_any_length(module: nn.Module, tmp_path: Path) -> None:
    module.eval()
    traced = torch.randn(2, 70, DIM)
    torch.onnx.export(module, (traced,), tmp_path / "a.onnx", dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},), verbose=False)
    for batch, length in ((2, 70), (1, 1), (3, 64), (2, 131)):
        x = torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(length)) * 3
        assert_near(outputs(tmp_path / "a.onnx", x)[0], module(x), ROUNDING)
