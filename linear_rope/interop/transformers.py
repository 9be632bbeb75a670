"""Linear attention in models of Hugging Face's ``transformers``, as ``attn_implementation="linear_rope"``."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.features.base import FeatureMap
from linear_rope.features.registry import RANDOM_MAPS, make_feature_map
from linear_rope.functional.linear_attention import linear_attention
from linear_rope.interop.roformer import RoFormerEncoder

__all__ = ["RoFormerEncoder", "register"]

NAME = "linear_rope"

# What some models add to softmax, and what it would need to be a sum over keys.
NOT_LINEAR = {
    "softcap": "caps the scores",
    "position_bias": "adds positions to the scores",
    "s_aux": "adds sinks to the softmax",
    "sliding_window": "sees a window only",
}


def register(
    feature_map: str | FeatureMap = "favor+", *, num_features: int | None = None, seed: int = 0, name: str = NAME
) -> None:
    """Make ``attn_implementation="linear_rope"`` known to transformers; calling it again replaces the settings.

    A model with RoPE rotates queries and keys itself, so there RoPE comes before the feature map; with FAVOR+ the
    attention then estimates the softmax attention that the model was trained with. Weights and configurations stay
    as they are. The model's cache of keys and values serves generation: a token takes time that grows with the length.

    Dropout of attention weights is left out, because no weights are ever there; ``output_attentions`` gives None.

    Args:
        feature_map: a name as in :class:`linear_rope.LinearRoPEAttention`; every layer draws random features of its
            own, which are functions of ``seed`` and the layer's number and no part of the state dict. Or a
            :class:`FeatureMap` that all layers share; what it learns is yours to save.
        num_features: M of the random maps; default the even number next to D·ln D.
        seed: of the random features.
        name: the ``attn_implementation``; a name each lets several settings be compared.

    Raises:
        ImportError: transformers is not installed, or is older than its interface of attention masks.
        ValueError: an unknown feature map.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(f"transformers cannot be imported ({error}); pip install 'transformers>=5.0'") from error
    if isinstance(feature_map, str):
        make_feature_map(feature_map, 4, num_features=num_features)  # an error now rather than in a model
    AttentionInterface.register(name, _forward(_maps(feature_map, num_features, seed)))
    AttentionMaskInterface.register(name, _padding_mask)


MakeMap = Callable[[nn.Module, Tensor], FeatureMap]


def _maps(feature_map: str | FeatureMap, num_features: int | None, seed: int) -> MakeMap:
    """What gives each attention module its map, on the device of its queries."""
    made: dict[tuple[int, int, torch.device], FeatureMap] = {}

    def get(module: nn.Module, q: Tensor) -> FeatureMap:
        if isinstance(feature_map, FeatureMap):
            return feature_map
        layer = getattr(module, "layer_idx", None) or 0
        key = (layer if feature_map in RANDOM_MAPS else 0, q.shape[-1], q.device)
        if key not in made:
            new = make_feature_map(feature_map, q.shape[-1], num_features=num_features, seed=1000 * seed + layer)
            made[key] = new.to(q.device)
        return made[key]

    return get


def _forward(get_map: MakeMap) -> Callable[..., tuple[Tensor, None]]:
    def linear_rope_attention_forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Queries (B, H, N, D), keys and values (B, H or fewer, K, D), a mask (B, up to K), True where not padding."""
        for argument, what in NOT_LINEAR.items():
            if kwargs.get(argument) is not None:
                raise ValueError(
                    f"{argument} was given: the model {what}, which linear attention cannot; choose another "
                    "attn_implementation for this model"
                )
        padding = None
        if attention_mask is not None:
            _check_mask(attention_mask)
            # Places of a cache that are still empty are not in the mask.
            key, value = (x[:, :, : attention_mask.shape[1]] for x in (key, value))
            padding = ~attention_mask
        if key.shape[1] < query.shape[1]:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        feature_map = get_map(module, query)
        usual = query.shape[-1] ** -0.5
        if scaling is not None and not math.isclose(scaling, usual):
            query = query * feature_map.score_scale(scaling / usual)
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        y = _attend(query, key, value, feature_map, causal=causal, key_padding_mask=padding)
        return y.transpose(1, 2).contiguous(), None

    return linear_rope_attention_forward


def _attend(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, *, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    """Attention of the last N of K positions, (B, H, N, D); RoPE is in the queries and keys already."""
    queries, keys = q.shape[2], k.shape[2]
    if causal and 1 < queries < keys:
        # After a cache: queries that nobody asks for stand in for those before.
        q = F.pad(q, (0, 0, keys - queries, 0))
    y = linear_attention(
        q,
        k,
        v,
        feature_map=feature_map,
        rope="none",
        causal=causal and queries > 1,  # the last token sees all
        key_padding_mask=key_padding_mask,
    )
    return y[:, :, -queries:]


def _check_mask(attention_mask: Any) -> None:
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2 or attention_mask.dtype != torch.bool:
        came = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise ValueError(
            f"attention_mask is {came}; linear attention sees all keys or those before each query: give a mask of "
            "padding, (batch, length)"
        )


def _padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    device: Any = None,
    **unused: Any,
) -> Tensor | None:
    """The mask that the attention gets: (B, keys there are) bool, True where not padding, or None for all True.

    Raises:
        ValueError: a pattern other than causal or none.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if mask_function not in (causal_mask_function, bidirectional_mask_function) or kv_offset:
        raise ValueError(
            "the model asks for a mask that is neither causal nor of padding alone (a sliding window, chunks, or "
            "sequences packed by position_ids), which linear attention cannot; choose another attn_implementation"
        )
    there_are = kv_length
    if mask_function is causal_mask_function:
        there_are = min(kv_length, int(q_offset) + q_length)
    if attention_mask is None:
        full = there_are == kv_length
        return None if full else torch.ones(batch_size, there_are, dtype=torch.bool, device=device)
    if attention_mask.shape[1] < there_are:
        raise ValueError(
            f"attention_mask has {attention_mask.shape[1]} places for {there_are} keys; give one for every key, those "
            "in the cache too"
        )
    mask = attention_mask[:, :there_are].bool()
    return None if there_are == kv_length and mask.all() else mask
