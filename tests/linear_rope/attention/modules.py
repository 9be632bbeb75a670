"""The attention modules that every guarantee of test_contracts.py is tested with: one more is one more entry."""

import copy
from typing import Any

import torch

from linear_rope import LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.features import FEATURE_MAPS
from linear_rope.positions import POSITIONS, ScorePositions, SelectiveRotation
from tests.linear_rope.tensors import HEADS, SCALINGS, D, Learned, Plain, random

DIM = HEADS * D
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "softmax": (SoftmaxRoPEAttention, {}),
    "favor+": (LinearRoPEAttention, {"num_features": 6}),
    "elu+1": (LinearRoPEAttention, {"feature_map": "elu+1"}),
    "hedgehog": (LinearRoPEAttention, {"feature_map": "hedgehog"}),
    "taylor": (LinearRoPEAttention, {"feature_map": "taylor"}),
    "retention": (Retention, {}),
    "delta": (GatedDelta, {}),
    "favor+window": (WindowedFavor, {"window": 5, "num_features": 6}),
}
ALL = {"decay": "gate", "rope_angles": "selective", "local_conv": 3, "short_conv": 4}
ADDITIONS: dict[str, dict[str, Any]] = {
    **{f"{name} decay": {"decay": name} for name in ("fixed", "alibi", "retnet", "gate")},
    "selective": {"rope_angles": "selective"},
    "selective by itself": {"rope_angles": SelectiveRotation(rank=None, bias=True, gate=True)},
    "the paper's angles": {"rope_angles": SelectiveRotation(rank=None, bias=True, gate=True, init="paper")},
    "local": {"local_conv": 4},
    "short": {"short_conv": 3},
    "normed": {"qk_norm": True},
    "all": ALL,
    "all normed": ALL | {"qk_norm": True},
}
SCORES = [name for name, each in POSITIONS.items() if isinstance(each, type) and issubclass(each, ScorePositions)]
OTHERS: dict[str, list[dict[str, Any]]] = {
    "softmax": [
        {},
        {"rope": "none"},
        {"rope": "none", "alibi": True},
        {"rope": "xpos"},
        {"rope_scaling": SCALINGS["yarn"]},
        *({"rope": "none", "score_positions": name} for name in SCORES),
        *({"rope": "none", "score_positions": name, "decay": "gate", "short_conv": 3} for name in ("shaw", "t5")),
    ],
    "favor+": [
        *({"feature_map": name, "num_features": None} for name in FEATURE_MAPS),
        {"rope": "before"},
        {"rope": "none"},
        {"denominator": "none"},
        {"rope_scaling": SCALINGS["ntk"]},
        {"rope": "before", "rope_scaling": SCALINGS["yarn"]},
        {"feature_map": Learned(), "num_features": None},
        {"feature_map": Plain(), "num_features": None},
    ],
    "elu+1": [{"rope": "before"}, {"denominator": "rotated"}],
    **{name: [{"rope": "before"}, {"rope": "none"}] for name in ("hedgehog", "taylor")},
    "retention": [{}, {"rope": "none"}, *({"activation": "silu", "rope": rope} for rope in ("after", "before"))],
    "delta": [{}, {"rope": "none"}],
    "favor+window": [{}, {"rope": "none"}],
}
MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{kernel}, {name}": (kernel, options)
    for kernel in ("softmax", "favor+", "elu+1")
    for name, options in ADDITIONS.items()
}
MODULES |= {
    f"{kernel}, {name}": (kernel, ADDITIONS[name])
    for kernel in ("hedgehog", "taylor", "retention", "delta", "favor+window")
    for name in ("gate decay", "all", "all normed")
}
MODULES |= {f"{name}, no decay": (name, {"decay": "none"}) for name in ("retention", "delta")}
MODULES |= {
    ", ".join([kernel, *(f"{name} {value}" for name, value in options.items() if value is not None)]): (kernel, options)
    for kernel, every in OTHERS.items()
    for options in every
}
# Without a map the gains cancel in the norm of the heads' outputs, and their gradients are rounding.
MODULES["retention, all normed"] = ("retention", ADDITIONS["all normed"] | {"activation": "silu"})
CAUSAL_ONLY = [
    name
    for name, (kernel, options) in MODULES.items()
    if kernel in ("delta", "favor+window") or options.get("rope") == "xpos"
]
CASES = [(name, True) for name in MODULES] + [(name, False) for name in MODULES if name not in CAUSAL_ONLY]


def made(kernel: str, *, causal: bool = True, **options: Any) -> Any:
    """With weights that are not zero anywhere, in float64."""
    module_class, settings = KERNELS[kernel]
    torch.manual_seed(0)
    module = module_class(DIM, HEADS, causal=causal, **copy.deepcopy(settings | options)).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):  # convolutions and gates begin with zeros
            parameter.copy_(random(*parameter.shape, seed=seed) / 2)
    return module


def make(name: str, *, causal: bool = True, **options: Any) -> Any:
    kernel, settings = MODULES[name]
    return made(kernel, causal=causal, **settings | options)
