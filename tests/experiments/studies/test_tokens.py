"""The study of budgets: verdicts at each budget, what ten times as much training gives, and its answer."""

import re

import pytest

from experiments.cli import main
from experiments.studies.registry import STUDIES
from experiments.studies.tokens.budgets import best_floors
from tests.experiments.show.rows import picture_of

from .conftest import drawn, headline_of, judged, opened, rows_of, verdicts

TOKENS = STUDIES["tokens"]
NOISE = (0.0, 0.001, -0.001)
STEPS = 156_250  # of 64 tokens: ten million
BEST, SOFTMAX = "elu+1-rope-after@decay=fixed", "softmax-rope"


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """A comparison in which BEST begins 0.1 below softmax attention and ends so much above; or of its last budget."""

    def make(end=0.05, budgets="15625,46875"):
        def loss(name, seed, step):
            common = 2.5 * (step / STEPS) ** -0.1 if step else 8.0
            apart = (end if step == STEPS else -0.1) if name == BEST else 0.2 * (name == "elu+1-rope-after")
            return common - 0.5 + apart + NOISE[seed] * (1 + len(name) % 3)

        others = {"steps": STEPS, "every": 15_625, "budgets": budgets}
        return opened(make_comparison(tmp_path / "made-up", ",".join(TOKENS.variants), 3, loss=loss, **others))

    return make


def test_every_budget_has_its_verdict(made_up):
    found = verdicts(TOKENS, *made_up())
    of_best = {key: verdict for key, verdict in found.items() if key.startswith("below-softmax")}
    assert of_best == {
        "below-softmax-1": "supported",
        "below-softmax-3": "supported",
        "below-softmax-10": "not supported",
    }
    assert found["softmax-gains-on-decay"] == found["plain-above-softmax-10"] == "supported"
    assert found["softmax-gains-alike"] == "not supported"
    assert found["alike-3"] == "supported"


def test_a_budget_that_was_not_trained_is_no_part_of_it(made_up):
    found = judged(TOKENS, *made_up(budgets="none"))
    assert found["below-softmax-10"].verdict == "not supported"
    assert not found["below-softmax-1"].was_asked
    assert not found["softmax-gains-on-decay"].was_asked


@pytest.mark.slow
def test_the_headline_gives_the_difference_at_each_budget(made_up):
    root, *opened = made_up()
    said = headline_of(TOKENS, root, *opened)
    assert re.search(r"has a test loss of -0.100 \[.*?\] \(elu\+1 lower\) after 1 million bytes of training", said)
    assert re.search(r"After 10 million it is \+0.050 \[.*?\] \(elu\+1 higher\)\.", said)
    assert main(["report", str(root)]) == 0
    assert "| schedule | constant, to zero at each budget |" in (root / "report.md").read_text(encoding="utf-8")


def test_the_headline_says_where_it_is_not_sure(made_up):
    said = headline_of(TOKENS, *made_up(end=0.0))
    assert re.search(r"After 10 million it is [+-]0.000 \[.*\] \((undecided|no difference beyond 0.010)\)\.", said)


def test_figures_and_the_table_by_budget(made_up, tmp_path):
    root, comparison, curves = made_up()
    entries, stems = drawn(TOKENS, tmp_path / "output", root, comparison, curves)
    assert stems >= {"by-budget", "differences", "validation", "final", "throughput"}
    shown = entries[-1].table.set_index("variant")
    assert list(shown.columns) == ["n", "1 million", "3 million", "10 million", "ten times as much"]
    # 2.5 · (tokens / 10 million) ** -0.1, and the noise of three seeds.
    assert shown.loc[SOFTMAX, "10 million"].startswith("2.500 [")
    assert shown.loc[SOFTMAX, "ten times as much"].startswith("0.794 [0.79")


def test_a_line_for_each_variant_and_each_difference(made_up):
    rows = rows_of(TOKENS, *made_up())
    by_budget, apart = (picture_of(rows, stem) for stem in ("by-budget", "differences"))
    assert sum(len(axes.get_legend_handles_labels()[1]) for axes in by_budget.axes) == len(TOKENS.variants) + 3
    assert {*by_budget.axes[0].get_xticks()} == {1e6, 3e6, 1e7}
    assert len(apart.axes[0].get_legend_handles_labels()[1]) == 4


def test_the_best_floor_of_each_budget_is_drawn(make_comparison, tmp_path):
    floors = [
        {"name": name, "metric": "bits_per_byte", "value": value, "split": "test", "steps": steps}
        for name, value, steps in (("5-gram", 3.0, 40), ("bigram", 3.5, 40), ("5-gram", 2.5, 100))
    ]
    root = make_comparison(tmp_path, "softmax-rope", budgets="40", floors=floors)
    assert best_floors(root).to_numpy().tolist() == [[64 * 40, 3.0], [64 * 100, 2.5]]
    (axes,) = picture_of(rows_of(TOKENS, *opened(root)), "by-budget").axes
    assert [3.0, 2.5] in [list(line.get_ydata()) for line in axes.lines]
