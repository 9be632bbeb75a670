"""The accuracies on longer sequences that the study of state tracking measures."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.config import Config
from experiments.data.generated import StateTracking, split_generator
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.studies.length.measure import ends_with_its_context
from experiments.studies.tables import RUN, Table
from experiments.train.objectives import NextToken
from experiments.train.steps import autocast
from linear_rope.model import CausalLM

FACTORS = (1, 2, 4)
"""of the training length: where the ranges of positions end"""
SEQUENCES = 256

ACCURACIES = Table("tracking", RUN | {"factor": int}, {"accuracy": float})


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write tracking.csv; returns sentences about what could not be measured."""
    config, sequences = Config.of(comparison.config), getattr(objective.corpus, "sequences", None)
    if not isinstance(sequences, StateTracking):
        name = objective.corpus.name
        return [f"--data {name} is no product of group elements: no state was tracked; give --data parity-64"]
    longest = replace(sequences, length=FACTORS[-1] * sequences.length)
    tokens = longest.draw(split_generator("test", seed=1), SEQUENCES).astype("int64")
    inputs, targets = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(longest.targets(tokens))

    def accuracies(name: str, seed: int, model: CausalLM) -> Iterator[pd.DataFrame | str]:
        if ends_with_its_context(name):
            yield f"{name} is not tested beyond {config.context} tokens, where its table of positions ends"
            return
        right = are_right(model, inputs, targets, config).double()
        ends = [factor * sequences.length for factor in FACTORS]
        rows = [
            (factor, right[:, first:last].mean().item())
            for factor, (first, last) in zip(FACTORS, pairwise([0, *ends]), strict=True)
        ]
        yield pd.DataFrame(rows, columns=["factor", "accuracy"])

    return ACCURACIES.measure(root, comparison, objective, "the accuracy on longer sequences", accuracies)


def guessing(comparison: Comparison) -> float:
    """The share of the products that guessing gets right."""
    group, _, _ = str(comparison.config["data"]).rpartition("-")
    return 1 / len(StateTracking(group).products)


@torch.no_grad()
def are_right(model: CausalLM, inputs: Tensor, targets: Tensor, config: Config) -> Tensor:
    """(B, N) bool: where the target has the largest logit."""
    device = next(model.parameters()).device
    found = []
    for part in inputs.split(max(1, 2**14 // inputs.shape[1])):
        with autocast(config, device):
            found.append(model(part.to(device)).argmax(-1).cpu())
    return torch.cat(found) == targets


def tracked(root: Path) -> pd.DataFrame:
    """The accuracy by the last position of each range; a variant "guessing" besides."""
    found, comparison = ACCURACIES.read(root), read_comparison(root)
    chance = pd.DataFrame({"variant": "guessing", "seed": 0, "factor": FACTORS, "accuracy": guessing(comparison)})
    rows = pd.concat([found, chance]).rename(columns={"accuracy": "value"})
    return rows.assign(last=rows["factor"] * int(comparison.config["context"]))
