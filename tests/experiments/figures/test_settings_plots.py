import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.figures import style
from experiments.figures.settings import by_base, curves_by_setting, setting_label
from experiments.judge.curves import read_curves
from experiments.judge.statistics import summarise
from experiments.records.record import read_comparison
from tests.made_up import make_record

PLAIN, REDRAWN, OTHER = "favor+-none", "favor+-none@redraw_every=100", "elu+1-none@dim=64"
COMPARISON = make_record(
    config={"redraw_every": 0, "dim": 128, "learning_rate": 0.002},
    # Of these, the learning rate was found by tuning.
    variants=[{"name": PLAIN, "settings": {"learning_rate": 0.004}}, REDRAWN],
)


def record_of(name):
    return make_record(variants=[name]).variants[0]


def test_variants_that_differ_in_settings_share_a_panel():
    groups = by_base(make_record(variants=[PLAIN, OTHER, REDRAWN]))
    assert {name: [variant.name for variant in variants] for name, variants in groups.items()} == {
        "favor+-none": [PLAIN, REDRAWN],
        "elu+1-none": [OTHER],
    }


def test_a_variant_without_random_features_is_labelled_by_those_it_has():
    names = ["favor+-none@num_features=32", "favor+-none", "elu+1-none", "elu+1+paired-none"]
    comparison = make_record(config={"num_features": 64}, variants=names)
    labels = [setting_label(variant, comparison) for variant in comparison.variants]
    assert labels == ["M = 32", "M = 64", "M = D", "M = 2·D"]


@pytest.mark.parametrize(("name", "said"), [(PLAIN, "never redrawn"), (REDRAWN, "redrawn every 100 steps")])
def test_a_variant_is_labelled_by_what_varies_and_nothing_else(name, said):
    assert setting_label(record_of(name), COMPARISON) == said


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(2.0, True), (90.0, False)],  # beside the curves, and so far from them that they would be flat
)
def test_curves_have_the_floor_in_each_panel_beside_the_legend_or_in_words(make_comparison, tmp_path, value, drawn):
    floors = [{"name": "5-gram", "metric": "bits_per_byte", "value": value, "split": "validation"}]
    root = make_comparison(tmp_path, f"{PLAIN},{REDRAWN},elu+1-none", 2, floors=floors)
    comparison = read_comparison(root)
    curves = read_curves(root, comparison)
    what = {"metric": "bits_per_byte", "quantity": "bits per byte", "start": 0.25}
    with style.style():
        figure = curves_by_setting(curves, summarise(root, comparison, curves), comparison, **what)
        FigureCanvasAgg(figure).draw()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["5-gram"] * drawn
        assert (value in [line.get_ydata()[0] for line in axes.get_lines()]) == drawn
        low, high = axes.get_ylim()
        assert (low < value < high) == drawn
    assert any("Beyond the vertical axis: 5-gram, 90.00" in text.get_text() for text in figure.texts) != drawn
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    assert legends
    for text in (text for axes in figure.axes for text in axes.texts):
        place = text.get_window_extent()
        assert not any(place.overlaps(legend.get_window_extent()) for legend in legends)
        assert not any(place.overlaps(other.get_window_extent()) for other in figure.axes)
        assert place.x1 <= figure.bbox.x1
