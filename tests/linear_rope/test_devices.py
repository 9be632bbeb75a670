"""The guarantees of causal attention on each device there is, in float32 and bfloat16.

    pytest tests/linear_rope/test_devices.py

runs on the CPU, and on a CUDA GPU where there is one. The other files test more, on the CPU. Tolerances are those of
test_linear_attention.py: 1e-5 and 2e-2 of the largest value, against float64 on the CPU. They hold for a GPU's products
of full precision, which is PyTorch's default, not for TF32.
"""

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention, linear_attention

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU on this machine")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=NEEDS_CUDA)]
LENGTH, D, M = 150, 16, 32

pytestmark = [
    pytest.mark.parametrize("device", DEVICES, ids=str),
    pytest.mark.parametrize("dtype", TOLERANCES, ids=str),
    pytest.mark.parametrize("name", ["favor+", "elu+1"]),
]


def make_map(name: str, device: torch.device) -> FeatureMap:
    return (FavorPlus(D, M) if name == "favor+" else EluPlusOne()).to(device)


def random_qkv(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(2, 3, LENGTH, D, generator=generator) for _ in range(3)]
    return [x.to(device, dtype).requires_grad_() for x in qkv]


def padding(device: torch.device) -> Tensor:
    mask = torch.zeros(2, LENGTH, dtype=torch.bool, device=device)
    mask[1, ::3] = True
    mask[1, 140:] = True
    return mask


def outputs_and_gradients(qkv: list[Tensor], **options: object) -> list[Tensor]:
    output = linear_attention(*qkv, causal=True, **options)  # type: ignore[arg-type]
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    if isinstance(mask := options.get("key_padding_mask"), Tensor):
        # What comes out at padding is for nobody.
        upstream = upstream.masked_fill(mask[:, None, :, None], 0)
    return [output.detach(), *torch.autograd.grad(output, qkv, upstream)]


@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_the_forms_give_what_the_definition_does_in_float64(
    rope: str, name: str, dtype: torch.dtype, device: torch.device
) -> None:
    qkv = random_qkv(device, dtype)
    exact = [x.detach().cpu().double().requires_grad_() for x in qkv]
    # Padding is loud on the device, and not in what is expected: it changes nothing but outputs for nobody.
    place = padding(device)[:, None, :, None]
    qkv = [torch.where(place, 20 * x, x).detach().requires_grad_() for x in qkv]
    cpu = torch.device("cpu")
    options = {"rope": rope, "implementation": "reference", "key_padding_mask": padding(cpu)}
    expected = outputs_and_gradients(exact, feature_map=make_map(name, cpu), **options)
    largest = max(float(x.abs().max()) for x in expected[1:])
    for form in ("reference", "chunked", "recurrent"):
        options |= {"implementation": form, "key_padding_mask": padding(device)}
        actual = outputs_and_gradients(qkv, feature_map=make_map(name, device), **options)
        scales = (float(expected[0].abs().max()), largest, largest, largest)
        for got, wanted, scale in zip(actual, expected, scales, strict=True):
            assert got.dtype == dtype
            got, wanted = got.cpu().double().masked_fill(place.cpu(), 0), wanted.masked_fill(place.cpu(), 0)
            torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCES[dtype] * scale)


def test_the_future_changes_nothing(name: str, dtype: torch.dtype, device: torch.device) -> None:
    feature_map, qkv = make_map(name, device), [x.detach() for x in random_qkv(device, dtype)]
    expected = linear_attention(*qkv, feature_map=feature_map, causal=True)
    for last in (0, 63, 100):
        changed = [torch.cat((x[:, :, : last + 1], 100 * x[:, :, last + 1 :]), dim=2) for x in qkv]
        actual = linear_attention(*changed, feature_map=feature_map, causal=True)
        past = expected[:, :, : last + 1]
        tolerance = 1e-6 if dtype == torch.float32 else TOLERANCES[dtype]
        torch.testing.assert_close(actual[:, :, : last + 1], past, rtol=0, atol=tolerance * float(past.abs().max()))


def test_norms_of_ten_thousand_are_finite(name: str, dtype: torch.dtype, device: torch.device) -> None:
    for scale in (1e-4, 1.0, 1e4):
        qkv = [(scale * x / x.norm(dim=-1, keepdim=True)).detach().requires_grad_() for x in random_qkv(device, dtype)]
        everything = torch.ones(2, LENGTH, dtype=torch.bool, device=device)
        everything[0] = False
        for mask in (None, padding(device), everything):
            found = outputs_and_gradients(qkv, feature_map=make_map(name, device), key_padding_mask=mask)
            assert all(x.isfinite().all() for x in found)


def test_steps_follow_a_prompt(name: str, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(3 * D, 3, feature_map=make_map(name, device), causal=True).to(device, dtype).eval()
    x = torch.randn(2, 90, 3 * D, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    with torch.no_grad():
        expected = module(x)
        y, state = module.prefill(x[:, :70])
        steps = [y]
        for index in range(70, 90):
            y, state = module.step(x[:, index : index + 1], state)
            steps.append(y)
    # The projections of one token and of all are rounded in the module's dtype.
    tolerance = 10 * TOLERANCES[dtype] * float(expected.abs().max())
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=tolerance)
