"""What new draws of a finished model's random features do to its loss."""

from pathlib import Path

import pandas as pd
import torch

from experiments.config import Config
from experiments.records.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.records.files import is_there, write_atomically
from experiments.records.schema import Comparison
from experiments.training.loop import evaluate
from experiments.training.objectives import NextToken
from experiments.training.trained_models import trained_models
from linear_rope.features import FavorPlus
from linear_rope.model import CausalLM

NEW_DRAWS = 5
FIRST_NEW_DRAW = 10**6
"""above the number of any draw that training made"""
WINDOWS = 100
COLUMNS = {"variant": TEXT, "seed": whole(0, 10**6), "draw": whole(0, 10**6), "bits_per_byte": number(0)}
"""draw 0 is the model's own"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write redrawn.csv; returns sentences about what could not be measured."""
    notes: list[str] = []
    rows: list[tuple[str, int, int, float]] = []
    config = Config(**comparison.config)
    for name, seed, model in trained_models(root, comparison, objective, "the loss with new features", notes):
        if not any(isinstance(module, FavorPlus) for module in model.modules()):
            continue
        own = {key: value.clone() for key, value in model.state_dict().items()}
        for draw_number in range(NEW_DRAWS + 1):
            if draw_number:
                _redraw(model, FIRST_NEW_DRAW + draw_number)
            loss = evaluate(model, objective, "test", WINDOWS, config)["bits_per_byte"]
            rows.append((name, seed, draw_number, loss))
        model.load_state_dict(own)
    if rows:
        table = pd.DataFrame.from_records(rows, columns=list(COLUMNS))
        write_atomically(root / "redrawn.csv", to_csv(table, "%.9g"))
    return notes


def read_redrawn(root: Path) -> pd.DataFrame | None:
    """The table of redrawn.csv; None if there is none. Raises ValueError if it is not as it should be."""
    path = root / "redrawn.csv"
    return read_csv(path, COLUMNS, key=["variant", "seed", "draw"]) if is_there(path) else None


def _redraw(model: CausalLM, draw_number: int) -> None:
    for module in model.modules():
        if isinstance(module, FavorPlus):
            with torch.no_grad():
                module.redraw(draw_number)
