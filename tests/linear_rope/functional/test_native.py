"""The native kernel: it is there where it can be, agrees with the oracle whatever it is given, and keeps its bits.

Random calls are in test_random_calls.py. What every implementation guarantees is tested for it where it is for all: it
is one of ``tensors.FORMS``.
"""

import shutil

import pytest
import torch

from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, kernels, linear_attention
from linear_rope.functional.call import Call, Result
from linear_rope.functional.operator import TENSORS, causal

pytestmark = pytest.mark.skipif(
    kernels()["native"].startswith("switched off")
    or (not kernels()["native"].startswith("C++") and shutil.which("c++") is None),
    reason=kernels()["native"],
)


def test_it_is_built_where_there_is_a_compiler():
    assert kernels()["native"].startswith("C++ for ")


def test_it_is_switched_off_by_the_environment(monkeypatch):
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", "0")
    assert kernels()["native"] == "switched off (LINEAR_ROPE_NATIVE=0)"
    q = torch.randn(1, 1, 4, 2)
    linear_attention(q, q, q, feature_map=EluPlusOne(), causal=True)
    with pytest.raises(ValueError, match=r'implementation is "native".* switched off'):
        linear_attention(q, q, q, feature_map=EluPlusOne(), causal=True, implementation="native")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 1), (2, 3)])
def test_the_bits_do_not_depend_on_the_number_of_threads(batch, heads, causal):
    qkv = [torch.randn(batch, heads, 2100, 8, generator=torch.Generator().manual_seed(s)) for s in range(3)]
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


def call_with_everything():
    """B = 2, H = 3, N = 40, D = 4, M = 6, Dv = 5."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    return Call(
        q=normal(2, 3, 40, 4),
        k=normal(2, 3, 40, 4),
        v=normal(2, 3, 40, 5),
        denominator_q=None,
        denominator_k=None,
        query_scale=None,
        key_scale=None,
        log_decay=-normal(2, 3, 40).abs(),
        padding=normal(2, 1, 40, 1) > 1,
        q_rotation=normal(2, 1, 40, 3, 2),
        k_rotation=normal(2, 1, 40, 3, 2),
        memory=normal(2, 3, 6, 5),
        normaliser=normal(2, 3, 6).abs(),
        stabiliser=normal(2, 3, 1),
        constant=normal(6, 4),
        numbers=(0.0, 0.0, 1e-6),
        formula="favor+",
        denominator="unrotated",
    )


def call_with_features():
    """The same with features that were made before."""
    call, draw = call_with_everything(), torch.Generator().manual_seed(1)
    names = ("q", "k", "denominator_q", "denominator_k")
    features = {name: torch.rand(2, 3, 40, 6, generator=draw, dtype=torch.float64) for name in names}
    scales = {name: torch.randn(2, 3, 40, generator=draw, dtype=torch.float64) for name in ("query_scale", "key_scale")}
    rest = {"q_rotation": None, "k_rotation": None, "constant": None, "numbers": (), "formula": "given"}
    return call._replace(**features, **scales, **rest)


CALLS = pytest.mark.parametrize("make", [call_with_everything, call_with_features])


@CALLS
def test_no_tensor_of_another_shape_or_place_reaches_the_kernel(make):
    """Also where the operator is called by hand, past all other checks."""
    call = make()
    causal(call, "native")
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
                causal(call._replace(**{name: each}), "native")


@CALLS
@pytest.mark.parametrize("way", ["spread", "far", "heads inside", "expanded"])
def test_where_a_tensor_lies_in_memory_does_not_matter(make, way):
    def moved(x):
        if way == "spread":
            return torch.stack((x, x), dim=-1)[..., 0]
        if way == "far":  # 256 KiB from one to the next
            return x.new_empty(*x.shape[:-1], 2**15)[..., : x.shape[-1]].copy_(x)
        if way == "heads inside":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        return x[:1].expand(x.shape)  # every sequence is the first, at the same address

    call = make()
    places = {n: moved(x) for n in TENSORS if n != "constant" and (x := getattr(call, n)) is not None}
    found = []
    for tensors in ({name: x.contiguous() for name, x in places.items()}, places):
        leaves = {n: tensors[n].detach().requires_grad_() for n in ("q", "k", "v", "memory", "normaliser")}
        result = causal(call._replace(**tensors | leaves), "native")
        loss = result.output.sum() + result.memory.sum()
        found.append([*result[: Result._fields.index("weights")], *torch.autograd.grad(loss, list(leaves.values()))])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    q, k, v = (torch.randn(2, 2, 70, 8, generator=torch.Generator().manual_seed(s)).to(dtype) for s in range(3))
    feature_map = FavorPlus(8, 16)
    out = linear_attention(q, k, v, feature_map=feature_map, causal=True, implementation="native")
    wide = linear_attention(
        q.float(), k.float(), v.float(), feature_map=feature_map, causal=True, implementation="native"
    )
    assert out.dtype == dtype
    assert torch.equal(out, wide.to(dtype))


@pytest.mark.parametrize("feature_map", ["favor+", "elu+1"])
@pytest.mark.parametrize("decay", ["none", "gate"])
def test_a_prompt_and_steps_give_what_the_whole_gives(feature_map, decay):
    module = LinearRoPEAttention(16, 2, feature_map=feature_map, causal=True, decay=decay).double()
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        whole = module(x)
        y, state = module.prefill(x[:, :33])
        rows = [y]
        for index in range(33, 40):
            y, state = module.step(x[:, index : index + 1], state)
            rows.append(y)
    torch.testing.assert_close(torch.cat(rows, dim=1), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("decay", ["none", "gate"])
@pytest.mark.parametrize("denominator", ["unrotated", "rotated", "none"])
@pytest.mark.parametrize("rope", ["after", "none"])
@pytest.mark.parametrize(
    "kind", ["favor+", "favor+hyperbolic", "favor+paired", "elu+1", "elu+1+paired", "relu", "hedgehog"]
)
def test_one_position_after_a_state(kind, rope, denominator, decay):
    """Without gradients it has a form of its own."""
    torch.manual_seed(0)
    settings = {"feature_map": kind, "rope": rope, "denominator": denominator, "decay": decay, "causal": True}
    if kind.startswith("favor+"):
        settings["num_features"] = 20
    for head_dim in (6, 34):
        attention = LinearRoPEAttention(12, 3, head_dim=head_dim, **settings).double()
        x = torch.randn(2, 9, 12, dtype=torch.float64)
        expected, state = attention.prefill(x[:, :5])
        assert expected.requires_grad
        for at in range(5, 9):
            with_gradients, _ = attention.step(x[:, at : at + 1], state)
            with torch.no_grad():
                y, state = attention.step(x[:, at : at + 1], state)
            torch.testing.assert_close(y, with_gradients, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(y, attention(x)[:, -1:], rtol=1e-8, atol=1e-8)
