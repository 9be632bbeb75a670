"""The floors of a comparison, computed from its data."""

from dataclasses import replace
from pathlib import Path

from rich.table import Table

from experiments.config import Config
from experiments.console import make_console
from experiments.data.registry import load_data
from experiments.records.record import read_comparison
from experiments.train.chosen_objective import make_objective
from experiments.train.objectives import floors_of


def print_floors(root: Path, data_dir: Path | None, data_file: Path | None) -> int:
    """Print what the floors are of runs as a comparison has them, whatever it has on record. Returns the exit status.

    Raises ValueError if there is no such comparison, it trains nothing, or its data are not at hand or others.
    """
    comparison = read_comparison(root)
    if not comparison.variants:
        raise ValueError(f"--floors: {root} trains nothing; give the directory of a comparison that does")
    # What a run begins with makes no difference, and may not be here.
    config = replace(Config.of(comparison.config), initial_weights="none")
    data = load_data(config.data, data_dir, data_file)
    if data.sha256 != comparison.data[0].sha256:
        raise ValueError(
            f"--floors: {root} was trained on other data (sha256 {comparison.data[0].sha256[:12]}... of "
            f"{comparison.data[0].name}, here {data.sha256[:12]}...); give a --data-dir, or --data-file, that has them"
        )
    table = Table("floor", "metric", "split", "steps", "value", "equal ground")
    for floor in floors_of(make_objective(data, config, root), config, []):
        ground = "yes" if floor.equal else "no"
        table.add_row(floor.name, floor.metric, floor.split, f"{floor.steps:,}", f"{floor.value:.4f}", ground)
    make_console().print(table)
    return 0
