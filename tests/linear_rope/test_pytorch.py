"""At home in PyTorch: compiled, exported, without data, checkpointed and in several processes.

Compiled and exported programs do the same operations in another order: 1e-10 of the largest value in float64, as in
test_linear_attention.py. What repeats the same operations is compared bit for bit.
"""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from linear_rope import CausalLM, EluPlusOne, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention, YaRN
from linear_rope.attention import GatedDelta, Retention, RoPEAttention, WindowedFavor
from tests.linear_rope.attention.modules import ALL_NORMED
from tests.linear_rope.tensors import (
    AUTO_OR_TRITON,
    FORMS,
    NEEDS_INTERPRETER,
    TOLERANCES,
    assert_identical,
    assert_near,
    assert_refused,
    attended,
    random,
    take,
)

# Compilers take time for every operation: 70 positions are two chunks of different length, 20 are one.
DIM, HEADS, LENGTH, SHORT = 8, 2, 70, 20
# A compiler takes seconds for each: one of them always, over a whole chunk and a shorter one.
FULL = [(name, rope, "aot_eager") for name in ("favor+", "elu+1") for rope in ("before", "none")]
COMPILED = [
    ("favor+", "after", "aot_eager"),
    pytest.param("favor+", "after", "inductor", marks=pytest.mark.slow),
    pytest.param("elu+1", "after", "aot_eager", marks=pytest.mark.slow),
    *(pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.full]) for case in FULL),
]


@pytest.fixture(params=AUTO_OR_TRITON)
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """What a form is tested in."""
    return take(request.param, monkeypatch)


def make(dtype: torch.dtype = torch.float64, **options: Any) -> LinearRoPEAttention:
    torch.manual_seed(0)
    return LinearRoPEAttention(DIM, HEADS, **{"causal": True, **options}).to(dtype)


def some(*shape: int, module: nn.Module, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed).to(next(module.parameters()))


def output_and_gradients(module: nn.Module, forward: Callable[[Tensor], Tensor], length: int = LENGTH) -> list[Tensor]:
    x = some(2, length, DIM, module=module).requires_grad_()
    y = forward(x)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], random(*y.shape, seed=99).to(y))]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# PyTorch's own compiler still uses TorchScript.
@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("name", "rope", "backend"), COMPILED)
def test_training_compiles_without_graph_breaks(name: str, rope: str, backend: str, dtype: torch.dtype) -> None:
    module = make(dtype, feature_map=name, rope=rope)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    assert_near(output_and_gradients(module, compiled), output_and_gradients(module, module), TOLERANCES[dtype])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (LinearRoPEAttention, {"decay": "gate", "rope_scaling": YaRN(4.0, original_length=16)}),
        (GatedDelta, {}),
        (SoftmaxRoPEAttention, {"rope": "pope", "decay": "gate"}),
    ],
)
def test_positions_compile_whole_and_so_does_decoding(kernel: type[RoPEAttention], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module, x = kernel(DIM, HEADS, causal=True, **options).double(), random(2, SHORT, DIM)
    whole = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_near(output_and_gradients(module, whole, SHORT), output_and_gradients(module, module, SHORT))
    prefill, step = (torch.compile(each, fullgraph=True, backend="eager") for each in (module.prefill, module.step))
    with torch.no_grad():
        assert_near(step(x[:, -1:], prefill(x[:, :-1])[1])[0], module(x)[:, -1:])


def train(module: nn.Module, forward: Callable[[Tensor], Tensor], steps: int) -> list[Tensor]:
    """The outputs of some steps of gradient descent, each on other inputs."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    outputs = []
    for step in range(steps):
        x = some(2, SHORT, DIM, module=module, seed=step).requires_grad_()
        y = forward(x)
        optimizer.zero_grad()
        y.square().sum().div(y.numel()).backward()
        optimizer.step()
        outputs.append(y.detach())
    return outputs


# PyTorch 2.6 warns of the graph break that a redraw is.
@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin:UserWarning")
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_training_loop_redraws_as_an_eager_one() -> None:
    eager, module = (make(num_features=6, redraw_every=2) for _ in range(2))
    compiled = torch.compile(module, backend="aot_eager")
    assert_near(train(module, compiled, 5), train(eager, eager, 5))
    assert torch.equal(module.feature_map.get_buffer("omega"), eager.feature_map.get_buffer("omega"))
    first = make(num_features=6).feature_map.get_buffer("omega")
    assert not torch.equal(module.feature_map.get_buffer("omega"), first)


@pytest.mark.parametrize(("rope", "redraw_every"), [("after", 1), ("before", None), ("none", None)])
def test_inference_is_exported(rope: str, redraw_every: int | None, dtype: torch.dtype) -> None:
    module, x = make(dtype, rope=rope, redraw_every=redraw_every).eval(), random(2, SHORT, DIM).to(dtype)
    exported = torch.export.export(module, (x,)).module()
    for inputs in (x, random(2, SHORT, DIM, seed=1).to(dtype)):
        assert_near(exported(inputs), module(inputs), TOLERANCES[dtype])


@pytest.mark.parametrize("kernel", [GatedDelta, WindowedFavor])
def test_what_unrolls_its_chunks_is_exported_for_one_length(kernel: type[RoPEAttention]) -> None:
    torch.manual_seed(0)
    module, x = kernel(DIM, HEADS).double().eval(), random(2, LENGTH, DIM)
    exported = torch.export.export(module, (x,)).module()
    for inputs in (x, random(2, LENGTH, DIM, seed=1)):
        assert_near(exported(inputs), module(inputs))


# Both sides of where the causal forms begin another block: after 64, 256 and 1,024 positions.
LENGTHS = (2, 3, 63, 255, 256, 257, 600, 1100)
KERNELS = ("native", "chunked") if "native" in FORMS else ("chunked",)
EVERY_LENGTH: list[tuple[str, str, dict[str, Any]]] = [("elu+1", KERNELS[0], {}), ("softmax", "chunked", ALL_NORMED)]
EVERY_LENGTH += [(name, form, ALL_NORMED) for name in ("favor+", "elu+1") for form in KERNELS]
EVERY_LENGTH += [(name, "chunked", ALL_NORMED | {"causal": False}) for name in ("favor+", "elu+1", "softmax")]
EVERY_LENGTH += [(name, "chunked", {"decay": "gate"}) for name in ("hedgehog", "taylor", "retention")]
IN_TRITON = [(name, "triton", options) for name in ("favor+", "elu+1") for options in ({}, ALL_NORMED)]


def of_every_length(name: str, form: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.setenv("LINEAR_ROPE_NATIVE", str(int(form == "native")))
    dtype = take(form, monkeypatch)
    torch.manual_seed(0)
    options = {"causal": True, **options}
    if name in ("softmax", "retention"):
        kernel = SoftmaxRoPEAttention if name == "softmax" else Retention
        return kernel(DIM, HEADS, **options).double()
    return make(dtype, feature_map=name, **options)


def every_length(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """All cases, of which all but the first have these marks."""
    cases = [EVERY_LENGTH[0], *(pytest.param(*case, marks=marks) for case in EVERY_LENGTH[1:])]
    cases += [pytest.param(*case, marks=[pytest.mark.slow, NEEDS_INTERPRETER]) for case in IN_TRITON]
    return pytest.mark.parametrize(("name", "form", "options"), cases)


# The backend "eager" would take less time, but does not look into the operator.
@pytest.mark.usefixtures("fresh_compiler")
@every_length(pytest.mark.slow, pytest.mark.full)
def test_one_graph_serves_all_lengths(
    name: str, form: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = of_every_length(name, form, options, monkeypatch)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    output_and_gradients(module, compiled)
    with torch.compiler.set_stance("fail_on_recompile"):
        for length in LENGTHS:
            found, expected = (output_and_gradients(module, forward, length) for forward in (compiled, module))
            assert_near(found, expected, 10 * TOLERANCES[expected[0].dtype])


@every_length(pytest.mark.slow)
def test_inference_is_exported_for_all_lengths(
    name: str, form: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = of_every_length(name, form, options, monkeypatch).eval()
    any_length = torch.export.Dim("length", min=2, max=4096)
    x = some(2, LENGTH, DIM, module=module)
    exported = torch.export.export(module, (x,), dynamic_shapes=({1: any_length},)).module()
    for length in LENGTHS:
        x = some(2, length, DIM, module=module)
        assert_near(exported(x), module(x), TOLERANCES[x.dtype])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_training_reads_no_value(rope: str, causal: bool) -> None:
    """On the meta device there is none to read, so nothing that runs there can make a GPU wait for the host."""
    module = make(rope=rope, causal=causal, redraw_every=2).to("meta")
    x = torch.randn(2, LENGTH, DIM, device="meta", dtype=torch.float64, requires_grad=True)
    for padding in (None, torch.zeros(2, LENGTH, dtype=torch.bool, device="meta")) * 3:
        y = module(x, key_padding_mask=padding)
        assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "meta")
        y.sum().backward()
    if causal:
        model = CausalLM(ModelConfig(dim=DIM, heads=HEADS, position="learned" if rope == "none" else f"rope-{rope}"))
        tokens = torch.zeros(2, LENGTH, dtype=torch.long, device="meta")
        model.to("meta")(tokens).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_module_can_be_moved_and_copied_between_steps(dtype: torch.dtype) -> None:
    module, twin = (make(redraw_every=2) for _ in range(2))
    train(module, module, 3)
    train(twin, twin, 3)
    moved = copy.deepcopy(module).to(dtype)
    assert all(x.dtype == dtype for x in moved.state_dict().values() if x.is_floating_point())
    for _ in range(3):  # over a redraw
        y = moved(random(2, LENGTH, DIM).to(dtype))
        assert y.dtype == dtype
        assert y.isfinite().all()
    assert moved.feature_map.get_buffer("omega").dtype == dtype
    nowhere = copy.deepcopy(module).to("meta")
    assert nowhere(torch.empty(1, 3, DIM, device="meta", dtype=torch.float64)).device.type == "meta"
    # The copies counted for themselves.
    assert_identical(train(module, module, 3), train(twin, twin, 3))


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_activation_checkpointing_changes_nothing(causal: bool, use_reentrant: bool, dtype: torch.dtype) -> None:
    """Outputs of later steps also depend on the gradients of those before."""
    plain, module = (make(dtype, causal=causal, redraw_every=2) for _ in range(2))

    def forward(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(module, x, use_reentrant=use_reentrant)
        return result

    steps = 5 if dtype == torch.float64 else 2  # Triton's interpreter is slow
    assert_identical(train(module, forward, steps), train(plain, plain, steps))
    assert_identical(dict(module.state_dict()), dict(plain.state_dict()))
    assert int(module.state_dict()["feature_map._extra_state"]) == steps


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("backend", "use_reentrant"),
    [
        (None, True),
        (None, False),
        ("aot_eager", False),
        pytest.param("aot_eager", True, marks=[pytest.mark.slow, pytest.mark.full]),
    ],
)
def test_a_checkpointed_pass_before_a_redraw_is_refused_and_no_other(backend: str | None, use_reentrant: bool) -> None:
    """Its gradients would be those of a mixture of old and new features."""
    module, x = make(redraw_every=1, num_features=6), random(2, SHORT, DIM).requires_grad_()
    called = module if backend is None else torch.compile(module, backend=backend)
    forward = partial(checkpoint, called, use_reentrant=use_reentrant)
    outputs = [forward(x), forward(2 * x)]
    with torch.no_grad():
        module(x)
    for y in outputs:
        assert_refused(y.sum().backward, ["redraw_every is 1", "checkpointed", "None"])
    last = checkpoint(lambda x: attended(*[module(x)[:, None]] * 3, feature_map=EluPlusOne()), x, use_reentrant=False)
    module(x)
    assert_refused(last.sum().backward, ["redraw_every is 1"])  # also where an operator in Python comes last
    # After passes that nothing repeats, and in a thread, whose nodes have numbers of their own.
    for before in (forward, module):
        before(x)
        forward(x).sum().backward()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: forward(x).sum().backward()).result()


def _train_one_of_two(rank: int, folder: str, form: str, way: str) -> None:
    torch.set_num_threads(1)
    take(form, pytest.MonkeyPatch())
    torch.manual_seed(rank)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    module = LinearRoPEAttention(DIM, HEADS, causal=True, redraw_every=1)
    if way == "replicated":
        parallel: nn.Module = DistributedDataParallel(module)
    else:
        parallel = fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parallel(torch.randn(2, LENGTH, DIM)).square().mean().backward()
        optimizer.step()
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in module.state_dict().items()}
    torch.save(whole, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("form", AUTO_OR_TRITON)
@pytest.mark.parametrize("way", ["replicated", "sharded"])
def test_two_processes_stay_equal(way: str, form: str, tmp_path: Path) -> None:
    """Different inputs and global seeds; the features are drawn in each process, from the module's own seed."""
    spawn(_train_one_of_two, (str(tmp_path), form, way), nprocs=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert_identical(dict(other), dict(one))
    assert not torch.equal(one["feature_map.omega"], make().feature_map.get_buffer("omega").float())
    assert int(one["feature_map._extra_state"]) == 3
