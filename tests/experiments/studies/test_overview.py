"""The figure of a few lines: which variants it shows, and what stands at the lines' ends."""

from typing import ClassVar

import pandas as pd
import pytest

from experiments.figures.style import style
from experiments.records.schema import NEXT_BYTE, Floor
from experiments.studies.convergence.overview import LINE, apart, overview_figure, overview_variants

ENDS = {
    "softmax-none": 3.75,
    "softmax-rope": 3.07,
    "favor+-rope-before": 3.57,
    "favor+-rope-after": 3.70,
    "elu+1-rope-before": 3.71,
    "elu+1-rope-after": 3.63,
    "relu-rope-before": 3.66,
    "relu-rope-after": 3.65,
    "elu+1-none": 3.74,
    "favor+-none": 3.73,
}
BEST = ["softmax-none", "relu-rope-after", "elu+1-rope-after", "favor+-rope-before", "softmax-rope"]


class Variant:
    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str) -> None:
        self.name, (self.kernel, _, self.position) = name, name.partition("-")


class Made:
    """What the figure reads of a comparison."""

    objective, data = NEXT_BYTE, ()

    def __init__(self, names) -> None:
        self.variants = [Variant(name) for name in names]

    def floors_of(self, metric: str, split: str) -> list[Floor]:
        assert (metric, split) == ("bits_per_byte", "validation")
        return [Floor(name="trigram", metric=metric, value=3.38, split=split)]

    def read_in(self, steps: int) -> str:
        return f"{1024 * steps} tokens"


def tables(ends, seeds=3):
    rows = [
        (name, seed, step, "validation", "bits_per_byte", end + 400 / (step + 100) - 400 / 900 + 0.01 * (seed - 1))
        for name, end in ends.items()
        for seed in range(seeds)
        for step in range(0, 801, 80)
    ]
    curves = pd.DataFrame(rows, columns=["variant", "seed", "step", "split", "metric", "value"])
    summary = pd.DataFrame({"variant": list(ends), "seeds": " ".join(map(str, range(seeds)))})
    return curves, summary, Made(ends)


def test_it_shows_the_better_rope_variant_of_each_map_by_its_last_value():
    assert [variant.name for variant in overview_variants(*tables(ENDS))] == BEST


@pytest.mark.parametrize("missing", ["softmax-none", "softmax-rope"])
def test_there_is_none_without_softmax_attention(missing):
    assert overview_variants(*tables({name: end for name, end in ENDS.items() if name != missing})) == []


def test_there_is_none_without_one_of_the_maps():
    assert overview_variants(*tables({name: end for name, end in ENDS.items() if "relu" not in name})) == []


def test_a_small_comparison_is_shown_whole():
    few = {name: ENDS[name] for name in ("elu+1-rope-after", "elu+1-rope-before", "softmax-rope")}
    assert [variant.name for variant in overview_variants(*tables(few))] == sorted(few, key=lambda name: -few[name])
    assert overview_variants(*tables({"softmax-rope": 3.0})) == []


@pytest.mark.parametrize("seeds", [1, 3])
def test_each_line_has_its_name_and_its_last_value_at_its_end(seeds):
    with style():
        figure = overview_figure(*tables(ENDS, seeds))
    (axes,) = figure.axes
    assert len(axes.lines) == 6  # and the floor
    assert axes.get_legend() is None
    shift = 0.01 * (seeds == 1)
    labels = [f"{name}  {ENDS[name] - shift:.2f}" for name in BEST]
    assert [text.get_text() for text in axes.texts] == [*labels[:-1], "trigram  3.38", labels[-1]]
    *lines, floor = axes.lines
    colours = [*[line.get_color() for line in lines[:-1]], floor.get_color(), lines[-1].get_color()]
    assert colours == [text.get_color() for text in axes.texts]
    assert floor.get_ydata()[0] == 3.38
    for name, line in zip(BEST, lines, strict=True):
        assert line.get_ydata()[-1] == pytest.approx(ENDS[name] - shift)


def test_labels_stand_a_line_apart_and_no_farther_off_than_needed():
    heights = apart([1.0, 0.5, 0.49, 0.48, 0.1], (0, 1))
    assert heights == pytest.approx([1.0, 0.49 + LINE, 0.49, 0.49 - LINE, 0.1])
