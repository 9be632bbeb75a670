"""The processes that train one run: each computes its rows of every batch, and together they take the step of one.

Every process draws the whole batch of (seed, step), so it is the same however many there are. Gradients are averaged by
DDP, which ``accelerate`` sets up for the devices at hand; torchrun, or run/peers.py, says who is which. A model too
large for each process to hold is sharded among them instead.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from linear_rope.blocks import Block

T = TypeVar("T")
States = tuple[dict[str, Any], dict[str, Any]]
"""the state dicts of a model and its optimizer, with tensors that are whole"""

SECONDS = 1800
"""that processes wait for one another; the first one may take some for a checkpoint"""


class Group:
    """The processes of a run; of this class, a single one, in which nothing passes."""

    count, rank = 1, 0

    def __init__(self, device: torch.device) -> None:
        self.device = device
        """of this process"""

    @property
    def is_first(self) -> bool:
        """The first writes all files and decides when to stop."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """What is called in training in place of a model, so that its gradients are the mean over the processes.

        To be asked for before there is an optimizer: a sharded model has other parameters.
        """
        return model

    def states(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> States:
        """What a checkpoint holds; every process asks at the same time."""
        return model.state_dict(), optimizer.state_dict()

    def load_weights(self, model: nn.Module, weights: dict[str, Any]) -> None:
        """Give a model whole weights."""
        model.load_state_dict(weights)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Give an optimizer a whole state."""
        optimizer.load_state_dict(state)

    def norm(self, gradient_norm: Tensor) -> float:
        """The norm of all gradients, from what ``clip_grad_norm_`` returned."""
        return gradient_norm.item()

    def rows(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """This process's examples of a batch."""
        return batch

    def shared_loss(self, loss: Tensor, targets: Callable[[], int]) -> tuple[Tensor, float]:
        """From the mean ``loss`` over so many ``targets`` of one's own rows to that over all.

        Returns what to differentiate, and the loss of the whole batch, the same number in every process.
        """
        return loss, loss.item()

    def scatter(self, items: Sequence[T]) -> Sequence[T]:
        """What this process does of some work that does not depend on its order."""
        return items

    def gather(self, parts: list[T]) -> list[T]:
        """What all processes made of their parts, in the order of the whole."""
        return parts

    def broadcast(self, flag: bool) -> bool:
        """The flag that the first process has."""
        return flag

    def wait(self) -> None:
        """Until all are here."""

    def close(self) -> None:
        """Nothing passes any more."""


class DistributedGroup(Group):
    """Processes of which ``accelerate`` knows the others."""

    def __init__(self, accelerator: Any) -> None:
        super().__init__(accelerator.device)
        self._accelerator = accelerator
        self.count, self.rank = accelerator.num_processes, accelerator.process_index

    def wrap(self, model: nn.Module) -> nn.Module:
        return self._accelerator.prepare_model(model, device_placement=False)

    def rows(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(tensor.tensor_split(self.count)[self.rank] for tensor in batch)

    def shared_loss(self, loss: Tensor, targets: Callable[[], int]) -> tuple[Tensor, float]:
        own = targets()
        # Float64, because these are means of means; and one message, before the gradients, so that all see a loss that
        # is not finite.
        sums = torch.tensor([loss.item() * own, own], dtype=torch.float64, device=loss.device)
        total, number = self._accelerator.reduce(sums, "sum").tolist()
        # DDP divides the sum of the gradients by the number of processes.
        return loss * (self.count * own / number), total / number

    def scatter(self, items: Sequence[T]) -> Sequence[T]:
        begin, end = (len(items) * rank // self.count for rank in (self.rank, self.rank + 1))
        return items[begin:end]

    def gather(self, parts: list[T]) -> list[T]:
        from accelerate.utils import gather_object

        return gather_object(parts)

    def broadcast(self, flag: bool) -> bool:
        said = torch.tensor(int(flag and self.is_first), device=self.device)
        return bool(self._accelerator.reduce(said, "sum"))

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def close(self) -> None:
        self._accelerator.end_training()


class ShardedGroup(DistributedGroup):
    """Processes that hold a share of each weight, gradient and optimizer state, and gather a block's when it is used.

    By FSDP2, torch's fully_shard (Zhao et al. 2023, arXiv 2304.11277). Between calls of the model a weight is a
    DTensor; checkpoints hold whole tensors, so any number of processes goes on from them. A process that gathers waits
    for the others, so all of them make every evaluation whole.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.count,))
        for module in [module for module in model.modules() if isinstance(module, Block)]:
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def states(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> States:
        weights, state = super().states(model, optimizer)
        of_parameters = {index: _whole(values) for index, values in state["state"].items()}
        return _whole(weights), state | {"state": of_parameters}

    def load_weights(self, model: nn.Module, weights: dict[str, Any]) -> None:
        here = model.state_dict()
        model.load_state_dict({name: _shared_as(here[name], value) for name, value in weights.items()})

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        shared = {
            index: {name: _shared_as(parameters[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": shared})

    def norm(self, gradient_norm: Tensor) -> float:
        return _whole({"norm": gradient_norm})["norm"].item()

    scatter, gather = Group.scatter, Group.gather


def _whole(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.full_tensor() if _is_shared(value) else value for name, value in values.items()}


def _shared_as(like: Any, value: Any) -> Any:
    """A whole tensor, shared among the processes as one of the same shape is."""
    from torch.distributed.tensor import distribute_tensor

    if not _is_shared(like) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _is_shared(value: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def tells_of_a_lost_process(error: RuntimeError) -> bool:
    """Whether it was raised because another process has ended or cannot be reached."""
    return isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)


def check_can_shard(device: torch.device) -> None:
    """Raises ValueError unless this PyTorch can share out weights on such a device."""
    if device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        raise ValueError(f"--shard on a CPU needs PyTorch 2.7 or later, and this is {torch.__version__}; leave it out")


def connect(device: torch.device, threads: int, shard: bool) -> Group:
    """Meet the other processes, as torchrun's variables say, unless they have met; ``shard``: to share the weights."""
    import accelerate
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # else it would choose
    if not torch.distributed.is_initialized():
        waits = timedelta(seconds=SECONDS)
        store, rank, count = next(rendezvous("env://", timeout=waits))
        # When torchrun restarts processes, its store still has the addresses of those before.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        backend = torch.distributed.get_default_backend_for_device(device)
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=waits)
    # Weights that a step does not use, none does.
    static = accelerate.DistributedDataParallelKwargs(static_graph=True)
    accelerator = accelerate.Accelerator(cpu=device.type == "cpu", kwargs_handlers=[static])
    return (ShardedGroup if shard else DistributedGroup)(accelerator)
