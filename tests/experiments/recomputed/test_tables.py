"""curves.csv, summary.csv, the table of results, and what two figures draw."""

import html
import math
import re
import statistics
from types import SimpleNamespace

import pytest

from .conftest import BASELINE, BEFORE, EQUAL


def test_curves_csv_has_every_number_of_every_record_and_no_other(report):
    per_step = report.records.tokens_per_step
    expected = [
        (variant, str(seed), str(row["step"]), str(row["step"] * per_step), row["split"], metric, value)
        for (variant, seed), rows in report.records.rows.items()
        for row in rows
        for metric, value in row.items()
        if metric not in ("step", "tokens", "split")
    ]
    found = [(*list(row.values())[:-1], float(row["value"])) for row in report.read_csv("curves.csv")]
    assert found == expected


def number(text):
    return float(text or "nan")


def test_every_row_of_summary_csv(report):
    records, found = report.records, report.read_csv("summary.csv")
    expected = []
    for variant, described in records.variants.items():
        for metric in (
            *("test_bits_per_byte", "validation_bits_per_byte", BASELINE, BEFORE),
            *("steps_to_baseline", "tokens_to_baseline", "tokens_per_second"),
        ):
            if metric not in (BASELINE, BEFORE) or records.compared_with(variant, metric):
                expected.append((variant, metric, records.estimate(variant, metric), records.values(variant, metric)))
        for metric in ("parameters", "position_parameters"):
            one = SimpleNamespace(n=1, mean=described[metric], low=math.nan, high=math.nan, std=math.nan)
            expected.append((variant, metric, one, {}))
    assert [(row["variant"], row["metric"]) for row in found] == [
        (variant, metric) for variant, metric, _, _ in expected
    ]
    for row, (variant, metric, estimate, values) in zip(found, expected, strict=True):
        place = f"{variant}, {metric}"
        assert int(row["n"]) == estimate.n, place
        for name in ("mean", "low", "high", "std"):
            value = getattr(estimate, name)
            # A bound near zero is the difference of two large numbers: its error is relative to those.
            scale = abs(estimate.mean) + abs(value - estimate.mean)
            expected_value = pytest.approx(value, nan_ok=True, rel=EQUAL["rel"], abs=EQUAL["rel"] * scale)
            assert number(row[name]) == expected_value, f"{place}, {name}"
        assert row["seeds"].split() == [str(seed) for seed in values], place
        assert row["reached"] == (str(estimate.reached) if metric.endswith("_to_baseline") else ""), place
        counts = [len(records.seeds), records.count(variant, "failed"), records.count(variant, "running")]
        assert [int(row[name]) for name in ("planned", "failed", "unfinished")] == counts, place


def with_interval(estimate, pattern):
    if math.isnan(estimate.mean):
        return "-"
    mean, low, high = (format(value, pattern) for value in (estimate.mean, estimate.low, estimate.high))
    return mean if math.isnan(estimate.low) else f"{mean} [{low}, {high}]"


def expected_row(records, variant):
    """The runs of a variant in the table of results, but for the last, which is in words."""
    described, test = records.variants[variant], records.estimate(variant, "test_bits_per_byte")
    steps, speed = records.estimate(variant, "steps_to_baseline"), records.estimate(variant, "tokens_per_second")
    is_baseline = described["baseline"] == variant
    if is_baseline:
        difference = "baseline"
    elif described["baseline"] in records.variants:
        difference = with_interval(records.estimate(variant, BASELINE), "+.4f")
    else:
        difference = f"{described['baseline']} was not run"
    if is_baseline or steps.n == 0:
        soon = "-"
    elif steps.reached < steps.n:
        soon = f"reached by {steps.reached} of {steps.n}"
    else:
        soon = with_interval(steps, ".0f")
    table = f" [positions {described['position_parameters']:,}]" if described["position_parameters"] else ""
    return [
        variant,
        str(test.n) if test.n == len(records.seeds) else f"{test.n} of {len(records.seeds)}",
        with_interval(test, ".3f"),
        difference,
        soon,
        "-" if math.isnan(speed.mean) else f"{speed.mean:,.0f}",
        f"{described['parameters']:,}{table}",
    ]


def test_every_run_of_the_table_of_results(report):
    records = report.records
    expected = [expected_row(records, variant) for variant in records.variants]
    assert [list(row.values())[:7] for row in report.table("Table")] == expected
    page = (report.root / "report.html").read_text()
    rows = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in page.split("<tr")[2 : len(expected) + 2]]
    shown = [[" ".join(html.unescape(re.sub("<.*?>", " ", run)).split()) for run in row] for row in rows]
    assert [row[1:7] for row in shown] == [row[1:] for row in expected]
    finished = sum(len(records.finished(variant)) for variant in records.variants)
    planned = len(records.variants) * len(records.seeds)
    assert (f"({finished} of {planned} runs " in report.markdown) == (finished < planned)


def test_the_made_up_records_hold_every_case(made_up):
    """Otherwise the tests above would compare less than they say."""
    for words in ("reached by 4 of 5", "relu-none was not run", "[positions 64]", "2 of 5"):
        assert words in made_up.markdown


def test_what_the_report_repeats_of_the_record(report):
    record, config = report.records.comparison, report.records.config
    settings = [list(row.values()) for row in report.table("Configuration")]
    assert settings == [[name, str(value)] for name, value in config.items()]
    (data,) = record["data"]
    sizes = ", ".join(f"{split} {size:,}" for split, size in data["splits"].items())
    assert f"* Data **{data['name']}**: {data['bytes']:,} bytes; {sizes}. " in report.markdown
    assert f"seeds {', '.join(map(str, record['seeds']))}, started {record['created']}." in report.markdown


def test_figures_draw_the_means_of_the_finished_runs(report):
    records, final = report.records, report.figures["final"].axes[0]
    drawn = [list(map(float, line.get_xdata())) for line in final.lines]
    for variant in records.variants:
        mean = records.estimate(variant, "test_bits_per_byte").mean
        assert math.isnan(mean) or any(x == pytest.approx([mean], **EQUAL) for x in drawn), variant
    panels = report.figures["validation"].axes
    curves = [dict(zip(*line.get_data(), strict=True)) for axes in panels for line in axes.lines]
    for variant in records.variants:
        runs = [records.curve(variant, seed, "validation") for seed in records.finished(variant)]
        if runs:
            mean = {step: statistics.fmean(run[step] for run in runs) for step in runs[0]}
            assert any(curve == pytest.approx(mean, **EQUAL) for curve in curves), variant
