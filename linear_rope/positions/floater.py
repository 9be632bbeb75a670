"""Positions of a continuous dynamical system, FLOATER (Liu et al. 2020, arXiv 2003.09229)."""

from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from linear_rope.positions.blocks import BlockPositions

SPEED = 0.1
"""time from one position to the next"""
STRIDE = 10
"""positions in a step of the solver"""


class Floater(BlockPositions):
    """The state of a learned differential equation is added to the input of every block (section 3 of the paper).

    p(t) = p(0) + ∫ h(τ, p(τ)) dτ, with h(τ, p) = W₂ tanh(W₁ p + w τ + b₁) + b₂ shared by the blocks and p(0) of each
    block its own. p is solved at any position, also beyond those of training. Two things differ from the paper: p is
    in units of the embeddings' initial standard deviation, so that neither drowns the other; and it is added to the
    inputs of the blocks, not to the biases of queries, keys and values.

    The solver is torchdiffeq's: a Runge-Kutta step of order 4 for every ten positions, of time 1, and a cubic between.
    Gradients are those of the steps.

    Args:
        dim: model width.
        layers: number of blocks.
        initial_std: of the token embeddings.

    Raises:
        ValueError: torchdiffeq is not installed.
    """

    def __init__(self, dim: int, layers: int, initial_std: float = 0.02) -> None:
        super().__init__()
        if find_spec("torchdiffeq") is None:
            raise ValueError(
                "position is floater, which solves its equation with torchdiffeq, and that is not installed; "
                'give another position, or install it: pip install "linear-rope[floater]"'
            )
        self.initial_std = initial_std
        self.inner = nn.Linear(dim + 1, dim)
        self.outer = nn.Linear(dim, dim)
        self.start = nn.Parameter(nn.init.normal_(torch.empty(layers, dim), std=initial_std))

    def forward(self, positions: Tensor) -> Tensor:
        from torchdiffeq import odeint

        dtype = torch.promote_types(self.start.dtype, torch.float32)
        inner, inner_bias, outer, outer_bias = (
            x.to(dtype) for layer in (self.inner, self.outer) for x in (layer.weight, layer.bias)
        )

        def change(position: Tensor, p: Tensor) -> Tensor:
            time = (position * SPEED).expand(*p.shape[:-1], 1)
            return SPEED * linear(linear(torch.cat((p, time), dim=-1), inner, inner_bias).tanh(), outer, outer_bias)

        # Whole steps, so that what a position gets does not depend on how many follow.
        last = int(positions.max()) if positions.numel() else 0
        grid = STRIDE * torch.arange(last // STRIDE + 2, dtype=dtype, device=positions.device)
        states = odeint(change, self.start.to(dtype) / self.initial_std, grid, method="rk4")
        slopes = STRIDE * change(grid.view(-1, 1, 1), states)
        places = torch.arange(last + 1, device=positions.device)
        step, s = places // STRIDE, (places % STRIDE).to(dtype).unsqueeze(-1) / STRIDE
        # The cubic with the values and slopes at both ends of a step (Hermite's).
        states, slopes = states.movedim(0, 1), slopes.movedim(0, 1)
        from_first = (1 - s) ** 2 * ((1 + 2 * s) * states[:, step] + s * slopes[:, step])
        from_last = s**2 * ((3 - 2 * s) * states[:, step + 1] + (s - 1) * slopes[:, step + 1])
        return ((from_first + from_last) * self.initial_std)[:, positions]
