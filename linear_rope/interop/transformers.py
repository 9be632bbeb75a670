"""Linear attention in models of Hugging Face's ``transformers``, as ``attn_implementation="linear_rope"``."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.features.base import FeatureMap
from linear_rope.features.registry import RANDOM_MAPS, make_feature_map
from linear_rope.interop.roformer import RoFormerEncoder
from linear_rope.ops.linear.linear_attention import linear_attention
from linear_rope.positions.segments import last_token
from linear_rope.tracing import is_watched, require

__all__ = ["RoFormerEncoder", "convert", "register"]

NAME = "linear_rope"
CONVERTED = "linear_rope_converted"
"""the ``attn_implementation`` of models whose attentions hold their maps"""

# What some models add to softmax, and what it would need to be a sum over keys.
NOT_LINEAR = {
    "softcap": "caps the scores",
    "position_bias": "adds positions to the scores",
    "s_aux": "adds sinks to the softmax",
    "sliding_window": "sees a window only",
}
UNPACK = "give each sequence a row of its own, padded, with an attention_mask"
PACKED = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""what models of transformers are told of sequences packed in a row, besides positions that begin anew"""
WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size")
"""what attentions of transformers call the width of their heads' queries"""

Model = TypeVar("Model", bound=nn.Module)
MakeMap = Callable[[nn.Module, Tensor], FeatureMap]


def register(
    feature_map: str | FeatureMap = "favor+", *, num_features: int | None = None, seed: int = 0, name: str = NAME
) -> None:
    """Make ``attn_implementation="linear_rope"`` known to transformers; calling it again replaces the settings.

    A model with RoPE rotates queries and keys itself, so there RoPE comes before the feature map; with FAVOR+ the
    attention then estimates the softmax attention that the model was trained with. Weights and configurations stay
    as they are. The model's cache of keys and values serves generation: a token takes time that grows with the length.

    Dropout of attention weights is left out, because no weights are ever there; ``output_attentions`` gives None.

    Args:
        feature_map: a name as in :class:`linear_rope.LinearRoPEAttention`, of a map without weights; every layer
            draws random features of its own, which are functions of ``seed`` and the layer's number and no part of the
            state dict. Or a :class:`FeatureMap` that all layers share; what it learns is yours to train and to save.
            :func:`convert` puts maps with weights into a model.
        num_features: M of the random maps; default the even number next to D·ln D.
        seed: of the random features.
        name: the ``attn_implementation``; a name each lets several settings be compared.

    Raises:
        ImportError: transformers is not installed, or is older than its interface of attention masks.
        ValueError: an unknown feature map, one with weights, or ``num_features`` of one that is given.
    """
    example = make_feature_map(feature_map, 4, num_features=num_features)  # an error now rather than in a model
    if isinstance(feature_map, FeatureMap):
        _register(name, lambda module, q: feature_map)
        return
    if feature_map not in RANDOM_MAPS and example.state_dict():
        raise ValueError(
            f"feature_map is {feature_map!r}, which has weights, and no model would know them; give the model to "
            f"linear_rope.interop.transformers.convert(model, {feature_map!r})"
        )
    _register(name, _drawn(feature_map, num_features, seed))


@torch.inference_mode(False)
def convert(
    model: Model, feature_map: str | FeatureMap = "favor+", *, num_features: int | None = None, seed: int = 0
) -> Model:
    """Put linear attention into a model of transformers, in place, with the feature maps as parts of it.

    What :func:`register` says holds, but every attention module has a ``feature_map``, of the dtype and on the device
    of its weights: an optimiser made afterwards trains it, and the state dict holds it. So ``from_pretrained`` comes
    first, then this, then ``load_state_dict`` of what was saved after this.

    Args:
        model: its attentions are asked for through transformers' ``AttentionInterface``.
        feature_map: a name, or a :class:`FeatureMap` of which each attention gets a copy.
        num_features: as of :func:`register`.
        seed: as there.

    Returns:
        ``model``.

    Raises:
        ImportError: as :func:`register`.
        ValueError: an unknown feature map, or a model without such attentions; then nothing has changed.
    """
    attentions = [module for module in model.modules() if _asks_for_attention(module)]
    choose: Any = getattr(model, "set_attn_implementation", None)
    if not attentions or choose is None:
        raise ValueError(
            f"model is a {type(model).__name__} without an attention that another can take the place of; give a model "
            "of transformers that takes attn_implementation"
        )
    made = []
    for number, module in enumerate(attentions):
        layer = getattr(module, "layer_idx", None)
        layer_seed = 1000 * seed + (number if layer is None else layer)
        width = 0 if isinstance(feature_map, FeatureMap) else _head_width(module)
        new = copy.deepcopy(make_feature_map(feature_map, width, num_features=num_features, seed=layer_seed))
        made.append(new.to(next(x for x in module.parameters() if x.is_floating_point())))
    _register(CONVERTED, _own)
    for module, new in zip(attentions, made, strict=True):
        module.feature_map = new
    choose(CONVERTED)
    return model


def _register(name: str, get_map: MakeMap) -> None:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(f"transformers cannot be imported ({error}); pip install 'transformers>=5.0'") from error
    AttentionInterface.register(name, _forward(get_map))
    AttentionMaskInterface.register(name, _padding_mask)


def _asks_for_attention(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _head_width(module: nn.Module) -> int:
    for name in WIDTHS:
        if isinstance(width := getattr(module, name, None), int):
            return width
    raise ValueError(
        f"model has a {type(module).__name__}, which does not say how wide its heads are ({', '.join(WIDTHS)}); give "
        "feature_map a FeatureMap made for that width"
    )


def _own(module: nn.Module, q: Tensor) -> FeatureMap:
    feature_map = getattr(module, "feature_map", None)
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(
            f"attn_implementation is {CONVERTED!r}, but a {type(module).__name__} has no feature map; give the model "
            "to linear_rope.interop.transformers.convert"
        )
    return feature_map


def _drawn(name: str, num_features: int | None, seed: int) -> MakeMap:
    """What gives each attention module the map of its layer, on the device of its queries."""
    made: dict[tuple[int, int, torch.device], FeatureMap] = {}

    def get(module: nn.Module, q: Tensor) -> FeatureMap:
        layer = (getattr(module, "layer_idx", None) or 0) if name in RANDOM_MAPS else 0
        key = (layer, q.shape[-1], q.device)
        if key in made:
            return made[key]
        # Not a tensor of the inference mode that the first call may be in, nor one of a tracer's.
        with torch.inference_mode(False):
            new = make_feature_map(name, q.shape[-1], num_features=num_features, seed=1000 * seed + layer).to(q.device)
        return new if is_watched() else made.setdefault(key, new)

    return get


def _forward(get_map: MakeMap) -> Callable[..., tuple[Tensor, None]]:
    def linear_rope_attention_forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **asked: Any
    ) -> tuple[Tensor, None]:
        """Queries (B, H, N, D), keys and values (B, H or fewer, K, D), and what :func:`_padding_mask` gave: a mask,
        (B, up to K) bool, or segments, (B, N) int64.
        """
        for argument, what in NOT_LINEAR.items():
            if asked.get(argument) is not None:
                raise ValueError(
                    f"{argument} was given: the model {what}, which linear attention cannot; choose another "
                    "attn_implementation for this model"
                )
        segments = padding = None
        if attention_mask is not None and attention_mask.dtype == torch.int64:
            segments, attention_mask = attention_mask, None
        if attention_mask is not None and (attention_mask.dim() != 2 or attention_mask.dtype != torch.bool):
            raise ValueError(
                f"attention_mask is {tuple(attention_mask.shape)}; linear attention sees all keys or those before each "
                "query: give a mask of padding, (batch, length)"
            )
        packed = _packed(query, key, attention_mask, segments, asked)
        if attention_mask is not None:
            # Places of a cache that are still empty are not in the mask.
            key, value = (x[:, :, : attention_mask.shape[1]] for x in (key, value))
            padding = ~attention_mask
        if key.shape[1] < query.shape[1]:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        feature_map, scaling = get_map(module, query), asked.get("scaling")
        usual = query.shape[-1] ** -0.5
        if scaling is not None and not math.isclose(scaling, usual):
            query = query * feature_map.score_scale(scaling / usual)
        is_causal, queries, keys = asked.get("is_causal"), query.shape[2], key.shape[2]
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(is_causal) and queries > 1  # the last token sees all
        if causal and queries < keys:
            # After a cache: queries that nobody asks for stand in for those before.
            query = F.pad(query, (0, 0, keys - queries, 0))
        packed |= {"causal": causal, "key_padding_mask": padding}
        y = linear_attention(query, key, value, feature_map=feature_map, rope="none", **packed)
        return y[:, :, -queries:].transpose(1, 2).contiguous(), None

    return linear_rope_attention_forward


def packing(asked: Mapping[str, Any]) -> dict[str, Tensor]:
    """What :data:`PACKED` tells, as this library's attentions and models take it; nothing if there is none."""
    for name, theirs in (("segment_ids", "seq_idx"), ("cu_seqlens", "cu_seq_lens_q")):
        if asked.get(theirs) is not None:
            return {name: asked[theirs]}
    return {}


def _packed(
    query: Tensor, key: Tensor, attention_mask: Tensor | None, segments: Tensor | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """How sequences are packed behind each other in a row, as :func:`linear_attention` takes it; nothing if not.

    ``attention_mask`` (B, K) is True where not padding; ``segments`` (B, N) are those that the mask of packed sequences
    told; ``position_ids`` (B or 1, N) are of the last N keys. Keys of a cache would be of nobody knows which sequence.
    """
    found = packing(asked) if segments is None else {"segment_ids": segments}
    position_ids = asked.get("position_ids")
    if not found and isinstance(position_ids, Tensor) and position_ids.dim() == 2 and position_ids.shape[1] > 1:
        places = position_ids
        if attention_mask is not None:
            padding = ~attention_mask[:, -places.shape[1] :]
            places = places.expand(len(padding), -1).gather(1, last_token(padding))
            repeats = padding[:, 1:] | padding[:, :-1].logical_not().cumsum(-1).eq(0)
        begins = places[:, 1:] <= places[:, :-1]
        if attention_mask is not None:
            begins = begins & ~repeats
        if is_watched():  # it costs a graph the time of a decay to be ready for what is rare
            require(~begins, f"position_ids begin anew within a row; {UNPACK}, or do not compile")
        elif begins.any():
            found = {"segment_ids": F.pad(begins, (1, 0)).cumsum(-1)}
    if found and query.shape[2] != key.shape[2]:
        raise ValueError(f"packed sequences ({', '.join(found)}) go on after a cache; {UNPACK}")
    if "segment_ids" in found:
        found["segment_ids"] = found["segment_ids"].expand(len(query), -1)
    return found


def _padding_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Any = None, device: Any = None, **asked: Any
) -> Tensor | None:
    """The mask that the attention gets: (B, keys there are) bool, True where not padding, or None for all True; of
    packed sequences the number of each token's, (B, N) int64.

    Raises:
        ValueError: a pattern other than causal, none or that of packed sequences.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    attention_mask = asked.get("attention_mask")
    if mask_function not in (causal_mask_function, bidirectional_mask_function) or asked.get("kv_offset"):
        # Causal and of one sequence. A tracer, which cannot see whether there are several, gets that mask too.
        may_be_packed = getattr(mask_function, "__name__", "") == "and_mask"
        is_more = asked.get("local_size") is not None or asked.get("use_vmap")
        if not may_be_packed or attention_mask is not None or is_more:
            raise ValueError(
                "the model asks for a mask that is neither causal nor of padding or packed sequences alone (a sliding "
                "window, or chunks), which linear attention cannot; choose another attn_implementation"
            )
        batch = torch.arange(batch_size, device=device)[:, None]
        queries = torch.arange(1, q_length, device=device)
        follows = mask_function(batch, batch, queries, queries - 1)  # whether each sees the key before it
        if is_watched():
            require(follows, f"position_ids begin anew within a row; {UNPACK}, or do not compile")
            return None
        return F.pad(~follows, (1, 0)).cumsum(-1)
    there_are = kv_length
    if mask_function is causal_mask_function:
        there_are = min(kv_length, int(asked.get("q_offset", 0)) + q_length)
    if attention_mask is None:
        full = there_are == kv_length
        return None if full else torch.ones(batch_size, there_are, dtype=torch.bool, device=device)
    if attention_mask.shape[1] < there_are:
        raise ValueError(
            f"attention_mask has {attention_mask.shape[1]} places for {there_are} keys; give one for every key, those "
            "in the cache too"
        )
    mask = attention_mask[:, :there_are].bool()
    return None if there_are == kv_length and not is_watched() and mask.all() else mask
