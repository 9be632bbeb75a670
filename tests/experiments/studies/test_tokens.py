"""The study of budgets: verdicts at each budget, what ten times as much training gives, and its answer."""

import re

import pytest

from experiments.cli import main
from experiments.figures.style import style
from experiments.judge.statistics import summarise
from experiments.report.answer import Findings
from experiments.studies.registry import STUDIES
from experiments.studies.tokens.answer import answer
from experiments.studies.tokens.budgets import losses, table
from experiments.studies.tokens.figures import by_budget_figure, differences, differences_figure

from .conftest import judged, opened, verdicts

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
def test_the_answer_gives_the_difference_at_both_ends(made_up):
    root, comparison, curves = made_up()
    rows = judged(TOKENS, root, comparison, curves)
    said = answer(Findings(comparison, summarise(root, comparison, curves), rows, root))
    assert "After 1 million bytes of training" in said
    assert "0.100 bits per byte below softmax attention" in said
    assert "after 10 million it is 0.050 bits per byte above." in said
    assert main(["report", str(root)]) == 0
    assert "| schedule | constant, to zero at each budget |" in (root / "report.md").read_text(encoding="utf-8")


def test_the_answer_says_where_it_is_not_sure(made_up):
    root, comparison, curves = made_up(end=0.0)
    rows = judged(TOKENS, root, comparison, curves)
    said = answer(Findings(comparison, summarise(root, comparison, curves), rows, root))
    assert re.search(r"after 10 million it is 0.000 bits per byte (above|below) \(not beyond doubt\)\.", said)


def test_the_table_says_what_ten_times_as_much_training_gives(made_up):
    _, comparison, curves = made_up()
    shown = table(losses(comparison, curves), comparison).set_index("variant")
    assert list(shown.columns) == ["n", "1 million", "3 million", "10 million", "ten times as much"]
    # 2.5 · (tokens / 10 million) ** -0.1, and the noise of three seeds.
    assert shown.loc[SOFTMAX, "10 million"].startswith("2.500 [")
    assert shown.loc[SOFTMAX, "ten times as much"].startswith("0.794 [0.79")


def test_a_line_for_each_variant_and_each_difference(made_up):
    _, comparison, curves = made_up()
    found = losses(comparison, curves)
    with style():
        by_budget, apart = by_budget_figure(found, comparison), differences_figure(differences(found), comparison)
    labels = [text for axes in by_budget.axes for text in axes.get_legend_handles_labels()[1]]
    assert len([text for text in labels if text != SOFTMAX]) == len(TOKENS.variants)
    assert len(apart.axes[0].get_legend_handles_labels()[1]) == 4
