"""Attentions of flash-linear-attention as this library's, where the mathematics agree: their weights, by our names.

There scores are multiplied by 1/√D, and a head's output is divided by √(mean o² + ε) with another ε; a factor of the
values makes up for both. Its rotation pairs channel i with i + D/2, so channels of queries and keys change places.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from linear_rope.attention.head_norm import EPS
from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.checks import check_choice
from linear_rope.features.base import FeatureMap
from linear_rope.features.elementwise import EluPlusOne, GivenFeatures, ReluFeatures, SiluFeatures
from linear_rope.positions.decay import GatedDecay

Maps = dict[str, Callable[[], FeatureMap]]
MAPS: Maps = {"identity": GivenFeatures, "relu": lambda: ReluFeatures(eps=0.0)}
LAYERS: dict[str, tuple[Maps, str, str]] = {
    "LinearAttention": (MAPS | {"elu": EluPlusOne}, "none", "none"),
    "MultiScaleRetention": (MAPS | {"silu": SiluFeatures}, "after", "retnet"),
    "SimpleGatedLinearAttention": (MAPS | {"silu": SiluFeatures}, "none", "gate"),
}
"""by class: what its feature_map may be, its rotation, its decay"""
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out", "g_proj": "gate"}
NORMS = ("norm.weight", "g_norm.weight", "g_norm_swish_gate.weight")
GATES = {"swish": "silu", "sigmoid": "sigmoid"}
ELSEWHERE = {
    **dict.fromkeys(("DeltaNet", "GatedDeltaNet"), "queries, keys and values pass a SiLU, as GatedDelta's do not"),
    "GatedLinearAttention": "each channel of its keys fades by itself",
}


def from_fla(
    layer: str,
    state: Mapping[str, Tensor],
    *,
    num_heads: int,
    feature_map: str = "identity",
    do_feature_map_norm: bool = False,
    elementwise_affine: bool = True,
    gate_fn: str = "swish",
    norm_eps: float = 1e-5,
    gate_logit_normalizer: float = 16.0,
) -> LinearRoPEAttention:
    """The causal attention with the weights, and the outputs, of a layer of flash-linear-attention.

    Args:
        layer: its class: "LinearAttention" (with ``feature_map`` "elu", "relu" or "identity"), "MultiScaleRetention" or
            "SimpleGatedLinearAttention" ("identity" for None there, "relu" or "silu"), with values as wide as keys and
            no convolutions. With fewer heads of them the first alone: there, decays are of the queries' heads. Of the
            first ``norm_q`` and ``norm_k``, of which its state does not tell either, have to be False.
        state: its state dict; float32 or float64.
        num_heads: its argument, as are those that follow; the state does not tell of them.
        feature_map: as above.
        do_feature_map_norm: whether it divides by the sum of the weights.
        elementwise_affine: False if "LinearAttention" normalises its output without weights; the others always do it.
        gate_fn: "swish" or "sigmoid", where it has a gate.
        norm_eps: of the norm of its output.
        gate_logit_normalizer: what the logarithm of its decay is divided by.

    Raises:
        ValueError: another layer, or what this library has not; the message says which.
    """
    if layer in ELSEWHERE:
        raise ValueError(
            f"layer is {layer!r}, which is another function: {ELSEWHERE[layer]}; choose one of {[*LAYERS]}"
        )
    check_choice("layer", layer, tuple(LAYERS))
    maps, rope, decay = LAYERS[layer]
    check_choice("feature_map", feature_map, tuple(maps))
    check_choice("gate_fn", gate_fn, tuple(GATES))
    head_dim, kv_heads = _check(state, num_heads, decay)
    gain = next((state[name] for name in NORMS if name in state), None)
    if gain is None and not (layer == "LinearAttention" and elementwise_affine):
        gain = state["q_proj.weight"].new_ones(head_dim)
    gated, dim = "g_proj.weight" in state, state["q_proj.weight"].shape[1]
    made: dict[str, Any] = {"rope": rope, "feature_map": maps[feature_map](), "output_gate": gated and GATES[gate_fn]}
    made["denominator"] = "unrotated" if do_feature_map_norm else "none"
    kept = GatedDecay(dim, num_heads, temperature=gate_logit_normalizer) if decay == "gate" else decay
    made |= {"decay": kept, "output_norm": gain is not None, "head_dim": head_dim, "kv_heads": kv_heads}
    attention = LinearRoPEAttention(dim, num_heads, causal=True, **made).to(state["q_proj.weight"])

    found = {
        f"{PROJECTIONS[name]}.weight": state[f"{name}.weight"] for name in PROJECTIONS if gated or name != "g_proj"
    }
    factor = 1.0 if gain is None else math.sqrt(EPS / norm_eps)
    found["value.weight"] = found["value.weight"] * (factor if do_feature_map_norm else factor * head_dim**-0.5)
    if rope == "after":
        order = torch.arange(num_heads * head_dim).view(num_heads, 2, -1).mT.flatten()
        found |= {f"{name}.weight": found[f"{name}.weight"][order] for name in ("query", "key")}
    if gain is not None:
        found["output_norm.gain"] = gain
    if isinstance(kept, GatedDecay):
        found["decay.weight"] = state["gk_proj.weight"]
        start = torch.tensor(kept.start, dtype=torch.float64)
        found["decay.bias"] = (state["gk_proj.bias"].double() - start).to(attention.dtype)
    attention.load_state_dict(found)
    return attention


def _check(state: Mapping[str, Tensor], num_heads: int, decay: str) -> tuple[int, int]:
    """Width and number of keys' heads. Raises ValueError for weights that the attention has no place for."""
    known = {f"{name}.weight" for name in PROJECTIONS} | {"gk_proj.weight", "gk_proj.bias", *NORMS}
    if unknown := sorted(set(state) - known):
        raise ValueError(f"state has {unknown[0]}, of a part that the attention has not; give a layer made without it")
    if missing := sorted({f"{name}_proj.weight" for name in "qkvo"} - set(state)):
        raise ValueError(f"state has no {missing[0]}; give the state dict of the layer alone, without a prefix")
    widths = {name: len(state[f"{name}_proj.weight"]) for name in "qkv"}
    head_dim, kv_heads = widths["q"] // num_heads, num_heads * widths["k"] // widths["q"]
    if (kv_heads * head_dim, num_heads * head_dim) != (widths["k"], widths["q"]) or widths["k"] != widths["v"]:
        raise ValueError(f"{num_heads} heads have {widths} channels; give a layer of one width, expand_k = expand_v")
    if kv_heads != num_heads and decay != "none":
        raise ValueError(f"{kv_heads} heads of keys have not {num_heads} decays; give a layer without num_kv_heads")
    return head_dim, kv_heads
