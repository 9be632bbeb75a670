"""The guarantees of causal attention on each device there is, in float32 and bfloat16, and under autocast.

    pytest tests/linear_rope/test_devices.py

runs on the CPU, and on a CUDA GPU where there is one. The other files test more, on the CPU. Tolerances are those of
test_linear_attention.py: 1e-5 and 2e-2 of the largest value, against float64 on the CPU. They hold for a GPU's products
of full precision, which is PyTorch's default, not for TF32.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention, ReluFeatures, linear_attention
from tests.linear_rope.tensors import (
    FORMS,
    SETTINGS,
    TOLERANCES,
    assert_near,
    attended,
    in_steps,
    outputs_and_gradients,
    random,
    random_qkv,
    slow_positions,
    some_padding,
)

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU on this machine")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=NEEDS_CUDA)]
LENGTH, WIDTH, FEATURES = 150, 16, 32
PHIS = {"favor+": FavorPlus(WIDTH, FEATURES), "elu+1": EluPlusOne(), "relu": ReluFeatures(eps=1e-2)}

pytestmark = [
    pytest.mark.parametrize("device", DEVICES, ids=str),
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str),
    pytest.mark.parametrize("phi", PHIS.values(), ids=PHIS),
]


def rounded_qkv(dtype: torch.dtype) -> list[Tensor]:
    return [x.to(dtype) for x in random_qkv(2, 3, LENGTH, width=WIDTH)]


def autocasting(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    with torch.autocast(q.device.type, dtype=torch.bfloat16):
        return linear_attention(q, k, v, **options)


@pytest.mark.parametrize("causal", [True, False])
def test_every_implementation_gives_what_the_definition_does_in_float64(
    causal: bool, phi: FeatureMap, dtype: torch.dtype, device: torch.device
) -> None:
    qkv, mask = rounded_qkv(dtype), some_padding(2, LENGTH)
    q, *kv = (x.to(device) for x in qkv)
    # On the device padding is not a number, and changes nothing.
    held = [x.masked_fill(mask[:, None, :, None].to(device), torch.nan) for x in kv]
    for rope, denominator in SETTINGS:
        options: dict[str, Any] = {"rope": rope, "denominator": denominator, "causal": causal}
        exact = dict(feature_map=phi, key_padding_mask=mask, implementation="reference")
        at = slow_positions(LENGTH) if denominator in ("rotated", "abs") else None
        expected = outputs_and_gradients([x.double() for x in qkv], positions=at, **exact, **options)
        options |= {"feature_map": copy.deepcopy(phi).to(device), "key_padding_mask": mask.to(device)}
        options |= {"positions": None if at is None else at.to(device)}
        for form in FORMS if rope == "after" else ("auto",):
            found = outputs_and_gradients([q, *held], implementation=form, **options)
            assert_near(found, expected, TOLERANCES[dtype])
        assert attended(q, *held, **options).dtype == dtype
        if dtype == torch.float32:
            assert_near(outputs_and_gradients([q, *held], autocasting, **options), expected, TOLERANCES[dtype])


def test_the_future_changes_nothing(phi: FeatureMap, dtype: torch.dtype, device: torch.device) -> None:
    feature_map, qkv = copy.deepcopy(phi).to(device), [x.to(device) for x in rounded_qkv(dtype)]
    expected = linear_attention(*qkv, feature_map=feature_map, causal=True)
    for end in (1, 64, 101):
        changed = [torch.cat((x[:, :, :end], 100 * x[:, :, end:]), dim=2) for x in qkv]
        actual = linear_attention(*changed, feature_map=feature_map, causal=True)
        assert_near(actual[:, :, :end], expected[:, :, :end], 1e-6 if dtype == torch.float32 else TOLERANCES[dtype])


def test_norms_of_ten_thousand_are_finite(phi: FeatureMap, dtype: torch.dtype, device: torch.device) -> None:
    feature_map, everything = copy.deepcopy(phi).to(device), torch.tensor([[True], [False]]).expand(2, LENGTH)
    for scale in (1e-4, 1.0, 1e4):
        qkv = [(scale * x / x.norm(dim=-1, keepdim=True)).to(device) for x in rounded_qkv(dtype)]
        for mask in (None, some_padding(2, LENGTH).to(device), everything.to(device)):
            found = outputs_and_gradients(qkv, feature_map=feature_map, causal=True, key_padding_mask=mask)
            assert all(x.isfinite().all() for x in found)


def test_steps_follow_a_prompt(phi: FeatureMap, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(3 * WIDTH, 3, feature_map=copy.deepcopy(phi), causal=True).to(device, dtype)
    x = random(2, 90, 3 * WIDTH).to(device, dtype)
    with torch.no_grad():
        # The projections of one token and of all are rounded in the module's dtype.
        assert_near(in_steps(module, x, 70), module(x), 10 * TOLERANCES[dtype])
