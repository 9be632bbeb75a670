"""From queries, keys and values to what is summed: padding, the feature map, the rotation and the decay of a call."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap, FormulaCall
from linear_rope.features.elementwise import GIVEN
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.terms import Terms
from linear_rope.positions.rotary import rotate
from linear_rope.tracing import has_tangent

Rope = Literal["after", "before", "none"]
Denominator = Literal["unrotated", "rotated", "none"]


@dataclass(frozen=True)
class Inputs:
    """One attention call whose keys and values are zero at padding."""

    q: Tensor
    """(B, H, N, D)"""
    k: Tensor
    """(B, H, K, D)"""
    v: Tensor
    """(B, H, K, Dv)"""
    feature_map: FeatureMap
    rope: Rope
    denominator: Denominator
    dtype: torch.dtype
    """what everything is computed in; float32 or float64"""
    padding: Tensor | None
    """(B, 1, K, 1) bool, True at padding"""
    q_rotation: Tensor | None
    """cosine and sine of each pair's angle, broadcastable to (B, H, N, width / 2, 2); None for no RoPE"""
    k_rotation: Tensor | None
    log_decay: Tensor | None
    """(B, H, N), zero at padding"""

    def terms(self, *, causal: bool = True) -> Terms:
        """What is summed, differentiated by autograd.

        Without ``causal``, keys that fade have a scale whatever the map: all that a query at padding sees, which has
        no key of its own, can have faded beyond what float32 holds.
        """
        q, k = self._turned("before")
        (q, query_scale), (k, key_scale) = (
            self.feature_map.queries(q.to(self.dtype)),
            self.feature_map.keys(k.to(self.dtype)),
        )
        if key_scale is None and self.log_decay is not None and not causal:
            key_scale = torch.zeros_like(k[..., :1])
        if self.padding is not None:
            k = k.masked_fill(self.padding, 0)
            if key_scale is not None:
                key_scale = key_scale.masked_fill(self.padding, torch.finfo(k.dtype).min)
        if key_scale is not None and self.log_decay is not None:
            # Sums of decays are as large as a sequence is long.
            key_scale = key_scale.to(self.log_decay.dtype)
        mapped_q, mapped_k = q, k
        if self.rope == "after":
            q, k = _rotated(q, self.q_rotation), _rotated(k, self.k_rotation)
        own_denominator = self.rope == "after" and self.denominator == "unrotated"
        return Terms(
            q=q,
            k=k,
            v=self.v.to(self.dtype),
            denominator_q=mapped_q if own_denominator else None,
            denominator_k=mapped_k if own_denominator else None,
            has_denominator=self.denominator != "none",
            query_scale=None if query_scale is None else query_scale.squeeze(-1),
            key_scale=None if key_scale is None else key_scale.squeeze(-1),
            log_decay=self.log_decay,
        )

    def call(self) -> Call:
        """What the operator takes: the inputs of a map that it can differentiate, or else the features."""
        formula = self._formula()
        if formula is None:
            return call_of_terms(self.terms(), self.denominator)
        q, k = self._turned("before")
        q_rotation, k_rotation = (self.q_rotation, self.k_rotation) if self.rope == "after" else (None, None)
        turns = _batch_first(q_rotation), _batch_first(k_rotation)
        return call_of_map(formula, q, k, self.v, self.log_decay, self.padding, *turns, self.denominator)

    def _formula(self) -> FormulaCall | None:
        """The map's derivative by hand, where all else that has a gradient has one too."""
        if self.rope == "after" and any(
            x is not None and (x.requires_grad or (x.dim() == 5 and x.shape[1] > 1))
            for x in (self.q_rotation, self.k_rotation)
        ):
            return None
        if has_tangent(self.q, self.k, self.v, self.q_rotation, self.k_rotation, self.log_decay):
            return None  # what differentiates in forward mode may differentiate that in reverse
        return self.feature_map.formula()

    def _turned(self, when: Rope) -> tuple[Tensor, Tensor]:
        if self.rope != when:
            return self.q, self.k
        return _rotated(self.q.to(self.dtype), self.q_rotation), _rotated(self.k.to(self.dtype), self.k_rotation)


def call_of_map(
    formula: FormulaCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    padding: Tensor | None,
    q_rotation: Tensor | None,
    k_rotation: Tensor | None,
    denominator: Denominator,
    before: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
) -> Call:
    """What the operator takes where it maps and rotates; ``before`` is a state's memory, normaliser and stabiliser."""
    own_features = given_scales = (None, None)
    own = *own_features, *given_scales, log_decay, padding, q_rotation, k_rotation
    return Call(q, k, v, *own, *before, formula.constant, formula.numbers, formula.name, denominator)


def call_of_terms(terms: Terms, denominator: Denominator) -> Call:
    """What the operator takes where the features are made already."""
    return Call(
        q=terms.q,
        k=terms.k,
        v=terms.v,
        denominator_q=terms.denominator_q,
        denominator_k=terms.denominator_k,
        query_scale=terms.query_scale,
        key_scale=terms.key_scale,
        log_decay=terms.log_decay,
        padding=None,
        q_rotation=None,
        k_rotation=None,
        memory=None,
        normaliser=None,
        stabiliser=None,
        constant=GIVEN.constant,
        numbers=GIVEN.numbers,
        formula=GIVEN.name,
        denominator=denominator,
    )


def _batch_first(rotation: Tensor | None) -> Tensor | None:
    return rotation if rotation is None or rotation.dim() == 5 else rotation[None, None]


def _rotated(x: Tensor, rotation: Tensor | None) -> Tensor:
    assert rotation is not None
    if x.shape[-1] != 2 * rotation.shape[-2]:
        raise ValueError(
            f"the feature map says that it has {2 * rotation.shape[-2]} features, but gave {x.shape[-1]}; "
            "make its num_features what it returns"
        )
    return rotate(x, rotation)
