"""The Triton kernels against the oracle in float64: in Triton's interpreter where there is no GPU.

How the tolerances come about. float32 rounds by 6e-8; sums of a few hundred numbers of random sign are off by some ten
times that, so 2e-6 of an output's largest value leaves a factor of three. A gradient is a product of two such, and is
divided by the same sums: three times that. bfloat16 rounds by 4e-3 what a product takes, several times one after
another; what is summed is float32, so errors do not grow with the length: 3e-2. float16's products are TensorFloat-32,
whose 5e-4 leave 5e-3.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, ReluFeatures, linear_attention
from linear_rope.features import GivenFeatures
from linear_rope.ops.linear import triton_form
from linear_rope.ops.linear.call import Call, Gradients, Result
from linear_rope.ops.linear.operator import FIELDS, TENSORS, attend
from linear_rope.ops.linear.triton_form import settings
from tests.linear_rope.ops.linear.test_random_calls import Sizes, compare
from tests.linear_rope.tensors import SETTINGS, assert_refused, random, slow_positions

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUTPUTS = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 5e-3}
GRADIENTS = {torch.float32: 6e-6, torch.bfloat16: 3e-2, torch.float16: 5e-3}
# Neither the width nor the number of features is that of a tile.
MAPS = {
    "favor+": lambda: FavorPlus(10, 18),
    "favor+hyperbolic": lambda: FavorPlus(10, 18, hyperbolic=True),
    "favor+paired": lambda: FavorPlus(10, 18, paired=True),
    "elu+1": lambda: EluPlusOne(),
    "elu+1+paired": lambda: EluPlusOne(paired=True),
    "relu": lambda: ReluFeatures(eps=1e-2),
    "given": lambda: GivenFeatures(),
}
WIDTH, VALUES, LENGTH = 10, 7, 37
STATE = ("memory", "key_sum", "stabiliser")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them in a short sequence, and several parts of what is wider than 16."""
    for table in ("LAUNCHES", "FAVOR_LAUNCHES", "SHORT_LAUNCHES"):
        launches = getattr(settings, table).items()
        short = {width: launch._replace(chunk=16, channels=16, values=16) for width, launch in launches}
        monkeypatch.setattr(settings, table, short)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk each."""
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1)


def some_qkv(batch: int = 1, length: int = LENGTH, heads: int = 1, *, positive: bool = False) -> list[Tensor]:
    qkv = [random(batch, heads, length, width, seed=i) for i, width in enumerate((WIDTH, WIDTH, VALUES))]
    return [x.abs() + 0.1 for x in qkv[:2]] + qkv[2:] if positive else qkv


def some_decay(batch: int = 1, length: int = LENGTH, heads: int = 1) -> Tensor:
    """Also resets, of which two follow each other, and one begins a chunk."""
    log_decay = -random(batch, heads, length, seed=8).abs() / 4
    log_decay[..., [16, 21, 22]] = -torch.inf
    return log_decay


def assert_form(
    tensors: dict[str, Tensor], kind: str = "elu+1", dtype: torch.dtype = torch.float32, **options: object
) -> list[Tensor]:
    """The kernels give the oracle's output and gradients. Returns theirs."""
    found = []
    for form, device, wide in (("reference", "cpu", torch.float64), ("triton", DEVICE, None)):
        kept = {name: torch.float32 if name == "log_decay" else dtype for name in tensors}
        leaves = {  # the same numbers for both
            name: x.to(kept[name]).to(device, wide or kept[name]).requires_grad_() for name, x in tensors.items()
        }
        feature_map = MAPS[kind]().to(device, wide or torch.float32)
        rest = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
        output = linear_attention(**leaves, feature_map=feature_map, **{"causal": True} | rest, implementation=form)
        upstream = random(*output.shape, seed=9).to(output)
        found.append([output.detach(), *torch.autograd.grad(output, list(leaves.values()), upstream)])
    expected, got = found
    # Of one token, or one behind a reset, gradients of q and k are zero but for rounding: one scale for all of them.
    largest = max(float(x.abs().max()) for x in expected[1:])
    assert got[0].dtype == dtype
    assert_close(got[0], expected[0], OUTPUTS[dtype], float(expected[0].abs().max()))
    for one, other in zip(got[1:], expected[1:], strict=True):
        assert_close(one, other, GRADIENTS[dtype], largest)
    return got


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, size: float) -> None:
    torch.testing.assert_close(actual.double().cpu(), expected.double(), rtol=0, atol=tolerance * size)


def named(qkv: list[Tensor], log_decay: Tensor | None = None) -> dict[str, Tensor]:
    return dict(zip("qkv", qkv, strict=True)) | ({} if log_decay is None else {"log_decay": log_decay})


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
@pytest.mark.parametrize("kind", MAPS)
def test_values_and_gradients_are_the_oracle_s(kind: str, rope: str, denominator: str, decay: bool) -> None:
    if (kind, rope) == ("given", "before"):
        pytest.skip("what is rotated before it is given is not positive")
    length = 21
    positions = slow_positions(length) if denominator == "rotated" else None
    tensors = named(some_qkv(length=length, positive=kind == "given"))
    if decay:
        tensors["log_decay"] = some_decay(length=32)[..., 11:]
    assert_form(tensors, kind, rope=rope, denominator=denominator, positions=positions)


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_every_length(kind: str, length: int) -> None:
    assert_form(named(some_qkv(length=length)), kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("kind", ["favor+", "favor+hyperbolic", "elu+1"])
def test_half_precision(kind: str, decay: bool, dtype: torch.dtype) -> None:
    assert_form(named(some_qkv(), some_decay() if decay else None), kind, dtype)


def test_half_precision_keeps_what_is_too_small_or_too_large_for_float16() -> None:
    """Sums of values, and gradients that are divided by sums."""
    q, k, v = some_qkv()
    tensors = [(q * 100).abs(), (k * 100).abs(), v * 1000]
    assert_form(named(tensors), "relu", torch.float16)


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
@pytest.mark.parametrize("decay", [False, True])
def test_padding_has_no_influence(kind: str, decay: bool) -> None:
    qkv = some_qkv(2)
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[0, :18] = mask[1, [3, 16, 36]] = True  # the first sees nothing for a chunk and more
    padded = [qkv[0], *(x.masked_fill(mask[:, None, :, None], torch.inf) for x in qkv[1:])]
    tensors = named(qkv, some_decay(2) if decay else None)
    clean = assert_form(tensors, kind, key_padding_mask=mask)
    options = {"feature_map": MAPS[kind]().to(DEVICE), "causal": True, "key_padding_mask": mask.to(DEVICE)}
    log_decay = tensors["log_decay"].float().to(DEVICE) if decay else None
    x = [x.float().to(DEVICE) for x in padded]
    assert torch.equal(linear_attention(*x, log_decay=log_decay, implementation="triton", **options), clean[0])


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
def test_strong_decays_and_far_apart_scales(kind: str) -> None:
    q, k, v = some_qkv()
    k[:, :, 5] *= 8  # a key that outweighs what came before, and what comes after
    log_decay = -torch.linspace(0, 40, LENGTH, dtype=torch.float64).expand(1, 1, -1).clone()
    assert_form(named([q, k, v], log_decay), kind)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
@pytest.mark.parametrize("decay", [False, True])
def test_a_sequence_in_pieces(kind: str, decay: bool) -> None:
    assert settings.pieces_of(70, 1, 16) == (5, 1)
    log_decay = some_decay(length=70) if decay else None
    assert_form(named(some_qkv(length=70), log_decay), kind)


@pytest.mark.usefixtures("pieces")
def test_the_bits_do_not_depend_on_the_sequences_beside_it_nor_on_the_run() -> None:
    qkv, log_decay = some_qkv(2), some_decay(2)
    both = assert_form(named(qkv, log_decay), "favor+")
    assert all(map(torch.equal, both, assert_form(named(qkv, log_decay), "favor+")))
    upstream = random(*both[0].shape, seed=9).to(both[0])[1:]
    leaves = [x[1:].float().to(DEVICE).requires_grad_() for x in (*qkv, log_decay)]
    options = {"feature_map": MAPS["favor+"]().to(DEVICE), "causal": True, "implementation": "triton"}
    output = linear_attention(*leaves[:3], log_decay=leaves[3], **options)
    second = [output.detach(), *torch.autograd.grad(output, leaves, upstream)]
    assert all(torch.equal(x[1:], y) for x, y in zip(both, second, strict=True))


def test_the_number_of_pieces_is_one_of_length_and_heads() -> None:
    for length, heads in ((1, 1), (64, 4), (1000, 16), (131072, 16), (131072, 1), (10**6, 300)):
        count, each = settings.pieces_of(length, heads, 64)
        chunks = -(-length // 64)
        assert (count - 1) * each < chunks <= count * each
        assert count == 1 or each >= settings.CHUNKS_OF_PIECE


@pytest.mark.parametrize("way", ["spread", "heads inside", "transposed", "expanded"])
def test_where_a_tensor_lies_in_memory_does_not_matter(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(x: Tensor) -> Tensor:
        if way == "spread":
            return x.repeat_interleave(2, dim=-1)[..., ::2]
        if way == "heads inside":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if way == "transposed":
            return x.mT.contiguous().mT
        return x[:, :1, :, :1].expand(x.shape)

    qkv = [moved(x.float().to(DEVICE)) for x in some_qkv(heads=2)]
    grad = moved(random(1, 2, LENGTH, VALUES, seed=9).float().to(DEVICE))
    found = []
    for x in (qkv, [x.contiguous() for x in qkv]):
        leaves = [y.detach().requires_grad_() for y in x]
        feature_map = FavorPlus(WIDTH, 18).to(DEVICE)
        with monkeypatch.context() as patch:
            if not found:  # no copies of what lies somewhere else
                patch.setattr(Tensor, "contiguous", _not_of_inputs(Tensor.contiguous))
            output = linear_attention(*leaves, feature_map=feature_map, causal=True, implementation="triton")
            found.append([output, *torch.autograd.grad(output, leaves, grad if not found else grad.clone())])
    assert all(map(torch.equal, *found))


def _not_of_inputs(contiguous):
    def checked(x: Tensor) -> Tensor:
        assert x.shape[2:] not in ((LENGTH, WIDTH), (LENGTH, VALUES)) or x.is_contiguous()
        return contiguous(x)

    return checked


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
def test_every_element_is_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not is NaN."""
    tensors = named(some_qkv(2), some_decay(2))
    clean = assert_form(tensors, kind)
    for function in ("empty", "empty_like"):
        make = getattr(torch, function)

        def poisoned(*arguments, make=make, **options):
            x = make(*arguments, **options)
            return x.fill_(torch.nan) if x.is_floating_point() else x

        monkeypatch.setattr(torch, function, poisoned)
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1)
    assert all(x.isfinite().all() for x in assert_form(tensors, kind))
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 8)
    assert all(map(torch.equal, assert_form(tensors, kind), clean))


def everything(denominator: str = "unrotated") -> Call:
    """A call of FAVOR+ with a state before it: B = 2, H = 1, N = 37, D = 4, M = 6, V = 5."""
    size = 2, 1, LENGTH
    given = dict.fromkeys(TENSORS) | {
        "q": random(*size, 4, seed=1),
        "k": random(*size, 4, seed=2),
        "v": random(*size, 5, seed=3),
        "log_decay": some_decay(2),
        "padding": random(2, 1, LENGTH, 1, seed=4) > 1,
        "q_rotation": random(2, 1, LENGTH, 3, 2, seed=5),
        "k_rotation": random(1, 1, LENGTH, 3, 2, seed=6),
        "memory": random(2, 1, 6, 5, seed=7),
        "key_sum": random(2, 1, 6, seed=8).abs() if denominator != "none" else None,
        "stabiliser": random(2, 1, 1, seed=9),
        "constant": random(6, 4, seed=10),
    }
    return Call(**given, numbers=(0.0, 0.0, 1e-6), formula="favor+", denominator=denominator)


def with_features() -> Call:
    """The same of given features, with those of a denominator and scales."""
    names = ("q", "k", "denominator_q", "denominator_k")
    features = {name: random(2, 1, LENGTH, 6, seed=i).abs() for i, name in enumerate(names)}
    scales = {name: random(2, 1, LENGTH, seed=20 + i) for i, name in enumerate(("query_scale", "key_scale"))}
    rest = {"q_rotation": None, "k_rotation": None, "constant": None, "numbers": (), "formula": "given"}
    return everything()._replace(**features, **scales, **rest)


def with_features_over_nothing() -> Call:
    none = {"denominator_q": None, "denominator_k": None, "key_sum": None, "denominator": "none"}
    return with_features()._replace(**none)


def without_scales() -> Call:
    rest = {"constant": None, "numbers": (0,), "formula": "elu+1", "stabiliser": None}
    call = everything()._replace(**rest, q_rotation=None, k_rotation=None)
    memory, key_sum = (None if x is None else x[:, :, :4] for x in (call.memory, call.key_sum))
    return call._replace(memory=memory, key_sum=key_sum)


def results_and_gradients(
    call: Call,
    implementation: str,
    dtype: torch.dtype,
    device: torch.device,
    wanted: tuple[str, ...] = ("output", "denominator", "memory", "key_sum"),
):
    """Of all that the operator returns and takes; gradients are of ``wanted``."""
    kept = {"padding": torch.bool, "log_decay": torch.float64, "stabiliser": torch.float64}
    tensors = {name: x.to(device, kept.get(name, dtype)) for name in TENSORS if (x := getattr(call, name)) is not None}
    leaves = {name: tensors[name].detach().requires_grad_() for name in Gradients._fields if name in tensors}
    result = attend(call._replace(**tensors | leaves), implementation)
    names = Result._fields[: Result._fields.index("weights")]
    outputs = {name: x for name in names if (x := getattr(result, name)).numel()}
    differentiable = [name for name in wanted if name in outputs]
    upstream = [random(*outputs[name].shape, seed=30 + i).to(outputs[name]) for i, name in enumerate(differentiable)]
    grads = torch.autograd.grad([outputs[name] for name in differentiable], list(leaves.values()), upstream)
    return {name: x.detach() for name, x in outputs.items()}, dict(zip(leaves, grads, strict=True))


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        everything,
        lambda: everything("rotated"),
        lambda: everything("none"),
        lambda: everything()._replace(log_decay=None),
        with_features,
        lambda: with_features()._replace(log_decay=None),
        with_features_over_nothing,
        lambda: with_features_over_nothing()._replace(key_scale=None, stabiliser=None),
        without_scales,
        lambda: without_scales()._replace(log_decay=None),
        lambda: without_scales()._replace(formula="relu", numbers=(0.1,)),
    ],
)
def test_states_totals_and_scales_have_values_and_gradients_too(make, in_pieces: bool, monkeypatch) -> None:
    """The state before, that after, and their gradients; own denominators, given scales, resets and padding."""
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 if in_pieces else 8)
    call = make()
    # What turns by numbers that are no cosines and sines is of no sign: its sums can come close to zero.
    loose = 30 if call.denominator == "rotated" else 1
    expected = results_and_gradients(call, "chunked", torch.float64, torch.device("cpu"))
    got = results_and_gradients(call, "triton", torch.float32, DEVICE)
    largest = max(float(x.abs().max()) for x in expected[1].values())
    for name, x in expected[0].items():
        size = max(1.0, float(x.abs().max()))
        assert_close(got[0][name], x, loose * OUTPUTS[torch.float32], size)
    for name, x in expected[1].items():
        assert_close(got[1][name], x, loose * GRADIENTS[torch.float32], largest)


@pytest.mark.slow
@pytest.mark.parametrize("make", [everything, without_scales, with_features])
def test_the_operator_is_what_pytorch_expects(make: Callable[[], Call]) -> None:
    """Its schema, its results without data and its gradients, also compiled for other sizes.

    The length is one that fills all that is kept for the backward pass; else there would be numbers that nobody wrote.
    """
    kept = {"padding": torch.bool, "log_decay": torch.float64, "stabiliser": torch.float64}
    call = make()._replace(implementation="triton")
    arguments = [
        x.to(DEVICE, kept.get(name, torch.float32)).requires_grad_(name in Gradients._fields)
        if isinstance(x, Tensor)
        else x
        for name, x in zip(FIELDS, call, strict=False)
    ]
    torch.library.opcheck(torch.ops.linear_rope.causal.default, (*arguments, True))


def test_second_derivatives_are_refused() -> None:
    qkv = [x.float().to(DEVICE).requires_grad_() for x in some_qkv(length=5)]
    output = linear_attention(*qkv, feature_map=EluPlusOne(), causal=True, implementation="triton")
    (grad,) = torch.autograd.grad(output.sum(), qkv[:1], create_graph=True)
    with pytest.raises(RuntimeError, match='implementation="reference"'):
        torch.autograd.grad(grad.sum(), qkv[0])


@pytest.mark.parametrize("kind", ["favor+", "elu+1"])
def test_one_position_after_another(kind: str) -> None:
    q, k, v = (x.float().to(DEVICE) for x in some_qkv(length=6))
    log_decay = some_decay(length=40)[..., 18:24].to(DEVICE)
    constant = random(18, WIDTH, seed=11).float().to(DEVICE) if kind == "favor+" else None
    given = dict.fromkeys(TENSORS) | {"q": q, "k": k, "v": v, "log_decay": log_decay, "constant": constant}
    numbers = (0.0, 0.0, 1e-6) if kind == "favor+" else (0.0,)
    call = Call(**given, numbers=numbers, formula=kind, denominator="unrotated")
    whole, outputs, state = attend(call, "triton"), [], {}
    for at in range(6):
        one = {name: x[:, :, at : at + 1] for name, x in (("q", q), ("k", k), ("v", v), ("log_decay", log_decay))}
        result = attend(call._replace(**one, **state), "triton")
        state = {name: x if (x := getattr(result, name)).numel() else None for name in STATE}
        outputs.append(result.output)
    torch.testing.assert_close(torch.cat(outputs, dim=2), whole.output, rtol=1e-5, atol=1e-6)


SIZES = Sizes((1, 2), (1, 2), (1, 2, 7, 16, 17, 33, 47), (70,), (2, 6, 8, 20), (1, 3, 8, 20), (2, 6, 16, 18), 1.0)


@pytest.mark.parametrize("part", range(3))
def test_random_calls_agree_with_the_oracle(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 + part % 2)
    for seed in range(part, 30, 3):
        compare(seed, torch.float32, "triton", SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("part", [*range(4), *(pytest.param(part, marks=pytest.mark.full) for part in range(4, 20))])
def test_fifty_more_random_calls_agree_with_the_oracle(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1 + part % 2)
    for seed in range(100 + 50 * part, 150 + 50 * part):
        compare(seed, torch.float32, "triton", SIZES)


def test_float32_is_tensorfloat_32_only_where_the_user_says_so() -> None:
    from linear_rope.ops.linear.triton_form.launch import products_of

    call = everything()._replace(**{name: getattr(everything(), name).float() for name in "qkv"})
    assert products_of(call) == (torch.float32, "ieee")
    assert products_of(call._replace(v=call.v.half())) == (torch.float32, "ieee")
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert products_of(call) == (torch.float32, "tf32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_what_it_does_not_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q = random(1, 1, 4, 4).float()

    def call(x: Tensor = q, *, width: int = 4):
        values = x[..., :1].expand(*x.shape[:3], width)
        options = {"feature_map": EluPlusOne(), "causal": True, "implementation": "triton"}
        return lambda: linear_attention(x, x, values, **options)

    assert_refused(call(q.double()), ["triton", "float64", "chunked"])
    assert_refused(call(width=300), ["300", "256", "chunked"])
    with torch.autograd.forward_ad.dual_level():
        assert_refused(call(torch.autograd.forward_ad.make_dual(q, q)), ["triton", "tangent", "chunked"])
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert_refused(call(), ["triton", "cpu", "TRITON_INTERPRET=1"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert_refused(call(), ["triton", "not installed", "pip install"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": random(2, 1, LENGTH, 5).float()}, "k is "),
        ({"log_decay": random(2, 1, 5)}, "log_decay is "),
        ({"memory": random(2, 1, 6, 4)}, "memory is "),
        ({"q_rotation": random(2, 1, LENGTH, 2, 2)}, "q_rotation is "),
        ({"k_rotation": None}, "q_rotation and k_rotation"),
        ({"denominator_q": random(2, 1, LENGTH, 6)}, "denominator_q and denominator_k"),
        ({"constant": None}, "constant is None"),
        ({"formula": "elu+1"}, "constant is"),
    ],
)
def test_no_tensor_of_another_shape_or_without_its_partner_reaches_a_kernel(changes, words: str) -> None:
    call = everything()
    tensors = {name: x.float() for name in "qkv" if (x := getattr(call, name)) is not None}
    with pytest.raises(ValueError, match=rf"{words}.*(need|give)"):
        attend(call._replace(**tensors | changes), "triton")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_compile_for_a_gpu_that_is_not_there(capability: int) -> None:
    """No register is spilled; shared memory is that of the GPU. Four to seven minutes, on a busy core."""
    names = ["elu+1-64", "elu+1-128", "favor+-64", "favor+-128"]
    command = [sys.executable, "-m", "tests.linear_rope.ops.linear.compiled_kernels", str(capability), *names]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    found = set()
    for decay in ([], ["decay"]):
        run = subprocess.run([*command, *decay], capture_output=True, text=True, check=False, env=environment)
        assert run.returncode == 0, run.stderr
        rows = [line.split() for line in run.stdout.splitlines()]
        for name, kernel, _, _, spilled, shared, *_ in rows:
            found.add(kernel)
            assert int(spilled) == 0, (name, decay, kernel, spilled)
            assert int(shared) <= (227 if capability >= 90 else 163) * 1024, (name, decay, kernel, shared)
    assert found == KERNELS


KERNELS = {
    "states_before_chunks",
    "join_pieces",
    "outputs",
    "query_gradients",
    "states_after_chunks",
    "key_gradients",
    "sum_keys",
    "add_pieces",
    "read_sums",
    "reader_gradients",
    "gradients_of_sums",
    "summand_gradients",
    "one_position",
}
WITHOUT_TRITON = """
import sys, torch
from linear_rope import EluPlusOne, linear_attention
q = torch.rand(1, 1, 4, 2)
for implementation in ("auto", "chunked"):
    linear_attention(q, q, q, feature_map=EluPlusOne(), causal=True, implementation=implementation)
print("triton" in sys.modules)
"""


def test_it_is_not_imported_where_it_is_not_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert triton_form.description().startswith("for float32")
