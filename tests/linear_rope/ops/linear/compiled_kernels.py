"""Compiles the Triton kernels for a GPU that need not be there, and prints what of it they take.

    python -m tests.linear_rope.ops.linear.compiled_kernels 90 elu+1-64 favor+-128 decay

With "pairs" in place of "decay", those of decays of pairs.

Triton brings its compiler and ptxas. A spilled register is slow memory; above the shared memory of a GPU (227 KiB of an
H100's) a kernel does not start. TRITON_INTERPRET must not be set.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from linear_rope.ops.linear import triton_form
from linear_rope.ops.linear.call import Call, Upstream
from linear_rope.ops.linear.operator import TENSORS
from linear_rope.ops.linear.triton_form import launch, settings

PROGRAMS = Path(triton.__file__).parent / "backends/nvidia/bin"
SIZES = {
    "elu+1-64": ("elu+1", 64, 64, 64),
    "elu+1-128": ("elu+1", 128, 128, 128),
    "favor+-64": ("favor+", 64, 128, 64),
    "favor+-128": ("favor+", 128, 128, 128),
}
"""formula, head width, features, value width"""
NUMBERS = {"elu+1": (0.0,), "favor+": (0.0, 0.0, 1e-6)}


class Compiled(NamedTuple):
    """Attributes:
    registers, spilled: of a thread; bytes.
    shared: bytes of a program.
    products: matrix instructions, wgmma or mma.sync.
    """

    kernel: str
    warps: int
    registers: int
    spilled: int
    shared: int
    products: str


class _Target:
    """In place of the driver of a GPU."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def some_call(name: str, dtype: torch.dtype, length: int, *, decay: str | None, causal: bool) -> Call:
    """B = 1, H = 16; of one position, after a state."""
    formula, width, features, values = SIZES[name]
    tensors: dict[str, Tensor | None] = dict.fromkeys(TENSORS)
    for key, size in (("q", width), ("k", width), ("v", values)):
        tensors[key] = torch.empty(1, 16, length, size, dtype=dtype)
    tensors["q_rotation"] = tensors["k_rotation"] = torch.empty(1, 1, length, features // 2, 2)
    if formula == "favor+":
        tensors["constant"] = torch.empty(features, width)
    if decay is not None:
        tensors["log_decay"] = torch.empty(1, 16, length, dtype=torch.float64)
    if decay == "pairs":
        tensors["pair_decay"] = torch.empty(1, 16, length, features // 2)
    if length == 1:
        tensors["memory"], tensors["key_sum"] = torch.empty(1, 16, features, values), torch.empty(1, 16, features)
        tensors["stabiliser"] = torch.empty(1, 16, 1)
    return Call(**tensors, numbers=NUMBERS[formula], formula=formula, denominator="unrotated", causal=causal)  # type: ignore[arg-type]


def compile_all(
    capability: int, name: str, dtype: torch.dtype = torch.bfloat16, *, decay: str | None = None
) -> list[Compiled]:
    """The kernels of all that there is, as they would be launched: both passes, both ways without a decay, a step."""
    driver.set_active(_Target(capability))
    found = {}

    def run(self: Any, kernel: Any, grid: Any, *arguments: Any, warps: int, stages: int = 1, **flags: Any) -> None:
        compiled = kernel.warmup(*arguments, **flags, grid=grid, num_warps=warps, num_stages=stages)
        if compiled.hash not in found:
            found[compiled.hash] = _measured(kernel.__name__, capability, compiled)

    before = launch.Launcher.run, settings.capability
    launch.Launcher.run = run  # type: ignore[method-assign]
    settings.capability = lambda device: divmod(capability, 10)
    try:
        for causal in (True, False) if decay is None else (True,):
            call = some_call(name, dtype, 1024, decay=decay, causal=causal)
            result = triton_form.attend(call, keep=True)
            triton_form.differentiate(call, result, Upstream(torch.empty_like(result.output)))
        triton_form.step(some_call(name, dtype, 1, decay=decay, causal=True))
    finally:
        launch.Launcher.run, settings.capability = before  # type: ignore[method-assign]
    return list(found.values())


def _measured(name: str, capability: int, compiled: Any) -> Compiled:
    ptx = compiled.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        suffix = "a" if capability >= 90 else ""
        ptxas = PROGRAMS / ("ptxas-blackwell" if capability >= 100 else "ptxas")
        command = [ptxas, "-v", f"--gpu-name=sm_{capability}{suffix}", file.name, "-o", "/dev/null"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (registers,), (spilled,) = re.findall(r"Used (\d+) registers", told), re.findall(r"(\d+) bytes spill stores", told)
    products = (
        "wgmma" if "wgmma.mma_async" in ptx else "mma.sync" if "mma.sync" in ptx else "tcgen05" * ("tcgen05" in ptx)
    )
    return Compiled(name, compiled.metadata.num_warps, int(registers), int(spilled), compiled.metadata.shared, products)


if __name__ == "__main__":
    capability, *names = sys.argv[1:]
    decay = next((x for x in ("decay", "pairs") if x in names), None)
    for name in names:
        if name != decay:
            for one in compile_all(int(capability), name, decay=decay):
                print(name, *one, flush=True)
