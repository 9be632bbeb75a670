"""Tables of trained models: of packed weights too; what was measured on weights that are gone stays."""

import pandas as pd
import pytest

from experiments.config import Config
from experiments.data.registry import load_data
from experiments.judge.curves import read_curves
from experiments.judge.runs import Runs
from experiments.records.record import read_comparison
from experiments.studies.registry import STUDIES
from experiments.studies.tables import RUN, Table
from experiments.study import resolve
from experiments.train.checkpoint import save_checkpoint, weights_as_bytes
from experiments.train.chosen_objective import make_objective
from experiments.train.models import build_model
from experiments.train.optimizers import make_optimizer
from experiments.train.trained_models import packed_weights
from experiments.variants import get_variant
from tests.made_up import make_record


@pytest.mark.parametrize(
    ("study", "data", "note"),
    [
        ("translation", "text", "is no translation: no BLEU was measured; give --data multi30k"),
        ("long-documents", "text", "is no labelled texts: no document was measured; give --data imdb-sentiment"),
        ("glue", "text", "is no labelled texts: no answers were collected; give --data mrpc"),
        ("state-tracking", "text", "is no product of group elements: no state was tracked; give --data parity-64"),
        ("recall", "text", "is a text, in which nothing is asked: no accuracy was measured; give --data recall-64"),
        ("length", "recall-64", "is not learnt as a text of bytes: no loss at other lengths was measured"),
    ],
)
def test_what_is_not_measured_of_other_data_is_said(next_byte, tmp_path, study, data, note):
    config = Config(layers=1, dim=16, heads=2, context=64, batch_size=4)
    objective = next_byte(config) if data == "text" else make_objective(load_data(data), config)
    record = make_record(config=vars(config))
    assert resolve(STUDIES[study].measure)(tmp_path, record, objective) == [f"--data {data} {note}"]
    assert not [*tmp_path.iterdir()]


NORMS = Table("norms", RUN, {"norm": float})


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

    gone = "the norm leaves out {}: its final weights are damaged or gone".format
    left_out = [gone("softmax-rope seed 1"), gone("elu+1-none seed 0")]
    assert NORMS.measure(root, comparison, objective, "the norm", norm) == left_out
    assert NORMS.read(root).values.tolist() == [["softmax-rope", 0, 0.5], ["elu+1-none", 1, 1.0]]
    packed_weights(root, "elu+1-none").parent.mkdir()
    packed_weights(root, "elu+1-none").write_bytes(weights_as_bytes(model.state_dict()))
    by_packed = "the norm of elu+1-none seed 0 is by its packed weights, which are rounded to bfloat16"
    assert NORMS.measure(root, comparison, objective, "the norm", norm) == [left_out[0], by_packed]
    assert ["elu+1-none", 0, 1.0] in NORMS.read(root).values.tolist()


DRAWS = Table("draws", {"draw": int, "kind": str}, {"error": float})


def test_a_sample_has_the_draws_of_which_all_is_there(tmp_path):
    rows = [(draw, kind, value + draw) for draw in range(3) for kind, value in (("a", 1.0), ("b", 0.5))]
    DRAWS.write(tmp_path, pd.DataFrame(rows[:-1], columns=DRAWS.columns))
    difference = DRAWS.samples(planned=3)(kind="a", against=[{"kind": "b"}], value="a - b")
    found = difference(tmp_path, make_record(), None)
    assert (found.values, found.unfinished, found.unit_of_sample) == ({0: 0.5, 1: 0.5}, 1, "draws")
    (tmp_path / "draws.csv").write_text("draw,kind,error\n0,a,1\n0,a,2\n")
    with pytest.raises(ValueError, match=r"draws\.csv.*has two rows of the same draw, kind"):
        difference(tmp_path, make_record(), None)
    (tmp_path / "draws.csv").unlink()
    assert difference(tmp_path, make_record(), None) is None


def test_a_sample_by_seed_lacks_what_is_not_measured(make_comparison, tmp_path):
    root = make_comparison(
        tmp_path / "made-up", "softmax-rope,elu+1-none", 3, fates={("elu+1-none", 2): ("failed", "why")}
    )
    comparison = read_comparison(root)
    rows = [("softmax-rope", 0, 2.0), ("softmax-rope", 1, 2.0), ("elu+1-none", 0, 0.5)]
    NORMS.write(root, pd.DataFrame(rows, columns=NORMS.columns))
    sample = NORMS.samples("seed")(variant="softmax-rope", other="elu+1-none")
    found = sample(root, comparison, Runs(root, comparison, read_curves(root, comparison)))
    assert found.values == {0: 1.5}
    assert (found.planned, found.lost) == (3, ("seed 2: elu+1-none failed: why",))
