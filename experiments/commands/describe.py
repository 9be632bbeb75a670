"""What comparison.json says of a plan: its variants with their sizes, its data, and the code from outside."""

from collections import defaultdict
from dataclasses import asdict

import torch

from experiments.commands.plan import Plan
from experiments.config import Config
from experiments.console import command_line
from experiments.data.registry import DATA_SETS
from experiments.extensions import origins
from experiments.options import RunOptions
from experiments.records import store
from experiments.records.schema import Comparison, Origin, VariantRecord
from experiments.run.registry import LAUNCHERS
from experiments.run.time_limit import without_limit
from experiments.studies.registry import STUDIES
from experiments.trackers.registry import TRACKERS, parse_trackers
from experiments.train.costs import costs_of
from experiments.train.models import build_model, check_parameters_match, count_parameters
from experiments.train.objectives import Objective, evaluated
from experiments.train.tuning import parse_rates
from experiments.variants import SIZES, Variant, modules_of


def describe(plan: Plan, objective: Objective, device: torch.device) -> Comparison:
    """The record of a comparison that is new. Raises ValueError if variants of one size differ in their parameters."""
    options, config = plan.options, plan.config
    command = command_line(without_limit(options.words))
    comparison = store.new_comparison(plan.root, options.study, options.preset, command, device)
    comparison.config = asdict(config)
    comparison.variants = [_variant_record(each, plan.configs[each.name], objective) for each in plan.variants]
    alike = defaultdict[tuple[int, ...], dict[str, tuple[int, int]]](dict)
    for record in comparison.variants:
        size = tuple(getattr(plan.configs[record.name], name) for name in SIZES)
        alike[size][record.name] = record.parameters, record.position_parameters
    for counts in alike.values():
        check_parameters_match(counts)
    comparison.seeds = list(range(plan.seeds))
    comparison.data = [objective.corpus.describe()]
    comparison.objective = objective.describe()
    windows = {split: objective.windows(split, most)[0] for split, most in evaluated(config).items()}
    comparison.evaluated_windows = {split: len(starts) for split, starts in windows.items()}
    runs = [(variant, seed) for variant in plan.variants for seed in comparison.seeds]
    weights = {f"{variant.name}/seed{seed}": objective.initial_weights(variant, seed) for variant, seed in runs}
    comparison.initial_weights = {run: sha256 for run, sha256 in weights.items() if sha256}
    if options.learning_rates is not None:
        comparison.learning_rates = parse_rates(options.learning_rates)
        comparison.rate_seeds = min(plan.rate_seeds, plan.seeds)
    comparison.baseline = options.baseline or ""
    return comparison


def _variant_record(variant: Variant, config: Config, objective: Objective) -> VariantRecord:
    with torch.device("meta"):
        model = build_model(variant, config, 0, objective.of(variant.settings))
    total, tables = count_parameters(model)
    _, state, flops = costs_of(model, config.context)
    sizes = {"parameters": total, "position_parameters": tables, "state": state, "flops": flops}
    record = VariantRecord(**vars(variant) | sizes | {"pattern": [*variant.pattern]})
    if variant.position in ("rope-after", "selective-after"):
        record.description += f" The denominator is {config.denominator}."
    return record


def note_plugins(comparison: Comparison, options: RunOptions) -> list[Origin]:
    """The code from outside that takes part in a comparison now; it is added to what the comparison names."""
    modules = {*options.plugin, STUDIES.origin(comparison.study), LAUNCHERS.origin(options.launcher)}
    modules.add(DATA_SETS.origin(comparison.config.get("data", "")))
    modules.update(TRACKERS.origin(name) for name in parse_trackers(options.tracker))
    modules.update(*(modules_of(variant.name, variant.kernel, variant.position) for variant in comparison.variants))
    found = [Origin(**origin) for origin in origins(module for module in modules if module)]
    comparison.plugins = [*comparison.plugins, *(origin for origin in found if origin not in comparison.plugins)]
    return found
