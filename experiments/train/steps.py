"""The training steps of a run, which on a GPU are begun without waiting for the one before.

A loss is read when somebody needs it. That it is not finite is then known some steps late, but was heeded at once: the
GPU itself leaves the weights as they were.
"""

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from experiments.config import Config
from experiments.train.group import Group
from experiments.train.objectives import Batch, Objective

T = TypeVar("T")

DIVERGED = "diverged"
"""how the reason of such a run begins"""


class RunFailed(Exception):
    """A run that cannot go on; the message is the reason that its status and every table show."""


def are_queued(group: Group) -> bool:
    """Whether steps are begun without waiting: several processes share each loss, and a CPU has nothing to wait for."""
    return group.device.type == "cuda" and group.count == 1


class Step(NamedTuple):
    number: int
    """from 0"""
    loss: float
    """of the whole batch, in nats"""
    gradient_norm: float
    """before clipping"""


class Steps:
    """The steps of a run; each has ended when ``make`` returns, or, with ``is_queued``, may only have begun.

    ``model`` is what ``Group.wrap`` gave; without a group this process is alone. Only one that is alone can queue.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        config: Config,
        group: Group | None = None,
        is_queued: bool = False,
    ) -> None:
        self._optimizer, self._objective, self._config = optimizer, objective, config
        self._group, self._is_queued = group or Group(torch.device("cpu")), is_queued
        # With the loss: of a vocabulary of thousands it is a large part of a small model's step.
        self._model = model if is_queued else compiled(model, config)
        self._loss = compiled(objective.loss, config) if is_queued else objective.loss
        self._made = list[Step]()
        self._begun = list[tuple[int, Tensor]]()
        self._are_finite = torch.tensor(True)

    def make(self, number: int, batch: Batch) -> None:
        """Make a step on a batch, or one's own rows of it, on the model's device.

        If its loss or gradient is not finite, no weight changes. Then it raises RunFailed; or, of queued steps, none
        changes from then on, and ``read`` raises.
        """
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        if self._is_queued and self._config.compile == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with autocast(self._config, batch[0].device):
            loss = self._loss(self._model, batch)
        value = math.nan
        if not self._is_queued:
            loss, value = self._group.shared_loss(loss, lambda: self._objective.scored(batch))
            check_step(Step(number, value, 0.0))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.gradient_clip)
        if self._is_queued:
            self._begun.append((number, torch.stack([loss.detach().to(norm.dtype), norm])))
            self._update_if_finite()
            return
        step = Step(number, value, self._group.norm(norm))
        check_step(step)
        self._optimizer.step()
        self._made.append(step)

    @torch.no_grad()
    def _update_if_finite(self) -> None:
        """The update of the step that began last; the device itself sees whether all were finite so far."""
        is_finite = self._begun[-1][1].isfinite().all()
        self._are_finite = is_finite & self._are_finite.to(is_finite.device, non_blocking=True)
        weights = [*self._model.parameters()]
        before = [weight.clone() for weight in weights]
        self._optimizer.step()
        for weight, kept in zip(weights, before, strict=True):
            weight.copy_(torch.where(self._are_finite, weight, kept))

    def read(self) -> list[Step]:
        """The steps that were made since they were read before; waits for those that have begun.

        Raises RunFailed if a number of one is not finite.
        """
        made, begun, self._made, self._begun = self._made, self._begun, [], []
        values = torch.stack([numbers for _, numbers in begun]).tolist() if begun else []
        made += [Step(number, *pair) for (number, _), pair in zip(begun, values, strict=True)]
        for step in made:
            check_step(step)
        return made


def check_step(step: Step) -> None:
    """Raises RunFailed if the loss or the gradient norm of a step is not finite."""
    if not math.isfinite(step.loss):
        raise RunFailed(f"{DIVERGED}: the loss is {step.loss} at step {step.number}")
    if not math.isfinite(step.gradient_norm):
        raise RunFailed(
            f"{DIVERGED}: the gradient norm is {step.gradient_norm} at step {step.number} (loss {step.loss:.4g})"
        )


def compiled(part: T, config: Config) -> T:
    """A model or a function under ``torch.compile``, if the configuration has that; it compiles in its first step."""
    # The type of a compiled module is unknown to PyTorch's own stubs.
    if config.compile == "graphs":
        return torch.compile(part, mode="reduce-overhead")  # type: ignore[call-overload]
    return torch.compile(part) if config.compile == "yes" else part  # type: ignore[call-overload]


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """The autocast context of a configuration's precision, for a model and its loss."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")
