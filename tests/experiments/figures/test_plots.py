import itertools
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from experiments.figures.curves import curve_figure, finished_seeds, gain_figure
from experiments.figures.dots import final_figure, steps_figure, throughput_figure
from experiments.figures.style import (
    label,
    legend_label,
    save_figure,
    style,
    variant_style,
)
from experiments.judge.curves import read_curves
from experiments.judge.statistics import run_values, summarise
from experiments.records.record import read_comparison
from experiments.studies.convergence.figures import convergence_figures
from experiments.studies.decay.figures import (
    EXPECTED_BOUND,
    attention_by_setting,
    attention_figure,
    bound_figure,
    layers_figure,
    mask_figure,
)
from experiments.studies.decay.measure import bound_table
from experiments.variants import VARIANTS

TWELVE = (
    "softmax-none,softmax-learned,softmax-rope,favor+-none,favor+-learned,favor+-rope-before,favor+-rope-after,"
    "elu+1-none,elu+1-learned,elu+1-rope-before,elu+1-rope-after,performer-pytorch"
)
FIGURES = "validation training gain final steps throughput bound mask attention layers settings".split()
LONG = "softmax-rope@decay=gate@local_conv=4,elu+1-rope-after,elu+1-rope-after@decay=gate@local_conv=4"
FATES = {("favor+-rope-before", 1): ("failed", "why"), **{("elu+1-learned", s): ("failed", "why") for s in range(3)}}


def tables(root):
    comparison = read_comparison(root)
    curves = read_curves(root, comparison)
    return curves, summarise(root, comparison, curves), comparison


def draw_all(root):
    """Every figure by name, without saving."""
    curves, summary, comparison = tables(root)
    finished = {(name, seed) for name, seeds in finished_seeds(summary).items() for seed in seeds}
    values = run_values(curves, comparison, finished)
    with style():
        return {
            "validation": curve_figure(curves, summary, comparison, "validation"),
            "training": curve_figure(curves, summary, comparison, "train"),
            "gain": gain_figure(curves, summary, comparison),
            "final": final_figure(values, summary, comparison),
            "steps": steps_figure(values, summary, comparison),
            "throughput": throughput_figure(values, summary, comparison),
            "bound": bound_figure(bound_table(), EXPECTED_BOUND),
            "mask": mask_figure(made_up_mask()),
            "attention": attention_figure(made_up_attention(comparison), comparison),
            "settings": attention_by_setting(made_up_attention(comparison), comparison),
            "layers": layers_figure(made_up_attention(comparison), comparison),
        }


def made_up_mask():
    rows = [(m, d, 0.5, 0.5, 0.4, 0.6) for m in (16, 64, 256) for d in (0, 1, 10, 1024)]
    return pd.DataFrame(rows, columns=["num_features", "distance", "expected", "mean", "low", "high"])


def made_up_attention(comparison):
    """Weights that fall with distance and change their sign, for two layers."""
    distance = np.arange(128)
    tables = [
        pd.DataFrame({"variant": variant.name, "seed": 0, "layer": layer, "distance": distance})
        for variant in comparison.variants
        for layer in (0, 1)
    ]
    attention = pd.concat(tables)
    attention["absolute"] = 0.1 / (1 + attention["distance"])
    attention["signed"] = attention["absolute"] * np.cos(attention["distance"])
    return attention


def drawn_texts(figure, monkeypatch):
    """(text, its box in pixels) of everything that is written when a figure is drawn."""
    drawn = {}
    draw = Text.draw

    def record(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            drawn[id(text)] = (text.get_text(), text.get_window_extent(renderer))
        draw(text, renderer, *arguments, **options)

    monkeypatch.setattr(Text, "draw", record)
    figure.draw_without_rendering()
    return list(drawn.values())


@pytest.fixture(scope="module")
def twelve_variants(tmp_path_factory, make_comparison):
    return draw_all(make_comparison(tmp_path_factory.mktemp("twelve"), TWELVE, fates=FATES))


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory, make_comparison):
    return draw_all(make_comparison(tmp_path_factory.mktemp("one"), "elu+1-none,elu+1-rope-after", 1))


@pytest.fixture(scope="module")
def long_names(tmp_path_factory, make_comparison):
    return draw_all(make_comparison(tmp_path_factory.mktemp("long"), LONG))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("case", ["twelve_variants", "one_seed", "long_names"])
def test_no_text_overlaps_another_or_leaves_the_figure(case, name, request, monkeypatch):
    figure = request.getfixturevalue(case)[name]
    texts = drawn_texts(figure, monkeypatch)
    assert len(texts) > 8
    for (first, box), (second, other) in itertools.combinations(texts, 2):
        apart = box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 or other.y1 <= box.y0
        assert apart, f"{first!r} overlaps {second!r}"
    for text, box in texts:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, f"{text!r} leaves the figure"


def test_axes_carry_their_units(twelve_variants):
    assert twelve_variants["validation"].get_supylabel() == "bits per byte"
    assert twelve_variants["validation"].axes[-1].get_xlabel() == "optimiser step\n(one step = 64 tokens)"
    assert "tokens per second" in twelve_variants["throughput"].axes[0].get_xlabel()
    assert "optimiser steps" in twelve_variants["steps"].axes[0].get_xlabel()


def test_variants_of_a_kernel_are_told_apart_without_colour():
    for kernel in {variant.kernel for variant in VARIANTS.values()}:
        looks = [variant_style(variant) for variant in VARIANTS.values() if variant.kernel == kernel]
        assert len({look["marker"] for look in looks}) == len(looks)
        assert len({str(look["linestyle"]) for look in looks}) == len(looks)


def test_intervals_are_drawn_from_three_seeds_on_only(twelve_variants, one_seed):
    def intervals(figure):
        return sum(isinstance(c, ErrorbarContainer) for c in figure.axes[0].containers)

    assert intervals(twelve_variants["final"]) == 10, (
        "all variants but the one with two finished seeds and the one with none"
    )
    assert intervals(one_seed["final"]) == 0
    assert "One seed: no interval" in one_seed["final"].get_suptitle()
    assert "One seed" in one_seed["validation"].get_suptitle()


def test_long_curves_are_smoothed_and_the_figure_says_so(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "elu+1-none", 1, steps=2000, every=10)
    curves, summary, comparison = tables(root)
    with style():
        figure = curve_figure(curves, summary, comparison, "train")
    assert "Each point: mean of 8 records." in figure.get_suptitle()
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "elu+1-none"]
    assert len(line.get_xdata()) == 25
    assert line.get_xdata()[0] == pytest.approx((10 + 80) / 2)


def test_figures_are_saved_in_both_formats_with_words_beside_them(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "softmax-rope,elu+1-none,elu+1-rope-after")
    entries = convergence_figures(root, *tables(root), root / "figures")
    assert {path.name for path in (root / "figures").iterdir()} == {
        f"{entry.stem}.{kind}" for entry in entries for kind in ("png", "svg")
    }
    for entry in entries:
        assert entry.title
        assert len(entry.caption) > 100
        with Image.open(root / "figures" / f"{entry.stem}.png") as image:
            assert image.width >= 1000
            assert image.height >= 300
        svg = ElementTree.parse(root / "figures" / f"{entry.stem}.svg").getroot()
        assert svg.tag.endswith("svg")
    stems = [entry.stem for entry in entries]
    assert stems == ["validation", "validation-gain", "training", "final", "steps-to-baseline", "throughput"]


def test_equal_figures_are_saved_as_equal_bytes(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "run", "elu+1-none", 1)
    for place in ("first", "second"):
        save_figure(lambda: curve_figure(*tables(root), "validation"), tmp_path / place, "curve")
    for kind in ("png", "svg"):
        assert (tmp_path / "first" / f"curve.{kind}").read_bytes() == (
            tmp_path / "second" / f"curve.{kind}"
        ).read_bytes()


def test_names_in_figures_are_plain_short_and_visible():
    assert label("a\nb\x07") == r"a b\x07"
    assert label("_hidden") == " _hidden"
    assert label("n" * 43) == "n" * 41 + "…"
    assert legend_label("elu+1-none@decay=fixed") == "elu+1-none@decay=fixed"
    assert legend_label("elu+1-rope-after@decay=fixed") == "elu+1-rope-after\n@decay=fixed"
    with style():
        assert not Figure().text(0, 0, "$x$").get_parse_math()


def test_powers_of_ten_are_labelled_without_mathematics(one_seed):
    one_seed["attention"].draw_without_rendering()
    for axes in one_seed["attention"].axes:
        labels = [tick.get_text() for tick in axes.get_yticklabels()]
        assert any("10⁻" in text for text in labels)
        assert not any("$" in text for text in labels)


def test_equal_values_have_an_axis_with_room(make_comparison, tmp_path):
    root = make_comparison(tmp_path, "elu+1-none", 1, loss=lambda *run: 1e100)
    with style():
        figure = curve_figure(*tables(root), "validation")
    low, high = figure.axes[0].get_ylim()
    assert low < 1e100 < high


def floor(name, value, **other):
    return {"name": name, "metric": "bits_per_byte", "value": value, "split": "validation", "steps": 100} | other


@pytest.mark.parametrize(
    ("floors", "drawn"),
    [
        ([floor("trigram", 3.2), floor("5-gram", 2.5), floor("xz", 1.9, equal=False)], ["5-gram", "trigram"]),
        ([floor("trigram", 2.52), floor("5-gram", 2.5)], ["5-gram"]),  # it would be written over the other
        ([floor("trigram", 30), floor("5-gram", 2.5)], ["5-gram"]),
        ([floor("unigram", 3.9), floor("5-gram", -30)], ["unigram"]),  # the next one, where the best is far
        ([floor("5-gram", 2.5, split="test"), floor("bigram", 2.5, steps=20)], []),
    ],
)
def test_floors_of_the_split_are_lines_with_their_names(make_comparison, tmp_path, floors, drawn):
    root = make_comparison(tmp_path, "elu+1-none,softmax-none", 2, floors=floors)
    with style():
        figure = curve_figure(*tables(root), "validation")
    assert ("Beyond the vertical axis: 5-gram, -30.00." in figure.get_suptitle()) == (drawn == ["unigram"])
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == drawn
        level = {line.get_ydata()[0] for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]}
        assert level == {each["value"] for each in floors if each["name"] in drawn}
        assert all(axes.get_ylim()[0] < value < axes.get_ylim()[1] for value in level)
