"""Modules and models in ONNX: onnxruntime gives what PyTorch does, also at lengths that were not traced."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import AttentionSettings, CausalLM, FavorPlus, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention
from linear_rope.interop.onnx import _Prefill, save
from tests.linear_rope.tensors import assert_near, assert_refused, random

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter about itself
DIM, HEADS, ROUNDING = 16, 2, 1e-5
DYNAMIC = torch.export.Dim.DYNAMIC


def outputs(session: Any, *inputs: Tensor) -> dict[str, Tensor]:
    """What a file gives, by its names."""
    given = {name: x.numpy() for name, x in zip([each.name for each in session.get_inputs()], inputs, strict=True)}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(None, given)), strict=True))


def causal(feature_map: str, **settings: Any) -> nn.Module:
    return LinearRoPEAttention(DIM, HEADS, feature_map=feature_map, causal=True, **settings)


SLOW = [
    causal("elu+1"),
    causal("favor+", decay="gate"),
    LinearRoPEAttention(DIM, HEADS, feature_map="favor+"),
    SoftmaxRoPEAttention(DIM, HEADS, causal=True, window=90),
]
FULL = [
    causal("relu"),
    causal("favor+paired", rope="before", decay="fixed", bias=True),
    causal("elu+1", denominator="none", qk_norm=True, short_conv=3, local_conv=3),
    causal("elu+1", rope_angles="selective"),
    causal("elu+1", decay="pair", pair_denominator="head", kv_heads=1),
    causal("elu+1", denominator="abs", decay="fixed"),
    causal("elu+1+paired", rope_phase="learned"),
    SoftmaxRoPEAttention(DIM, HEADS, causal=True, decay="gate"),
    SoftmaxRoPEAttention(DIM, HEADS, causal=True, rope="pope", rope_phase="learned"),
]


def marked(slow: list[Any], full: list[Any]) -> list[Any]:
    every = [pytest.param(each, marks=pytest.mark.slow) for each in slow]
    return every + [pytest.param(each, marks=[pytest.mark.slow, pytest.mark.full]) for each in full]


@pytest.mark.parametrize("module", marked(SLOW, FULL))
@torch.no_grad()
def test_an_attention_gives_the_same_at_any_length(module: nn.Module, tmp_path: Path) -> None:
    module.eval()
    traced = torch.randn(2, 70, DIM)
    torch.onnx.export(module, (traced,), tmp_path / "a.onnx", dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},), verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    for batch, length in ((2, 70), (1, 1), (3, 64), (2, 131)):
        x = torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(length)) * 3
        (y,) = outputs(session, x).values()
        exact = copy.deepcopy(module).double()(x.double())
        # Where terms cancel, as with the denominator "abs", float32 itself is farther off than ROUNDING.
        own = float((module(x) - exact).abs().max())
        assert float((y - exact).abs().max()) <= 3 * own + ROUNDING * float(exact.abs().max())


CAUSAL = [each for each in (*SLOW, *FULL) if isinstance(each, LinearRoPEAttention) and each.causal]


@pytest.mark.parametrize("module", CAUSAL)
@torch.no_grad()
def test_plain_operations_give_what_the_operator_does(
    module: LinearRoPEAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are exported, called as they are: at every length, and in pieces."""
    attention = copy.deepcopy(module).double().eval()
    # Of the larger ones no exponential is left without its scale; features of elu+1 would hardly overlap, and then the
    # terms of a rotated product cancel.
    size = 200 if isinstance(attention.feature_map, FavorPlus) else 3
    for length in (3, 63, 64, 131):
        x = random(2, length, DIM, seed=length) * size
        expected, piece = attention(x), length - length // 3
        with monkeypatch.context() as exporting:
            exporting.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
            assert_near(attention(x), expected)
            y, state = attention.prefill(x[:, :piece])
            assert_near(torch.cat((y, attention.prefill(x[:, piece:], state=state)[0]), dim=1), expected)


@pytest.mark.parametrize(
    ("window", "options"), [(8, {"decay": "gate"}), (90, {"rope": "none", "score_positions": "t5"})]
)
@torch.no_grad()
def test_a_window_is_exported_for_shorter_and_longer_sequences(window: int, options: dict[str, Any]) -> None:
    module = SoftmaxRoPEAttention(DIM, HEADS, causal=True, window=window, **options).double().eval()
    for each in (module, _Prefill(module)):
        traced, free = (random(2, 70, DIM),), ({0: DYNAMIC, 1: DYNAMIC},)
        exported = torch.export.export(each, traced, dynamic_shapes=free).module()
        for length in (2, 5, 70, 131):
            x = random(3, length, DIM, seed=length)
            assert_near(exported(x), each(x))


FADING = AttentionSettings(feature_map="favor+", decay="gate")
WINDOW = AttentionSettings(attention="softmax", position="rope-before", window=5)
HYBRID: dict[str, Any] = {"layers": 2, "pattern": (FADING, WINDOW)}
SLOW_MODELS = [
    {"attention": "softmax", "position": "learned", "max_length": 400},
    {"feature_map": "elu+1", "rope_fraction": 0.5, "output_norm": True, "output_gate": True},
]
FULL_MODELS = [
    {"attention": "softmax", "position": "rope-before", "window": 90, "decay": "gate"},
    {"feature_map": "elu+1", "short_conv": 3},
    {"attention": "retention", "layers": 2},
    {"attention": "favor+window", "position": "rope-before"},
]


@pytest.mark.parametrize("settings", [HYBRID, *marked(SLOW_MODELS, FULL_MODELS)])
@torch.no_grad()
def test_a_model_goes_on_from_its_prompt_token_by_token(settings: dict[str, Any], tmp_path: Path) -> None:
    model = CausalLM(ModelConfig(**{"layers": 1} | settings, dim=DIM, heads=HEADS, vocab_size=30)).eval()
    for parameter in model.parameters():
        parameter.mul_(4)
    model.blocks.train()
    whole, prefill, step = map(onnxruntime.InferenceSession, save(model, tmp_path))
    assert [model.training, model.blocks.training] == [False, True]
    model.eval()
    for batch, length, prompt in ((1, 9, 1), (3, 140, 131)):
        tokens = torch.randint(30, (batch, length), generator=torch.Generator().manual_seed(0))
        expected = model(tokens)
        assert_near(outputs(whole, tokens)["logits"], expected, ROUNDING)
        logits, *state = outputs(prefill, tokens[:, :prompt]).values()
        found = [logits]
        for at in range(prompt, length):
            logits, *state = outputs(step, tokens[:, at : at + 1], *state).values()
            found.append(logits)
        assert_near(torch.cat(found, dim=1), expected, ROUNDING)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    assert_refused(lambda: save(nn.Linear(2, 2), tmp_path), ["Linear", "CausalLM"])  # type: ignore[arg-type]
