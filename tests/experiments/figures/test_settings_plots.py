import pytest

from experiments.figures.settings import base_name, named_settings, panels_of, setting_label

PLAIN, REDRAWN, BOTH = "favor+-none", "favor+-none@redraw_every=100", "elu+1-none@dim=64@learning_rate=0.1"
COMPARISON = {
    "config": {"redraw_every": 0, "dim": 128, "learning_rate": 0.002},
    # Of these, the learning rate was found by tuning.
    "variants": [{"name": PLAIN, "settings": {"learning_rate": 0.004}}, {"name": REDRAWN}],
}


def test_a_name_is_taken_apart():
    assert base_name({"name": BOTH}) == "elu+1-none"
    assert named_settings({"name": BOTH}) == {"dim": "64", "learning_rate": "0.1"}
    assert named_settings({"name": PLAIN}) == {}


def test_variants_that_differ_in_settings_share_a_panel():
    groups = panels_of({"variants": [{"name": name} for name in (PLAIN, BOTH, REDRAWN)]})
    assert {name: [variant.name for variant in variants] for name, variants in groups.items()} == {
        "favor+-none": [PLAIN, REDRAWN],
        "elu+1-none": [BOTH],
    }


def test_a_variant_without_random_features_is_labelled_by_those_it_has():
    variants = [
        {"name": name} for name in ("favor+-none@num_features=32", "favor+-none", "elu+1-none", "elu+1+paired-none")
    ]
    comparison = {"config": {"num_features": 64}, "variants": variants}
    assert [setting_label(variant, comparison) for variant in variants] == ["M = 32", "M = 64", "M = D", "M = 2·D"]


@pytest.mark.parametrize(("name", "said"), [(PLAIN, "never redrawn"), (REDRAWN, "redrawn every 100 steps")])
def test_a_variant_is_labelled_by_what_varies_and_nothing_else(name, said):
    assert setting_label({"name": name}, COMPARISON) == said
