"""What "auto" does where Triton kernels could run: it takes them once they are proved.

A CPU and Triton's interpreter are in a GPU's place.
"""

import importlib
import importlib.util
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention, linear_attention
from linear_rope.features import Features, GivenFeatures
from linear_rope.ops.linear import kernels, operator, triton_form
from linear_rope.ops.linear.call import Call, Result
from linear_rope.ops.linear.prepare import Rotation, prepare
from linear_rope.ops.linear.rotated_features import for_operator
from linear_rope.ops.linear.triton_form import kept, proof, settings, trial
from tests.linear_rope.tensors import assert_near, in_steps, random

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or kernels are not interpreted",
)

CPU, ON = torch.device("cpu"), operator.PROVED_ON
WIDTH, LENGTH = 16, 33


class Own(FeatureMap):
    """A user's map, with a scale."""

    def features(self, x: Tensor) -> Features:
        return Features(x.abs() + 0.1, x.mean(-1, keepdim=True))


@pytest.fixture(autouse=True)
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where outcomes are kept; nothing is known, what is tried is small, and "auto" may take Triton on a CPU."""
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path))
    monkeypatch.setattr(proof, "_decided", {})
    monkeypatch.setattr(trial, "ODD", (1, 5))
    monkeypatch.setattr(trial, "ALIGNED", (1, 0))
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1)
    for table in ("LAUNCHES", "FAVOR_LAUNCHES"):
        short = {width: launch._replace(chunk=16) for width, launch in getattr(settings, table).items()}
        monkeypatch.setattr(settings, table, short)
    monkeypatch.setattr(operator, "PROVED_ON", ("cpu",))
    monkeypatch.setattr(proof, "environment", cache(proof.environment.__wrapped__))
    return tmp_path / proof.FILE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is to be proved, which is taken for right."""
    found: list[Any] = []
    monkeypatch.setattr(trial, "prove", lambda *of: found.append(of) or trial.Outcome(True, {"output": 0.0}))
    return found


def kind(feature_map: FeatureMap | None = None, dtype: torch.dtype = torch.float32, **options: Any) -> trial.Kind:
    q = random(1, 1, 3, WIDTH).to(dtype)
    log_decay = -torch.rand(1, 1, 3) if options.pop("decays", False) else None
    denominator = options.pop("denominator", "unrotated")
    call = Call(q, q, q, log_decay=log_decay, denominator=denominator, feature_map=feature_map or EluPlusOne())
    return trial.kind_of(for_operator(prepare(call, None, None, Rotation(**options))))


def attended(**options: Any) -> Tensor:
    qkv = [random(1, 1, LENGTH, WIDTH, seed=seed).float() for seed in range(3)]
    return linear_attention(*qkv, **{"feature_map": EluPlusOne(), "causal": True, **options})


def is_triton(output: Tensor, **options: Any) -> bool:
    """Whether it has the bits of that form."""
    forms = {form: torch.equal(output, attended(implementation=form, **options)) for form in ("triton", "native")}
    assert sum(forms.values()) == 1
    return forms["triton"]


def entries(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: kind(EluPlusOne(paired=True), dtype=torch.bfloat16, decays=True),
        lambda: kind(FavorPlus(WIDTH, 32, hyperbolic=True), dtype=torch.float16),
        lambda: kind(GivenFeatures(), rope="after", denominator="rotated"),
        lambda: kind(Own(), decays=True),
        lambda: kind(rope="before", denominator="none"),
    ],
)
def test_what_is_right_is_proved_and_its_errors_are_kept(
    make: Callable[[], trial.Kind], proofs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make()
    tried, attend = [], triton_form.attend
    monkeypatch.setattr(triton_form, "attend", lambda call, **keep: tried.append(call) or attend(call, **keep))
    assert proof.holds(tuple(wanted), CPU, True, "0")
    assert {trial.kind_of(call) for call in tried} == {wanted}
    ((place, settings_of_place),) = entries(proofs).items()
    assert place == proof.environment(CPU)
    ((name, outcome),) = settings_of_place.items()
    assert name.startswith(str(wanted))
    assert "chunk=16" in name
    assert outcome["passed"]
    assert {"output", "q", "k", "v"} <= outcome["errors"].keys()


@pytest.mark.parametrize("causal", [True, False])
def test_auto_takes_what_is_proved_and_only_then(causal: bool, proofs: Path) -> None:
    assert is_triton(attended(causal=causal), causal=causal)
    assert not is_triton(attended(causal=causal, implementation="native"), causal=causal)
    (name,) = entries(proofs)[proof.environment(CPU)]
    assert ("causal" in name) == causal


@pytest.mark.parametrize("is_wrong", [False, True])
def test_decoding_takes_a_step_that_is_proved(is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = LinearRoPEAttention(32, 2, feature_map="elu+1", causal=True)

    def noted(call: Call) -> Result:
        steps.append(call)
        result = step(call)
        return result._replace(output=result.output * (1 + is_wrong))

    launch_one_position = importlib.import_module("linear_rope.ops.linear.triton_form.launch_one_position")
    steps, step = [], launch_one_position.attend
    monkeypatch.setattr(launch_one_position, "attend", noted)
    x = random(1, LENGTH, 32).float()
    warned = pytest.warns(UserWarning, match="Triton kernels fail") if is_wrong else nullcontext()
    with torch.no_grad(), warned:
        expected = module(x[:, :-1])  # where it is not proved, it is tried
        tried = len(steps)
        y = in_steps(module, x, LENGTH - 1)
    assert tried > 0
    assert (len(steps) > tried) != is_wrong
    assert_near(y[:, :-1], expected, 1e-5)


@pytest.mark.parametrize("why", ["on a CPU", "switched off"])
def test_auto_takes_it_neither_on_a_cpu_nor_where_it_is_switched_off(
    why: str, monkeypatch: pytest.MonkeyPatch, proofs: Path
) -> None:
    if why == "on a CPU":
        monkeypatch.setattr(operator, "PROVED_ON", ON)
    else:
        monkeypatch.setenv("LINEAR_ROPE_TRITON", "0")
    assert not is_triton(attended())
    assert not proofs.exists()


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One gradient of a query has the other sign."""
    right = triton_form.differentiate

    def wrong(*arguments: Any) -> Any:
        gradients = right(*arguments)
        gradients.q[..., -1, :] *= -1
        return gradients

    monkeypatch.setattr(triton_form, "differentiate", wrong)


def test_a_broken_kernel_is_found_told_of_once_and_not_taken(monkeypatch: pytest.MonkeyPatch, proofs: Path) -> None:
    broken(monkeypatch)
    with pytest.warns(UserWarning, match=r"Triton kernels fail.*elu\+1 float32.*errors.* q .*chunked") as warned:
        assert not is_triton(attended())
    assert len([one for one in warned if issubclass(one.category, UserWarning)]) == 1
    assert not is_triton(attended())  # and says no more
    (outcome,) = entries(proofs)[proof.environment(CPU)].values()
    assert outcome["errors"]["q"] > 1e-2 > outcome["errors"]["k"]
    # Another process trusts what is kept, and says so.
    monkeypatch.setattr(proof, "_decided", {})
    monkeypatch.setattr(trial, "prove", None)
    with pytest.warns(UserWarning, match="Triton kernels fail"):
        assert not is_triton(attended())
    assert attended(implementation="triton").isfinite().all()


@pytest.mark.parametrize("change", ["driver", "kernels", "card"])
def test_another_driver_version_or_card_asks_again(
    change: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch, proofs: Path
) -> None:
    attended()
    monkeypatch.setattr(proof, "_decided", {})
    if change == "kernels":
        monkeypatch.setattr(proof, "sources_sha256", lambda: "0" * 64)
        monkeypatch.setattr(proof, "environment", proof.environment.__wrapped__)
    else:
        other = proof.environment(CPU).replace({"driver": "driver none", "card": "a CPU"}[change], "new")
        monkeypatch.setattr(proof, "environment", lambda device: other)
    attended()
    assert len(asked) == len(entries(proofs)) == 2
    attended()
    assert len(asked) == 2


def test_an_error_of_the_compiler_is_a_failure_and_has_its_first_line_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of resource\nand much more")

    monkeypatch.setattr(triton_form, "attend", fails)
    with pytest.warns(UserWarning, match="RuntimeError: out of resource;"):
        attended()


@pytest.mark.usefixtures("asked")
def test_a_damaged_or_unwritable_file_costs_a_proof_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch, proofs: Path
) -> None:
    proofs.write_text("{")
    assert is_triton(attended())
    assert entries(proofs)
    monkeypatch.setattr(proof, "_decided", {})
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(proofs / "below a file"))
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert is_triton(attended())


class Attention(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return linear_attention(x, x, x, feature_map=EluPlusOne(), causal=True)


def test_nothing_is_proved_while_somebody_follows(asked: list[Any]) -> None:
    with FakeTensorMode():
        attended()
    torch.export.export(Attention(), (random(1, 1, LENGTH, WIDTH).float(),))
    make_fx(lambda x: attended() + x, tracing_mode="fake")(torch.zeros(1))
    assert not asked
    attended()
    assert len(asked) == 1


def test_function_transforms_come_before_any_proof() -> None:
    """They refuse random numbers and what begins to be differentiated, of which a proof is made."""
    x = random(3, 1, 1, LENGTH, WIDTH).float()
    several = torch.func.vmap(Attention())(x)
    gradient = torch.func.grad(lambda x: Attention()(x).sum())(x[0])
    assert_near(several, torch.stack([*map(Attention(), x)]), 1e-5)
    leaf = x[0].clone().requires_grad_()
    Attention()(leaf).sum().backward()
    assert_near(gradient, leaf.grad, 1e-5)


def test_autocast_hooks_and_inference_mode_do_not_reach_a_proof() -> None:
    saved: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x)
    with torch.inference_mode(), torch.autocast("cpu"), hooks:
        assert is_triton(attended())
    assert not saved


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_compiled_code_takes_it_once_it_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call proves it, for the second, which is compiled again; the third is not."""
    torch.compiler.reset()
    taken, implementation = [], operator._implementation

    def noted(call: Call) -> ModuleType:
        taken.append(implementation(call))
        return taken[-1]

    monkeypatch.setattr(operator, "_implementation", noted)
    module, x = Attention(), random(1, 1, LENGTH, WIDTH).float().requires_grad_()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for expected in (False, True):
        y = compiled(x)
        y.sum().backward()
        assert (taken[-1] is triton_form) == expected
        assert_near(y, module(x), 1e-5)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)


def test_kernels_tell_what_is_proved_on_the_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch, proofs: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "proved" not in kernels()["triton"]  # a process that uses no GPU does not wake one to tell of it
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(proof, "environment", lambda device: "there")
    told = kernels()["triton"]
    assert told.startswith("for float32, ")
    assert told.endswith("; NVIDIA H200: 0 proved, 0 wrong")
    passed = {f"setting {i}": trial.Outcome(i > 0, {"output": 0.1})._asdict() for i in range(3)}
    kept.add(proofs, "there", passed)
    kept.add(proofs, "elsewhere", passed)
    assert kernels()["triton"].endswith("; NVIDIA H200: 2 proved, 1 wrong")
    monkeypatch.setenv("LINEAR_ROPE_TRITON", "0")
    assert kernels()["triton"].endswith('; not taken by "auto" (LINEAR_ROPE_TRITON=0)')
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernels()["triton"] == 'not installed: pip install "linear-rope[triton]"'


PLACES: list[tuple[str, dict[str, str], str]] = [
    ("linux", {}, "home/.cache/linear-rope"),
    ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/linear-rope"),
    ("darwin", {}, "home/Library/Caches/linear-rope"),
    ("win32", {"LOCALAPPDATA": "/local"}, "/local/linear-rope"),
    ("linux", {"XDG_CACHE_HOME": "/caches", "LINEAR_ROPE_CACHE": "/here"}, "/here"),
]


@pytest.mark.parametrize(("platform", "variables", "expected"), PLACES)
def test_where_it_is_kept(platform, variables, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINEAR_ROPE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert kept.directory() == Path(expected)
