"""What a run is going to do: its head, the plan of a dry run, and trial steps of small models that tell its cost."""

import dataclasses
import statistics
import timeit
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Column, Table

from experiments.commands.place import Place
from experiments.commands.plan import Plan
from experiments.config import Config, budget_steps
from experiments.console import duration, many
from experiments.data.corpus import Data
from experiments.objects import Run
from experiments.records.record import is_finished, read_comparison, run_rows
from experiments.records.schema import Comparison, VariantRecord
from experiments.report.tables import FLOPS, STATE, costs_in_words
from experiments.train.evaluate import on_device
from experiments.train.models import build_model
from experiments.train.objectives import Objective
from experiments.train.optimizers import make_optimizer
from experiments.train.schedule import fall_begins
from experiments.train.steps import Steps
from experiments.train.tuning import MOST_BEYOND, trials_left
from experiments.variants import Variant, get_variant, without_rate
from linear_rope import kernels


def print_head(console: Console, comparison: Comparison, corpus: Data, place: Place) -> None:
    config = comparison.config
    at_a_time = f"{place.workers} at a time" if place.workers else "as many at a time as there is room for"
    console.print(f"data: {corpus.name}, {corpus.source}. {corpus.note}", soft_wrap=True)
    console.print(
        f"{many(len(comparison.variants), 'variant')} x {many(len(comparison.seeds), 'seed')}, "
        f"{config['steps']:,} steps of {comparison.read_in(1)} ({comparison.read_in(config['steps'])} a run), "
        f"{at_a_time} on {comparison.machine['device']}; {_kernel(place.device)}",
        soft_wrap=True,
    )


def _kernel(device: torch.device) -> str:
    """What of causal linear attention this machine has for a device."""
    name = "native" if device.type == "cpu" else "triton"
    return f"{name} kernel: {kernels()[name]}"


def print_plan(console: Console, comparison: Comparison, plan: Plan, objective: Objective, place: Place) -> None:
    print_head(console, comparison, objective.corpus, place)
    console.print("measuring a training step of each variant with runs left (one layer or pattern, few sequences)")
    variants = [get_variant(described.name) for described in comparison.variants]
    trials, left, done = trials_left(plan.root, comparison), dict[str, int](), 0
    for variant in variants:
        steps = variant.config(plan.config).steps
        ended = sum(is_finished(plan.root, variant.name, seed, steps) for seed in comparison.seeds)
        count, done = len(comparison.seeds) - ended, done + ended
        if variant.name in trials:  # those at the best rate are the variant's runs with their seeds
            count = max(0, count - max(1, comparison.rate_seeds)) + trials[variant.name]
        left[variant.name] = count
    seconds_of = estimated_seconds(filter(lambda each: left[each.name], variants), plan.config, objective, place.device)
    has_tables = any(described.position_parameters for described in comparison.variants)
    heads = "runs", "parameters", *["position table"] * has_tables, STATE, FLOPS, "tokens a run", "time a run"
    if not console.is_terminal:  # a pipe or file has no edge, and names are whole there
        console.width = 120 + max(len(variant.name) for variant in variants)
    table = Table(Column("variant", overflow="fold"), *(head.replace(" ", "\n", 1) for head in heads))
    total, runs, tokens = 0.0, sum(left.values()), 0
    for variant, described in zip(variants, comparison.variants, strict=True):
        own, count, seconds = variant.config(plan.config), left[variant.name], seconds_of.get(variant.name)
        read, costs = own.steps * own.tokens_per_step, costs_in_words(described.state, described.flops)
        total, tokens = total + count * (seconds or 0), tokens + count * read
        tables = [f"{described.position_parameters:,}"] * has_tables
        sizes = f"{described.parameters:,}", *tables, *costs, f"{read:,}"
        table.add_row(variant.name, str(count), *sizes, "-" if seconds is None else duration(seconds))
    console.print(table)
    if trials:
        console.print(
            f"{sum(trials.values())} of the runs are trials of learning rates "
            f"({', '.join(map(str, comparison.learning_rates))}), or more: where the "
            f"best stands at an edge of the grid, up to {MOST_BEYOND} beyond it are tried too",
            soft_wrap=True,
        )
    begun = f"{many(done, 'run')} done already; left: " if done else ""
    at_once = max(1, min(place.workers or 1, runs))
    console.print(
        f"{begun}{many(runs, 'run')}{' or more' * bool(trials)}, {tokens:,} tokens; estimated time with "
        f"{place.workers or 'one'} at a time: {duration(total / at_once)}. No comparison was written."
    )


def estimated_seconds(
    variants: Iterable[Variant], config: Config, objective: Objective, device: torch.device
) -> dict[str, float]:
    """Seconds of a run of each variant, by name, from trial steps now; with another learning rate it is as fast."""
    measured, found = dict[str, float](), dict[str, float]()
    for variant in variants:
        alike = without_rate(variant.name)
        if alike not in measured:
            own = variant.config(config)
            measured[alike] = _estimated_seconds(variant, own, objective.of(variant.settings), device)
        found[variant.name] = measured[alike]
    return found


def _estimated_seconds(variant: Variant, config: Config, objective: Objective, device: torch.device) -> float:
    """Seconds of a run, evaluation included, from a few steps on about a thousand tokens of a model of one layer, or
    one pattern of them.

    On a GPU, where those would tell of launches alone, from whole steps (not compiled, so of a slower run).
    """
    torch.set_num_threads(config.threads)
    trial, sequences = _trial_step(variant, config, objective, device)
    times = timeit.repeat(trial, repeat=3, number=1)
    times_as_many = 1 if device.type == "cuda" else config.layers / max(1, len(variant.pattern))
    per_sequence = statistics.mean(times[1:]) * times_as_many / sequences
    if device.type == "cuda":
        del trial
        torch.cuda.empty_cache()  # the runs are other processes
    budgets, evaluations = budget_steps(config.budgets), config.steps // config.evaluate_every + 1
    steps = config.steps + sum(end - fall_begins(end, config) for end in budgets)
    # A forward pass is a third of a training step.
    evaluated = (evaluations * config.evaluation_windows + (1 + len(budgets)) * config.test_windows) / 3
    return per_sequence * (steps * config.batch_size + evaluated)


def _trial_step(
    variant: Variant, config: Config, objective: Objective, device: torch.device
) -> tuple[Callable[[], object], int]:
    """A training step of one layer or pattern, on a GPU of the whole model and batch, and the sequences it takes."""
    is_whole = device.type == "cuda"
    sequences = config.batch_size if is_whole else max(1, min(config.batch_size, 1024 // config.context))
    # A learning rate of almost nothing: the steps are a trial, and must not diverge.
    layers = config.layers if is_whole else max(1, len(variant.pattern))
    small = dataclasses.replace(config, layers=layers, batch_size=sequences, learning_rate=1e-12, compile="no")
    model = build_model(variant, small, 0, objective).to(device)
    steps = Steps(model, make_optimizer(model, small), objective, small)
    batch = on_device(tuple(tensor[:sequences] for tensor in objective.batch(0, 0)), device)
    return partial(steps.make, 0, batch), sequences


def runs_by_seed(comparison: Comparison) -> list[Run]:
    """Every run, seed by seed, each variant's baseline before it: a stop at any run leaves at most one pair open."""
    ordered, seen = list[str](), set[str]()

    def add(variant: VariantRecord) -> None:
        if variant.name not in seen:  # two may be each other's baseline
            seen.add(variant.name)
            add(there.get(comparison.baseline_of(variant), variant))
            ordered.append(variant.name)

    there = {variant.name: variant for variant in comparison.variants}
    for variant in comparison.variants:
        add(variant)
    return [Run(name, seed) for seed in comparison.seeds for name in ordered]


def recorded_seconds(root: Path, names: Sequence[str], steps: int) -> dict[str, float]:
    """By variant, the most that a finished run took from its first step to its last, evaluations included."""
    found = dict[str, float]()
    for name, seed in read_comparison(root).runs:
        if name in names and is_finished(root, name, seed, steps):
            rows = [row for row in run_rows(root, name, seed) if row.split == "train"]
            times = [row.metrics.get("seconds", 0.0) for row in rows]
            # One that was stopped counts from 0 again where it goes on.
            whole = sum(now - before if now >= before else now for before, now in pairwise((0.0, *times)))
            found[name] = max(whole, found.get(name, 0.0))
    return found
