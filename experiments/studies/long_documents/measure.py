"""What a document costs to read, what the variants say of some documents, and what the claims compare."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from experiments.config import Config
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.answers import SHOWN as SHOWN
from experiments.studies.answers import collect_answers, samples_of
from experiments.studies.speed import benchmark
from experiments.studies.tables import Table
from experiments.train.classification import Classification
from experiments.train.models import Shape, build_model
from experiments.train.objectives import Objective
from experiments.train.steps import autocast
from experiments.train.tokens import SPECIAL
from experiments.train.trained_models import finished_runs, measuring_device
from experiments.variants import get_variant

ROUNDS = 7
"""in which every variant is timed once"""
SAMPLE_SECONDS = 0.05
"""that a timing takes at least"""

COSTS = Table(
    "documents",
    {"variant": str, "round": int},
    {"context": int, "seconds": float, "bytes": int},
)


def measure(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """Write documents.csv and answers.csv; returns sentences about what could not be measured."""
    if not isinstance(objective, Classification):
        name = objective.corpus.name
        return [f"--data {name} is no labelled texts: no document was measured; give --data imdb-sentiment"]
    return [*measure_costs(root, comparison, objective), *collect_answers(root, comparison, objective)]


def measure_costs(root: Path, comparison: Comparison, objective: Classification) -> list[str]:
    """Write documents.csv: time and peak memory of reading one text that is as long as the variant reads.

    Variants without a finished run are left out.
    """
    finished = {name for name, _ in finished_runs(root, comparison)}
    device, config = str(measuring_device(comparison)), Config.of(comparison.config)
    of_each = {
        variant.name: (
            variant.name,
            replace(config, **variant.of_all_layers),
            Shape(objective.vocabulary, comparison.context_of(variant), objective.kind, objective.outputs),
            device,
        )
        for variant in comparison.variants
        if variant.name in finished
    }

    def read(name: str) -> Callable[[], object]:
        return reading(*of_each[name])

    def context_and_bytes(name: str) -> dict[str, int]:
        peak = benchmark.in_fresh_process(memory_here, *of_each[name])
        return {"context": of_each[name][1].context, "bytes": peak}

    return COSTS.time(
        root,
        list(of_each),
        "the cost of a document",
        read,
        context_and_bytes,
        threads=config.threads,
        rounds=ROUNDS,
        sample_seconds=SAMPLE_SECONDS,
    )


def reading(variant: str, config: Config, shape: Shape, device: str) -> Callable[[], object]:
    """Reads one text of ``config.context`` random tokens, without gradients, each time that it is called."""
    model = build_model(get_variant(variant), config, 0, shape).to(device).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(SPECIAL), shape.vocabulary, (1, config.context), generator=generator).to(device)

    def read() -> object:
        with torch.no_grad(), autocast(config, tokens.device):
            return model(tokens).cpu()

    return read


def memory_here(variant: str, config: Config, shape: Shape, device: str) -> int:
    """By how many bytes memory rises at the highest point of reading a text; for a process of its own."""
    torch.set_num_threads(config.threads)
    benchmark.keep_no_freed_memory()
    reading(variant, replace(config, context=16), shape, device)()  # warms the process up
    rise, _ = benchmark.peak_memory(reading(variant, config, shape, device), torch.device(device))
    return rise


def samples(rows: Rows) -> pd.DataFrame:
    """The table of samples: what the variants that differ in their length alone say, at each length."""
    facts = rows.facts.sort_values("context", kind="stable")
    order = rows.facts["without_length"].unique()
    lines = {line: facts[facts["without_length"] == line].itertuples() for line in order}
    lengths = {line: [(each.variant, f"{each.context:,}") for each in of_line] for line, of_line in lines.items()}

    def told(said: "pd.Series[str]") -> dict[str, str]:
        words = {
            line: "; ".join(f"{length}: {said[name]}" for name, length in of_line if name in said)
            for line, of_line in lengths.items()
        }
        return {line: text for line, text in words.items() if text}

    return samples_of(rows, told)


document_time = COSTS.samples("round", ROUNDS, "rounds")
