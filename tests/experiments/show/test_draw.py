"""What is drawn of made-up comparisons: runs that failed, floors, names, and what must not be pooled."""

import itertools

import numpy as np
import pytest
from matplotlib.text import Annotation

from experiments.figures.style import style
from experiments.show.draw import draw
from experiments.show.keys import Figure, Quantity
from experiments.studies.registry import STUDIES
from tests.experiments.show.rows import rows_of

WORDS = {"title": "a title", "caption": "a caption"}
CURVES = {"stem": "validation", "quantity": "validation", "x": "step", "panel": "kernel", "y_from": 0.25} | WORDS
QUANTITIES = {
    "loss": Quantity(label="test loss", where={"metric": "test_{metric}"}),
    "gain": Quantity(label="gain", where={"metric": "test_{metric}_minus_baseline"}),
    "validation": Quantity(label="{quantity}", source="runs", where={"split": "validation", "metric": "bits_per_byte"}),
}
VARIANTS = "softmax-none,softmax-rope,elu+1-none,elu+1-rope-after,elu+1-rope-after@decay=fixed"
FATES = {("softmax-rope", 1): ("failed", "why"), **{("elu+1-none", s): ("failed", "why") for s in range(3)}}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory, make_comparison):
    floors = [{"name": "5-gram", "metric": "bits_per_byte", "value": 3.0, "split": "validation", "steps": 100}]
    root = tmp_path_factory.mktemp("made") / "up"
    return rows_of(make_comparison(root, VARIANTS, fates=FATES, floors=floors), STUDIES["convergence"])


def picture(rows, **keys):
    with style():
        return draw(Figure(**keys), QUANTITIES, rows)


def named(axes):
    return [text.get_text() for text in axes.texts if isinstance(text, Annotation)]


def test_a_run_that_failed_is_a_thin_line_with_a_cross_and_its_variant_says_how_many(made_up):
    softmax, linear = picture(made_up, **CURVES).axes
    assert named(softmax) == ["rope\n(1 of 3 failed)", "none", "5-gram"] or "rope\n(1 of 3 failed)" in named(softmax)
    assert "none\n(3 of 3 failed)" in named(linear)
    for axes, number in ((softmax, 1), (linear, 3)):
        crosses = [line for line in axes.lines if line.get_marker() == "X"]
        assert [list(line.get_xdata()) for line in crosses] == [[40]] * number
        assert all(axes.get_ylim()[0] <= line.get_ydata()[0] <= axes.get_ylim()[1] for line in crosses)


def test_the_mean_is_that_of_the_finished_seeds(made_up):
    softmax = picture(made_up, **CURVES).axes[0]
    (mean,) = [line for line in softmax.lines if line.get_label().startswith("rope")]
    runs = [line for line in softmax.lines if line.get_linewidth() == 0.6 and line.get_color() == mean.get_color()]
    whole = [line.get_ydata() for line in runs if len(line.get_xdata()) == 6]
    assert len(whole) == 2
    np.testing.assert_allclose(mean.get_ydata(), np.mean(whole, axis=0))


def test_rows_of_dots_say_what_failed_and_what_is_the_baseline(made_up):
    figure = picture(made_up, stem="final", kind="dots", quantity=["loss", "gain"], group="kernel", **WORDS)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert "softmax-rope\n(1 of 3 failed)" in names
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finished seed"]
    assert len(names) == 5


def test_a_floor_is_a_line_with_its_name_in_every_panel(made_up):
    for axes in picture(made_up, **CURVES).axes:
        assert "5-gram" in named(axes)
        assert 3.0 in [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
        assert axes.get_ylim()[0] < 3.0 < axes.get_ylim()[1]


def test_a_line_that_would_pool_variants_is_an_error(made_up):
    with pytest.raises(ValueError, match="has several variants; another panel or line parts them"):
        picture(made_up, **CURVES | {"line": "position"})


@pytest.mark.parametrize(
    "keys",
    [CURVES, CURVES | {"panel": "base", "line": "setting", "names": "legend"}, {"kind": "dots", "quantity": "loss"}],
)
def test_no_text_overlaps_another_or_leaves_the_figure(made_up, keys, monkeypatch):
    figure = picture(made_up, **{"stem": "a"} | WORDS | keys)
    figure.set_dpi(150)
    figure.draw_without_rendering()
    every = [*figure.texts, *(t for axes in figure.axes for t in (*axes.texts, axes.title, axes.xaxis.label))]
    boxes = [(t.get_text(), t.get_window_extent()) for t in every if t.get_text()]
    assert len(boxes) > 1
    for (first, box), (second, other) in itertools.combinations(boxes, 2):
        apart = box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 + 1 or other.y1 <= box.y0 + 1
        assert apart, f"{first!r} overlaps {second!r}"
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.x1 + 1, text
