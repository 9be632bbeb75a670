"""The optimisers, and which weights each of them trains."""

from typing import Any

import torch
from torch import Tensor, nn

from experiments.config import Config
from experiments.train.muon import Muon
from linear_rope.blocks import Block
from linear_rope.features.base import FeatureMap
from linear_rope.positions.decay import Decay
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.selective import SelectiveAngles

OF_POSITIONS = (FeatureMap, Decay, SelectiveAngles, ScorePositions)
"""parts of an attention whose weights are AdamW's"""


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
    if not muons:
        return adamw
    muon = Muon(muons, config.learning_rate, config.weight_decay)
    return Several(muon, adamw)


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


class Several(torch.optim.Optimizer):
    """Optimisers that share out a model's weights, as one: one list of groups, one state."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self._optimizers = optimizers
        self._share()

    def _share(self) -> None:
        """Each works on its part of the groups, and all on one state."""
        groups = iter(self.param_groups)
        for each in self._optimizers:
            each.param_groups = [next(groups) for _ in each.param_groups]
            each.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self._optimizers:
            each.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
