"""The training loop of one run: a variant, a seed.

A step is a pure function of the weights, the configuration and its number: the batch comes from (seed, step), dropout
from a generator seeded with (seed, step), the learning rate from the step. So a run that was stopped goes on from its
last checkpoint with nothing else to remember, and on the CPU its metrics are those of a run that was not.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.config import Config, budget_steps, recorded_steps
from experiments.records.record import MetricsLog
from experiments.records.schema import MetricsRow, Split
from experiments.train.checkpoint import load_newest_checkpoint, save_checkpoint
from experiments.train.early_stopping import Best
from experiments.train.kernel_share import KernelShare
from experiments.train.models import build_model
from experiments.train.objectives import Batch, Objective
from experiments.train.optimizers import make_optimizer
from experiments.train.prefetch import Batches
from experiments.train.processes import ALONE, Processes
from experiments.train.schedule import fall_begins, last_constant_step, learning_rate_at
from experiments.train.steps import DIVERGED, QueuedSteps, RunFailed, Steps, are_queued, autocast
from experiments.train.weights import as_tensors
from experiments.variants import Variant
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.diagnostics import diagnose_model

Progress = Callable[[int, float, float], None]
"""Called after every step with (steps done, loss in nats, tokens per second)."""


class RunStopped(Exception):
    """A run that was asked to stop, and did, after a checkpoint."""


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


@denormals_flushed()
def train_run(
    directory: Path,
    variant: Variant,
    seed: int,
    config: Config,
    objective: Objective,
    device: torch.device,
    *,
    progress: Progress = lambda step, loss, rate: None,
    should_stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda sentence: None,
    follow: Callable[[MetricsRow], None] = lambda row: None,
    check: Callable[[], None] = lambda: None,
    processes: Processes = ALONE,
) -> None:
    """Train from the newest checkpoint, or from the start, to the end; metrics go to ``directory``/metrics.jsonl.

    ``should_stop`` is asked before every step and every batch of an evaluation; ``note`` is told, in a sentence, what
    went on besides: damaged files that were passed over, the step it was resumed at; ``follow`` every new row of
    metrics. ``check`` is called before anything is written, and raises if it must not be. Of several ``processes`` each
    calls this; the first one writes the files, and says when to stop.

    Raises:
        RunFailed: a loss or a gradient is not finite; the update of that step was not made.
        RunStopped: ``should_stop`` said so; a checkpoint was written.
        OSError: a record or a checkpoint could not be written; those written before are whole.
    """
    torch.set_num_threads(config.threads)
    model = build_model(variant, config, seed, objective)
    as_tensors(model.state_dict())  # an error now rather than at the first checkpoint
    objective.prepare(model, variant, seed)
    model = model.to(device)
    # What is evaluated and saved is the model itself, which has the same parameters.
    trained = processes.trained(model)
    optimizer = make_optimizer(model, config)
    queued = are_queued(device, processes)
    steps = (
        QueuedSteps(trained, optimizer, objective, config)
        if queued
        else Steps(trained, optimizer, objective, config, processes)
    )
    log = MetricsLog(directory / "metrics.jsonl", note, processes.is_first, follow, check)
    step = resume(directory / "checkpoint", model, optimizer, last_whole_step(log, config), note, processes)
    processes.wait()  # until all have read what the first one will write
    # Of a run stopped before its first step there is to be a checkpoint too.
    saved_step = step or None
    last_constant = last_constant_step(config)
    kept_checkpoints = config.kept_checkpoints, config.checkpoint_every

    trained_seconds, trained_tokens, started = 0.0, 0, time.perf_counter()
    loss = gradient_norm = math.nan
    best = Best(directory / "checkpoint", log, objective.primary)
    kernels = KernelShare(step) if queued and seed == 0 else None
    draw, finish = objective.source(seed, device)
    with log, Batches(draw, device, finish=finish) as batches:

        def settle() -> None:
            """Wait for the steps that have begun, and see that they are well."""
            nonlocal trained_seconds, loss, gradient_norm
            begun = time.perf_counter()
            made = steps.read()
            trained_seconds += max(0.0, time.perf_counter() - begun)  # a clock can be set back
            for each in made:
                loss, gradient_norm = each.loss, each.gradient_norm
                progress(each.number + 1, loss, tokens_per_second())

        def tokens_per_second() -> float:
            return trained_tokens / trained_seconds if trained_seconds else 0.0

        def save() -> None:
            settle()
            states = processes.states(model, optimizer)
            if processes.is_first:
                check()
                save_checkpoint(directory / "checkpoint", step, *states, *kept_checkpoints, last_constant)

        def stop_if_asked() -> None:
            if processes.first_says(should_stop()):
                if step != saved_step:
                    save()
                raise RunStopped(f"stopped at step {step}")

        def log_evaluation(split: Split, windows: int) -> None:
            settle()
            # Processes do not come to the end of a batch together, so several stop after the evaluation.
            between = stop_if_asked if processes.count == 1 else should_stop
            values = evaluate(model, objective, split, windows, config, between, processes)
            check_finite(values, split, step)
            if split == "validation" and config.diagnose_windows:
                inputs = objective.diagnosed(split, config.diagnose_windows)
                values |= {} if inputs is None else attention_statistics(model, inputs.to(device))
            log.append(step, step * config.tokens_per_step, split, values)
            if split == "validation" and config.tested == "best" and best.is_at(step):
                states = processes.states(model, optimizer)
                if processes.is_first:
                    check()
                    best.keep(step, *states)

        def test_the_best() -> None:
            """Test the best weights, which then are the run's final ones."""
            processes.wait()  # until they are kept
            # Those of the last step are in hand; a kill may have come before they were kept.
            if best.are_kept and best.step(step) != step:
                try:
                    early, weights = best.kept(step)
                except (ValueError, OSError) as error:
                    raise RunFailed(
                        f"the weights of its best evaluation are gone ({error}); remove its directory"
                    ) from None
                processes.load_weights(model, weights)
                note(f"tested with the weights of step {early:,}, the best on the validation split")
                save()
            log_evaluation("test", config.test_windows)
            if processes.is_first:
                best.remove()

        def update(step: int, end: int) -> tuple[float, Batch]:
            """Make one step of a run that ends at step ``end``. Returns its learning rate and its batch."""
            learning_rate = learning_rate_at(step, config, end)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            torch.manual_seed(seed * 1_000_003 + step + (processes.rank << 40))
            batch = batches.at(step)
            steps.make(step, on_device(processes.rows(batch), device))
            return learning_rate, batch

        def test_as_if_it_ended_at(end: int) -> None:
            """Train a copy to step ``end`` and test it; the run itself stays where it is."""
            settle()
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            begun, tokens = time.perf_counter(), 0
            try:
                for at in range(step, end):
                    if processes.first_says(should_stop()):
                        break
                    _, batch = update(at, end)
                    tokens += objective.tokens_in(batch, config)
                    (made,) = steps.read()
                    seconds = time.perf_counter() - begun
                    progress(step, made.loss, tokens / seconds if seconds > 0 else 0.0)
                else:
                    values = evaluate(model, objective, "test", config.test_windows, config, processes=processes)
                    check_finite(values, "test", end)
                    log.append(end, end * config.tokens_per_step, "test", values)
            finally:
                model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
            stop_if_asked()

        budgets = budget_steps(config.budgets)
        while step < config.steps:
            if step % config.evaluate_every == 0:
                log_evaluation("validation", config.evaluation_windows)
            for budget in budgets:
                if step == fall_begins(budget, config) and not log.has(budget, "test"):
                    test_as_if_it_ended_at(budget)
            stop_if_asked()
            if kernels:
                kernels.look(step)
            begun = time.perf_counter()
            learning_rate, batch = update(step, config.steps)
            step += 1
            trained_tokens += objective.tokens_in(batch, config)
            trained_seconds += max(0.0, time.perf_counter() - begun)
            is_recorded = step % config.log_every == 0 or step == config.steps
            if is_recorded or not queued:
                settle()
            if is_recorded:
                log.append(step, step * config.tokens_per_step, "train", {
                    "loss": loss,
                    **objective.training_metrics(loss, batch),
                    "learning_rate": learning_rate,
                    "gradient_norm": gradient_norm,
                    "tokens_per_second": tokens_per_second(),
                    "seconds": max(0.0, time.perf_counter() - started),
                    **(kernels.metrics() if kernels and step == config.steps else {}),
                })  # fmt: skip
                trained_seconds, trained_tokens = 0.0, 0
            if step % config.checkpoint_every == 0 or step in (last_constant, config.steps):
                save()
                saved_step = step
        if config.tested == "last":
            log_evaluation("validation", config.evaluation_windows)
            log_evaluation("test", config.test_windows)
            return
        if not log.has(step, "validation"):  # else it was stopped after that, and has the best weights already
            log_evaluation("validation", config.evaluation_windows)
        test_the_best()


def check_finite(values: dict[str, float], split: str, step: int) -> None:
    """Raises RunFailed for a metric that is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise RunFailed(f"{DIVERGED}: {name} on the {split} split is {value} after step {step}")


def last_whole_step(log: MetricsLog, config: Config) -> int:
    """The last step from which training can go on with no row missing: all those before it are on record."""
    # An evaluation is made before the step of its number, a training loss is recorded after it.
    lacking = [
        step - made_after
        for split, made_after in (("validation", 0), ("train", 1))
        for step in recorded_steps(split, config.steps, config.log_every, config.evaluate_every)
        if not log.has(step, split)
    ]
    lacking += [fall_begins(budget, config) for budget in budget_steps(config.budgets) if not log.has(budget, "test")]
    return min(lacking, default=config.steps)


def resume(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    last_step: int,
    note: Callable[[str], None],
    processes: Processes = ALONE,
) -> int:
    """Bring model and optimizer to the newest undamaged checkpoint up to ``last_step``; returns its step, or 0."""
    checkpoint, passed_over = load_newest_checkpoint(directory, model, last_step)
    for sentence in passed_over:
        note(sentence)
    if checkpoint is None:
        if passed_over:
            note("no checkpoint is left to go on from, so training began again at step 0")
        return 0
    processes.load_weights(model, checkpoint.model)
    processes.load_optimizer(optimizer, checkpoint.optimizer)
    note(f"resumed at step {checkpoint.step}")
    return checkpoint.step


def on_device(batch: Batch, device: torch.device) -> Batch:
    return tuple(tensor.to(device, non_blocking=True) for tensor in batch)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    split: str,
    windows: int,
    config: Config,
    between_batches: Callable[[], object] = lambda: None,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """The objective's metrics of a model, over at most so many windows of a split."""
    model.eval()
    device = next(model.parameters()).device
    batches = [*zip(*(tensor.split(config.batch_size) for tensor in objective.windows(split, windows)), strict=True)]
    tallies = []
    for batch in processes.part(batches):
        between_batches()
        with autocast(config, device):
            tallies.append(objective.tally(model, on_device(batch, device)))
    sums: dict[str, Any] = {}
    for counted in processes.gathered(tallies):
        sums = {name: sums[name] + value if name in sums else value for name, value in counted.items()}
    return objective.metrics(sums)


def attention_statistics(model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """How the attention of a model weighs on tokens (B, N) int64: shares are means over the layers, others extremes.

    See linear_rope.diagnostics.AttentionDiagnostics; of denominators it is the one closest to zero. What is not there
    or not finite is left out: all of another library's.
    """
    if not any(isinstance(module, RoPEAttention) for module in model.modules()):
        return {}
    layers = list(diagnose_model(model, tokens).values())
    shares = [layer.nonpositive_denominators for layer in layers if layer.nonpositive_denominators is not None]
    closest = [layer.smallest_denominator for layer in layers if layer.smallest_denominator is not None]
    found = {
        "negative_weights": sum(layer.negative_share for layer in layers) / len(layers),
        "smallest_row_sum": min(layer.row_sums.smallest for layer in layers),
        "largest_row_sum": max(layer.row_sums.largest for layer in layers),
        "nonpositive_denominators": sum(shares) / len(shares) if shares else math.nan,
        "smallest_denominator": min(closest, key=abs, default=math.nan),
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}
