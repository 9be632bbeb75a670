"""Feature maps φ: R^D → R^M with φ(q)ᵀφ(k) ≥ 0, the kernels of linear attention.

The exponentials of FAVOR+ overflow or vanish, so a map returns its features in two parts, ``values · exp(log_scale)``:
``values`` are at most about 1, ``log_scale`` is one number per vector. Each vector is scaled by its own maximum, never
by that of other positions: nothing leaks from the future, and one token mapped alone gives what it gives in a batch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from linear_rope.eager import in_backward_pass


class Features(NamedTuple):
    """Mapped vectors, φ(x) = ``values`` · exp(``log_scale``).

    Attributes:
        values: (..., M), non-negative.
        log_scale: (..., 1), a constant for autograd; None where it would be zero everywhere.
    """

    values: Tensor
    log_scale: Tensor | None


class FeatureMap(nn.Module):
    """A positive map of queries and keys; subclass it and define :meth:`features` to add one.

    ``queries`` and ``keys`` are what attention calls. Called as a module it gives φ(x) itself, which may overflow.
    A map is a function of each position by itself and of its own parameters and buffers, without random numbers:
    causal attention maps stretches of a sequence one after another, and once more in the backward pass.

    Args:
        head_dim: D, or None where any D will do.
        num_features: M, or None where D decides (see :meth:`count`).
    """

    def __init__(self, head_dim: int | None = None, num_features: int | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_features = num_features

    def features(self, x: Tensor) -> Features:
        """Map ``x`` (..., D), float32 or float64."""
        raise NotImplementedError

    def count(self, head_dim: int) -> int:
        """M for vectors of width ``head_dim``."""
        return head_dim if self.num_features is None else self.num_features

    def queries(self, q: Tensor) -> Features:
        """Map queries (..., N, D); computed in float32 or better."""
        return self._checked(q)

    def keys(self, k: Tensor) -> Features:
        """Map keys (..., N, D); computed in float32 or better."""
        return self._checked(k)

    def forward(self, x: Tensor) -> Tensor:
        """φ(x), (..., D) → (..., M), without a stabiliser."""
        values, log_scale = self._checked(x)
        return values if log_scale is None else values * log_scale.exp()

    def _checked(self, x: Tensor) -> Features:
        self.check_width(x)
        return self.features(x.to(torch.promote_types(x.dtype, torch.float32)))

    def check_width(self, x: Tensor) -> None:
        """Raises ValueError unless the last axis of ``x`` is what this map was made for."""
        if self.head_dim is not None and x.shape[-1] != self.head_dim:
            raise ValueError(
                f"{type(self).__name__} was made for head_dim {self.head_dim}, but the last axis of a tensor of shape "
                f"{tuple(x.shape)} has {x.shape[-1]}; make the feature map with head_dim={x.shape[-1]}"
            )

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_features={self.num_features}"


# elu(x) + 1 is e^x below zero: at e^−30 = 1e-13 it stops, so that the smallest denominator that products of two can
# make, and the gradients that are divided by it, are ordinary float32 numbers.
SMALLEST_EXPONENT = -30.0


class EluPlusOne(FeatureMap):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236, eq. 7); M = D.

    It falls no further than to e^−30, and has no gradient below that.

    Args:
        head_dim: D; None takes any.
        paired: use every feature twice, as both members of a rotated pair, M = 2·D (see :class:`FavorPlus`).
    """

    def __init__(self, head_dim: int | None = None, *, paired: bool = False) -> None:
        super().__init__(head_dim, 2 * head_dim if paired and head_dim is not None else head_dim)
        self.paired = paired

    def count(self, head_dim: int) -> int:
        return 2 * head_dim if self.paired else head_dim

    def features(self, x: Tensor) -> Features:
        # elu(x) + 1 = exp(min(x, 0)) + max(x, 0), which keeps precision where elu(x) is close to −1.
        values = x.clamp(SMALLEST_EXPONENT, 0).exp() + x.relu()
        return Features(values.repeat_interleave(2, dim=-1) if self.paired else values, None)


class ReluFeatures(FeatureMap):
    """φ(x) = relu(x) + ε; M = D. ε keeps a denominator away from zero and a gradient defined.

    Args:
        head_dim: D; None takes any.
        eps: ε.
    """

    def __init__(self, head_dim: int | None = None, *, eps: float = 1e-6) -> None:
        super().__init__(head_dim, head_dim)
        self.eps = eps

    def features(self, x: Tensor) -> Features:
        return Features(x.relu() + self.eps, None)


class GivenFeatures(FeatureMap):
    """φ(x) = x, for queries and keys that are features already: non-negative, and not all zero; M = D.

    Args:
        head_dim: D; None takes any.
    """

    def __init__(self, head_dim: int | None = None) -> None:
        super().__init__(head_dim, head_dim)

    def features(self, x: Tensor) -> Features:
        return Features(x, None)


class FavorPlus(FeatureMap):
    """Positive orthogonal random features, FAVOR+ (Choromanski et al. 2020, arXiv 2009.14794, lemma 1 and section 2.4).

    φ(x) = exp(ωx' − |x'|²/2) / √M with x' = x / D^¼, so that E[φ(q)ᵀφ(k)] = exp(qᵀk / √D). The hyperbolic form uses
    every ω with both signs: M features from M/2 draws, with a lower variance.

    The paired form uses every feature twice, side by side: (f_0, f_0, f_1, f_1, ...), M features from M/2 draws. RoPE
    after the map rotates adjacent features as a pair. Two features of different draws have nothing to do with each
    other, so the sine terms of their rotation are zero in the mean and add variance only; of a feature with itself they
    cancel, and the score at distance Δ is Σ_p f_p(q) f_p(k) · 2cos(Δθ_p). Its variance is lower than that of the plain
    form with as many draws; with as many features it can be either. Without RoPE after the map it is the plain form
    with M/2 features.

    The draw is a function of ``seed`` and of how often :meth:`redraw` was called; it touches no global random state,
    so two processes, or two variants of an experiment, that ask for the same draw get the same one.

    Args:
        head_dim: D.
        num_features: M; even if RoPE is applied after the map, or if hyperbolic or paired. Default: the even
            number next to D·ln D.
        hyperbolic: use each row of ω with both signs.
        paired: use each feature as both members of a rotated pair; not with ``hyperbolic``.
        orthogonal: orthogonalise ω in blocks of D rows (row norms stay those of independent Gaussian rows).
        redraw_every: training-mode calls of :meth:`maybe_redraw` between redraws; None never redraws.
        seed: of the draws.
        eps: added to each feature relative to the largest of its vector, so that no denominator vanishes.

    Raises:
        ValueError: a size that is not positive, ``hyperbolic`` or ``paired`` with an odd number of features, or both.
    """

    omega: Tensor

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        *,
        hyperbolic: bool = False,
        paired: bool = False,
        orthogonal: bool = True,
        redraw_every: int | None = None,
        seed: int = 0,
        eps: float = 1e-6,
    ) -> None:
        if head_dim < 1:
            raise ValueError(f"head_dim is {head_dim}; give 1 or more")
        num_features = default_num_features(head_dim) if num_features is None else num_features
        if num_features < 1:
            raise ValueError(f"num_features is {num_features}; give 1 or more (even for RoPE after the map)")
        if hyperbolic and paired:
            raise ValueError("hyperbolic and paired are both True; give one of them")
        if (hyperbolic or paired) and num_features % 2:
            kind = "hyperbolic" if hyperbolic else "paired"
            raise ValueError(f"num_features is {num_features}; {kind} features come in pairs, give an even number")
        if redraw_every is not None and redraw_every < 1:
            raise ValueError(f"redraw_every is {redraw_every}; give 1 or more steps, or None to draw once")
        super().__init__(head_dim, num_features)
        self.hyperbolic = hyperbolic
        self.paired = paired
        self.orthogonal = orthogonal
        self.redraw_every = redraw_every
        self.seed = seed
        self.eps = eps
        self._calls = 0
        self.register_buffer("omega", self._draw(0))

    def features(self, x: Tensor) -> Features:
        assert self.head_dim is not None
        assert self.num_features is not None
        # Queries and keys each carry half of softmax's 1/√D.
        scaled = x * self.head_dim**-0.25
        projected = scaled @ self.omega.to(x.dtype).T
        if self.hyperbolic:
            projected = torch.cat((projected, -projected), dim=-1)
        largest = projected.detach().amax(-1, keepdim=True)
        half_norm = scaled.square().sum(-1, keepdim=True) / 2
        # The scale is a constant for autograd, so |x'|²/2 keeps its gradient in the values, where it adds zero.
        values = (projected - (largest + (half_norm - half_norm.detach()))).exp() + self.eps
        if self.paired:
            values = values.repeat_interleave(2, dim=-1)
        return Features(values, largest - half_norm.detach() - math.log(self.num_features) / 2)

    def redraw(self, draw: int) -> None:
        """Replace the random features by draw number ``draw`` (0 is the one made at construction).

        By a new tensor: a forward pass that is still to be differentiated keeps the features it had.
        """
        # An evaluation in inference mode must not leave a tensor that training cannot use.
        with torch.inference_mode(False):
            self.omega = self._draw(draw).to(self.omega.device, self.omega.dtype)

    def maybe_redraw(self) -> None:
        """Count a training call, and redraw when ``redraw_every`` of them have passed; does nothing in eval mode.

        The forward pass that activation checkpointing repeats during a backward pass is not a call. In a compiled
        model this is a graph break.
        """
        if self.training and self.redraw_every is not None:
            self._count_call(self.redraw_every)

    def _count_call(self, redraw_every: int) -> None:
        if in_backward_pass():
            return
        if self._calls and self._calls % redraw_every == 0:
            self.redraw(self._calls // redraw_every)
        self._calls += 1

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._calls)

    def set_extra_state(self, state: Tensor) -> None:
        self._calls = int(state)

    def _draw(self, draw: int) -> Tensor:
        assert self.head_dim is not None
        assert self.num_features is not None
        generator = torch.Generator().manual_seed(_mix(self.seed, draw))
        rows = self.num_features // 2 if self.hyperbolic or self.paired else self.num_features
        return gaussian_rows(rows, self.head_dim, orthogonal=self.orthogonal, generator=generator).float()


def default_num_features(head_dim: int) -> int:
    """The even number next to D·ln D, the count that Choromanski et al. 2020 derive (theorem 4)."""
    return max(2, 2 * round(head_dim * math.log(head_dim) / 2))


def gaussian_rows(rows: int, columns: int, *, orthogonal: bool, generator: torch.Generator) -> Tensor:
    """A (rows, columns) float64 matrix whose rows are each standard Gaussian.

    With ``orthogonal``, rows of the same block of ``columns`` rows are orthogonal to each other: directions from the
    QR decomposition of a Gaussian matrix, norms from independent Gaussian rows.
    """

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, device="cpu", generator=generator)

    if not orthogonal:
        return draw(rows, columns)
    blocks = []
    for _ in range(math.ceil(rows / columns)):
        directions, upper = torch.linalg.qr(draw(columns, columns))
        # The signs make the decomposition unique, and the directions uniformly distributed.
        blocks.append((directions * upper.diagonal().sign()).T)
    return torch.cat(blocks)[:rows] * draw(rows, columns).norm(dim=1, keepdim=True)


def _mix(*numbers: int) -> int:
    """One generator seed from several numbers, so that (seed 1, draw 0) and (seed 0, draw 1) differ."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return mixed


def make_feature_map(
    name: str, head_dim: int, *, num_features: int | None = None, redraw_every: int | None = None, seed: int = 0
) -> FeatureMap:
    """The feature map of a name: one of ``RANDOM_MAPS`` or of ``DETERMINISTIC_MAPS``.

    Raises:
        ValueError: an unknown name, or ``num_features`` or ``redraw_every`` for a map that has no random features.
    """
    if name in RANDOM_MAPS:
        return RANDOM_MAPS[name](head_dim, num_features, redraw_every=redraw_every, seed=seed)
    if name not in DETERMINISTIC_MAPS:
        names = ", ".join((*RANDOM_MAPS, *DETERMINISTIC_MAPS))
        raise ValueError(f"feature_map is {name!r}; choose from {names}, or give a FeatureMap")
    feature_map = DETERMINISTIC_MAPS[name](head_dim)
    if num_features not in (None, feature_map.num_features):
        raise ValueError(
            f"num_features is {num_features}, but {name} has {feature_map.num_features} features for head dimension "
            f"{head_dim}; leave it out, or choose favor+"
        )
    if redraw_every is not None:
        raise ValueError(f"redraw_every is {redraw_every}, but {name} has no random features; leave it out")
    return feature_map


RANDOM_MAPS: dict[str, Callable[..., FeatureMap]] = {
    "favor+": FavorPlus,
    "favor+hyperbolic": partial(FavorPlus, hyperbolic=True),
    "favor+paired": partial(FavorPlus, paired=True),
}
DETERMINISTIC_MAPS: dict[str, Callable[[int], FeatureMap]] = {
    "elu+1": EluPlusOne,
    "elu+1+paired": partial(EluPlusOne, paired=True),
    "relu": ReluFeatures,
}
