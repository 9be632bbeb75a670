"""The optimisers, and which weights each of them trains."""

from typing import Any

import torch
from torch import Tensor, nn

from experiments.config import Config
from linear_rope.blocks import Block
from linear_rope.features.base import FeatureMap
from linear_rope.positions.decay import Decay
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.selective import SelectiveAngles

OF_POSITIONS = (FeatureMap, Decay, SelectiveAngles, ScorePositions)
"""parts of an attention whose weights are AdamW's"""
COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""of the odd polynomial that brings singular values near 1, applied ``ITERATIONS`` times"""
ITERATIONS = 5
SMALLEST_NORM, MOMENTUM = 1e-7, 0.95
RMS_OF_ADAMW = 0.2
"""root mean square of the entries of AdamW's updates, to which these are scaled: one learning rate suits both"""


def make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """The optimiser of a configuration; on CUDA AdamW is one kernel.

    Both decay matrices, and neither biases nor the vectors of norms. ``param_groups`` are: Muon's, if there is one, the
    decayed and the other weights of AdamW.
    """
    muons = block_matrices(model) if config.optimizer == "muon" else []
    known = {id(each) for each in muons}
    others = [each for each in model.parameters() if id(each) not in known]
    groups = [
        {"params": [each for each in others if (each.dim() >= 2) == is_matrix], "weight_decay": decay}
        for is_matrix, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    fused = all(parameter.device.type == "cuda" for parameter in model.parameters())
    adamw = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=fused or None)
    return MuonAndAdamW(muons, config.learning_rate, config.weight_decay, adamw) if muons else adamw


def block_matrices(model: nn.Module) -> list[Tensor]:
    """The matrices that Muon trains: those of the linear maps in blocks.

    Not those of parts that say how positions enter, nor gates, which have one output a head, as the delta rule's β.
    """
    found = []
    for block in (module for module in model.modules() if isinstance(module, Block)):
        parts = [*block.modules()]
        apart = {id(weight) for part in parts if isinstance(part, OF_POSITIONS) for weight in part.parameters()}
        heads = getattr(block.attention, "heads", 0)
        linear = (part for part in parts if isinstance(part, nn.Linear) and part.out_features > heads)
        found += [part.weight for part in linear if id(part.weight) not in apart]
    return found


class MuonAndAdamW(torch.optim.Optimizer):
    """Descent with Nesterov momentum whose every step is made orthogonal (Jordan et al. 2024; arXiv 2502.16982).

    As torch.optim.Muon with ``match_rms_adamw``, which computes in bfloat16 everywhere. A processor without
    instructions for that took 13 to 21 times as long for it, and others round otherwise; so on a CPU it is float32.

    Args:
        matrices: what is trained so.
        lr: learning rate.
        weight_decay: share of a weight that a step at a learning rate of 1 takes away.
        adamw: trains the other weights; it works on its part of the groups and on the state of this one.
    """

    def __init__(self, matrices: list[Tensor], lr: float, weight_decay: float, adamw: torch.optim.AdamW) -> None:
        own = {"params": matrices, "lr": lr, "weight_decay": weight_decay, "momentum": MOMENTUM}
        super().__init__([own, *adamw.param_groups], {})
        self._adamw = adamw
        self._share()

    def _share(self) -> None:
        self._adamw.param_groups, self._adamw.state = self.param_groups[1:], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._adamw.step()
        group = self.param_groups[0]
        weights = [weight for weight in group["params"] if weight.grad is not None]
        steps = []
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(weight.grad)
            mean = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
            steps.append(weight.grad.lerp(mean, group["momentum"]))
        is_on_gpu = bool(weights) and weights[0].is_cuda
        for weight, update in zip(weights, all_orthogonal(steps, is_on_gpu), strict=True):
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(update.to(weight.dtype), alpha=-group["lr"] * RMS_OF_ADAMW * max(weight.shape) ** 0.5)


def all_orthogonal(matrices: list[Tensor], at_once: bool) -> list[Tensor]:
    """``orthogonal`` of each; ``at_once``, those of one shape together: a GPU waits for the launches of small ones."""
    if not at_once:
        return [orthogonal(matrix) for matrix in matrices]
    found: list[Tensor] = [*matrices]
    for shape in {matrix.shape for matrix in matrices}:
        places = [place for place, matrix in enumerate(matrices) if matrix.shape == shape]
        for place, made in zip(places, orthogonal(torch.stack([matrices[place] for place in places])), strict=True):
            found[place] = made
    return found


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the singular vectors of ``matrix`` and singular values from about 0.7 to 1.2 (Newton–Schulz).

    ``matrix`` may be several of one shape, with a dimension before the others.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x.bfloat16() if matrix.is_cuda else x.float()
    addmm, norm = (torch.addmm, x.norm()) if x.dim() == 2 else (torch.baddbmm, x.norm(dim=(-2, -1), keepdim=True))
    x = x / norm.clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = addmm(x, addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
