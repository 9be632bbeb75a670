"""Tables of trained models: what was measured on weights that are gone stays."""

import pandas as pd

from experiments.config import Config
from experiments.records.csv_files import number
from experiments.records.record import read_comparison
from experiments.studies.tables import RUN, Table
from experiments.train.checkpoint import save_checkpoint
from experiments.train.models import build_model
from experiments.train.optimizers import make_optimizer
from experiments.variants import get_variant

NORMS = Table("norms", RUN, {"norm": number(0)})


def test_rows_of_runs_whose_weights_are_gone_stay(make_comparison, tmp_path, next_byte):
    root = make_comparison(tmp_path / "made-up", "softmax-rope,elu+1-none", 2)
    comparison = read_comparison(root)
    config = Config(**comparison.config)
    objective = next_byte(config)
    model = build_model(get_variant("elu+1-none"), config, 1, objective)
    checkpoint = root / "elu+1-none" / "seed1" / "checkpoint"
    save_checkpoint(checkpoint, config.steps, model.state_dict(), make_optimizer(model, config).state_dict())
    rows = [("softmax-rope", 0, 0.5), ("elu+1-none", 1, 0.5), ("of another comparison", 0, 0.5)]
    NORMS.write(root, pd.DataFrame(rows, columns=NORMS.columns))

    def norm(variant, seed, model):
        yield pd.DataFrame({"norm": [1.0]})

    notes = NORMS.measure(root, comparison, objective, "the norm", norm)
    left_out = [
        f"the norm leaves out {run}: its final weights are damaged or gone"
        for run in ("softmax-rope seed 1", "elu+1-none seed 0")
    ]
    assert notes == left_out
    assert NORMS.read(root).values.tolist() == [["softmax-rope", 0, 0.5], ["elu+1-none", 1, 1.0]]
