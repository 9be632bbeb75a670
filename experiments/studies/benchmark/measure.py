"""How the models of the benchmark do on longer inputs than they were trained on."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.config import Config
from experiments.data.corpus import NOT_SCORED, Sequences
from experiments.data.generated import AssociativeRecall, split_generator
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.benchmark.definition import SMOKE_FACTORS, read_benchmark
from experiments.studies.length.measure import ends_with_its_context, measure_lengths
from experiments.studies.state_tracking.measure import are_right
from experiments.studies.tables import RUN, Table
from experiments.train.objectives import NextToken
from linear_rope.model import CausalLM

WINDOWS = 32
"""of a text, of the longest length"""
SEQUENCES, TOKENS = 512, 2**18
"""of each length: so many sequences, or so many tokens where these are fewer"""

LONGER = Table("longer", RUN | {"pairs": int, "factor": int}, {"accuracy": float})
"""``pairs``: of recall, in each sequence; 0 elsewhere"""


def longer(root: Path) -> pd.DataFrame:
    """The accuracies by the length of the sequences: columns variant, seed, pairs, length, value."""
    found = LONGER.read(root).rename(columns={"accuracy": "value"})
    return found.assign(length=found.pop("factor") * int(read_comparison(root).config["context"]))


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write length.csv or longer.csv; returns sentences about what could not be measured."""
    task = read_benchmark().tasks[comparison.name]
    factors, pairs = task.tested, task.pairs
    if comparison.preset == "smoke":
        factors, pairs = factors[:SMOKE_FACTORS], pairs[:1]
    most = comparison.evaluated_windows["test"]
    if objective.corpus.sequences is None:
        return measure_lengths(root, comparison, objective, factors, min(WINDOWS, most), ways=())
    tests = list(_tests(objective.corpus.sequences, factors, pairs, min(SEQUENCES, most)))
    config = Config.of(comparison.config)

    def share_right(model: CausalLM, tokens: Tensor, targets: Tensor) -> float:
        return int(are_right(model, tokens, targets, config).sum()) / int((targets != NOT_SCORED).sum())

    def accuracies(name: str, seed: int, model: CausalLM) -> Iterator[pd.DataFrame | str]:
        ends = ends_with_its_context(name)
        if ends:
            yield f"{name} is not tested beyond {config.context} tokens, where its table of positions ends"
        rows = [
            (number_of, factor, share_right(model, tokens, targets))
            for number_of, factor, tokens, targets in tests
            if factor == 1 or not ends
        ]
        yield pd.DataFrame(rows, columns=["pairs", "factor", "accuracy"])

    return LONGER.measure(root, comparison, objective, "the accuracy on longer sequences", accuracies)


def _tests(
    sequences: Sequences, factors: tuple[int, ...], pairs: tuple[int, ...], most: int
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Pairs, factor of the length, and new sequences with their targets; those of recall with each number of pairs."""
    for factor in factors:
        longer = sequences.longer(factor)
        count, generator = min(most, max(1, TOKENS // longer.length)), split_generator("test", seed=factor)
        for number_of in pairs or (0,):
            if number_of:
                assert isinstance(longer, AssociativeRecall)
                drawn = longer.draw_pairs(generator, count, number_of)
            else:
                drawn = longer.draw(generator, count)
            tokens = drawn.astype("int64")
            yield number_of, factor, torch.from_numpy(tokens[:, :-1]), torch.from_numpy(longer.targets(tokens))
