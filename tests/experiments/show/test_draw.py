"""What is drawn of made-up comparisons: runs that failed, floors, names, and what must not be pooled."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Annotation, Text
from msgspec.structs import replace

from experiments.show.draw import draw
from experiments.show.keys import Figure, Pair, Quantity
from experiments.show.rows import read_rows, summary
from experiments.show.style import style, variant_style
from experiments.studies.registry import STUDIES
from tests.experiments.show.rows import picture_of

WORDS = {"title": "a title", "caption": "a caption"}
CURVES = {"stem": "validation", "quantity": "validation", "x": "step", "panel": "kernel", "y_from": 0.25} | WORDS
QUANTITIES = {
    "loss": Quantity(label="test loss", where={"metric": "test_{metric}"}),
    "gain": Quantity(label="gain", where={"metric": "test_{metric}_minus_baseline"}),
    "validation": Quantity(label="{quantity}", source="runs", where={"split": "validation", "metric": "bits_per_byte"}),
}
VARIANTS = "softmax-none,softmax-rope,elu+1-none,elu+1-rope-after,elu+1-rope-after@decay=fixed"
FATES = {("softmax-rope", 0): ("failed", "why"), **{("elu+1-none", s): ("failed", "why") for s in range(3)}}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory, make_comparison):
    floors = [{"name": "5-gram", "metric": "bits_per_byte", "value": 3.0, "split": "validation", "steps": 100}]
    root = tmp_path_factory.mktemp("made") / "up"
    return read_rows(make_comparison(root, VARIANTS, fates=FATES, floors=floors), STUDIES["convergence"])


def picture(rows, **keys):
    with style():
        return draw(Figure(**keys), QUANTITIES, rows)


def named(axes):
    return [text.get_text() for text in axes.texts if isinstance(text, Annotation)]


def test_a_run_that_failed_is_a_thin_line_with_a_cross_and_its_variant_says_how_many(made_up):
    softmax, linear = picture(made_up, **CURVES).axes
    assert sorted(named(softmax)) == ["5-gram", "none", "rope\n(1 of 3 failed)"]
    assert "none\n(3 of 3 failed)" in named(linear)
    for axes, number in ((softmax, 1), (linear, 3)):
        crosses = [line for line in axes.lines if line.get_marker() == "X"]
        assert [list(line.get_xdata()) for line in crosses] == [[40]] * number
        assert all(axes.get_ylim()[0] <= line.get_ydata()[0] <= axes.get_ylim()[1] for line in crosses)


def test_the_mean_is_that_of_the_finished_seeds(made_up):
    figure = picture(made_up, **CURVES, baseline="softmax-rope")
    softmax, linear = figure.axes
    (mean,) = [line for line in softmax.lines if line.get_label().startswith("rope")]
    runs = [line for line in softmax.lines if line.get_linewidth() == 0.6 and line.get_color() == mean.get_color()]
    whole = [line.get_ydata() for line in runs if len(line.get_xdata()) == 6]
    assert len(whole) == 2
    np.testing.assert_allclose(mean.get_ydata(), np.mean(whole, axis=0))
    (again,) = [line for line in linear.lines if line.get_label() == "softmax-rope"]
    assert list(again.get_ydata()) == list(mean.get_ydata())
    assert "The vertical axis is cut at" in figure.get_suptitle()


def test_gains_are_of_the_seeds_that_the_baseline_finished_too(make_comparison, tmp_path):
    variants, fates = "elu+1-none,elu+1-rope-after", {("elu+1-none", 1): ("failed", "why")}
    root = make_comparison(tmp_path, variants, loss=lambda name, seed, _: 3 + seed**2 * ("rope" in name), fates=fates)
    (axes,) = picture_of(read_rows(root, STUDIES["convergence"]), "validation-gain").axes
    (mean,) = [line for line in axes.lines if line.get_label().startswith("rope")]
    assert list(mean.get_ydata()) == [(0 + 4) / 2] * 6


def test_rows_of_dots_say_what_failed_once_where_most_lack_it_and_what_is_the_baseline(made_up, monkeypatch):
    figure = picture(made_up, stem="final", kind="dots", quantity=["loss", "gain"], group="kernel", **WORDS)
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert [len(names), names.count("softmax-rope\n(1 of 3 failed)")] == [5, 1]
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finished seed"]
    lost = dict.fromkeys(made_up.variants, "2 of 3 unfinished") | {"softmax-rope": "1 of 3 failed"}
    monkeypatch.setattr(made_up, "failures", lost)
    figure = picture(made_up, stem="final", kind="dots", quantity=["loss", "gain"], group="kernel", **WORDS)
    marked = [name for text in figure.axes[0].get_yticklabels() if "(" in (name := text.get_text())]
    assert [figure.get_suptitle().count("nothing else is said: 2 of"), *marked] == [1, "softmax-rope\n(1 of 3 failed)"]


def test_rows_of_differences_leave_out_what_is_subtracted_and_say_who_was_submitted(made_up, monkeypatch):
    name = "elu+1-rope-after"
    monkeypatch.setitem(made_up.variants, name, replace(made_up.variants[name], submitted="mine.zip"))
    behind = Quantity(label="behind", where={"metric": "test_{metric}"}, minus="softmax-none")
    with style():
        (axes,) = draw(Figure(stem="behind", kind="dots", quantity="behind", **WORDS), {"behind": behind}, made_up).axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    failed = ["softmax-rope\n(1 of 3 failed)", "elu+1-none\n(3 of 3 failed)"]
    assert names == [*failed, f"{name}\n(submitted)", f"{name}, fixed decay"]


def test_a_difference_of_two_variants_looks_as_the_first_of_them_does(made_up):
    names = "softmax-none", "elu+1-rope-after"
    differences = [Pair(name=name, a=name, b="elu+1-rope-after@decay=fixed") for name in names]
    keys = {"stem": "changes", "kind": "dots", "quantity": "change", "line": "pair"} | WORDS
    change = Quantity(label="change", where={"metric": "test_{metric}"}, pairs=differences)
    with style():
        (axes,) = draw(Figure(**keys), {"change": change}, made_up).axes
    looks = [variant_style(made_up.variants[name]) for name in names]
    drawn = [(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() in "ov"]
    assert drawn == [(look["color"], look["marker"]) for look in looks]


def floor(name, value, **other):
    return {"name": name, "metric": "bits_per_byte", "value": value, "split": "validation", "steps": 100} | other


@pytest.mark.parametrize(
    ("names", "floors", "drawn"),
    [
        ("ends", [floor("trigram", 3.2), floor("5-gram", 2.5), floor("xz", 1.9, equal=False)], ["5-gram", "trigram"]),
        ("legend", [floor("trigram", 2.52), floor("5-gram", 2.5)], ["5-gram"]),  # it would be written over the other
        ("ends", [floor("unigram", 3.9), floor("5-gram", -30)], ["unigram"]),  # the next one, where the best is far
        ("ends", [floor("5-gram", 2.5, split="test"), floor("bigram", 2.5, steps=20)], []),
    ],
)
def test_floors_of_the_split_are_lines_with_their_names(make_comparison, tmp_path, names, floors, drawn):
    root = make_comparison(tmp_path, "elu+1-none,softmax-none", 2, floors=floors)
    figure = picture(read_rows(root, STUDIES["convergence"]), **CURVES, names=names)
    assert ("Beyond the vertical axis: 5-gram, -30.00." in figure.get_suptitle()) == (drawn == ["unigram"])
    for axes in figure.axes:
        assert [name for name in named(axes) if name != "none"] == drawn
        level = {line.get_ydata()[0] for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]}
        assert level == {each["value"] for each in floors if each["name"] in drawn}
        assert all(axes.get_ylim()[0] < value < axes.get_ylim()[1] for value in level)


def test_equal_values_have_an_axis_with_room(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "elu+1-none", 1, loss=lambda *run: 1e100)
    low, high = picture(read_rows(root, STUDIES["convergence"]), **CURVES).axes[0].get_ylim()
    assert low < 1e100 < high
    row = summary(pd.DataFrame({"a": 0, "value": [0.1] * 3}), ["a"], Quantity(spread="range")).iloc[0]
    assert row["low"] == 0.1 < row["mean"] <= row["high"]  # rounded; matplotlib refuses bars of negative length


def test_a_band_is_an_interval_and_names_have_the_last_values(made_up):
    chosen = {"only": f"{__name__}:two", "spread": "band", "names": "values", "panel": ""}
    (axes,) = picture(made_up, **CURVES | chosen).axes
    means = {line.get_label(): line.get_ydata()[-1] for line in axes.lines if not line.get_label().startswith("_")}
    assert [text.split("  ") for text in means] == [
        [name, f"{means[text]:.3f}"] for name, text in zip(two(made_up), means, strict=True)
    ]
    assert {*means} <= {*named(axes)}
    assert len(axes.collections) == 2  # the bands


def two(rows):
    return ["softmax-none", "elu+1-rope-after"]


def test_beside_dots_stands_how_many_reached_it_and_an_arrow_if_one_did_not(made_up, make_comparison, tmp_path):
    root = make_comparison(
        tmp_path, "elu+1-none,elu+1-rope-after", loss=lambda name, seed, step: 3 + (seed > 0) * (name != "elu+1-none")
    )
    (axes,) = picture_of(read_rows(root, made_up.study), "steps-to-baseline").axes
    assert [text.get_text() for text in axes.texts] == ["seeds that\nreached it", "3 of 3", "1 of 3"]
    (arrow,) = [line for line in axes.lines if line.get_marker() == ">"]
    assert list(arrow.get_xdata()) == [100]


def test_intervals_are_drawn_from_three_seeds_on_only(made_up, make_comparison, tmp_path):
    one = read_rows(make_comparison(tmp_path, "elu+1-none,elu+1-rope-after", 1), made_up.study)
    for rows, number in ((made_up, 3), (one, 0)):  # all but the one with two finished seeds and the one with none
        figure = picture_of(rows, "final")
        assert sum(isinstance(each, ErrorbarContainer) for each in figure.axes[0].containers) == number
    assert "One seed: no mean, no interval." in picture_of(one, "validation").get_suptitle()
    two = read_rows(make_comparison(tmp_path / "two", "elu+1-none", 2), made_up.study)
    figure = picture(two, **CURVES | {"spread": "interval"})
    assert "three seeds there is none." in figure.get_suptitle()
    assert not any(len(bar) for bars in figure.axes[0].collections for bar in bars.get_segments())


def test_only_marks_of_one_place_stand_side_by_side():
    pytest.importorskip("pyarrow")
    root = Path(__file__).parents[3] / "results/reference/hybrids"
    (axes,) = picture_of(read_rows(root, STUDIES["hybrids"]), "loss-by-state").axes
    places = {line.get_label(): float(line.get_xdata()[0]) for line in axes.lines}
    assert places["hybrid-1to3"] == pytest.approx(200_832)
    assert places["softmax-rope"] < 262_144 < places["softmax-none"]


def test_a_line_that_would_pool_variants_is_an_error(made_up):
    with pytest.raises(ValueError, match="has several variants; another panel or line parts them"):
        picture(made_up, **CURVES | {"line": "position"})


TWELVE = (
    "softmax-none,softmax-learned,softmax-rope,favor+-none,favor+-learned,favor+-rope-before,favor+-rope-after,"
    "elu+1-none,elu+1-learned,elu+1-rope-before,elu+1-rope-after,performer-pytorch"
)
FAILED = {("favor+-rope-before", 1): ("failed", "why"), **{("elu+1-learned", s): ("failed", "why") for s in range(3)}}
STEMS = "validation final steps-to-baseline overview".split()
CASES = {
    "twelve": (TWELVE, 3, FAILED),
    "long names": (
        "softmax-rope@decay=gate@local_conv=4,elu+1-rope-after,elu+1-rope-after@decay=gate@local_conv=4",
        3,
        {},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory, make_comparison):
    variants, seeds, fates = CASES[request.param]
    root = make_comparison(tmp_path_factory.mktemp("case") / "made-up", variants, seeds, fates=fates)
    return read_rows(root, STUDIES["convergence"])


@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_no_text_overlaps_another_or_leaves_the_figure(case, stem, monkeypatch):
    figure = picture_of(case, stem)
    if figure is None:
        assert stem == "overview"
        assert len(case.variants) == 12
        return
    texts = drawn_texts(figure, monkeypatch)
    assert len(texts) > 4
    for (first, box), (second, other) in itertools.combinations(texts, 2):
        apart = box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 + 1 or other.y1 <= box.y0 + 1
        assert apart, f"{first!r} overlaps {second!r}"
    for text, box in texts:
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.x1 + 1, text


def drawn_texts(figure, monkeypatch):
    """(text, its box in pixels) of everything that is written when a figure is drawn."""
    drawn = {}
    draw_text = Text.draw

    def record(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            drawn[id(text)] = (text.get_text(), text.get_window_extent(renderer))
        draw_text(text, renderer, *arguments, **options)

    monkeypatch.setattr(Text, "draw", record)
    figure.set_dpi(150)
    figure.draw_without_rendering()
    return list(drawn.values())
