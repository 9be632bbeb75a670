"""The positions study: the time of a step, longer windows, verdicts, the figure and the answer from made-up files."""

import pandas as pd
import pytest

from experiments.config import Config
from experiments.studies.length.measure import AS_TRAINED, LOSSES
from experiments.studies.positions import measure as positions
from experiments.studies.positions.rows import costs, rises
from experiments.studies.registry import STUDIES
from experiments.train.models import build_model
from experiments.variants import get_variant
from tests.made_up import make_record

from .conftest import drawn, headline_of, opened, verdicts, write

POSITIONS = STUDIES["positions"]
NOISE = (0.0, 0.001, -0.001)
LOSS = {"softmax-rope": 3.0, "softmax-t5": 2.9}
SLOWER = {"softmax-rope": 1.1, "softmax-deberta": 1.6}
RISE = {"softmax-rope": 0.4, "softmax-alibi": -0.05}
WITH_TABLES = ("softmax-learned", "softmax-tupe", "elu+1-learned")
STRETCHED = {"position interpolation": 0.6, "NTK-aware": 0.2, "YaRN": 0.1}
"""what RoPE adds to the loss at four times the length, where it adds 0.4 as trained"""


@pytest.fixture
def made_up(make_comparison, tmp_path):
    names = POSITIONS.variants
    root = make_comparison(
        tmp_path / "made-up",
        ",".join(names),
        3,
        loss=lambda name, seed, step: LOSS.get(name, 3.2) + NOISE[seed] * (name in LOSS),
    )
    context = opened(root)[1].config["context"]
    lengths = [
        (name, seed, AS_TRAINED, factor * context, first, last, 3 + (factor == 4) * (RISE.get(name, 0.1) + NOISE[seed]))
        for name in names
        for seed in range(3)
        for factor in ((1,) if name in WITH_TABLES else (1, 4))
        for first, last in positions_of(factor * context)
    ]
    lengths += [
        (name, seed, method, 4 * context, first, last, 3 + added + NOISE[seed])
        for name in ("softmax-rope", "elu+1-rope-after")
        for method, added in STRETCHED.items()
        for seed in range(3)
        for first, last in positions_of(4 * context)
    ]
    write(LOSSES, root, lengths)
    rounds = range(positions.ROUNDS)
    write(positions.COST, root, [(name, n, SLOWER.get(name, 1.0) + n % 3 / 1000) for name in names for n in rounds])
    return opened(root)


def positions_of(length):
    from experiments.train.position_loss import bins

    return bins(length)


def test_verdicts(made_up):
    found = verdicts(POSITIONS, *made_up)
    assert found["softmax-t5-or-rope"] == "not supported"
    assert found["softmax-sinusoidal-or-rope"] == found["softmax-deberta-dearer"] == "supported"
    assert found["softmax-shaw-dearer"] == found["softmax-rope-goes-on"] == "not supported"
    assert (
        found["softmax-alibi-goes-on"] == found["softmax-rope-YaRN"] == found["softmax-rope-NTK-aware"] == "supported"
    )
    assert found["softmax-rope-position interpolation"] == "not supported"


def test_costs_and_rises_are_against_the_right_ones(made_up):
    added = costs(made_up[0]).groupby("variant")["value"].median()
    assert added["softmax-deberta"] == pytest.approx(0.6, abs=2e-3)
    assert "softmax-none" not in added.index
    change = rises(made_up[0]).groupby("variant")["value"].mean()
    assert change["softmax-rope"] == pytest.approx(0.4)
    assert not {*WITH_TABLES} & {*change.index}


def test_the_figure_the_table_and_the_headline(made_up, tmp_path):
    entries, stems = drawn(POSITIONS, tmp_path / "output", *made_up)
    assert stems == {"three-questions"}
    stretched = entries[-1].table.set_index(["variant", "evaluated"])
    assert {*stretched.index} == {
        (name, method) for name in ("softmax-rope", "elu+1-rope-after") for method in (AS_TRAINED, *STRETCHED)
    }
    assert stretched.loc[("softmax-rope", "YaRN")].tolist() == ["3", "-", "3.100"]
    table = entries[-2].table.set_index("variant")
    assert table.loc["softmax-deberta", "added to a training step"].startswith("+60%")
    assert table.loc["softmax-tupe"].tolist()[-1] == "-"
    said = headline_of(POSITIONS, *made_up)
    assert said.startswith("Lowest ends softmax attention with T5's buckets, 3.4")
    assert "RoPE is clearly below 11 of 12 others." in said
    assert "The lowest of linear attention is" in said
    assert said.endswith("the loss falls for softmax attention with ALiBi.")


def test_a_step_of_every_variant_is_timed_in_every_round(next_byte, monkeypatch, tmp_path):
    config = Config(layers=1, dim=16, heads=2, context=16, batch_size=2)
    monkeypatch.setattr(positions, "SECONDS", 1e-4)
    names = ["softmax-none", "softmax-t5", "elu+1-alibi"]
    record = make_record(config=vars(config), variants=names)
    assert positions.measure_cost(tmp_path, record, next_byte(config)) == []
    found = pd.read_csv(tmp_path / "cost.csv")
    assert found.groupby("variant").size().to_dict() == dict.fromkeys(names, positions.ROUNDS)
    assert (found["seconds"] > 0).all()
    before = (tmp_path / "cost.csv").read_bytes()
    assert positions.measure_cost(tmp_path, record, next_byte(config)) == []
    assert (tmp_path / "cost.csv").read_bytes() == before, "what a quiet machine measured stays"


@pytest.mark.parametrize("name", ["softmax-rope", "elu+1-rope-after", "softmax-t5", "elu+1-rope-after@decay=retnet"])
def test_the_longest_windows_are_sixty_four_and_rope_is_stretched_in_them(next_byte, monkeypatch, tmp_path, name):
    config = Config(layers=1, dim=16, heads=2, context=4)
    record, objective = make_record(config=vars(config), variants=[name]), next_byte(config)
    model = build_model(get_variant(name), Config(**{**vars(config), **get_variant(name).settings}), 0, objective)
    monkeypatch.setattr("experiments.studies.tables.finished_runs", lambda root, comparison: [(name, 0)])
    monkeypatch.setattr("experiments.studies.tables.trained_models", lambda *_: [(name, 0, model.eval())])
    monkeypatch.setattr(positions, "measure_cost", lambda *_: [])
    read = dict.fromkeys((4, 8, 16), 0)

    def count(model, inputs):
        read[inputs[0].shape[1]] += inputs[0].numel()

    model.register_forward_pre_hook(count)
    assert positions.measure(tmp_path, record, objective) == []
    ways = 1 + 3 * ("rope" in name)
    assert read == {4: 2 * 64 * 16, 8: ways * 64 * 16, 16: ways * 64 * 16}
    found = LOSSES.read(tmp_path)
    assert found[found["length"] == 16]["method"].nunique() == ways
