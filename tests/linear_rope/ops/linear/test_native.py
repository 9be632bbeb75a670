"""The native kernel: it is there where it can be, agrees with the oracle whatever it is given, and keeps its bits.

Random calls are in test_random_calls.py. What every implementation guarantees is tested for it where it is for all: it
is one of ``tensors.FORMS``.
"""

import ctypes
import itertools
import shutil
import subprocess
import sys

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, kernels, linear_attention
from linear_rope.ops.linear import native
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.operator import TENSORS, attend
from tests.linear_rope.ops.linear.test_triton import everything, pairwise, with_features
from tests.linear_rope.tensors import TOLERANCES, assert_near, random, random_qkv

pytestmark = pytest.mark.skipif(
    kernels()["native"].startswith("switched off")
    or (not kernels()["native"].startswith("C++") and shutil.which("c++") is None),
    reason=kernels()["native"],
)


def attended(q=torch.ones(1, 1, 4, 2), implementation="native", **options):  # noqa: B008
    options = {"feature_map": EluPlusOne(), "causal": True} | options
    return linear_attention(q, q, q, **options, implementation=implementation)


def test_it_is_built_where_there_is_a_compiler_and_switched_off_by_the_environment(monkeypatch):
    assert kernels()["native"].startswith("C++ for ")
    if torch.backends.openmp.is_available():
        assert "on one thread" not in kernels()["native"]
    with monkeypatch.context() as patch:
        patch.setattr(native, "_parallel", lambda: None)
        assert kernels()["native"].startswith("C++ for ")
        assert ", on one thread: " in kernels()["native"]
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")
    assert kernels()["native"] == "switched off (LINEAR_ROPE_NATIVE=0)"
    attended(implementation="auto")
    with pytest.raises(ValueError, match=r'implementation is "native".* switched off'):
        attended()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A copy of the library, beside its sources, which is the one that is used."""
    copied = tmp_path / native.LIBRARY.name
    shutil.copy(native.LIBRARY, copied)
    shutil.copytree(native.LIBRARY.with_name("cpp"), tmp_path / "cpp")
    monkeypatch.setattr(native, "LIBRARY", copied)
    native._loaded.cache_clear()
    yield copied
    native._loaded.cache_clear()


def test_a_library_of_other_sources_is_not_used(library):
    assert kernels()["native"].startswith("C++ for ")
    with open(library.with_name("cpp") / "step.h", "a") as file:
        file.write("// changed\n")
    native._loaded.cache_clear()
    told = "not usable: built from other sources than linear_rope/ops/linear/cpp; pip install -e . again"
    assert kernels()["native"] == told
    with pytest.raises(ValueError, match=r'implementation is "native".* built from other sources'):
        attended()


def test_a_library_of_another_version_computes_nothing(monkeypatch):
    class Longer(native._Call):
        _fields_ = (("more", ctypes.c_long),)

    monkeypatch.setattr(native, "_Call", Longer)
    with pytest.raises(RuntimeError, match="not of one version; pip install -e"):
        attended()


TOO_LARGE = """
import resource
import psutil, torch
from linear_rope import EluPlusOne, linear_attention

# A state of 64 MiB; the kernel holds one of each of 5 heads and as much again for each task.
q, k, v = torch.rand(3, 1, 5, 2, 4096).unbind(0)
results = 5 * 2**26
for room in (2**26, 6 * 2**26):  # not enough for the first, nor for the second
    limit = psutil.Process().memory_info().vms + results + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        with torch.no_grad():
            linear_attention(q, k, v, feature_map=EluPlusOne(), rope="none", causal=True, implementation="native")
    except MemoryError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_too_little_memory_is_an_error_that_can_be_caught():
    process = subprocess.run([sys.executable, "-c", TOO_LARGE], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("the native kernel found no memory for its work; give fewer ") == 2


@pytest.mark.parametrize(("kind", "heads"), [("favor+", 1), ("elu+1", 4)])  # in pieces, and as a whole
@pytest.mark.parametrize("way", ["the same tokens", "a slow decay", "a decay", "both ways"])
def test_long_sums_in_float32_are_as_precise_as_short_ones(way, kind, heads):
    """One number after another, each rounded in the same direction, 16,384 would be off by a thousandth."""
    length, width = 16384, 8
    feature_map = FavorPlus(width, 16) if kind == "favor+" else EluPlusOne()
    q, k, v = random_qkv(1, heads, length, width=width)
    if "decay" in way:
        v = torch.linspace(0, 1, length).view(1, 1, -1, 1).expand_as(v)
        inputs = [q, k, v, torch.full((1, heads, length), -1e-4 if "slow" in way else -1e-3)]
    else:
        inputs = [x[:, :, :1].expand_as(x) for x in (q, k, v)]
    options = {"rope": "none", "causal": way != "both ways", "implementation": "native"}
    found = []
    for dtype in (torch.float64, torch.float32):
        leaves = [x.float().to(dtype).requires_grad_() for x in inputs]
        decay = leaves[3] if len(leaves) > 3 else None
        out = linear_attention(*leaves[:3], log_decay=decay, feature_map=feature_map.to(dtype), **options)
        grads = torch.autograd.grad(out.sum(), leaves[2:])  # those of q and k are zero where all tokens are the same
        found.append((out.detach().double(), torch.cat([x.flatten().double() for x in grads])))
    assert_near(found[1], found[0], TOLERANCES[torch.float32])


def test_both_passes_take_the_same_stabiliser_where_every_query_sees_every_key():
    """Here ln of all keys' scales is about −2,001, of which float32 keeps 4 digits behind the point at most."""
    q = torch.zeros(1, 1, 4, 4)
    k, v = torch.full((1, 1, 4, 4), 44.75), torch.ones(1, 1, 4, 3, requires_grad=True)
    given = dict.fromkeys(TENSORS) | {"q": q, "k": k, "v": v, "constant": torch.zeros(6, 4), "numbers": (0, 0, 0)}
    call = Call(**given, formula="favor+", denominator="unrotated", causal=False)
    (grad,) = torch.autograd.grad(attend(call, "native").output.sum(), v)
    torch.testing.assert_close(grad, torch.ones_like(v), rtol=1e-6, atol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 3)])
def test_the_bits_do_not_depend_on_the_number_of_threads(batch, heads, causal):
    qkv = [x.float() for x in random_qkv(batch, heads, 2100, width=8)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            leaves = [x.clone().requires_grad_() for x in qkv]
            out = linear_attention(*leaves, feature_map=FavorPlus(8, 16), causal=causal, implementation="native")
            found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("make", [everything, with_features])
def test_no_tensor_of_another_shape_or_place_reaches_the_kernel(make):
    """Also where the operator is called by hand, past all other checks."""
    call = make(heads=3)
    attend(call, "native")
    for name in TENSORS:
        x = getattr(call, name)
        if x is None:
            continue
        wrong = [x[..., :-1], x.unsqueeze(0), torch.cat((x, x), dim=-1), x[:, :1]]
        wrong += [x.to("meta")] if name != "q" else []
        for each in wrong:
            if each.shape == x.shape and each.device == x.device:
                continue
            with pytest.raises(ValueError, match=r"native kernel needs|values to unpack"):
                attend(call._replace(**{name: each}), "native")


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (with_features, {"denominator_k": None}, "denominator_q and denominator_k"),
        (with_features, {"denominator": "none"}, "denominator_q is given"),
        (with_features, {"constant": torch.ones(6, 4)}, "constant is"),
        (everything, {"q_rotation": None}, "q_rotation and k_rotation"),
        (everything, {"constant": None}, "constant is None"),
        (everything, {"constant": torch.ones(0, 4)}, "constant is"),
        (everything, {"formula": "elu+1"}, "constant is"),
        (everything, {"causal": False}, "log_decay is given"),
        (everything, {"causal": False, "log_decay": None}, "memory is given"),
        (lambda heads: pairwise(everything(heads=heads)), {"log_decay": None}, "pair_decay is given without"),
    ],
)
def test_no_tensor_without_its_partner_reaches_the_kernel(make, changes, words):
    with pytest.raises(ValueError, match=rf"{words}.*; give"):
        attend(make(heads=3)._replace(**changes), "native")


def test_without_the_kernel_the_operator_is_causal(monkeypatch):
    call = everything(heads=3)._replace(**dict.fromkeys(("log_decay", "memory", "key_sum", "stabiliser")))
    for implementation in ("chunked", "auto"):
        with pytest.raises(ValueError, match=r"causal is False on cpu.*; give causal=True"):
            attend(call._replace(causal=False), implementation)
        monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")


def test_a_sign_that_pytorch_has_not_yet_applied_counts():
    q, k = torch.rand(2, 1, 2, 5, 4).unbind(0)
    v = torch.view_as_complex(torch.randn(1, 2, 5, 1, 2)).conj().imag
    assert v.is_neg()
    options = {"feature_map": EluPlusOne(), "causal": True, "implementation": "native"}
    assert torch.equal(linear_attention(q, k, v, **options), linear_attention(q, k, v.clone(), **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    qkv = [x.to(dtype) for x in random_qkv(2, 2, 70, width=8)]
    options = {"feature_map": FavorPlus(8, 16), "causal": True, "implementation": "native"}
    out, wide = linear_attention(*qkv, **options), linear_attention(*(x.float() for x in qkv), **options)
    assert out.dtype == dtype
    assert torch.equal(out, wide.to(dtype))


def test_which_tokens_take_the_short_way(monkeypatch):
    """And what does not: right as well, or refused, and no pointer to nothing."""
    taken = []
    short = native.step
    monkeypatch.setattr(native, "step", lambda call: taken.append(1) or short(call))
    plain = LinearRoPEAttention(12, 3, causal=True).double()
    selective = LinearRoPEAttention(12, 3, causal=True, rope_angles="selective").double()
    before = LinearRoPEAttention(12, 3, causal=True, rope="before").double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)

    def steps(attention, last=x[:, 5:], change=lambda state: state):
        taken.clear()
        with torch.no_grad():
            _, state = attention.prefill(x[:, :5])
            return attention.step(last, change(state))[0], len(taken)

    for attention, count in ((plain, 1), (selective, 0), (before, 0)):
        y, found = steps(attention)
        torch.testing.assert_close(y, attention(x)[:, 5:], rtol=1e-10, atol=1e-10)
        assert found == count
    expected = plain(x)[:, 5:]
    y, found = steps(plain, TwoTensor(x[:, 5:], x[:, 5:]))
    assert found == 0
    torch.testing.assert_close(y.a, expected, rtol=1e-10, atol=1e-10)

    def twice(state):
        memory = TwoTensor(state.sums.memory, state.sums.memory)
        return state._replace(sums=state.sums._replace(memory=memory))

    y, found = steps(plain, change=twice)
    assert found == 0
    torch.testing.assert_close(y.a, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "denominator"),
    [
        *((kind, "unrotated") for kind in ("favor+hyperbolic", "favor+paired", "elu+1+paired", "relu", "hedgehog")),
        *itertools.product(("favor+", "elu+1"), ("unrotated", "rotated", "none")),
    ],
)
def test_one_position_after_a_state(kind, denominator):
    """Without gradients it has a form of its own."""
    torch.manual_seed(0)
    sizes = {"num_features": 20} if kind.startswith("favor+") else {}
    # A projection of a multiple of 16 channels is not packed.
    for head_dim, rope, decay in ((6, "after", "none"), (16, "none", "gate"), (34, "after", "gate")):
        settings = {"feature_map": kind, "rope": rope, "denominator": denominator, "decay": decay, "causal": True}
        attention = LinearRoPEAttention(12, 3, head_dim=head_dim, **settings, **sizes).double()
        x = random(2, 9, 12)
        expected, state = attention.prefill(x[:, :5])
        assert expected.requires_grad
        for at in range(5, 9):
            with_gradients, _ = attention.step(x[:, at : at + 1], state)
            with torch.no_grad():
                y, state = attention.step(x[:, at : at + 1], state)
            torch.testing.assert_close(y, with_gradients, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(y, attention(x)[:, -1:], rtol=1e-8, atol=1e-8)
