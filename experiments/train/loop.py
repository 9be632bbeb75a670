"""The training of one run: a variant, a seed.

A step is a pure function of the weights, the configuration and its number: the batch comes from (seed, step), dropout
from a generator seeded with (seed, step), the learning rate from the step. So a run that was stopped goes on from its
last checkpoint with nothing else to remember, and on the CPU its metrics are those of a run that was not.
"""

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from experiments.config import Config, budget_steps, recorded_steps
from experiments.records.record import MetricsLog
from experiments.records.schema import MetricsRow, Split
from experiments.train.checkpoint import (
    KEPT,
    as_tensors,
    checkpoint_path,
    load_newest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from experiments.train.devices import Batches, KernelShare
from experiments.train.evaluate import attention_statistics, evaluate, on_device
from experiments.train.group import Group
from experiments.train.models import build_model
from experiments.train.objectives import Batch, Objective
from experiments.train.optimizers import make_optimizer
from experiments.train.schedule import fall_begins, last_constant_step, learning_rate_at
from experiments.train.steps import DIVERGED, RunFailed, Steps, are_queued
from experiments.variants import Variant


class RunStopped(Exception):
    """A run that was asked to stop, and did, after a checkpoint."""


class RunLog:
    """What a run tells while it is trained, and what it asks; of this class nobody listens but ``followers``."""

    steps, unit = 0, "nats"
    """of the run, and of its loss; for who shows the progress"""

    def __init__(self) -> None:
        self.followers: list[Callable[[MetricsRow], None]] = []

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Called after every step with the steps done and the loss in nats."""

    def note(self, sentence: str) -> None:
        """Told what went on besides: damaged files that were passed over, the step it was resumed at."""

    def follow(self, row: MetricsRow) -> None:
        """Told every new row of metrics."""
        for follow in self.followers:
            follow(row)

    def should_stop(self) -> bool:
        """Asked before every step and every batch of an evaluation."""
        return False

    def check(self) -> None:
        """Called before anything is written; raises if it must not be."""


class Pace:
    """How many tokens a second are read, in the time that is measured."""

    def __init__(self) -> None:
        self.tokens, self._seconds = 0, 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - begun

    @property
    def rate(self) -> float:
        return self.tokens / self._seconds if self._seconds else 0.0


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Numbers below the smallest normal one (1.2e-38 in float32) are zeros on the CPU, where it can do that.

    Processors take many times as long for them, and many weights of a trained softmax attention are such numbers: a
    step of recall with learned positions took 2.6 times as long with them, and its loss was the same to six digits.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Trainer:
    """Trains a run from its newest checkpoint, or from the start, to its end.

    Args:
        directory: where metrics.jsonl and checkpoint/ are, or will be.
        variant: what is trained.
        seed: of weights, batches and dropout.
        config: the settings of the variant's runs.
        objective: what it is trained for.
        log: who is told.
        group: the processes that train it, each with a trainer; the first one writes the files, and says when to stop.
    """

    def __init__(
        self,
        directory: Path,
        variant: Variant,
        seed: int,
        config: Config,
        objective: Objective,
        log: RunLog,
        group: Group,
    ) -> None:
        self.directory, self.seed, self.config, self.objective = directory, seed, config, objective
        self.log, self.group = log, group
        self._checkpoints, self._best = directory / "checkpoint", directory / "checkpoint" / "best"
        torch.set_num_threads(config.threads)
        model = build_model(variant, config, seed, objective)
        as_tensors(model.state_dict())  # an error now rather than at the first checkpoint
        objective.prepare(model, variant, seed)
        self.model = model.to(group.device)
        # What is evaluated and saved is the model itself, which has the same parameters.
        wrapped = group.wrap(self.model)
        self.optimizer = make_optimizer(self.model, config)
        self._is_queued = are_queued(group)
        self._steps = Steps(wrapped, self.optimizer, objective, config, group, self._is_queued)
        self._pace, self._loss, self._gradient_norm = Pace(), math.nan, math.nan

    def fit(self) -> None:
        """Train to the end, and test.

        Raises:
            RunFailed: a loss or a gradient is not finite; the update of that step was not made.
            RunStopped: the log said so; a checkpoint was written.
            OSError: a record or a checkpoint could not be written; those written before are whole.
        """
        config, log = self.config, self.log
        log.steps, log.unit = config.steps, self.objective.loss_unit
        draw, finish = self.objective.source(self.seed, self.group.device)
        self._metrics = MetricsLog(
            self.directory / "metrics.jsonl", log.note, self.group.is_first, log.follow, log.check
        )
        self._batches = Batches(draw, self.group.device, finish)
        with denormals_flushed(), self._metrics, self._batches:
            self.step = self._resume()
            self.group.wait()  # until all have read what the first one will write
            # Of a run stopped before its first step there is to be a checkpoint too.
            self._saved_step = self.step or None
            self._kernels = KernelShare(self.step) if self._is_queued and self.seed == 0 else None
            self._started = time.perf_counter()
            while self.step < config.steps:
                self._look_up()
                with self._pace.measured():
                    learning_rate, batch = self._make_step(self.step, config.steps)
                self.step += 1
                self._pace.tokens += self.objective.tokens_in(batch, config)
                self._keep(learning_rate, batch)
            if config.tested == "last" or not self._metrics.has(self.step, "validation"):
                self._validate()
            self.test()

    def _resume(self) -> int:
        """Bring model and optimizer to the newest undamaged checkpoint with whole records; returns its step, or 0."""
        checkpoint, passed_over = load_newest_checkpoint(self._checkpoints, self.model, self._last_whole_step())
        for sentence in passed_over:
            self.log.note(sentence)
        if checkpoint is None:
            if passed_over:
                self.log.note("no checkpoint is left to go on from, so training began again at step 0")
            return 0
        self.group.load_weights(self.model, checkpoint.model)
        self.group.load_optimizer(self.optimizer, checkpoint.optimizer)
        self.log.note(f"resumed at step {checkpoint.step}")
        return checkpoint.step

    def _last_whole_step(self) -> int:
        """The last step from which training can go on with no row missing: all those before it are on record."""
        config, has = self.config, self._metrics.has
        # An evaluation is made before the step of its number, a training loss is recorded after it.
        lacking = [
            step - made_after
            for split, made_after in (("validation", 0), ("train", 1))
            for step in recorded_steps(split, config.steps, config.log_every, config.evaluate_every)
            if not has(step, split)
        ]
        lacking += [fall_begins(budget, config) for budget in budget_steps(config.budgets) if not has(budget, "test")]
        return min(lacking, default=config.steps)

    def _look_up(self) -> None:
        """What comes before a step: an evaluation, the end of a shorter run, a stop."""
        if self.step % self.config.evaluate_every == 0:
            self._validate()
        for budget in budget_steps(self.config.budgets):
            if self.step == fall_begins(budget, self.config) and not self._metrics.has(budget, "test"):
                self.cooldown(budget)
        self._stop_if_asked()
        if self._kernels:
            self._kernels.look(self.step)

    def _make_step(self, step: int, end: int) -> tuple[float, Batch]:
        """Make one step of a run that ends at step ``end``. Returns its learning rate and its batch."""
        learning_rate = learning_rate_at(step, self.config, end)
        for weights in self.optimizer.param_groups:
            weights["lr"] = learning_rate
        torch.manual_seed(self.seed * 1_000_003 + step + (self.group.rank << 40))
        batch = self._batches.at(step)
        self._steps.make(step, on_device(self.group.rows(batch), self.group.device))
        return learning_rate, batch

    def _keep(self, learning_rate: float, batch: Batch) -> None:
        """Record and keep what is due after a step."""
        config, is_last = self.config, self.step == self.config.steps
        is_recorded = self.step % config.log_every == 0 or is_last
        if is_recorded or not self._is_queued:
            self._settle()
        if is_recorded:
            self._record("train", {
                "loss": self._loss,
                **self.objective.training_metrics(self._loss, batch),
                "learning_rate": learning_rate,
                "gradient_norm": self._gradient_norm,
                "tokens_per_second": self._pace.rate,
                "seconds": time.perf_counter() - self._started,
                **(self._kernels.metrics() if self._kernels and is_last else {}),
            })  # fmt: skip
            self._pace = Pace()
        if self.step % config.checkpoint_every == 0 or self.step in (last_constant_step(config), config.steps):
            self._save()

    def _settle(self) -> None:
        """Wait for the steps that have begun, and see that they are well."""
        with self._pace.measured():
            made = self._steps.read()
        for step in made:
            self._loss, self._gradient_norm = step.loss, step.gradient_norm
            self.log.progress(step.number + 1, step.loss, self._pace.rate)

    def _save(self) -> None:
        self._settle()
        config, self._saved_step = self.config, self.step
        self._write(self._checkpoints, config.kept_checkpoints, config.checkpoint_every, last_constant_step(config))

    def _write(self, directory: Path, kept: int = KEPT, every: int = 1, forever: int | None = None) -> None:
        states = self.group.states(self.model, self.optimizer)
        if self.group.is_first:
            self.log.check()
            save_checkpoint(directory, self.step, *states, kept, every, forever)

    def _stop_if_asked(self) -> None:
        if self.group.broadcast(self.log.should_stop()):
            if self.step != self._saved_step:
                self._save()
            raise RunStopped(f"stopped at step {self.step}")

    def _record(self, split: Split, values: dict[str, float], step: int | None = None) -> None:
        step = self.step if step is None else step
        self._metrics.append(step, step * self.config.tokens_per_step, split, values)

    def _evaluate(self, split: Split, windows: int, end: int | None = None) -> dict[str, float]:
        """The metrics, of a copy that was trained to step ``end`` or of the run itself.

        Raises RunFailed for one that is not finite.
        """
        self._settle()
        # Processes do not come to the end of a batch together, so several stop after the evaluation; a copy goes on.
        stops = end is None and self.group.count == 1
        between = self._stop_if_asked if stops else self.log.should_stop
        values = evaluate(self.model, self.objective, split, windows, self.config, between, self.group)
        for name, value in values.items():
            if not math.isfinite(value):
                step = self.step if end is None else end
                raise RunFailed(f"{DIVERGED}: {name} on the {split} split is {value} after step {step}")
        return values

    def _validate(self) -> None:
        """Evaluate on the validation split, and keep the weights if they are to be tested should they be the best."""
        values = self._evaluate("validation", self.config.evaluation_windows)
        if self.config.diagnose_windows:
            inputs = self.objective.diagnosed("validation", self.config.diagnose_windows)
            if inputs is not None:
                values |= attention_statistics(self.model, inputs.to(self.group.device))
        self._record("validation", values)
        if self.config.tested == "best" and self.step > 0 and self._best_step() == self.step:
            self._write(self._best)

    def _best_step(self) -> int:
        """The step of the best evaluation so far, the first of equals; the one before the first step is left out.

        It is told by the metrics on record alone, so a run that was stopped has the same one.
        """
        metric = self.objective.primary
        found = self._metrics.values("validation", metric.name)
        better = min if metric.better == "lower" else max
        return better((step for step in sorted(found) if 0 < step <= self.step), key=found.__getitem__)

    def test(self) -> None:
        """Test the last weights, or the best ones, which then are the run's final ones."""
        if self.config.tested == "best":
            self.group.wait()  # until they are kept
            step = self._best_step()
            # Those of the last step are in hand; a kill may have come before they were kept.
            if self._best.is_dir() and step != self.step:
                try:
                    weights = read_checkpoint(checkpoint_path(self._best, step)).model
                except (ValueError, OSError) as error:
                    told = f"the weights of its best evaluation are gone ({error}); remove its directory"
                    raise RunFailed(told) from None
                self.group.load_weights(self.model, weights)
                self.log.note(f"tested with the weights of step {step:,}, the best on the validation split")
                self._save()
        self._record("test", self._evaluate("test", self.config.test_windows))
        if self.group.is_first:
            shutil.rmtree(self._best, ignore_errors=True)

    def cooldown(self, end: int) -> None:
        """Train a copy to step ``end`` and test it, as if the run ended there; the run itself stays where it is."""
        self._settle()
        kept = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        pace = Pace()
        try:
            for step in range(self.step, end):
                if self.group.broadcast(self.log.should_stop()):
                    break
                with pace.measured():
                    _, batch = self._make_step(step, end)
                    (made,) = self._steps.read()
                pace.tokens += self.objective.tokens_in(batch, self.config)
                self.log.progress(self.step, made.loss, pace.rate)
            else:
                self._record("test", self._evaluate("test", self.config.test_windows, end), end)
        finally:
            self.model.load_state_dict(kept[0])
            self.optimizer.load_state_dict(kept[1])
        self._stop_if_asked()
