"""Feature maps into given memory, with their derivatives by hand; for the maps without one, by autograd.

What is written by hand is for exactly the classes in ``BY_HAND``: a subclass may map in another way.
"""

import math
import threading
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linear_rope.features.base import FeatureMap, Features
from linear_rope.features.elementwise import SMALLEST_EXPONENT, EluPlusOne, GivenFeatures, ReluFeatures
from linear_rope.features.favor import FavorPlus
from linear_rope.functional.workspace import Take


class Mapped(Protocol):
    """A feature map with the parameters and buffers that it had when an attention call began.

    Attributes:
        gradients: of the map's own tensors by name, as far as the backward pass has come.
    """

    gradients: dict[str, Tensor]

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        """Map ``x`` (..., D), contiguous, into the buffer ``name``."""

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        """The gradient of ``x`` from that of the values; overwrites ``values`` and ``grad_values``."""


class MappedFavorPlus:
    """:class:`FavorPlus`: values exp(h − max h) + ε, where |x'|²/2 is a part of h for the derivative only."""

    def __init__(self, feature_map: FavorPlus, omega: Tensor) -> None:
        self.gradients: dict[str, Tensor] = {}
        assert feature_map.head_dim is not None
        self.hyperbolic = feature_map.hyperbolic
        self.paired = feature_map.paired
        self.eps = feature_map.eps
        self.scale = feature_map.head_dim**-0.5
        self.projection = omega * feature_map.head_dim**-0.25

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        rows = x.view(-1, x.shape[-1])
        projection = self.projection
        if self.hyperbolic:
            projection = torch.cat((projection, -projection))
        shape = (*x.shape[:-1], projection.shape[0])
        out = take(_unpaired(name) if self.paired else name, shape, x)
        values = torch.mm(rows, projection.T, out=None if out is None else out.view(rows.shape[0], -1)).view(shape)
        largest = values.amax(-1, keepdim=True)
        values.sub_(largest).exp_().add_(self.eps)
        half_norm = x.square().sum(-1, keepdim=True) * (self.scale / 2)
        if self.paired:
            values = _pairs(values, name, take)
        return Features(values, largest - half_norm - math.log(values.shape[-1]) / 2)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        if self.paired:
            values, grad_values = _of_pairs(values, grad_values)
        grad = grad_values.mul_(values.sub_(self.eps))
        total = grad.sum(-1, keepdim=True)
        if self.hyperbolic:
            plus, minus = grad.chunk(2, dim=-1)
            grad = plus - minus
        return (grad @ self.projection).addcmul_(x, total, value=-self.scale)


class MappedEluPlusOne:
    """:class:`EluPlusOne`."""

    def __init__(self, feature_map: EluPlusOne) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.paired = feature_map.paired

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        out = take(_unpaired(name) if self.paired else name, x.shape, x)
        values = torch.clamp(x, SMALLEST_EXPONENT, 0, out=out).exp_().add_(x.relu())
        return Features(_pairs(values, name, take) if self.paired else values, None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        if self.paired:
            values, grad_values = _of_pairs(values, grad_values)
        return grad_values.mul_(values.clamp_(max=1)).masked_fill_(x < SMALLEST_EXPONENT, 0)


def _unpaired(name: str) -> str:
    return f"{name}, unpaired"


def _pairs(values: Tensor, name: str, take: Take) -> Tensor:
    """Every feature twice, side by side, in the buffer ``name``: (..., M / 2) → (..., M)."""
    paired = take(name, (*values.shape[:-1], 2 * values.shape[-1]), values)
    if paired is None:
        return values.repeat_interleave(2, dim=-1)
    paired.unflatten(-1, (-1, 2)).copy_(values.unsqueeze(-1))
    return paired


def _of_pairs(values: Tensor, grad_values: Tensor) -> tuple[Tensor, Tensor]:
    """The features that :func:`_pairs` used twice, and their gradient: the sum of those of both members."""
    return values[..., ::2], grad_values[..., ::2] + grad_values[..., 1::2]


class MappedRelu:
    """:class:`ReluFeatures`."""

    def __init__(self, feature_map: ReluFeatures) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.eps = feature_map.eps

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        return Features(torch.clamp(x, min=0, out=take(name, x.shape, x)).add_(self.eps), None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        return grad_values.mul_(x > 0)


class MappedGiven:
    """:class:`GivenFeatures`."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        return Features(x, None)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        return grad_values


class MappedByAutograd:
    """Any feature map: mapped once more in the backward pass, and differentiated by autograd.

    Args:
        feature_map: φ, a function of each vector by itself.
        side: "queries" or "keys".
        held: its parameters and buffers by name.
    """

    def __init__(self, feature_map: FeatureMap, side: str, held: dict[str, Tensor]) -> None:
        self.side = _Side(feature_map, side)
        self.held = {f"feature_map.{name}": x for name, x in held.items()}
        self.wanted = {name: x for name, x in held.items() if x.requires_grad}
        self.gradients: dict[str, Tensor] = {}

    def features(self, x: Tensor, name: str, take: Take) -> Features:
        with torch.no_grad():
            return self.map(x)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            values = self.map(x).values
        if not values.requires_grad:
            return torch.zeros_like(x)
        wanted = (x, *self.wanted.values())
        found = torch.autograd.grad(values, wanted, grad_values, allow_unused=True)
        for name, gradient in zip(self.wanted, found[1:], strict=True):
            if gradient is not None:
                # Summed over blocks in float32 or better, whatever the parameter's own dtype.
                gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                self.gradients[name] = self.gradients.get(name, 0) + gradient
        return torch.zeros_like(x) if found[0] is None else found[0]

    def map(self, x: Tensor) -> Features:
        """The features, differentiable."""
        now = _tensors(self.side)
        if all(now[name] is x for name, x in self.held.items()):
            return self.side(x)
        # Something was replaced since. Putting it back for a moment is for one thread at a time.
        with _SWAPPING:
            features: Features = functional_call(self.side, self.held, (x,))
        return features


_SWAPPING = threading.RLock()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


class _Side(nn.Module):
    def __init__(self, feature_map: FeatureMap, side: str) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.side = side

    def forward(self, x: Tensor) -> Features:
        features: Features = getattr(self.feature_map, self.side)(x)
        return features


BY_HAND = (FavorPlus, EluPlusOne, ReluFeatures, GivenFeatures)


def has_derivative_by_hand(feature_map: FeatureMap, held: dict[str, Tensor]) -> bool:
    """Whether the map is one of those above, with nothing in it to be learned."""
    return type(feature_map) in BY_HAND and not any(x.requires_grad for x in held.values())


def mapped(feature_map: FeatureMap, side: str, held: dict[str, Tensor], dtype: torch.dtype, *, by_hand: bool) -> Mapped:
    """``feature_map`` with the parameters and buffers ``held``, for queries or keys of a dtype."""
    if not by_hand:
        return MappedByAutograd(feature_map, side, held)
    if isinstance(feature_map, FavorPlus):
        return MappedFavorPlus(feature_map, held["omega"].to(dtype))
    if isinstance(feature_map, ReluFeatures):
        return MappedRelu(feature_map)
    return MappedEluPlusOne(feature_map) if isinstance(feature_map, EluPlusOne) else MappedGiven()


def check_map(feature_map: FeatureMap, held: dict[str, Tensor], q: Tensor) -> None:
    """Raises ValueError for a map that cannot be mapped once more in a backward pass, found out on one position."""
    before = _random_states(q.device)
    with torch.enable_grad():
        mapped_once = [side(q[:, :, :1].detach()).values for side in (feature_map.queries, feature_map.keys)]
    if not all(_depends_on_only(values, list(held.values())) for values in mapped_once):
        raise ValueError(
            f"feature_map {type(feature_map).__name__} uses a tensor that requires a gradient and is not one of its "
            "parameters; make it an nn.Parameter of the feature map"
        )
    if not all(map(torch.equal, before, _random_states(q.device))):
        raise ValueError(
            f"feature_map {type(feature_map).__name__} draws random numbers, so a backward pass could "
            'not map again; draw them beforehand, or give implementation="reference"'
        )


def _random_states(device: torch.device) -> list[Tensor]:
    """The states of the generators that something on the device may draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _depends_on_only(x: Tensor, known: list[Tensor]) -> bool:
    """Whether no gradient of ``x`` would reach a tensor behind or beside those that are known."""
    leaves = {id(tensor) for tensor in known}
    seen = {tensor.grad_fn for tensor in known}
    nodes = [x.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in leaves:
            return False
        nodes.extend(following for following, _ in node.next_functions)
    return True
