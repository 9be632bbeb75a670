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


def smoothed(curve, width):
    """The means of ``width`` consecutive records, at their mean step, as (steps, values)."""
    steps, values = zip(*sorted(curve.items()), strict=True)
    starts = range(0, len(steps), width)
    return tuple([statistics.fmean(numbers[at : at + width]) for at in starts] for numbers in (steps, values))


def mean_curve(curves):
    """The mean at the steps that all have, as (steps, values)."""
    if not curves:
        return [], []
    each = [dict(zip(*curve, strict=True)) for curve in curves]
    steps = [step for step in curves[0][0] if all(step in curve for curve in each)]
    return steps, [statistics.fmean(curve[step] for curve in each) for step in steps]


def expected_curves(records, split):
    """variant → seed → (steps, values) of the figure of a split, and how many records make a point."""
    curves = {variant: {s: records.curve(variant, s, split) for s in records.seeds} for variant in records.variants}
    width = max(1, round(max(len(curve) for of_variant in curves.values() for curve in of_variant.values()) / 25))
    return {v: {s: smoothed(curve, width) for s, curve in of.items()} for v, of in curves.items()}, width


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


def assert_panel(report, axes, variants, references, curves, more_lines):
    """Of one panel: every seed's line, every mean, the crosses where runs ended, the labels and their order."""
    records, (low, high) = report.records, axes.get_ylim()
    without_label, means = list(more_lines), {}
    for variant in [*references, *variants]:
        finished = {s: curve for s, curve in curves.get(variant, {}).items() if s in records.finished(variant)}
        means[variant] = mean_curve(list(finished.values()))
        for seed, (steps, values) in {} if variant in references else curves.get(variant, {}).items():
            if len(finished) > 1 or seed not in finished:
                without_label.append((steps, values))
            if seed not in finished:
                without_label.append(([steps[-1]], [min(max(values[-1], low), high)]))
    found = report.lines(axes)
    assert_same_lines(found.pop(None, []), without_label)
    if any(remark(records, variant) for variant in variants):
        assert found.pop("a run that did not finish") == [([], [])]
    labels = {variant: f"{variant} (reference)" if variant in references else variant for variant in means}
    for variant in means:
        labels[variant] += remark(records, variant) or ("" if variant in curves else "\n(nothing to compare)")
    assert set(found) == set(labels.values())
    for variant, mean in means.items():
        assert_same_lines(found[labels[variant]], [mean])
    listed = [text.get_text() for text in axes.get_legend().get_texts() if text.get_text() in found]
    ends = {labels[variant]: values[-1] if values else -math.inf for variant, (_, values) in means.items()}
    assert listed == sorted(listed, key=lambda label: -ends[label])


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
    curves, width = expected_curves(records, split)
    low, high = expected_range(records, curves, 0.25)
    for axes, variants in panels(figure, records, list(records.variants)):
        assert axes.get_ylim() == pytest.approx((low, high), **EQUAL)
        references = [] if "softmax-rope" in variants else ["softmax-rope"]
        assert_panel(report, axes, variants, references, curves, [])
    note = figure.get_suptitle()
    assert f"The vertical axis is cut at {high:.2f}" in note, "every run begins above its later losses"
    assert (f"Each point: mean of {width} records." in note) == (width > 1)
    if stem == "validation":
        windows = records.comparison["evaluated_windows"]["validation"]
        assert f"the same {windows} windows of {records.config['context']} tokens" in report.markdown
    else:
        assert f"recorded every {records.config['log_every']} steps" in report.markdown
        caption = f"each point is the mean of {width} consecutive records" if width > 1 else "Not smoothed."
        assert caption in report.markdown
    assert figure.axes[-1].get_xlabel() == f"optimiser step\n(one step = {records.tokens_per_step:,} tokens)"


def test_every_line_of_the_gains(report):
    records, figure, gains = report.records, report.figures["validation-gain"], expected_gains(report.records)
    low, high = expected_range(records, gains, 0)
    kernels = {records.variants[variant]["kernel"] for variant in gains}  # with something to compare
    shown = [
        variant
        for variant, described in records.variants.items()
        if described["baseline"] != variant and described["kernel"] in kernels
    ]
    for axes, variants in panels(figure, records, shown):
        assert axes.get_ylim() == pytest.approx((low, high), **EQUAL)
        assert_panel(report, axes, variants, [], gains, [([0, 1], [0, 0])])


def dots_by_variant(axes, labels_from):
    """variant → its row: the seeds, the mean, the interval, the arrows and the text beside it."""
    places = [label.get_text().partition("\n")[0] for label in labels_from.get_yticklabels()]
    rows = {}
    for variant, height in zip(places, labels_from.get_yticks(), strict=True):
        row = rows[variant] = SimpleNamespace(seeds=[], means=[], interval=None, arrows=[], texts=[])
        for line in axes.lines:
            x, y = list(map(float, line.get_xdata())), set(line.get_ydata())
            if y == {height} and line.get_marker() not in ("|", "None"):
                (row.arrows if line.get_marker() == ">" else row.means).extend(x)
            elif line.get_marker() == "." and height - 0.9 < min(y) <= max(y) == height - 0.24:
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


def assert_dots(row, records, variant, metric):
    values = [value for value in records.values(variant, metric).values() if value is not None]
    estimate = records.estimate(variant, metric)
    is_shown = len(values) > 1 or (len(values) == 1 and math.isnan(estimate.mean))
    assert sorted(row.seeds) == pytest.approx(sorted(values) if is_shown else [], **EQUAL), variant
    has_interval = not math.isnan(estimate.low) and not (
        metric == "steps_to_baseline" and records.variants[variant]["baseline"] == variant
    )
    assert row.means == pytest.approx([estimate.mean] * (2 if has_interval else 1), nan_ok=True, **EQUAL), variant
    # A bound near zero is the difference of two large numbers: its error is relative to those.
    error = EQUAL["rel"] * (abs(estimate.mean) + estimate.high - estimate.mean) if has_interval else 0
    assert row.interval == (pytest.approx((estimate.low, estimate.high), abs=error) if has_interval else None), variant


def test_every_dot_and_interval_of_the_final_losses(report):
    records, (left, right) = report.records, report.figures["final"].axes
    for variant, row in dots_by_variant(left, left).items():
        assert_dots(row, records, variant, "test_bits_per_byte")
    for variant, row in dots_by_variant(right, left).items():
        if records.compared_with(variant, BASELINE):
            assert_dots(row, records, variant, BASELINE)
        else:
            assert (row.seeds, row.means, row.interval) == ([], [], None)
    assert len(dots_by_variant(left, left)) == len(records.variants)


def test_every_dot_arrow_and_count_of_the_steps_to_the_baseline(report):
    records, figure = report.records, report.figures["steps-to-baseline"]
    axes, steps = figure.axes[0], records.config["steps"]
    for variant, row in dots_by_variant(axes, axes).items():
        assert_dots(row, records, variant, "steps_to_baseline")
        estimate = records.estimate(variant, "steps_to_baseline")
        assert row.arrows == [steps] * (estimate.n > estimate.reached)
        assert (f"{estimate.reached} of {estimate.n}" if estimate.n else "-") in row.texts
    assert ([steps, steps], [0, 1]) in report.lines(axes)[None], "the end of the run"
    every = records.config["evaluate_every"]
    assert f"evaluated every {every} steps ({every * records.tokens_per_step:,} tokens)" in report.markdown
    figure.draw_without_rendering()
    (tokens,) = axes.child_axes
    expected = [edge * records.tokens_per_step for edge in axes.get_xlim()]
    assert tokens.get_xlim() == pytest.approx(expected, **EQUAL)
