"""From queries, keys and values to the :class:`~linear_rope.functional.terms.Terms` that are summed, and back.

Every position is mapped and rotated by itself, so any stretch of a sequence gives the same terms alone as in the whole.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap
from linear_rope.functional.mapped import Mapped
from linear_rope.functional.terms import TermGradients, Terms
from linear_rope.functional.workspace import Take, fresh
from linear_rope.positions.rotary import rotate

Rope = Literal["after", "before", "none"]
Denominator = Literal["unrotated", "rotated", "none"]


class Region(NamedTuple):
    """Some sequences, heads and positions: an index of (B, H, N, ·)."""

    batch: slice
    heads: slice
    positions: slice


WHOLE = Region(slice(None), slice(None), slice(None))


class Inputs(NamedTuple):
    """Queries, keys and values as the feature map sees them: masked, and rotated for rope="before".

    Attributes:
        q, k, v: (B, H, L, D), (B, H, L, D), (B, H, L, Dv).
    """

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True)
class Mapping:
    """The feature map, the rotation and the padding of one attention call."""

    feature_map: FeatureMap
    rope: Rope
    denominator: Denominator
    dtype: torch.dtype
    """what everything is computed in; float32 or float64"""
    padding: Tensor | None
    """(B, 1, K, 1) bool, True at padding"""
    q_rotation: Tensor | None
    """of :func:`linear_rope.positions.rotary.rope_rotation`, broadcastable to (B, H, N, width / 2, 2); None for
    rope="none\""""
    k_rotation: Tensor | None

    def terms(self, q: Tensor, k: Tensor, v: Tensor) -> Terms:
        """The terms of whole sequences, differentiated by autograd."""
        inputs = self.inputs(q, k, v)
        queries, keys = self.feature_map.queries(inputs.q), self.feature_map.keys(inputs.k)
        return self._rotated_terms(inputs, *queries, *keys, at=WHOLE, take=fresh)

    def block_terms(self, inputs: Inputs, map_q: Mapped, map_k: Mapped, at: Region, take: Take) -> Terms:
        """The terms of the region ``at``, in buffers."""
        queries, keys = map_q.features(inputs.q, "q", take), map_k.features(inputs.k, "k", take)
        return self._rotated_terms(inputs, *queries, *keys, at=at, take=take)

    def inputs(self, q: Tensor, k: Tensor, v: Tensor, at: Region = WHOLE) -> Inputs:
        """The region ``at`` of ``q``, ``k`` and ``v``, (B, H, ·, ·) each."""
        q, k, v = (x[at].to(self.dtype) for x in (q, k, v))
        padding = self._padding(at)
        if padding is not None:
            # Before the map: what padding holds, also infinity, must reach neither an output nor a gradient.
            k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
        if self.rope == "before":
            q, k = _rotated(q, self.q_rotation, at), _rotated(k, self.k_rotation, at)
        return Inputs(q, k, v)

    def input_gradients(
        self, inputs: Inputs, terms: Terms, of: TermGradients, map_q: Mapped, map_k: Mapped, at: Region
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the region ``at`` of ``q``, ``k`` and ``v``, by hand; overwrites ``terms`` and ``of``.

        To be called on the :meth:`reversed` mapping.
        """
        grad_q, grad_k, grad_v = of.q, of.k, of.v
        q_values, k_values = terms.q, terms.k
        if self.rope == "after":
            _rotated(grad_q, self.q_rotation, at, out=grad_q)
            _rotated(grad_k, self.k_rotation, at, out=grad_k)
            q_values, k_values = terms.mapped_q, terms.mapped_k
        if of.denominator_q is not None and of.denominator_k is not None:
            grad_q.add_(of.denominator_q)
            grad_k.add_(of.denominator_k)
        padding = self._padding(at)
        if padding is not None:
            grad_k.masked_fill_(padding, 0)
        grad_q = map_q.gradient(inputs.q, q_values, grad_q)
        grad_k = map_k.gradient(inputs.k, k_values, grad_k)
        if self.rope == "before":
            grad_q = _rotated(grad_q, self.q_rotation, at)
            grad_k = _rotated(grad_k, self.k_rotation, at)
        if padding is not None:
            grad_k, grad_v = grad_k.masked_fill(padding, 0), grad_v.masked_fill(padding, 0)
        return grad_q, grad_k, grad_v

    def reversed(self) -> "Mapping":
        """The mapping that turns the other way, which is how :meth:`input_gradients` goes back."""
        if self.q_rotation is None or self.k_rotation is None:
            return self
        k_rotation = torch.stack((self.k_rotation[..., 0], -self.k_rotation[..., 1]), dim=-1)
        q_rotation = k_rotation
        if self.q_rotation is not self.k_rotation:
            q_rotation = torch.stack((self.q_rotation[..., 0], -self.q_rotation[..., 1]), dim=-1)
        return replace(self, q_rotation=q_rotation, k_rotation=k_rotation)

    def _rotated_terms(
        self,
        inputs: Inputs,
        q: Tensor,
        query_scale: Tensor | None,
        k: Tensor,
        key_scale: Tensor | None,
        *,
        at: Region,
        take: Take,
    ) -> Terms:
        padding = self._padding(at)
        if padding is not None:
            k = k.masked_fill(padding, 0)
            if key_scale is not None:
                key_scale = key_scale.masked_fill(padding, torch.finfo(self.dtype).min)
        mapped_q, mapped_k = q, k
        if self.rope == "after":
            q = _rotated(q, self.q_rotation, at, out=take("rotated q", q.shape, q))
            k = _rotated(k, self.k_rotation, at, out=take("rotated k", k.shape, k))
        own_denominator = self.rope == "after" and self.denominator == "unrotated"
        return Terms(
            q=q,
            k=k,
            v=inputs.v,
            denominator_q=mapped_q if own_denominator else None,
            denominator_k=mapped_k if own_denominator else None,
            has_denominator=self.denominator != "none",
            query_scale=None if query_scale is None else query_scale.squeeze(-1).detach(),
            key_scale=None if key_scale is None else key_scale.squeeze(-1).detach(),
            mapped_q=mapped_q,
            mapped_k=mapped_k,
        )

    def _padding(self, at: Region) -> Tensor | None:
        return None if self.padding is None else self.padding[at.batch, :, at.positions]


def _rotated(x: Tensor, rotation: Tensor | None, at: Region, out: Tensor | None = None) -> Tensor:
    assert rotation is not None
    if x.shape[-1] != 2 * rotation.shape[-2]:
        raise ValueError(
            f"the feature map says that it has {2 * rotation.shape[-2]} features, but gave {x.shape[-1]}; "
            "make its num_features what it returns"
        )
    # One for all sequences, or one each.
    turn = rotation[at.positions] if rotation.dim() == 3 else rotation[at.batch, :, at.positions]
    return rotate(x, turn, out=out)
