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
GATED = {"output_norm": True, "output_gate": True}
ALL_NORMED = ALL | GATED | {"qk_norm": True}
GROUPED = ALL_NORMED | {"kv_heads": 1}
# By itself, of its own weights, and as in the paper.
SELECTIVE = SelectiveRotation(rank=None, bias=True, gate=True)
PAPER = SelectiveRotation(rank=None, bias=True, gate=True, init="paper")
SCORES = [name for name, each in POSITIONS.items() if isinstance(each, type) and issubclass(each, ScorePositions)]
# Each option with each kernel that has ways of its own for it, and all of them together with every kernel.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "softmax": [
        {},
        {"rope": "none", "alibi": True},
        {"rope": "xpos"},
        {"rope_scaling": SCALINGS["yarn"], "rope_fraction": 0.5},
        *({"rope": "none", "score_positions": name} for name in SCORES),
        {"rope": "none", "score_positions": "shaw", "decay": "gate", "kv_heads": 1},
        {"rope": "pope", "rope_phase": "learned", "window": 5, "decay": "gate", "kv_heads": 1},
        {"rope": "pope", "rope_phase": "learned", "rope_angles": "selective"},
        {"window": 5},
        {"window": 5, "rope": "none", "alibi": True},
        {"window": 64, "rope": "none", "score_positions": "t5", "decay": "gate"},
        ALL,
        GROUPED,
    ],
    "favor+": [
        *({"feature_map": name, "num_features": None} for name in FEATURE_MAPS),
        {"rope": "before", "rope_scaling": SCALINGS["yarn"]},
        {"rope_scaling": SCALINGS["ntk"], "rope_fraction": 0.6},
        {"denominator": "none"},
        {"rope": "none", "denominator": "abs"},
        {"decay": "pair", "pair_denominator": "head"},
        {"rope_angles": PAPER},
        {"feature_map": Learned(), "num_features": None},
        {"feature_map": Plain(), "num_features": None},
        ALL,
        GROUPED,
    ],
    "elu+1": [
        {"rope": "before", "rope_fraction": 0.5},
        {"denominator": "rotated"},
        {"denominator": "abs", "decay": "gate"},
        {"denominator": "abs", "kv_heads": 1},
        {"decay": "pair", "rope_angles": "selective", "short_conv": 3},
        {"decay": "pair", "kv_heads": 1},
        {"decay": "pair-fixed", "rope": "none", "pair_denominator": "head"},
        {"rope_phase": "learned", "kv_heads": 1},
        {"rope_phase": "learned", "rope_angles": "selective", "decay": "gate"},
        GROUPED,
    ],
    "hedgehog": [ALL_NORMED],
    "taylor": [ALL_NORMED],
    # Without a map the gains of a norm cancel in that of the heads' outputs, and their gradients are rounding.
    "retention": [
        {},
        {"rope": "none", "decay": "none"},
        {"activation": "silu", "rope": "before"},
        ALL_NORMED | {"activation": "silu"},
    ],
    "delta": [
        {"rope_fraction": 0.5, "beta_range": "two"},
        {"rope": "none", "decay": "none"},
        {"rope": "none", "decay": "channel"},
        {"decay": "pair", "kv_heads": 1},
        ALL,
    ],
    "favor+window": [{"rope_fraction": 0.5}, {"rope": "none"}, GROUPED],
}


def _name(kernel: str, options: dict[str, Any]) -> str:
    together = {"all": ALL, "all normed": ALL_NORMED, "all normed of one key head": GROUPED}
    for words, settings in together.items():
        if options == settings:
            return f"{kernel}, {words}"
    return ", ".join([kernel, *(f"{name} {value}" for name, value in options.items() if value is not None)])


MODULES = {_name(kernel, options): (kernel, options) for kernel, every in SETTINGS.items() for options in every}
CAUSAL_ONLY = [
    name
    for name, (kernel, options) in MODULES.items()
    if kernel in ("delta", "favor+window") or options.get("rope") == "xpos" or "window" in options
]
CASES = [(name, True) for name in MODULES] + [(name, False) for name in MODULES if name not in CAUSAL_ONLY]


def made(kernel: str, *, causal: bool = True, **options: Any) -> Any:
    """With weights that are not zero anywhere, in float64."""
    module_class, settings = KERNELS[kernel]
    torch.manual_seed(0)
    sizes = {"heads": HEADS, "causal": causal}
    module = module_class(DIM, **copy.deepcopy(sizes | settings | options)).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):  # convolutions and gates begin with zeros
            parameter.copy_(random(*parameter.shape, seed=seed) / 2)
    return module


def make(name: str, *, causal: bool = True, **options: Any) -> Any:
    kernel, settings = MODULES[name]
    return made(kernel, causal=causal, **settings | options)
