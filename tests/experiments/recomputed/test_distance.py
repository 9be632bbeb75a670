"""What the figures and the table of the decay experiment show: attention by distance, the bound and the mask."""

import cmath
import math
import statistics

import pytest

pytestmark = pytest.mark.slow


def binned(by_distance):
    """Means over 0, 1, ... and ranges of distance that grow by a fixed factor, as (distances, values)."""
    end = max(by_distance) + 1
    edges = {int(end ** (number / 23) + 1e-9) for number in range(24)}
    ranges = {}
    for distance in sorted(by_distance):
        ranges.setdefault(sum(edge <= distance for edge in edges), []).append(distance)
    means = [[statistics.fmean(found) for found in (of, [by_distance[d] for d in of])] for of in ranges.values()]
    return [distance for distance, _ in means], [value for _, value in means]


def expected_weights(report, column, layer=None):
    """variant → (distances, means over layers, if none is given, and seeds)."""
    weights = {}
    for row in report.read_csv("attention.csv"):
        if layer is None or int(row["layer"]) == layer:
            weights.setdefault(row["variant"], {}).setdefault(int(row["distance"]), []).append(float(row[column]))
    return {
        variant: binned({distance: statistics.fmean(values) for distance, values in of_variant.items()})
        for variant, of_variant in weights.items()
    }


KINDS = ("absolute", "signed")


def assert_line(found, x, y):
    """There is one line, and it is this one."""
    assert found == [(pytest.approx(x, rel=1e-9), pytest.approx(y, rel=1e-9))]


@pytest.mark.parametrize("name", [pytest.param("convergence", marks=pytest.mark.full), "decay"])
def test_every_line_of_attention_by_distance(name, request):
    report = request.getfixturevalue(name)
    kernels = list(dict.fromkeys(variant["kernel"] for variant in report.records.variants.values()))
    layers = range(report.records.config["layers"])
    shown = [(kernel, kernel, column, None) for column in KINDS for kernel in kernels]
    shown += [(f"{kernel}, layer {layer}", kernel, "absolute", layer) for layer in layers for kernel in kernels]
    panels = [*report.figures["attention"].axes, *report.figures["attention-layers"].axes]
    assert [axes.get_title(loc="left") for axes in panels] == [title for title, *_ in shown]
    for axes, (_, kernel, column, layer) in zip(panels, shown, strict=True):
        expected = expected_weights(report, column, layer)
        assert set(expected) == set(report.records.variants)
        found = report.lines(axes)
        mine = [variant for variant in expected if report.records.variants[variant]["kernel"] == kernel]
        named = {variant: variant.removeprefix(f"{kernel}-") for variant in mine}
        assert {*named.values(), "uniform attention"} == {*found} - {None}
        for variant, name in named.items():
            assert_line(found[name], *expected[variant])
        # The queries of the second half of a window; the one at position i sees i + 1 keys.
        context = report.records.config["context"]
        uniform = statistics.fmean(1 / (i + 1) for i in range(context // 2, context))
        ((_, heights),) = found["uniform attention"]
        assert heights == pytest.approx([uniform] * len(heights))


def angle(pair, width):
    return 10000 ** (-2 * pair / width)


def bound(distance, width=128):
    """RoFormer, section 3.4.3: (2/d) Σ_i |S_i|, S_i the sum of the first i of exp(i·distance·θ_j)."""
    sums = [sum(cmath.exp(1j * distance * angle(j, width)) for j in range(i)) for i in range(1, width // 2 + 1)]
    return 2 / width * sum(map(abs, sums))


def mask(distance, features):
    """c(Δ) = (2/M) Σ_i cos(Δ·θ_i)"""
    return 2 / features * sum(math.cos(distance * angle(i, features)) for i in range(features // 2))


def test_the_bound_s_figure_and_table(decay):
    rows = decay.read_csv("bound.csv")
    assert [int(row["distance"]) for row in rows] == list(range(257))
    line = list(range(257)), [float(row["bound"]) for row in rows]
    for distance in range(0, 257, 16):
        assert line[1][distance] == pytest.approx(bound(distance), rel=1e-8)
    found = decay.lines(decay.figures["bound"].axes[0])
    assert_line(found[None][:1], *line)
    runs = [list(row.values()) for row in decay.table("Values of the bound")]
    assert [row[:2] for row in runs] == [[str(d), f"{bound(d):.2f}"] for d in (0, 1, 50, 100, 200, 256)]
    ((distances, values),) = found["worked out by hand"]
    assert [[f"{x:.0f}", y] for x, y in zip(distances, values, strict=True)] == [[x, float(y)] for x, _, y in runs]
    assert all(abs(bound(x) - y) < 0.05 for x, y in zip(distances, values, strict=True))


def test_the_mask_s_figure(decay):
    rows = decay.read_csv("mask.csv")
    for axes, features in zip(decay.figures["mask"].axes, (16, 64, 256), strict=True):
        mine = [row for row in rows if int(row["num_features"]) == features]
        for row in mine:
            assert float(row["expected"]) == pytest.approx(mask(int(row["distance"]), features), abs=1e-8)
        distances, expected = decay.lines(axes)[None][0]
        assert distances == list(range(1025))
        for distance in range(0, 1025, 64):
            assert expected[distance] == pytest.approx(mask(distance, features), abs=1e-8)
        ((marks, _, (bars,)),) = axes.containers
        assert list(marks.get_xdata()) == [int(row["distance"]) for row in mine]
        assert list(marks.get_ydata()) == [float(row["mean"]) for row in mine]
        ends = [[low, high] for (_, low), (_, high) in bars.get_segments()]
        assert ends == [pytest.approx([float(row["low"]), float(row["high"])], abs=1e-12) for row in mine]
        assert axes.get_title(loc="left") == f"M = {features}"
