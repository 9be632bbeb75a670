"""A trial of the kernels on a device: small calls of a kind against their definition in float64."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap
from linear_rope.features.elementwise import EluPlusOne, GivenFeatures, ReluFeatures
from linear_rope.features.favor import FavorPlus
from linear_rope.features.registry import FORMULAS
from linear_rope.ops.decay import with_resets
from linear_rope.ops.linear import triton_form
from linear_rope.ops.linear.call import Call, Upstream, computed_in
from linear_rope.ops.linear.definition import attention_output, reference
from linear_rope.ops.linear.rotated_features import for_operator, mapped
from linear_rope.ops.linear.triton_form import settings
from linear_rope.positions.rotary import Turn, rotations

ODD, ALIGNED = (2, 5), (16, 0)
"""heads, and positions in the last chunk: no number that the compiler knows more of, and those that it knows most of"""


class Kind(NamedTuple):
    """What a call decides of the matrix products; made of constants, so that compilers can follow it.

    Attributes:
        dtypes: of q, k and v.
        formula, hyperbolic, paired: of the feature map.
        rotated: whether features are rotated in the kernel.
        denominator: "own" (features of its own, given), "mapped" (not rotated), "shared" (the numerator's weights) or
            "none".
        scaled, decays: whether features are given with scales, and whether there is a decay.
        causal: whether queries see only keys up to their own.
        width, features, values: tiles of D, M and Dv.
    """

    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    formula: str
    hyperbolic: bool
    paired: bool
    rotated: bool
    denominator: str
    scaled: bool
    decays: bool
    causal: bool
    width: int
    features: int
    values: int

    @property
    def size(self) -> settings.Size:
        """What its launch depends on."""
        return settings.Size(self.formula, self.features, self.values, self.dtypes, self.causal)

    def __str__(self) -> str:
        dtypes = [str(x).removeprefix("torch.") for x in dict.fromkeys(self.dtypes)]
        names = ("hyperbolic", "paired", "rotated", "scaled", "decays", "causal")
        words = [
            self.formula,
            *dtypes,
            f"{self.width}-{self.features}-{self.values}",
            f"denominator={self.denominator}",
        ]
        return " ".join([*words, *(name for name in names if getattr(self, name))])


class Outcome(NamedTuple):
    """Attributes:
    passed: whether the setting may be used.
    errors: of the output and of gradients, the norm of the error over that of what is right; or why there are none.
        Empty for what the kernels do not compute.
    """

    passed: bool
    errors: dict[str, float] | str


def kind_of(call: Call) -> Kind:
    """The kind of a call."""
    hyperbolic, paired, _ = FORMULAS[call.formula].settings(call.numbers)
    return Kind(
        (call.q.dtype, call.k.dtype, call.v.dtype),
        call.formula,
        hyperbolic,
        paired,
        call.q_rotation is not None,
        settings.denominator_of(call),
        call.key_scale is not None,
        call.log_decay is not None,
        call.causal,
        settings.tile(call.q.shape[-1]),
        settings.tile(call.features),
        settings.tile(call.v.shape[-1]),
    )


def tolerances(kind: Kind) -> tuple[float, float]:
    """Relative errors of outputs and of gradients that rounding can explain.

    Numbers of bfloat16 are off by 1.6e-3 on average, those of TensorFloat-32 and float16 by an eighth of that, if they
    are rounded. An output has been rounded some four times one after another, a gradient ten times, and squares of
    errors add up: 3e-3 and 5e-3 in bfloat16. Four times that leaves room for sums that cancel, and for numbers that are
    cut off and not rounded, as Triton's interpreter does. A wrong kernel is off by a tenth or more.
    """
    if torch.bfloat16 in kind.dtypes:
        return 1.2e-2, 2e-2
    if torch.float16 in kind.dtypes or settings.allows_tf32():
        return 3e-3, 5e-3
    return 1e-5, 3e-5


def prove(kind: Kind, device: torch.device) -> Outcome:
    """Try a kind of calls on a device.

    In a thread of its own, in which no mode, hook or autocast of the caller's holds.
    """
    try:
        with ThreadPoolExecutor(1) as pool:
            errors = pool.submit(lambda: _errors(kind, device)).result()
    except Exception as error:  # of the compiler, of the driver
        return Outcome(False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    outputs, gradients = tolerances(kind)
    passed = all(x <= (outputs if name == "output" else gradients) for name, x in errors.items())
    return Outcome(passed, errors)


def _errors(kind: Kind, device: torch.device) -> dict[str, float]:
    """The largest of the calls that are tried."""
    chunk = settings.launch_of(kind.size, device).chunk
    found: dict[str, float] = {}
    # The first is long enough for two pieces.
    for (heads, last), chunks in ((ODD, 2 * settings.CHUNKS_OF_PIECE - 1), (ALIGNED, 2)):
        for name, x in _errors_of(kind, heads, chunks * chunk + last, device):
            found[name] = x if math.isnan(x) else max(found.get(name, 0.0), x)
    return found


def _errors_of(kind: Kind, heads: int, length: int, device: torch.device) -> Iterator[tuple[str, float]]:
    exact, leaves = _leaves(kind, heads, length), {}
    for name, x in exact.items():
        leaves[name] = x.detach().to(device, torch.float64 if name == "log_decay" else _dtype(kind, name))
    features = _inputs(kind, exact)
    features = features if features.feature_map is None else mapped(features)
    expected = attention_output(reference(features), features.query_scale)
    upstream = _normal(*expected.shape, seed=9).to(kind.dtypes[2]).double()
    of_leaves = torch.autograd.grad(expected, list(exact.values()), upstream)
    call = call_of(kind, leaves)
    result = triton_form.attend(call, keep=True)
    gradients = triton_form.differentiate(call, result, Upstream(upstream.to(result.output)))
    yield "output", _relative(result.output, expected)
    for name, x in zip(exact, of_leaves, strict=True):
        yield name, _relative(getattr(gradients, name), x)
    if kind.causal:
        prompt = triton_form.attend(_part(call, slice(length - 1)), keep=False)
        state = (x if x.numel() else None for x in (prompt.memory, prompt.key_sum, prompt.stabiliser))
        after: dict[str, Any] = dict(zip(("memory", "key_sum", "stabiliser"), state, strict=True))
        last = triton_form.attend(_part(call, slice(length - 1, length))._replace(**after), keep=False)
        yield "output", _relative(last.output, expected[:, :, -1:])


def _part(call: Call, positions: slice) -> Call:
    """Some positions of a call without a state."""
    fields: dict[str, Any] = call._asdict() | {"constant": None}
    parts: dict[str, Any] = {name: x[:, :, positions] for name, x in fields.items() if isinstance(x, Tensor)}
    return call._replace(**parts)


def _relative(x: Tensor, expected: Tensor) -> float:
    return float(((x.double().cpu() - expected).norm() / expected.norm()).detach())


def _leaves(kind: Kind, heads: int, length: int) -> dict[str, Tensor]:
    """Inputs in float64, as the kernels' dtypes hold them."""
    width = kind.features if kind.formula == "given" else kind.width
    leaves = {name: _normal(1, heads, length, width, seed=i) for i, name in enumerate("qk")}
    if kind.denominator == "own":
        of_denominator = {f"denominator_{name}": x.flip(-1) for name, x in leaves.items()}
        leaves |= of_denominator
    if kind.formula == "given":
        leaves = {name: x.abs() + 0.1 for name, x in leaves.items()}
    leaves["v"] = _normal(1, heads, length, kind.values, seed=2)
    if kind.scaled:
        leaves["key_scale"] = _normal(1, heads, length, seed=3)
    if kind.decays:
        leaves["log_decay"] = -_normal(1, heads, length, seed=5).abs() / 8
        leaves["log_decay"][..., length // 3] = -torch.inf
    return {name: x.to(_dtype(kind, name)).double().requires_grad_() for name, x in leaves.items()}


def _dtype(kind: Kind, name: str) -> torch.dtype:
    return kind.dtypes["qkv".index(name)] if name in "qkv" else torch.float32


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _inputs(kind: Kind, leaves: dict[str, Tensor]) -> Call:
    q, k, v = (leaves[name] for name in "qkv")
    denominator = "none" if kind.denominator == "none" else "unrotated"
    given: dict[str, Any] = {"causal": kind.causal, "denominator": denominator}
    if kind.decays:
        given["log_decay"] = with_resets(leaves["log_decay"])
    if kind.formula == "given" and not kind.rotated:
        given |= {name: leaves.get(name) for name in ("denominator_q", "denominator_k", "key_scale")}
        return Call(q, k, v, **given)
    call = Call(q, k, v, feature_map=_map(kind).to(q.device, computed_in(q)), **given)
    if not kind.rotated:
        return call
    positions = None
    if kind.denominator == "shared":  # turned little, so that sums do not cancel
        positions = torch.arange(q.shape[2], device=q.device) / (10 * q.shape[2])
        call = call._replace(denominator="rotated")
    turns = rotations(q, k, positions, None, Turn(kind.features), call.dtype)
    return call._replace(q_rotation=turns[0], k_rotation=turns[1])


def call_of(kind: Kind, leaves: dict[str, Tensor]) -> Call:
    """The call of a kind with these tensors, "q", "k", "v" and what else it has."""
    return for_operator(_inputs(kind, leaves))


def _map(kind: Kind) -> FeatureMap:
    if kind.formula == "favor+":
        return FavorPlus(kind.width, kind.features, hyperbolic=kind.hyperbolic, paired=kind.paired).float()
    return {"elu+1": EluPlusOne(paired=kind.paired), "relu": ReluFeatures(eps=1e-2), "given": GivenFeatures()}[
        kind.formula
    ]
