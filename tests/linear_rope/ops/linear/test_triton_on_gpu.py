"""The Triton kernels on a GPU: what their interpreter cannot show. About a minute, most of it compiling.

    pytest tests/linear_rope/ops/linear/test_triton_on_gpu.py

Values are compared with the definition in float64 on the CPU, by the norm of the error; tolerances are those that a
setting must keep before "auto" takes it (linear_rope/ops/linear/triton_form/trial.py).
"""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention
from linear_rope.ops.linear import kernels
from linear_rope.ops.linear.triton_form import proof
from tests.linear_rope.tensors import attended, random, some_padding

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="there is no CUDA GPU with Triton on this machine",
)

GPU = torch.device("cuda")
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 1101, 64
TOLERANCES = {torch.float32: (1e-5, 3e-5), torch.float16: (3e-3, 5e-3), torch.bfloat16: (1.2e-2, 2e-2)}
GIBIBYTE = 2**30
ELU: dict[str, Any] = {"feature_map": EluPlusOne(), "causal": True}
TRITON = ELU | {"implementation": "triton"}


@pytest.fixture(autouse=True)
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is proved yet."""
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path))
    monkeypatch.setattr(proof, "_decided", {})
    return tmp_path / proof.FILE


def qkv(dtype: torch.dtype, device: torch.device = GPU) -> list[Tensor]:
    return [random(BATCH, HEADS, LENGTH, WIDTH, seed=seed).to(dtype).to(device) for seed in range(3)]


def output_and_gradients(inputs: list[Tensor], **options: Any) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attended(*leaves, **options)
    upstream = random(*output.shape, seed=9).to(output)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.double().cpu() - expected.double().cpu()).norm() / expected.double().cpu().norm())


@pytest.mark.parametrize(
    ("feature_map", "dtype"),
    [
        *((EluPlusOne(), dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        (FavorPlus(WIDTH, 128), torch.bfloat16),
    ],
    ids=str,
)
def test_values_and_gradients_are_the_definition_s(feature_map: FeatureMap, dtype: torch.dtype) -> None:
    mask, log_decay = some_padding(BATCH, LENGTH), -random(BATCH, HEADS, LENGTH, seed=5).abs().float() / 8
    exact = [*(x.double() for x in qkv(dtype, torch.device("cpu"))), log_decay.double()]
    options: dict[str, Any] = {"key_padding_mask": mask, "causal": True}
    expected = output_and_gradients(exact, feature_map=feature_map.double(), implementation="reference", **options)
    options |= {"feature_map": feature_map.to(GPU, torch.float32), "key_padding_mask": mask.to(GPU)}
    found = output_and_gradients([*qkv(dtype), log_decay.to(GPU)], implementation="triton", **options)
    assert found[0].dtype == dtype
    errors = [off(x, y) for x, y in zip(found, expected, strict=True)]
    outputs, gradients = TOLERANCES[dtype]
    assert errors[0] <= outputs, errors
    assert max(errors[1:]) <= gradients, errors


def test_auto_takes_it_once_it_is_proved(proofs: Path) -> None:
    inputs = qkv(torch.bfloat16)
    began = time.monotonic()
    by_auto = output_and_gradients(inputs, **ELU)
    assert time.monotonic() - began < 20
    assert proofs.exists()
    assert ": 1 proved, 0 wrong" in kernels()["triton"]
    assert all(map(torch.equal, by_auto, output_and_gradients(inputs, **TRITON)))


def test_compiled_by_inductor() -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(HEADS * WIDTH, HEADS, feature_map="elu+1", causal=True).to(GPU)
    x = random(BATCH, LENGTH, HEADS * WIDTH).to(GPU, torch.float32).requires_grad_()
    expected = module(x)  # and it is proved
    found = torch.compile(module, fullgraph=True)(x)
    of_x = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.compiler.reset()
    assert off(found, expected) < TOLERANCES[torch.float32][0]
    assert off(*of_x) < TOLERANCES[torch.float32][1]


def test_a_cuda_graph_replays_a_training_step_and_proves_nothing(proofs: Path) -> None:
    leaves = [x.requires_grad_() for x in qkv(torch.bfloat16)]

    def step() -> list[Tensor]:
        output = attended(*leaves, **TRITON)
        return [output, *torch.autograd.grad(output.float().square().sum(), leaves)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # the kernels are compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
        with torch.no_grad():
            attended(*leaves, **ELU)  # by "auto"
    assert not proofs.exists()
    with torch.no_grad():
        for leaf in leaves:
            leaf.copy_(leaf.flip(2))
    graph.replay()
    replayed = [y.clone() for y in captured]
    assert all(map(torch.equal, replayed, step()))


def test_tensors_of_more_than_two_to_the_31_elements() -> None:
    """The last of many sequences is what it is alone."""
    free, _ = torch.cuda.mem_get_info()
    if free < 56 * GIBIBYTE:
        pytest.skip(f"needs 56 GiB of GPU memory, {free / GIBIBYTE:.0f} are free")
    shape = 2**31 // (16 * 4096 * WIDTH) + 1, 16, 4096, WIDTH
    leaves = [torch.randn(shape, device=GPU, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    assert leaves[0].numel() > 2**31
    output = attended(*leaves, **TRITON)
    found = [output.detach()[-1:], *(x[-1:] for x in torch.autograd.grad(output, leaves, leaves[0].detach()))]
    alone = [x.detach()[-1:].clone().requires_grad_() for x in leaves]
    output = attended(*alone, **TRITON)
    assert all(map(torch.equal, found, [output, *torch.autograd.grad(output, alone, alone[0].detach())]))
