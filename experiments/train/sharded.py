"""Processes that share out the weights of a run, for models too large for each to hold (FSDP2: torch's fully_shard).

Zhao et al. 2023, arXiv 2304.11277. Checkpoints hold whole tensors, so any number of processes goes on from them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from experiments.train.processes import Connected, Processes, States
from linear_rope.blocks import Block


class Sharded(Connected):
    """Processes that hold a share of each weight, gradient and optimizer state, and gather a block's when it is used.

    Between calls of the model a weight is a DTensor. A process that gathers waits for the others, so all of them make
    every evaluation whole.
    """

    def trained(self, model: nn.Module) -> nn.Module:
        mesh = init_device_mesh(self._accelerator.device.type, (self.count,))
        for module in [module for module in model.modules() if isinstance(module, Block)]:
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def states(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> States:
        weights, state = super().states(model, optimizer)
        of_parameters = {index: _whole(values) for index, values in state["state"].items()}
        return _whole(weights), state | {"state": of_parameters}

    def load_weights(self, model: nn.Module, weights: dict[str, Any]) -> None:
        model.load_state_dict(_shared_as(model.state_dict(), weights))

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        shared = {
            index: _shared_as(dict.fromkeys(values, parameters[index]), values)
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": shared})

    def norm(self, gradient_norm: Tensor) -> float:
        return gradient_norm.full_tensor().item() if isinstance(gradient_norm, DTensor) else gradient_norm.item()

    part, gathered = Processes.part, Processes.gathered


def _whole(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in values.items()}


def _shared_as(examples: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Whole tensors, each shared among the processes as its example of the same shape is."""

    def shared(value: Any, like: Any) -> Any:
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return value
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    return {name: shared(value, examples[name]) for name, value in values.items()}
