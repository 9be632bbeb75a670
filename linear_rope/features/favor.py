"""FAVOR+, the random features whose products estimate the softmax kernel."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.checks import check_at_least
from linear_rope.features.base import FeatureMap, Features, Formula, FormulaCall, of_pairs, pairs
from linear_rope.small_calls import exponential_of_negative
from linear_rope.tracing import in_backward_pass, is_watched, not_compiled, place_in_graph


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

    # An estimate's relative error has the mean square (exp|q' + k'|² − 1)/M for independent draws: short is good.
    initial_gain = 0.35
    of_scores = True
    estimates_softmax = True

    omega: Tensor
    # Autograd's nodes have numbers, which in a thread go up. From these on they are of calls with the present features:
    # nodes of the call itself, and that of a function around it which repeats it. And the number at the last call.
    _first, _last = (0, 0), 0

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
        check_at_least(1, head_dim=head_dim, redraw_every=1 if redraw_every is None else redraw_every)
        num_features = default_num_features(head_dim) if num_features is None else num_features
        check_at_least(1, num_features=num_features)
        if hyperbolic and paired:
            raise ValueError("hyperbolic and paired are both True; give one of them")
        if (hyperbolic or paired) and num_features % 2:
            kind = "hyperbolic" if hyperbolic else "paired"
            raise ValueError(f"num_features is {num_features}; {kind} features come in pairs, give an even number")
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
        return favor_features(x, self.omega, self.eps, hyperbolic=self.hyperbolic, paired=self.paired)

    def formula(self) -> FormulaCall | None:
        # A subclass may map in another way.
        if type(self) is not FavorPlus or self.omega.requires_grad:
            return None
        return FormulaCall("favor+", self.omega, [self.hyperbolic, self.paired, self.eps])

    def redraw(self, draw: int) -> None:
        """Replace the random features by draw number ``draw`` (0 is the one made at construction).

        By a new tensor: a forward pass that is still to be differentiated keeps the features it had, unless activation
        checkpointing is to repeat it.
        """
        # An evaluation in inference mode must not leave a tensor that training cannot use.
        with torch.inference_mode(False):
            self.omega = self._draw(draw).to(self.omega.device, self.omega.dtype)

    def maybe_redraw(self) -> None:
        """Count a training call, and redraw when ``redraw_every`` of them have passed; does nothing in eval mode.

        The forward pass that activation checkpointing repeats during a backward pass is not a call; after a redraw it
        is a ValueError, as its gradients would be wrong. In a compiled model this is a graph break.
        """
        if self.training and self.redraw_every is not None:
            self._count_call(self.redraw_every)

    @not_compiled
    def _count_call(self, redraw_every: int) -> None:
        number, in_function = place_in_graph()
        if in_backward_pass():
            if number < self._first[in_function]:
                raise ValueError(
                    f"redraw_every is {redraw_every}, and the features of a checkpointed forward pass were drawn again "
                    "before its backward pass; call backward before the next forward pass, or give redraw_every=None"
                )
            return
        if number < self._last:  # another thread began at 0
            self._first, self._last = (0, 0), 0
        if self._calls and self._calls % redraw_every == 0:
            self.redraw(self._calls // redraw_every)
            # A function around a call, which then has no nodes itself, is made after the call before.
            self._first = number, number if torch.is_grad_enabled() else self._last
        self._last = number
        self._calls += 1

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._calls, dtype=torch.int64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self._calls = int(state)

    def _draw(self, draw: int) -> Tensor:
        assert self.head_dim is not None
        assert self.num_features is not None
        rows = self.num_features // 2 if self.hyperbolic or self.paired else self.num_features
        # Tracers follow an operator, not a generator.
        make = drawn_operator if is_watched() else drawn
        return make(rows, self.head_dim, self.orthogonal, _mix(self.seed, draw), torch.device("cpu"))


def favor_features(x: Tensor, omega: Tensor, eps: float, *, hyperbolic: bool = False, paired: bool = False) -> Features:
    """φ(x) of :class:`FavorPlus` for random features ``omega`` (rows, D), differentiated by autograd."""
    # Queries and keys each carry half of softmax's 1/√D.
    scaled = x * x.shape[-1] ** -0.25
    projected = F.linear(scaled.reshape(-1, x.shape[-1]), omega.to(x.dtype)).view(*x.shape[:-1], omega.shape[0])
    if hyperbolic:
        projected = torch.cat((projected, -projected), dim=-1)
    largest = projected.amax(-1, keepdim=True)
    half_norm = scaled.square().sum(-1, keepdim=True) / 2
    values = exponential_of_negative(projected - largest) + eps
    if paired:
        values = values.repeat_interleave(2, dim=-1)
    return Features(values, largest - half_norm - math.log(values.shape[-1]) / 2)


class FavorFormula(Formula):
    """:class:`FavorPlus` by hand: with h = ωx' and m = max h, values exp(h − m) + ε and a scale m − |x'|²/2 − ln M /
    2."""

    has_constant = has_scale = True
    numbers = ("hyperbolic", "paired", "eps")

    def __init__(self, omega: Tensor, *numbers: float) -> None:
        super().__init__(*numbers)
        self.scale = omega.shape[-1] ** -0.5
        self.projection = omega * omega.shape[-1] ** -0.25

    def features(self, x: Tensor) -> Features:
        rows = x.view(-1, x.shape[-1])
        projection = self.projection
        if self.hyperbolic:
            projection = torch.cat((projection, -projection))
        values = torch.mm(rows, projection.T).view(*x.shape[:-1], projection.shape[0])
        largest = values.amax(-1, keepdim=True)
        values.sub_(largest).exp_().add_(self.eps)
        half_norm = x.square().sum(-1, keepdim=True) * (self.scale / 2)
        if self.paired:
            values = pairs(values)
        return Features(values, largest - half_norm - math.log(values.shape[-1]) / 2)

    def gradient(self, x: Tensor, values: Tensor, grad_values: Tensor) -> Tensor:
        if self.paired:
            values, grad_values = of_pairs(values, grad_values)
        # ε stays where it is when h moves with its maximum m: of exp(h − m) + ε only the scale's m is left to it.
        of_eps = grad_values.sum(-1, keepdim=True).mul_(self.eps)
        largest = values.argmax(-1, keepdim=True)
        grad = grad_values.mul_(values.sub_(self.eps))
        grad.scatter_add_(-1, largest, of_eps)
        total = grad.sum(-1, keepdim=True)
        if self.hyperbolic:
            plus, minus = grad.chunk(2, dim=-1)
            grad = plus - minus
        return (grad @ self.projection).addcmul_(x, total, value=-self.scale)


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


def drawn(rows: int, columns: int, orthogonal: bool, seed: int, device: torch.device) -> Tensor:
    """:func:`gaussian_rows` in float32 from a generator of its own, made where they are the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    return gaussian_rows(rows, columns, orthogonal=orthogonal, generator=generator).float().to(device)


drawn_operator = torch.library.custom_op("linear_rope::drawn", drawn, mutates_args=())


@drawn_operator.register_fake
def _(rows: int, columns: int, orthogonal: bool, seed: int, device: torch.device) -> Tensor:
    return torch.empty(rows, columns, device=device)


def _mix(*numbers: int) -> int:
    """One generator seed from several numbers, so that (seed 1, draw 0) and (seed 0, draw 1) differ."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number + 1442695040888963407) % 2**63
    return mixed
