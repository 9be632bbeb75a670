"""Record files that are damaged, mistaken or malicious: one line that says so, or a result that is sound."""

import copy
import itertools
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli import main
from experiments.judge.curves import read_curves
from experiments.records.csv_files import read_table, to_csv
from experiments.records.files import read_file, visible, write_json
from experiments.records.record import read_comparison, read_metrics, run_config, run_rows, run_status, write_record
from experiments.show import style as plots
from experiments.studies.decay import measure as decay
from experiments.studies.speed.records import read_records
from tests.made_up import make_record
from tests.test_faults.damage import FUZZING, WORD, inputs_of

pytestmark = pytest.mark.full
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
VARIANTS = ("elu+1-none", "elu+1-rope-after")
RUN = Path("elu+1-none") / "seed0"
EXAMPLES, DAMAGES, VALUES = 330, 14, 13
"""every parser gets EXAMPLES * (DAMAGES + VALUES) inputs"""
STRIDE = 7919
"""a prime, so that a few turns reach all files"""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NASTY = (
    *(None, True, -1, 0, 1, 2, 2**53, 2**63 - 1, 2**63, 10**400, 0.5, -0.5, 1e-300, 1e99, 1e308, float("nan")),
    *(float("inf"), "", "1", "x", "..", "/etc", "a/../../b", "<b>&", "=1+1", "\0", "\ud800", "\u202e", "$x$"),
    *("n" * 10000, [], [[]], [1, 1], {}, {"a": {}}, "failed", "done", "train", "test", "rope-after", "time", "memory"),
)
PROGRAMS = st.binary(min_size=WORD * DAMAGES, max_size=WORD * DAMAGES)
CHANGES = st.lists(
    st.tuples(st.integers(0, 2**16 - 1), st.sampled_from(NASTY) | JSON_VALUES), min_size=VALUES, max_size=VALUES
)


def places(value, place=()):
    """The place of every value inside a JSON value, the first two of a list."""
    yield place
    for key in value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ():
        yield from places(value[key], (*place, key))


def replaced(value, place, new):
    if not place:
        return new
    value = copy.copy(value)
    value[place[0]] = replaced(value[place[0]], place[1:], new)
    return value


def with_value(content, number, new):
    """JSON, JSON lines or CSV in which one value is another."""
    if content.startswith(b"{"):
        lines = content.splitlines() if content.count(b'\n{"') else [content]
        number, index = divmod(number, len(lines))
        value = json.loads(lines[index])
        there = list(places(value))
        lines[index] = json.dumps(replaced(value, there[number % len(there)], new)).encode()
        return b"\n".join(lines) + b"\n"
    rows = [line.split(b",") for line in content.splitlines()]
    row = rows[number % len(rows)]
    row[number // len(rows) % len(row)] = str(new).encode(errors="backslashreplace")
    return b"\n".join(b",".join(row) for row in rows) + b"\n"


def check_json(value):
    """That any JSON reader and any text file could take it."""
    json.dumps(msgspec.to_builtins(value), allow_nan=False, ensure_ascii=False).encode()


def check_metrics(root):
    rows = read_metrics(root / RUN / "metrics.jsonl")
    check_json(rows)
    assert all(row.step >= 0 <= row.tokens for row in rows)
    assert len({(row.step, row.split) for row in rows}) == len(rows)
    curves = read_curves(root, make_record(variants=[VARIANTS[0]]))
    assert curves["value"].abs().max() <= 1e100 or curves.empty


def check_comparison(root):
    comparison = read_comparison(root)
    check_json(comparison)
    for variant in comparison.variants:
        inside = (root / variant.name).resolve().relative_to(root.resolve())
        assert inside.parts
    assert len(set(comparison.seeds)) == len(comparison.seeds)


def check_table(table):
    assert len(table) > 0
    assert table["distance"].between(0, 2**20).all()
    assert table.select_dtypes("number").abs().max(axis=None) <= 1e100


PARSERS = {
    "comparison.json": check_comparison,
    str(RUN / "status.json"): lambda root: check_json(run_status(root, VARIANTS[0], 0)),
    str(RUN / "config.json"): lambda root: check_json(run_config(root, VARIANTS[0], 0)),
    str(RUN / "metrics.jsonl"): check_metrics,
    "attention.csv": lambda root: check_table(decay.ATTENTION.read(root)),
    "mask.csv": lambda root: check_table(decay.MASK.read(root)),
    "measurements.jsonl": lambda root: check_json(read_records(root)),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two directories of small valid records, cut from the committed ones: of trained models, and of speed."""
    trained, speed = (tmp_path_factory.mktemp(name) for name in ("trained", "speed"))
    comparison = read_comparison(REFERENCE / "decay")
    comparison.variants = [variant for variant in comparison.variants if variant.name in VARIANTS]
    write_record(trained / "comparison.json", comparison)
    settings = {variant.name: variant.settings for variant in comparison.variants}
    for variant, seed in comparison.runs:
        run = Path(variant) / f"seed{seed}"
        (trained / run).mkdir(parents=True)
        made_with = {"variant": variant, "seed": seed, "data_sha256": comparison.data[0].sha256}
        write_json(trained / run / "config.json", made_with | {"config": comparison.config | settings[variant]})
        write_record(trained / run / "status.json", run_status(REFERENCE / "decay", variant, seed))
        first, *rows = run_rows(REFERENCE / "decay", variant, seed)
        lines = [msgspec.to_builtins(row) for row in (first, *rows[-6:])]
        lines = [row | row.pop("metrics") for row in lines]
        (trained / run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    for name in ("attention", "mask", "bound"):
        lines = to_csv(read_table(REFERENCE / "decay" / f"{name}.parquet")).splitlines(keepends=True)
        kept = [line for line in lines[1:] if name != "attention" or line.startswith(VARIANTS)]
        (trained / f"{name}.csv").write_text("".join([lines[0], *kept[:6], *kept[-6:]]))

    shutil.copy(REFERENCE / "speed" / "comparison.json", speed)
    rows = [json.loads(line) for line in read_file(REFERENCE / "speed" / "measurements.jsonl", "").splitlines()]
    kept = list({(row["kind"], row["topic"]): row for row in rows}.values())  # one of every kind
    kept.append(kept[-1] | {"failures": [{"case": "fla", "length": 512, "reason": "why"}]})
    (speed / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    return {"trained": trained, "speed": speed}


@pytest.mark.parametrize("name", PARSERS)
def test_a_damaged_record_is_refused_in_one_line_or_read_soundly(records, counts, name):
    root = records["speed" if name == "measurements.jsonl" else "trained"]
    path, parse = root / name, PARSERS[name]
    whole = path.read_bytes()
    parse(root)
    outcomes = {"read": 0, "refused": 0}

    @settings(max_examples=EXAMPLES, **FUZZING)
    @given(PROGRAMS, CHANGES)
    def fuzz(program, changes):
        values = (with_value(whole, number, value) for number, value in changes)
        for content in itertools.chain(inputs_of(program, whole), values):
            path.write_bytes(content)
            counts["inputs fuzzed"] += 1
            try:
                parse(root)
                outcomes["read"] += 1
            except ValueError as error:
                message = f"{type(error).__name__}: {error}"
                assert message.startswith("ValueError: ")
                assert Path(name).name in message
                assert "\n" not in message
                assert visible(message) == message
                assert len(message) < 700
                outcomes["refused"] += 1

    try:
        fuzz()
    finally:
        path.write_bytes(whole)
    assert min(outcomes.values()) > EXAMPLES, "both are put to the test"


def save_without_layout(make, directory, stem):
    """Draw a figure as ``save_figure`` does, but once, and without finding room for everything: that is slow."""
    directory.mkdir(parents=True, exist_ok=True)
    with plots.style():
        figure = make()
        figure.set_layout_engine("none")
        figure.draw_without_rendering()
    (directory / f"{stem}.svg").write_text("<svg/>")


def damaged_files(root, names, count):
    """(name, content) of that many files in which one value is a nasty one; spread over all values of all files."""
    cases = []
    for name in names:
        whole = (root / name).read_bytes()
        if name.endswith(".csv"):
            values = whole.count(b",") + whole.count(b"\n")
        else:
            lines = whole.splitlines() if name.endswith(".jsonl") else [whole]
            values = sum(len(list(places(json.loads(line)))) for line in lines)
        cases += [(name, whole, number) for number in range(values)]
    for turn, nasty in zip(range(count), itertools.cycle(NASTY), strict=False):
        name, whole, number = cases[turn * STRIDE % len(cases)]
        yield name, with_value(whole, number, nasty)


def snapshot(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("study", "count"), [("convergence", 70), ("decay", 60), ("speed", 160)])
def test_a_report_of_damaged_records_is_whole_or_refused_in_one_line(
    records, tmp_path, counts, monkeypatch, capsys, study, count
):
    root = tmp_path / "run"
    shutil.copytree(records["speed" if study == "speed" else "trained"], root)
    comparison = read_comparison(root)
    comparison.study = study
    write_record(root / "comparison.json", comparison)
    if study == "convergence":
        (root / "attention.csv").unlink()  # decay draws it too
    names = [name for name in PARSERS if (root / name).exists() and name.endswith(".csv") == (study == "decay")]
    monkeypatch.setattr(plots, "save_figure", save_without_layout)
    assert main(["report", str(root)]) == 0, capsys.readouterr().err
    outcomes = {0: 0, 2: 0}
    for name, content in damaged_files(root, names, count):
        whole = (root / name).read_bytes()
        (root / name).write_bytes(content)
        before = snapshot(root)
        capsys.readouterr()
        status = main(["report", str(root)])
        output, message = capsys.readouterr()
        counts["inputs fuzzed"] += 1
        outcomes[status] += 1
        if status:
            assert (message.count("\n"), output) == (1, ""), message
            assert snapshot(root) == before
        else:
            assert message == ""
            assert output == f"{root / 'report.html'}\n"
        (root / name).write_bytes(whole)
    assert min(outcomes.values()) > 5, "both are put to the test"
