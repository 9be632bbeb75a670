"""Weights in the layout of flash-linear-attention's layers: the attention has the outputs of their formulas.

fla itself needs a GPU. Its layers are written here as its papers have them: with loops over tokens, scores times 1/√D,
rotations of the halves, and its ε.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.interop.fla import from_fla
from tests.linear_rope.tensors import assert_near, assert_refused

DIM, HEADS, D, LENGTH, EPS = 12, 2, 6, 9, 1e-5
MAPS = {"identity": lambda x: x, "relu": F.relu, "silu": F.silu, "elu": lambda x: F.elu(x) + 1}
LINEAR, RETENTION, SIMPLE = "LinearAttention", "MultiScaleRetention", "SimpleGatedLinearAttention"


def layer_state(*more: str) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {f"{name}_proj.weight": (HEADS * D, DIM) for name in "qkv"} | {"o_proj.weight": (DIM, HEADS * D)}
    others = {"g_proj.weight": (HEADS * D, DIM), "gk_proj.weight": (HEADS, DIM), "gk_proj.bias": (HEADS,)}
    others |= {"k_proj.weight": (D, DIM), "v_proj.weight": (D, DIM)}  # one head for all, if asked for
    shapes |= {name: others.get(name, (D,)) for name in more}
    return {name: torch.randn(*shape, generator=random, dtype=torch.float64) / 2 for name, shape in shapes.items()}


def halves_rotated(x: Tensor) -> Tensor:
    angles = torch.arange(LENGTH).double()[:, None, None] * 10000 ** (-torch.arange(0, D, 2).double() / D)
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def theirs(layer: str, state: dict[str, Tensor], x: Tensor, **options: Any) -> Tensor:
    """(B, N, dim) → (B, N, dim), token by token."""
    phi = MAPS[options.get("feature_map", "identity")]
    q, k, v = (F.linear(x, state[f"{name}_proj.weight"]).unflatten(-1, (-1, D)) for name in "qkv")
    k, v = (each.repeat_interleave(HEADS // each.shape[2], dim=2) for each in (k, v))
    q, k = phi(q), phi(k)
    if layer == RETENTION:
        q, k = halves_rotated(q), halves_rotated(k)
    kept = torch.ones(*x.shape[:2], HEADS).double()
    if layer == RETENTION:
        kept = kept * (1 - 2.0 ** (-5 - torch.arange(HEADS)))
    if layer == SIMPLE:
        gate = F.linear(x, state["gk_proj.weight"], state["gk_proj.bias"])
        kept = gate.sigmoid() ** (1 / options.get("gate_logit_normalizer", 16))
    memory, total, rows = torch.zeros(len(x), HEADS, D, D).double(), torch.zeros(len(x), HEADS, D).double(), []
    for n in range(LENGTH):
        memory = memory * kept[:, n, :, None, None] + k[:, n, :, :, None] * v[:, n, :, None, :]
        total = total + k[:, n]
        y = torch.einsum("bhk,bhkv->bhv", q[:, n] * D**-0.5, memory)
        if options.get("do_feature_map_norm"):
            y = y / ((q[:, n] * D**-0.5 * total).sum(-1, keepdim=True))
        rows.append(y)
    y = torch.stack(rows, dim=1)
    norms = [value for name, value in state.items() if "norm" in name]
    if norms or layer != LINEAR or not options.get("elementwise_affine", True):
        y = y / (y.square().mean(-1, keepdim=True) + options.get("norm_eps", EPS)).sqrt() * (*norms, 1)[0]
    if "g_proj.weight" in state:
        gate = F.linear(x, state["g_proj.weight"]).unflatten(-1, (HEADS, D))
        y = y * (gate.sigmoid() if options.get("gate_fn") == "sigmoid" else F.silu(gate))
    return F.linear(y.flatten(2), state["o_proj.weight"])


GATED = ("g_proj.weight", "gk_proj.weight", "gk_proj.bias")
SHARED = ("k_proj.weight", "v_proj.weight", "norm.weight")
CASES: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    (LINEAR, ("norm.weight",), {"feature_map": "elu"}),
    (LINEAR, ("norm.weight",), {"feature_map": "relu", "norm_eps": 1e-2}),
    (LINEAR, (), {"feature_map": "elu", "do_feature_map_norm": True}),
    (LINEAR, ("norm.weight",), {"feature_map": "elu", "do_feature_map_norm": True}),
    (LINEAR, (), {}),
    (LINEAR, (), {"feature_map": "elu", "elementwise_affine": False}),
    (LINEAR, SHARED, {"feature_map": "elu", "do_feature_map_norm": True}),
    (RETENTION, ("g_proj.weight", "g_norm_swish_gate.weight"), {}),
    (RETENTION, ("g_norm.weight",), {"feature_map": "silu"}),
    (RETENTION, (), {"norm_eps": 1e-2, "elementwise_affine": False}),
    (RETENTION, ("g_proj.weight",), {}),
    (SIMPLE, GATED, {}),
    (SIMPLE, (*GATED, "g_norm_swish_gate.weight"), {}),
    (SIMPLE, (*GATED, "g_norm.weight"), {"gate_fn": "sigmoid", "gate_logit_normalizer": 4, "feature_map": "relu"}),
]


@pytest.mark.parametrize(("layer", "more", "options"), CASES)
@torch.no_grad()
def test_outputs_are_those_of_the_layer(layer: str, more: tuple[str, ...], options: dict[str, Any]) -> None:
    state = layer_state(*more)
    # Short ones too, whose mean square is as small as ε.
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64) * torch.tensor([1, 0.05])[:, None, None]
    attention = from_fla(layer, state, num_heads=HEADS, **options)
    expected = theirs(layer, state, x, **options)
    for each, found in zip(expected, attention(x), strict=True):
        assert_near(found, each, 1e-10)
    y, after = attention.prefill(x[:, :4])
    assert_near(torch.cat((y, attention.prefill(x[:, 4:], state=after)[0]), dim=1), expected, 1e-10)


REFUSED = [
    ("GatedDeltaNet", layer_state(), {}, ["GatedDeltaNet", "SiLU"]),
    ("HGRN", layer_state(), {}, ["layer", "HGRN", LINEAR]),
    (LINEAR, layer_state(), {"feature_map": "elementwise_product"}, ["feature_map", "elementwise_product"]),
    (RETENTION, layer_state(), {"feature_map": "elu"}, ["feature_map", "'elu'"]),
    (RETENTION, layer_state(), {"gate_fn": "gelu"}, ["gate_fn", "gelu"]),
    (RETENTION, layer_state("q_conv1d.weight"), {}, ["q_conv1d.weight"]),
    (RETENTION, layer_state() | {"v_proj.weight": torch.zeros(4 * D, DIM)}, {}, ["24", "expand_v"]),
    (RETENTION, layer_state() | {"k_proj.weight": torch.zeros(D, DIM)}, {}, ["'k': 6", "expand_k"]),
    (RETENTION, layer_state(*SHARED[:2]), {}, ["1 heads of keys", "2 decays", "num_kv_heads"]),
    (LINEAR, {f"attn.{name}": x for name, x in layer_state().items()}, {}, ["attn."]),
    (LINEAR, {}, {}, ["k_proj.weight", "prefix"]),
]


@pytest.mark.parametrize(("layer", "state", "options", "words"), REFUSED)
def test_what_differs_is_refused(layer: str, state: dict[str, Tensor], options: Any, words: list[str]) -> None:
    assert_refused(lambda: from_fla(layer, state, num_heads=HEADS, **options), words)
