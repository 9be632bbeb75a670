"""Record files that are damaged, mistaken or malicious: one line that says so, or a result that is sound."""

import copy
import itertools
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from experiments.analysis.curves import read_curves
from experiments.cli import main
from experiments.figures import style as plots
from experiments.records.files import visible
from experiments.records.record import read_comparison, read_metrics, run_config, run_status
from experiments.studies.decay import tables as decay_tables
from experiments.studies.speed.records import read_records
from experiments.studies.speed.settings import PRESETS

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
VARIANTS = ("elu+1-none", "elu+1-rope-after")
RUN = Path("elu+1-none") / "seed0"
EXAMPLES = 330
INPUTS = 27
"""of each example; every parser gets EXAMPLES * INPUTS"""

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
TOKENS = (
    *(b"NaN", b"1e999", b"-", b"0", b"9" * 30, b'"', b"{", b"}", b"[" * 2000, b"null", b"\\ud800", b"\\", b"\xff"),
    *(b"\0", b"\n", b"\r", b",", b":", b"'", b"=", b"\xef\xbb\xbf", b"1" * 5000),
)
PLACE = st.integers(0, 2**16 - 1)
CHANGES = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE, st.none()),
    st.tuples(st.just("remove"), PLACE, st.integers(1, 20)),
    st.tuples(st.just("repeat"), PLACE, PLACE),
    st.tuples(st.just("insert"), PLACE, st.sampled_from(TOKENS) | st.binary(max_size=4)),
    st.tuples(st.just("value"), PLACE, st.sampled_from(NASTY)),
    st.tuples(st.just("value"), PLACE, JSON_VALUES),
    st.tuples(st.just("bytes"), st.none(), st.sampled_from(TOKENS) | st.binary(max_size=40)),
    st.tuples(st.just("json"), st.none(), JSON_VALUES),
)
FUZZED = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    # No shrinking: the traceback shows the one change that failed.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
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


def as_json(value):
    return json.dumps(value).encode()


def with_value(content, number, new):
    """JSON, JSON lines or CSV in which one value is another."""
    if content.startswith(b"{"):
        lines = content.splitlines() if content.count(b'\n{"') else [content]
        number, index = divmod(number, len(lines))
        value = json.loads(lines[index])
        there = list(places(value))
        lines[index] = as_json(replaced(value, there[number % len(there)], new))
        return b"\n".join(lines) + b"\n"
    rows = [line.split(b",") for line in content.splitlines()]
    row = rows[number % len(rows)]
    row[number // len(rows) % len(row)] = str(new).encode(errors="backslashreplace")
    return b"\n".join(b",".join(row) for row in rows) + b"\n"


def changed(content, change):
    kind, place, what = change
    if kind == "bytes":
        return what
    if kind == "json":
        return as_json(what) + b"\n"
    if kind == "value":
        return with_value(content, place, what)
    at = place % len(content)
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << what]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "remove":
        return content[:at] + content[at + what :]
    if kind == "repeat":
        source = what % len(content)
        return content[:at] + content[source : source + 200] + content[at:]
    return content[:at] + what + content[at:]


def check_json(value):
    """That any JSON reader and any text file could take it."""
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def check_metrics(root):
    rows = read_metrics(root / RUN / "metrics.jsonl")
    check_json(rows)
    assert all(row["step"] >= 0 <= row["tokens"] for row in rows)
    assert len({(row["step"], row["split"]) for row in rows}) == len(rows)
    curves = read_curves(root, {"variants": [{"name": VARIANTS[0]}], "seeds": [0]})
    assert curves["value"].abs().max() <= 1e100 or curves.empty


def check_comparison(root):
    comparison = read_comparison(root)
    check_json(comparison)
    for variant in comparison["variants"]:
        inside = (root / variant["name"]).resolve().relative_to(root.resolve())
        assert inside.parts
    assert len(set(comparison["seeds"])) == len(comparison["seeds"])


def check_status(root):
    status = run_status(root, VARIANTS[0], 0)
    check_json(status)
    assert status["state"] in ("queued", "running", "done", "failed")


def check_table(name):
    def check(root):
        table = decay_tables.read(root, name)
        assert len(table) > 0
        assert table["distance"].between(0, 2**20).all()
        assert table.select_dtypes("number").abs().max(axis=None) <= 1e100

    return check


def check_measurements(root):
    records = read_records(root)
    check_json(records)
    for record in records:
        assert record.get("rise", 0) >= 0
        assert all(min(sample["seconds"]) >= 1e-12 for sample in record.get("samples", []))


PARSERS = {
    "comparison.json": check_comparison,
    str(RUN / "status.json"): check_status,
    str(RUN / "config.json"): lambda root: check_json(run_config(root, VARIANTS[0], 0)),
    str(RUN / "metrics.jsonl"): check_metrics,
    "attention.csv": check_table("attention"),
    "mask.csv": check_table("mask"),
    "measurements.jsonl": check_measurements,
}


def made_up_measurements(config):
    """A line of every kind."""
    lengths = config.lengths
    rows = []
    for topic, direction, length in (
        *(("rate", "forward+backward", None), ("decoding", "token", None)),
        *(("operation", "forward", 32), ("training", "step", 32)),
    ):
        cases = [["linear-rope", n] for n in lengths] if length is None else [["linear-rope", 32], ["softmax rope", 32]]
        cases = [["sgemm", config.gemm_size], *cases] if topic == "rate" else cases
        samples = [{"case": case, "length": n, "seconds": [0.5, 0.25]} for case, n in cases]
        if topic in ("training", "decoding"):
            samples = [sample | {"parameters": 8, "state_bytes": 1024} for sample in samples]
        place = {"topic": topic, "direction": direction, "length": length, "cases": cases, "run": "a"}
        rows.append(place | {"kind": "time", "samples": samples, "chunk_size": 64})
    failure = {"case": "fla", "length": 32, "reason": "why"}
    memory = rows[-1] | {"kind": "memory", "case": "linear-rope"}
    del memory["samples"]
    rows.append(memory | {"rise": 2**20, "returned": 2**10, "method": "made up"})
    rows.append(memory | {"case": "fla", "failures": [failure]})
    return rows


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two directories of small valid records, cut from the committed ones: of trained models, and of speed."""
    trained, speed = (tmp_path_factory.mktemp(name) for name in ("trained", "speed"))
    comparison = read_comparison(REFERENCE / "decay")
    comparison["variants"] = [variant for variant in comparison["variants"] if variant["name"] in VARIANTS]
    (trained / "comparison.json").write_text(json.dumps(comparison))
    for variant in VARIANTS:
        shutil.copytree(REFERENCE / "decay" / variant, trained / variant)
        path = trained / variant / "seed0" / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([lines[0], *lines[-6:]]))
    for name in ("attention", "mask", "bound"):
        lines = (REFERENCE / "decay" / f"{name}.csv").read_text().splitlines(keepends=True)
        kept = [line for line in lines[1:] if name != "attention" or line.startswith(VARIANTS)]
        (trained / f"{name}.csv").write_text("".join([lines[0], *kept[:6], *kept[-6:]]))

    config = PRESETS["smoke"]
    comparison = read_comparison(REFERENCE / "speed")
    (speed / "comparison.json").write_text(json.dumps(comparison | {"config": asdict(config)}))
    rows = made_up_measurements(config)
    (speed / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"trained": trained, "speed": speed}


@pytest.mark.parametrize("name", PARSERS)
def test_a_damaged_record_is_refused_in_one_line_or_read_soundly(records, counts, name):
    root = records["speed" if name == "measurements.jsonl" else "trained"]
    path, parse = root / name, PARSERS[name]
    whole = path.read_bytes()
    parse(root)
    outcomes = {"read": 0, "refused": 0}

    @FUZZED
    @given(st.lists(CHANGES, min_size=INPUTS, max_size=INPUTS))
    def fuzz(changes):
        for change in changes:
            path.write_bytes(changed(whole, change))
            counts["inputs fuzzed"] += 1
            refusal = None
            try:
                parse(root)
            except ValueError as error:
                refusal = error
            outcomes["refused" if refusal else "read"] += 1
            if refusal:
                message = str(refusal)
                assert type(refusal) is ValueError, message
                assert Path(name).name in message
                assert "\n" not in message
                assert visible(message) == message
                assert len(message) < 700

    try:
        fuzz()
    finally:
        path.write_bytes(whole)
    assert min(outcomes.values()) > EXAMPLES, "both are put to the test"


def save_without_layout(figure, directory, stem):
    """Draw a figure as ``save_figure`` does, but once, and without finding room for everything: that is slow."""
    directory.mkdir(parents=True, exist_ok=True)
    with plots.style():
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
@pytest.mark.parametrize(("experiment", "count"), [("convergence", 70), ("decay", 60), ("speed", 160)])
def test_a_report_of_damaged_records_is_whole_or_refused_in_one_line(
    records, tmp_path, counts, monkeypatch, capsys, experiment, count
):
    root = tmp_path / "run"
    shutil.copytree(records["speed" if experiment == "speed" else "trained"], root)
    comparison = read_comparison(root)
    (root / "comparison.json").write_text(json.dumps(comparison | {"experiment": experiment}))
    if experiment == "convergence":
        (root / "attention.csv").unlink()  # decay draws it too
    names = [name for name in PARSERS if (root / name).exists() and name.endswith(".csv") == (experiment == "decay")]
    monkeypatch.setattr(plots, "save_figure", save_without_layout)
    assert main(["report", str(root)]) == 0
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
