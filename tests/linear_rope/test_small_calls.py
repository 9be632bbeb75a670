"""A step of decoding wakes no other thread, and what it computes in place of PyTorch's functions is the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linear_rope.small_calls import are_few, cosine_and_sine, exponential_of_negative
from tests.linear_rope.tensors import random

COUNT = """
#include <dlfcn.h>
static long teams;
extern "C" long teams_begun() { return teams; }
extern "C" void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags) {
  static auto real = (void (*)(void (*)(void*), void*, unsigned, unsigned))dlsym(RTLD_NEXT, "GOMP_parallel");
  if (threads != 1) teams++;
  real(run, data, threads, flags);
}
"""
STEPS = """
import ctypes
import torch
from linear_rope import LinearRoPEAttention
from linear_rope.attention import GatedDelta, Retention
from linear_rope.positions.absolute import SinusoidalPositions

torch.set_num_threads(2)
count = ctypes.CDLL(None).teams_begun
count.restype = ctypes.c_long
every = dict(decay="gate", local_conv=3, short_conv=4, rope_angles="selective", qk_norm=True)


def teams(call):
    call()
    before = count()
    call()
    return count() - before


@torch.no_grad()
def of_step(kind, **options):
    attention = kind(64, 4, causal=True, **options).eval()
    _, state = attention.prefill(torch.randn(1, 100, 64))
    return teams(lambda: attention.step(torch.randn(1, 1, 64), state))


print("logsigmoid", teams(lambda: torch.nn.functional.logsigmoid(torch.randn(4))))
print("product", teams(lambda: torch.nn.functional.linear(torch.randn(4, 16), torch.randn(44, 16))))
for name in ("favor+", "elu+1", "taylor", "hedgehog"):
    print(name, of_step(LinearRoPEAttention, feature_map=name))
    print(name, of_step(LinearRoPEAttention, feature_map=name, **every))
for kind in (Retention, GatedDelta):
    print(kind.__name__, of_step(kind), of_step(kind, **every))
print("sinusoidal", teams(lambda: SinusoidalPositions(512)(torch.tensor([70000]))))
"""


def test_no_step_wakes_a_team_of_threads(tmp_path: Path) -> None:
    source, library = tmp_path / "count.cpp", tmp_path / "count.so"
    source.write_text(COUNT)
    try:
        subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"what counts them cannot be compiled here: {error}")
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    control, product, *found = done.stdout.splitlines()
    if control == "logsigmoid 0":
        pytest.skip("this PyTorch does not begin its threads where they are counted")
    # Some processors' libraries of matrix products wake one for any; FAVOR+ has a product of queries and one of keys.
    of_products = {"favor+": 2 * int(product.split()[1])}
    for name, *counts in map(str.split, found):
        assert {*map(int, counts)} <= {0, of_products.get(name)}, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_few_numbers(dtype: torch.dtype) -> None:
    x = (random(3, 400) * 20).to(dtype)
    assert are_few(x)
    assert not are_few(x.clone().requires_grad_())
    exact, eps = x.double(), torch.finfo(dtype).eps
    found = cosine_and_sine(x).double()
    assert (found - torch.stack((exact.cos(), exact.sin()), dim=-1)).abs().max() <= eps
    exact = -exact.abs()
    # Two roundings of a quotient, and one of each of its parts.
    assert ((exponential_of_negative(exact.to(dtype)).double() - exact.exp()) / exact.exp()).abs().max() <= 4 * eps
    assert exponential_of_negative(torch.tensor([0.0, -1e4, -torch.inf], dtype=dtype)).tolist() == [1, 0, 0]
