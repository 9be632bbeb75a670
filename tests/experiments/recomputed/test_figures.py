"""What the figures of a comparison of training runs draw."""

import math
import statistics
from types import SimpleNamespace

import pytest
from matplotlib.container import ErrorbarContainer

from .conftest import BASELINE, EQUAL

pytestmark = pytest.mark.slow


@pytest.fixture(params=["convergence", "made_up"])
def report(request):
    return request.getfixturevalue(request.param)


BASE = "softmax-rope"
"""grey in every other panel"""


def mean_curve(curves):
    """The mean at the steps that all have, as (steps, values)."""
    if not curves:
        return [], []
    each = [dict(zip(*curve, strict=True)) for curve in curves]
    steps = [step for step in curves[0][0] if all(step in curve for curve in each)]
    return steps, [statistics.fmean(curve[step] for curve in each) for step in steps]


def expected_curves(records, split):
    """variant → seed → (steps, values)."""
    curves = {variant: {s: records.curve(variant, s, split) for s in records.seeds} for variant in records.variants}
    return {
        v: {s: tuple(zip(*sorted(each.items()), strict=True)) for s, each in of.items()} for v, of in curves.items()
    }


def in_ranges(curves):
    """The means of 25 equal ranges of the run, where there are more records."""
    last = max(steps[-1] for of in curves.values() for steps, _ in of.values())

    def ranges(steps, values):
        places = [min(24, int(25 * step / last)) for step in steps]
        of_each = [[n for n, place in enumerate(places) if place == each] for each in sorted({*places})]
        return tuple([statistics.fmean(numbers[n] for n in each) for each in of_each] for numbers in (steps, values))

    if len({step for of in curves.values() for steps, _ in of.values() for step in steps}) <= 25:
        return curves
    return {v: {s: ranges(*curve) for s, curve in of.items()} for v, of in curves.items()}


def expected_gains(records):
    gains = {}
    for variant, described in records.variants.items():
        baseline = described["baseline"]
        if baseline == variant or baseline not in records.variants:
            continue
        for seed in records.finished(baseline):
            mine, other = (records.curve(name, seed, "validation") for name in (variant, baseline))
            steps = sorted(step for step in mine if step in other)
            gains.setdefault(variant, {})[seed] = steps, [mine[step] - other[step] for step in steps]
    return gains


def expected_range(records, curves, start):
    """Of the vertical axis: what the finished runs are after the share ``start`` of the run, and 5 % more."""
    finished = [curve for v, of in curves.items() for seed, curve in of.items() if seed in records.finished(v)]
    last = max(steps[-1] for steps, _ in finished)
    late = [value for c in finished for step, value in zip(*c, strict=True) if step >= start * last]
    margin = 0.05 * (max(late) - min(late))
    return min(late) - margin, max(late) + margin


def assert_same_lines(found, expected):
    """Two lists of (x, y), in any order."""

    def in_order(lines):
        return sorted(lines, key=lambda line: (len(line[0]), [round(value, 6) for value in [*line[0], *line[1]]]))

    assert len(found) == len(expected)
    for (x, y), (expected_x, expected_y) in zip(in_order(found), in_order(expected), strict=True):
        assert x == pytest.approx(expected_x, nan_ok=True, **EQUAL)
        assert y == pytest.approx(expected_y, nan_ok=True, **EQUAL)


def remark(records, variant):
    """What a figure's label says of a variant whose runs did not all finish."""
    counts = {word: records.count(variant, state) for word, state in (("failed", "failed"), ("unfinished", "running"))}
    parts = [f"{count} of {len(records.seeds)} {word}" for word, count in counts.items() if count]
    return f"\n({', '.join(parts)})" if parts else ""


def assert_panel(report, axes, variants, curves, with_seeds=True):
    """Of one panel: every seed's line, every mean, the crosses where runs ended, and what names say of failures."""
    records, (low, high) = report.records, axes.get_ylim()
    thin, means = [], {}
    for variant in [variant for variant in variants if curves.get(variant)]:
        finished = {s: curve for s, curve in curves[variant].items() if s in records.finished(variant)}
        steps, values = means[variant] = mean_curve(list(finished.values()))
        if with_seeds and len(finished) > 1:
            at = [dict(zip(*curve, strict=True)) for curve in finished.values()]
            thin += [(steps, [curve[step] for step in steps]) for curve in at]
        for seed in curves[variant].keys() - finished.keys():
            steps, values = curves[variant][seed]
            thin += [(steps, values), ([steps[-1]], [min(max(values[-1], low), high)])]
            if not finished:  # its name stands there
                means[variant] = [steps[-1]], [values[-1]]
    found = report.lines(axes)
    assert_same_lines([line for line in found.pop(None, []) if line[0] != [0, 1]], thin)
    if BASE in found:
        assert BASE not in variants
        assert_same_lines(found.pop(BASE), [mean_curve([curves[BASE][s] for s in records.finished(BASE)])])
    assert_same_lines([line for lines in found.values() for line in lines], list(means.values()))
    assert sorted(name.partition("\n")[2] for name in found) == sorted(remark(records, each)[1:] for each in means)


def panels(figure, records, variants):
    """(axes, its variants), a panel per kernel."""
    kernels = list(dict.fromkeys(records.variants[variant]["kernel"] for variant in variants))
    assert [axes.get_title(loc="left") for axes in figure.axes] == kernels
    return [
        (axes, [variant for variant in variants if records.variants[variant]["kernel"] == kernel])
        for axes, kernel in zip(figure.axes, kernels, strict=True)
    ]


@pytest.mark.parametrize(("stem", "split"), [("validation", "validation"), ("training", "train")])
def test_every_line_of_the_loss_curves(report, stem, split):
    records, figure = report.records, report.figures[stem]
    is_training = stem == "training"
    curves = expected_curves(records, split)
    curves = in_ranges(curves) if is_training else curves
    low, high = expected_range(records, curves, 0.25)
    for axes, variants in panels(figure, records, list(records.variants)):
        bottom, top = axes.get_ylim()
        assert bottom <= low + 1e-9
        assert top >= high - 1e-9
        assert_panel(report, axes, variants, curves, with_seeds=not is_training)
        assert is_training or (BASE in report.lines(axes)) == (BASE not in variants)
    assert "The vertical axis is cut at" in figure.get_suptitle(), "every run begins above its later losses"
    windows = records.comparison["evaluated_windows"]["validation"]
    said = f"recorded every {records.config['log_every']} steps" if is_training else f"the same {windows} windows"
    assert said in report.markdown
    assert figure.axes[-1].get_xlabel() == f"optimiser step\n(one step = {records.tokens_per_step:,} tokens)"


def test_every_line_of_the_gains(report):
    records, figure, gains = report.records, report.figures["validation-gain"], expected_gains(report.records)
    for axes, variants in panels(figure, records, [variant for variant in records.variants if variant in gains]):
        assert_panel(report, axes, variants, gains)
        assert ([0, 1], [0, 0]) in report.lines(axes)[None]


def rows_of_dots(records, axes, labels_from):
    """variant → its row: the seeds, the mean, the interval, the arrows and the text beside it."""
    kernels = list(dict.fromkeys(each["kernel"] for each in records.variants.values()))
    ordered = sorted(records.variants, key=lambda variant: kernels.index(records.variants[variant]["kernel"]))
    rows = {}
    for variant, height in zip(ordered, labels_from.get_yticks(), strict=True):
        row = rows[variant] = SimpleNamespace(seeds=[], means=[], interval=None, arrows=[], texts=[])
        for line in axes.lines:
            x, y = list(map(float, line.get_xdata())), set(line.get_ydata())
            if y == {height} and line.get_marker() not in ("|", "None"):
                (row.arrows if line.get_marker() == ">" else row.means).extend(x)
            elif y and line.get_marker() == "." and height + 0.2 < min(y) <= max(y) < height + 0.9:
                # Equal seeds are below each other, so none hides another.
                assert len({(round(a, 9), round(b, 9)) for a, b in zip(x, line.get_ydata(), strict=True)}) == len(x)
                row.seeds += x
        for container in axes.containers:
            assert isinstance(container, ErrorbarContainer)
            middle, caps, (bars,) = container
            if middle.get_ydata()[0] == height:
                ((low, _), (high, _)) = bars.get_segments()[0]
                assert [cap.get_xdata()[0] for cap in caps] == [low, high]
                row.means += list(middle.get_xdata())
                row.interval = low, high
        row.texts = [text.get_text() for text in axes.texts if text.get_position()[1] == height]
    return rows


def assert_dots(row, records, variant, metric, least=-math.inf):
    values = records.values(variant, metric)
    there = [value for value in values.values() if value is not None]
    estimate = records.estimate(variant, metric)
    assert sorted(row.seeds) == pytest.approx(sorted(there) if len(values) > 1 else [], **EQUAL), variant
    has_interval = not math.isnan(estimate.low)
    means = [estimate.mean] * (2 if has_interval else 1) if values else []
    assert row.means == pytest.approx(means, nan_ok=True, **EQUAL), variant
    # A bound near zero is the difference of two large numbers: its error is relative to those.
    error = EQUAL["rel"] * (abs(estimate.mean) + estimate.high - estimate.mean) if has_interval else 0
    ends = (max(least, estimate.low), estimate.high)
    assert row.interval == (pytest.approx(ends, abs=error) if has_interval else None), variant


def test_every_dot_and_interval_of_the_final_losses(report):
    records, (left, right) = report.records, report.figures["final"].axes
    for variant, row in rows_of_dots(records, left, left).items():
        assert_dots(row, records, variant, "test_bits_per_byte")
    for variant, row in rows_of_dots(records, right, left).items():
        if records.compared_with(variant, BASELINE):
            assert_dots(row, records, variant, BASELINE)
        else:
            assert (row.seeds, row.means, row.interval) == ([], [], None)


def test_every_dot_arrow_and_count_of_the_steps_to_the_baseline(report):
    records, (axes,) = report.records, report.figures["steps-to-baseline"].axes
    steps = records.config["steps"]
    for variant, row in rows_of_dots(records, axes, axes).items():
        assert_dots(row, records, variant, "steps_to_baseline", least=0)
        estimate = records.estimate(variant, "steps_to_baseline")
        assert row.arrows == [steps] * (estimate.n > estimate.reached)
        assert not estimate.n or f"{estimate.reached} of {estimate.n}" in row.texts
    assert ([steps, steps], [0, 1]) in report.lines(axes)[None], "the end of the run"
    every = records.config["evaluate_every"]
    assert f"evaluated every {every} steps ({every * records.tokens_per_step:,} tokens)" in report.markdown
