"""What the library's tests share: seeded tensors, comparisons, and the cases in which each guarantee is tested.

A guarantee holds for every implementation, feature map, rotation and denominator, and is tested through the public
interface: one more of them is one more entry here.
"""

import importlib.util
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import (
    EluPlusOne,
    FavorPlus,
    FeatureMap,
    NTKAware,
    PositionInterpolation,
    ReluFeatures,
    YaRN,
    apply_rope,
    registry,
)
from linear_rope.features import FEATURE_MAPS, Features, make_feature_map
from linear_rope.ops.linear import IMPLEMENTATIONS, kernels, linear_attention, operator
from linear_rope.ops.linear.triton_form import proof
from linear_rope.tracing import constant_in_graphs

# Where no compiler was found there is no native form; test_native.py says so. Those of a GPU have their own tests.
FORMS = tuple(
    form for form in IMPLEMENTATIONS if form != "triton" and (form != "native" or kernels()["native"].startswith("C++"))
)
NEEDS_INTERPRETER = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or its kernels are not interpreted",
)
AUTO_OR_TRITON = ["auto", pytest.param("triton", marks=[NEEDS_INTERPRETER, pytest.mark.slow])]
FAST = tuple(form for form in FORMS if form != "reference")
# Without a rotation after the map there is one denominator.
SETTINGS = [("after", name) for name in ("unrotated", "rotated", "none")]
SETTINGS += [(rope, name) for rope in ("before", "none") for name in ("unrotated", "none")]
SETTINGS += [("none", "abs"), ("after", "abs")]
SCALINGS = {
    "interpolation": PositionInterpolation(4.0),
    "ntk": NTKAware(4.0),
    "yarn": YaRN(4.0, original_length=64, beta=8.0),
}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""relative to the largest value; how they come about is in test_linear_attention.py"""

HEADS, D, M = 2, 4, 6  # those of the feature maps


def partly_turned(x: Tensor, positions: Tensor, fraction: float, **options: Any) -> Tensor:
    """Rotated in the first channels, as many as the even number nearest to the share."""
    width = max(2, 2 * round(fraction * x.shape[-1] / 2))
    return torch.cat((apply_rope(x[..., :width], positions, **options), x[..., width:]), dim=-1)


class Learned(FeatureMap):
    """A user's map, scaled as FAVOR+ is: exp(τ x W − |x|²/2) with a matrix for each head, (H, D, M), and a scalar τ."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__(D, M)
        self.eps = eps
        self.weight = nn.Parameter(random(HEADS, D, M, seed=50))
        self.temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        exponent = x @ self.weight.to(x.dtype) * self.temperature.to(x.dtype) - x.square().sum(-1, keepdim=True) / 2
        largest = exponent.detach().amax(-1, keepdim=True)
        return Features((exponent - largest).exp() + self.eps, largest)


class Plain(FeatureMap):
    """A user's map without a scale of its own, and with a parameter that no input reaches."""

    def __init__(self) -> None:
        super().__init__(D, D)
        self.slope = nn.Parameter(random(D, seed=51))
        self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        return Features(nn.functional.softplus(x * self.slope.to(x.dtype)) + 0.1, None)


# Of ε relative to the largest feature, which is a constant for autograd: derivatives are those of the function itself
# without it. With relu's own tiny ε a query that is negative throughout would have no denominator to speak of, and a
# comparison would measure its cancellation.
MAPS: dict[str, Callable[[float], FeatureMap]] = {
    "favor+": lambda eps: FavorPlus(D, M, eps=eps),
    "favor+hyperbolic": lambda eps: FavorPlus(D, M, hyperbolic=True, eps=eps),
    "favor+paired": lambda eps: FavorPlus(D, M, paired=True, eps=eps),
    "elu+1": lambda eps: EluPlusOne(),
    "elu+1+paired": lambda eps: EluPlusOne(paired=True),
    "relu": lambda eps: ReluFeatures(eps=1e-2),
    "learned": Learned,
    "plain": lambda eps: Plain(),
}
OTHERS = ("hedgehog", "taylor")
"""maps with tests of their own, in test_features.py; a new one is tested as these are"""
MAPS |= {
    name: lambda eps, name=name: make_feature_map(name, D) for name in FEATURE_MAPS if name not in (*MAPS, *OTHERS)
}
KINDS = ("favor+", "elu+1", "learned", "plain")
"""one of each kind of map: with a derivative by hand and without, with a scale and without"""


def install(monkeypatch: pytest.MonkeyPatch, known: registry.Registry[Any], found: dict[str, Any]) -> list[str]:
    """As if a package had these by name, None for what cannot be imported. Returns the groups that are asked for."""
    asked = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint(name, "package:thing", group) for name in found if group == known._group]

    def load(self: EntryPoint) -> object:
        if found[self.name] is None:
            raise ImportError("there is no nowhere")
        return found[self.name]

    monkeypatch.setattr(known, "_items", dict(known._items))
    monkeypatch.setattr(registry, "_entry_points", lambda group, path: {x.name: x for x in entry_points(group=group)})
    monkeypatch.setattr(EntryPoint, "load", load)
    return asked


def take(form: str, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """Makes "auto" what ``form`` says, if that is "triton" on this CPU, in float32. Returns the dtype to test it in."""
    if form != "triton":
        return torch.float64
    monkeypatch.setattr(operator, "PROVED_ON", ("cpu",))
    monkeypatch.setattr(proof, "holds", constant_in_graphs(lambda kind, *_: torch.float64 not in kind[0]))
    return torch.float32


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_qkv(
    batch: int, heads: int, queries: int, keys: int | None = None, width: int = D, seed: int = 0
) -> list[Tensor]:
    lengths = (queries, keys or queries, keys or queries)
    return [random(batch, heads, length, width, seed=3 * seed + i) for i, length in enumerate(lengths)]


def some_padding(batch: int, length: int, seed: int = 0) -> Tensor:
    """Scattered padding that leaves the first sequence whole, and of the others the first token at least."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.3
    mask[0] = mask[:, 0] = False
    return mask


def some_pair_decay(batch: int, length: int, pairs: int) -> Tensor:
    """ln a ≤ 0 of pairs, with resets of all of a head, and of some pairs alone."""
    log_decay = some_decay(batch, length, resets=True).unsqueeze(-1)
    log_decay = log_decay - nn.functional.softplus(random(batch, HEADS, length, pairs, seed=72)) / 3
    log_decay[random(batch, HEADS, length, pairs, seed=73) > 1.7] = -1e4
    return log_decay


def some_decay(batch: int, length: int, *, resets: bool = False, strength: float = 0.3) -> Tensor:
    """ln a ≤ 0, zero here and there, and with ``resets`` −∞ at every twentieth token or so."""
    log_decay = -nn.functional.softplus(random(batch, HEADS, length, seed=70)) * strength
    log_decay[..., ::7] = 0
    if resets:
        log_decay[random(batch, HEADS, length, seed=71) > 1.6] = -torch.inf
        log_decay[..., length // 2] = -torch.inf
    return log_decay


def slow_positions(length: int) -> Tensor:
    """In [0, 0.1), where a rotated denominator does not cancel."""
    return torch.arange(length) / (10 * length)


def attended(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, angles: Tensor | None = None, **options: Any
) -> Tensor:
    """Linear attention of all that has a gradient."""
    return linear_attention(q, k, v, log_decay=log_decay, angles=angles, **options)


def outputs_and_gradients(
    inputs: list[Tensor], function: Callable[..., Tensor] = attended, **options: Any
) -> list[Tensor]:
    """The output, the gradients of q, k and v, and those of v, of other inputs, as decays, and of all that the feature
    map learns, each as one vector.

    Gradients are of the output's product with fixed numbers; all is float64, on the CPU. One vector is one scale:
    where there is one token, all gradients but that of v are zero but for rounding.
    """
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    feature_map = options["feature_map"]
    learned = [x for x in (*feature_map.parameters(), *feature_map.buffers()) if x.requires_grad]
    output = function(*inputs, **options)
    upstream = random(*output.shape, seed=99).to(output)
    found = torch.autograd.grad(output, [*inputs, *learned], upstream, allow_unused=True, materialize_grads=True)
    groups = ([output.detach()], found[:3], found[2:])
    return [torch.cat([x.flatten().double().cpu() for x in group]) for group in groups]


def assert_near(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Relative to the largest expected value of each tensor."""
    if not isinstance(expected, Tensor):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_near(one, other, tolerance)
        return
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.detach().abs().max()))


def assert_identical(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_refused(call: Callable[[], Any], words: list[str]) -> None:
    """By a message that names the argument, what came, and what would do."""
    with pytest.raises(ValueError, match=r"give|choose|change|leave|set|make|equal|needs?|imported") as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


def in_steps(module: Any, x: Tensor, prompt: int, key_padding_mask: Tensor | None = None) -> Tensor:
    """The output for x when the prompt is read at once and the rest token by token."""
    y, state = module.prefill(x[:, :prompt], key_padding_mask=key_padding_mask)
    outputs = [y]
    for index in range(prompt, x.shape[1]):
        y, state = module.step(x[:, index : index + 1], state)
        outputs.append(y)
    return torch.cat(outputs, dim=1)
