"""The Triton kernel of one position after a state, against the same in float64; tolerances as in test_triton.py."""

import importlib.util

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from linear_rope import LinearRoPEAttention
from linear_rope.ops.linear import operator, triton_form
from linear_rope.ops.linear.operator import TENSORS, attend
from linear_rope.ops.linear.triton_form import settings
from tests.linear_rope.ops.linear import test_triton
from tests.linear_rope.ops.linear.test_triton import (
    DEVICE,
    OUTPUTS,
    assert_close,
    everything,
    with_features,
    with_features_over_nothing,
    without_scales,
)
from tests.linear_rope.tensors import in_steps, random

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
short_chunks = test_triton.short_chunks

NO_STATE = dict.fromkeys(("memory", "key_sum", "stabiliser"))
CALLS = {
    "favor+": everything,
    "rotated denominator": lambda: everything("rotated"),
    "none": lambda: everything("none"),
    "no decay": lambda: everything()._replace(log_decay=None),
    "hyperbolic": lambda: everything()._replace(numbers=(1.0, 0.0, 1e-6), constant=random(3, 4, seed=10)),
    "paired": lambda: everything()._replace(numbers=(0.0, 1.0, 1e-6), constant=random(3, 4, seed=10)),
    "given": with_features,
    "given, over nothing": with_features_over_nothing,
    "elu+1": without_scales,
    "elu+1 without decay": lambda: without_scales()._replace(log_decay=None),
    "relu": lambda: without_scales()._replace(formula="relu", numbers=(0.1,)),
    "no state": lambda: everything()._replace(**NO_STATE),
    "no state, elu+1": lambda: without_scales()._replace(**NO_STATE),
}
# What is not neighbouring numbers of one token: these keep their shape.
WHOLE = ("memory", "key_sum", "stabiliser", "constant")


def tokens(name: str) -> list[dict[str, Tensor]]:
    """The tensors of five calls of one position: resets, padding in one sequence of two, and neither."""
    call = CALLS[name]()
    given = {name: x for name in TENSORS if (x := getattr(call, name)) is not None}
    return [
        {name: x if name in WHOLE else x[:, :, at : at + 1] for name, x in given.items()} for at in (1, 2, 16, 21, 30)
    ]


def results(name: str, tensors: dict[str, Tensor], form: str, dtype: torch.dtype, device: torch.device):
    kept = {"padding": torch.bool, "log_decay": torch.float64, "stabiliser": torch.float64}
    given = {name: x.to(device, kept.get(name, dtype)) for name, x in tensors.items()}
    result = attend(CALLS[name]()._replace(**given), form)
    return {name: x for name, x in result._asdict().items() if x.numel()}


@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("name", CALLS)
def test_one_position_after_a_state(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output, the denominator, the scale and the state after it, of values in two blocks or one."""
    monkeypatch.setattr(settings, "step_of", lambda call: (block, 4))
    for tensors in tokens(name):
        expected = results(name, tensors, "chunked", torch.float64, torch.device("cpu"))
        got = results(name, tensors, "triton", torch.float32, DEVICE)
        assert expected.keys() == got.keys()
        for key, x in expected.items():
            assert_close(got[key], x, 10 * OUTPUTS[torch.float32], max(1.0, float(x.abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"feature_map": "elu+1", "decay": "gate"}, {"denominator": "none"}])
def test_a_module_decodes_by_it(options: dict[str, str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    module = LinearRoPEAttention(16, 2, causal=True, **options).to(DEVICE, dtype)
    x = random(2, 9, 16).to(DEVICE, dtype)
    whole, steps, take = module(x).detach(), [], triton_form.step
    monkeypatch.setattr(operator, "_implementation", lambda call: triton_form)
    monkeypatch.setattr(triton_form, "step", lambda call: steps.append(call) or take(call))
    with torch.no_grad():
        stepped = in_steps(module, x, 3)
    assert len(steps) == 6
    assert stepped.dtype == dtype
    assert_close(stepped, whole.double().cpu(), 10 * OUTPUTS[dtype], float(whole.abs().max()))


def test_a_step_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it nothing is computed in PyTorch."""
    from linear_rope.ops.linear.triton_form.launch import Launcher

    first, names = tokens("favor+")[0], []
    dtypes = {name: x.dtype if name == "padding" else torch.float32 for name, x in first.items()}
    call = CALLS["favor+"]()._replace(**{name: x.to(dtypes[name]).contiguous() for name, x in first.items()})

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            names.append(function._schema.name)
            return function(*arguments, **options or {})

    monkeypatch.setattr(Launcher, "run", lambda *arguments, **options: names.append("run"))
    with Watch():
        triton_form.step(call)
    assert names.count("run") == 1
    assert set(names) <= {"run", "aten::empty", "aten::view", "aten::transpose", "aten::detach"}, names
