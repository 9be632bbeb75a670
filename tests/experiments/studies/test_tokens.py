"""The study of budgets: verdicts at each budget, what ten times as much training gives, and its answer."""

from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from experiments.studies.tokens.budgets import best_floors, table
from tests.experiments.show.rows import picture_of

TOKENS = STUDIES["tokens"]


def test_the_table_counts_seeds_that_finished_alone(make_comparison, tmp_path):
    failed = {("softmax-rope", seed): ("failed", "why") for seed in (1, 2)}
    shown = read_rows(make_comparison(tmp_path, "softmax-rope", budgets="40", fates=failed), TOKENS)
    (row,) = table(shown).to_dict("records")
    assert (row["n"], "[" in row["2,560"]) == ("1", False)


def test_the_best_floor_of_each_budget_is_drawn(make_comparison, tmp_path):
    floors = [
        {"name": name, "metric": "bits_per_byte", "value": value, "split": "test", "steps": steps}
        for name, value, steps in (("5-gram", 3.0, 40), ("bigram", 3.5, 40), ("5-gram", 2.5, 100))
    ]
    root = make_comparison(tmp_path, "softmax-rope", budgets="40", floors=floors)
    assert best_floors(root).to_numpy().tolist() == [[64 * 40, 3.0], [64 * 100, 2.5]]
    (axes,) = picture_of(read_rows(root, TOKENS), "by-budget").axes
    assert [3.0, 2.5] in [list(line.get_ydata()) for line in axes.lines]
