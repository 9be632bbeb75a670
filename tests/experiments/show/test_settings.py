import pytest

from experiments.show.rows import setting_label
from tests.made_up import make_record

PLAIN, REDRAWN = "favor+-none", "favor+-none@redraw_every=100"
COMPARISON = make_record(
    config={"redraw_every": 0, "dim": 128, "learning_rate": 0.002},
    # Of these, the learning rate was found by tuning.
    variants=[{"name": PLAIN, "settings": {"learning_rate": 0.004}}, REDRAWN],
)


def record_of(name):
    return make_record(variants=[name]).variants[0]


def test_a_variant_without_random_features_is_labelled_by_those_it_has():
    names = ["favor+-none@num_features=32", "favor+-none", "elu+1-none", "elu+1+paired-none"]
    comparison = make_record(config={"num_features": 64}, variants=names)
    labels = [setting_label(variant, comparison) for variant in comparison.variants]
    assert labels == ["M = 32", "M = 64", "M = D", "M = 2·D"]


@pytest.mark.parametrize(("name", "said"), [(PLAIN, "never redrawn"), (REDRAWN, "redrawn every 100 steps")])
def test_a_variant_is_labelled_by_what_varies_and_nothing_else(name, said):
    assert setting_label(record_of(name), COMPARISON) == said
