"""``linear_attention`` in the place of ``scaled_dot_product_attention``: the examples in docs/swaps."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import EluPlusOne, LinearRoPEAttention, linear_attention
from tests.linear_rope.tensors import assert_near, random

SWAPS = Path(__file__).parents[3] / "docs/swaps"
ROUNDING = 1e-5


def example(name: str) -> dict[str, Any]:
    """What an example defines, run as written with softmax attention out of reach."""
    return runpy.run_path(str(SWAPS / f"{name}.py"))


@pytest.fixture
def _no_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Tensor:
        raise AssertionError("softmax attention was called")

    monkeypatch.setattr(F, "scaled_dot_product_attention", refuse)


def test_the_tensors_are_those_of_sdpa() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for causal, keys, width in [(True, 7, 4), (False, 5, 6), (False, 7, 4)]:
            q, k, v = random(2, 3, 7, 4), random(2, 3, keys, 4), random(2, 3, keys, width)
            q, k, v = (x.to(dtype) for x in (q, k, v))
            expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            y = linear_attention(q, k, v, feature_map=EluPlusOne(), causal=causal)
            assert (y.shape, y.dtype) == (expected.shape, expected.dtype)


def assert_causal(model: Any, vocabulary: int = 256) -> None:
    model.eval()
    tokens = torch.randint(vocabulary, (2, 40), generator=torch.Generator().manual_seed(0))
    other = torch.cat((tokens[:, :25], tokens[:, 25:].flip(1)), dim=1)
    with torch.no_grad():
        assert_near(model(other)[:, :25], model(tokens)[:, :25], ROUNDING)
        assert (model(other)[:, 25:] - model(tokens)[:, 25:]).abs().max() > 1e-3


@pytest.mark.usefixtures("_no_softmax")
def test_nanogpt_s_block() -> None:
    block = example("nanogpt")["CausalSelfAttention"](32, 4)
    x = random(2, 40, 32).float()
    q, k, v = (y.view(2, 40, 4, 8).transpose(1, 2) for y in block.c_attn(x).chunk(3, dim=-1))
    log_decay = LinearRoPEAttention.recommended(32, 4).decay(x)
    y = linear_attention(
        q, k, v, feature_map=EluPlusOne(), log_decay=log_decay, causal=True, implementation="reference"
    )
    assert_near(block(x), block.c_proj(y.transpose(1, 2).flatten(2)), ROUNDING)


@pytest.mark.usefixtures("_no_softmax")
def test_x_transformers() -> None:
    pytest.importorskip("x_transformers", reason="x-transformers is not installed")
    names = example("x_transformers_attend")
    assert_causal(names["model"])
    attend = names["model"].attn_layers.layers[0][1].attend
    q, k, v = (random(2, 4, 9, 16, seed=seed).float() for seed in range(3))
    mask = torch.arange(9).expand(2, 1, 1, -1) < 6
    expected = linear_attention(q[:, :, :6], k[:, :, :6], v[:, :, :6], feature_map=attend.feature_map, causal=True)
    assert_near(attend(q, k, v, mask=mask)[0][:, :, :6], expected, ROUNDING)


@pytest.mark.usefixtures("_no_softmax")
def test_x_transformers_generates_without_its_cache() -> None:
    wrapper = pytest.importorskip("x_transformers", reason="x-transformers is not installed").AutoregressiveWrapper
    model = example("x_transformers_attend")["model"].eval()
    tokens = torch.randint(256, (2, 10), generator=torch.Generator().manual_seed(0))
    expected = tokens
    for _ in range(5):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(wrapper(model).generate(tokens, 5, temperature=0.0, cache_kv=False), expected[:, 10:])


@pytest.mark.usefixtures("_no_softmax")
def test_torchtune() -> None:
    pytest.importorskip("torchtune", reason="torchtune is not installed")
    assert_causal(example("torchtune_call")["model"])
