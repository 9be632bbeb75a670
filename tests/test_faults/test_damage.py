"""Files that are damaged, mistaken or malicious: one useful line that says so, or what is read is sound."""

import copy
import gzip
import io
import itertools
import json
import lzma
import resource
import shutil
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from experiments.cli import main
from experiments.data.registry import data_set, load_corpus, row_of
from experiments.judge.curves import read_curves
from experiments.records.csv_files import read_table
from experiments.records.files import read_file, visible, write_json
from experiments.records.record import read_comparison, read_metrics, run_config, run_rows, run_status, write_record
from experiments.show import style as plots
from experiments.studies.decay import measure as decay
from experiments.studies.speed.records import read_records
from experiments.train.checkpoint import load_newest_checkpoint, save_checkpoint
from tests.made_up import make_record
from tests.test_faults.conftest import FUZZING

MEMORY = 2**29
"""bytes of address space for all that is read, beyond what the tests have when they begin"""
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
VARIANTS = ("elu+1-none", "elu+1-rope-after")
RUN = Path("elu+1-none") / "seed0"
STRIDE = 7919
"""a prime, so that a few turns reach all values"""
TOKENS = (
    *(b"NaN", b"1e999", b"-", b"0", b"9" * 30, b'"', b"{", b"}", b"[" * 2000, b"null", b"\\ud800", b"\\", b"\xff"),
    *(b"\0", b"\n", b"\r", b",", b":", b"'", b"=", b"\xef\xbb\xbf", b"1" * 5000),
)
NASTY = (
    *(None, True, -1, 0, 1, 2, 2**53, 2**63 - 1, 2**63, 10**400, 0.5, -0.5, 1e-300, 1e99, 1e308, float("nan")),
    *(float("inf"), "", "1", "x", "..", "/etc", "a/../../b", "<b>&", "=1+1", "\0", "\ud800", "\u202e", "$x$"),
    *("n" * 10000, [], [[]], [1, 1], {}, {"a": {}}, "failed", "done", "train", "test", "rope-after", "time", "memory"),
)
WORD = 6
"""bytes of a program that make one input: to draw many at once is faster than to draw each"""


def damaged(original, word, payload):
    """``original`` with one change: its kind, its place and its size are the bytes of ``word``."""
    kind, size, *place = word
    content = bytearray(original)
    start = int.from_bytes(place, "big") % max(1, len(content))
    match kind % 8:
        case 0:
            content[start : start + 1] = bytes([content[start] ^ 1 << size % 8]) if content else b""
        case 1:
            del content[start:]
        case 2:
            content[start:start] = bytes([size % 4 * 85]) * (size * 16)
        case 3:
            del content[start : start + size]
        case 4:
            content[start : start + 4] = (0, 1, 2**31 - 1, 2**32 - 1)[size % 4].to_bytes(4, "little")
        case 5:
            source = start * STRIDE % max(1, len(content))
            content[start : start + size] = content[source : source + size]
        case 6:
            content[start:start] = TOKENS[size % len(TOKENS)]
        case _:
            content[size % 24 :] = payload  # after as much of the beginning as a parser wants to see
    return bytes(content)


def inputs_of(program, original):
    """One input a word of the program; every third is a change of the one before."""
    latest = original
    for index in range(0, len(program) - WORD + 1, WORD):
        latest = damaged(latest if index // WORD % 3 else original, program[index : index + WORD], program)
        yield latest


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


def refusal(read, content):
    """The error that reading ends with, in words; empty if there is none."""
    try:
        read(content)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fuzz(whole, read, examples, said, values=0):
    """Read some damaged contents, ``values`` of each sixteen with another value; returns how many could be read.

    The message of an error is one line that has one of the words ``said``.
    """
    changes = st.tuples(st.integers(0, 2**16 - 1), st.sampled_from(NASTY))
    outcomes = [0, 0]

    @settings(max_examples=examples, **FUZZING)
    @given(st.binary(min_size=WORD * 16, max_size=WORD * 16), st.lists(changes, min_size=values, max_size=values))
    def each(program, changes):
        nasty = (with_value(whole, number, value) for number, value in changes)
        for content in itertools.chain(inputs_of(program, whole), nasty):
            message = refusal(read, content)
            outcomes[bool(message)] += 1
            if message:
                assert message.startswith("ValueError: ")
                assert any(word in message for word in said), message
                assert "; " in message or "was passed over" in message, message  # what would do
                assert "does not fit into the memory" not in message or said == OF_ARCHIVES
                assert "\n" not in message
                assert visible(message) == message
                assert len(message) < 5000

    assert refusal(read, whole) == "", "it is a good one before it is changed"
    each()
    assert outcomes[1] > examples
    return outcomes[0]


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


def check_table(root):
    table = decay.ATTENTION.read(root)
    assert len(table) > 0
    assert table["distance"].between(0, 2**20).all()
    assert table.select_dtypes("number").abs().max(axis=None) <= 1e100


RECORDS = {
    "comparison.json": check_comparison,
    str(RUN / "status.json"): lambda root: check_json(run_status(root, VARIANTS[0], 0)),
    str(RUN / "config.json"): lambda root: check_json(run_config(root, VARIANTS[0], 0)),
    str(RUN / "metrics.jsonl"): check_metrics,
    "attention.csv": check_table,
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
        table = read_table(REFERENCE / "decay" / f"{name}.parquet")
        lines = table.to_csv(index=False).splitlines(keepends=True)
        kept = [line for line in lines[1:] if name != "attention" or line.startswith(VARIANTS)]
        (trained / f"{name}.csv").write_text("".join([lines[0], *kept[:6], *kept[-6:]]))

    shutil.copy(REFERENCE / "speed" / "comparison.json", speed)
    rows = [json.loads(line) for line in read_file(REFERENCE / "speed" / "measurements.jsonl", "").splitlines()]
    kept = list({(row["kind"], row["topic"]): row for row in rows}.values())  # one of every kind
    kept.append(kept[-1] | {"failures": [{"case": "fla", "length": 512, "reason": "why"}]})
    (speed / "measurements.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    return {"trained": trained, "speed": speed}


@pytest.mark.full
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_refused_in_one_line_or_read_soundly(records, name):
    root = records["speed" if name == "measurements.jsonl" else "trained"]
    path = root / name
    whole = path.read_bytes()

    def read(content):
        path.write_bytes(content)
        RECORDS[name](root)

    try:
        assert fuzz(whole, read, 330, [Path(name).name], values=13) > 330, "both are put to the test"
    finally:
        path.write_bytes(whole)


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
        lines = whole.splitlines() if name.endswith(".jsonl") else [whole]
        is_table = name.endswith(".csv")
        values = whole.count(b",") if is_table else sum(len(list(places(json.loads(line)))) for line in lines)
        cases += [(name, whole, number) for number in range(values)]
    for turn, nasty in zip(range(count), itertools.cycle(NASTY), strict=False):
        name, whole, number = cases[turn * STRIDE % len(cases)]
        yield name, whole, with_value(whole, number, nasty)


@pytest.mark.full
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("study", "count"), [("convergence", 70), ("decay", 60), ("speed", 160)])
def test_a_report_of_damaged_records_is_whole_or_refused_in_one_line(
    records, tmp_path, monkeypatch, capsys, study, count
):
    root = tmp_path / "run"
    shutil.copytree(records["speed" if study == "speed" else "trained"], root)
    comparison = read_comparison(root)
    comparison.study = study
    write_record(root / "comparison.json", comparison)
    if study == "convergence":
        (root / "attention.csv").unlink()  # decay draws it too
    names = [name for name in RECORDS if (root / name).exists() and name.endswith(".csv") == (study == "decay")]
    monkeypatch.setattr(plots, "save_figure", save_without_layout)
    assert main(["report", str(root)]) == 0, capsys.readouterr().err
    outcomes = {0: 0, 2: 0}
    for name, whole, content in damaged_files(root, names, count):
        (root / name).write_bytes(content)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        capsys.readouterr()
        status = main(["report", str(root)])
        output, message = capsys.readouterr()
        outcomes[status] += 1
        if status:
            assert (message.count("\n"), output) == (1, ""), message
            assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        else:
            assert (message, output) == ("", f"{root / 'report.html'}\n")
        (root / name).write_bytes(whole)
    assert min(outcomes.values()) > 5, "both are put to the test"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "manifest.json"])
def test_a_checkpoint_is_loaded_as_it_was_saved_or_not_at_all(tmp_path, name):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, 1, model.state_dict(), optimizer.state_dict())
    path = tmp_path / "step00000001" / name
    whole = path.read_bytes()

    def read(content):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        checkpoint, notes = load_newest_checkpoint(tmp_path, model)
        if checkpoint is None:
            raise ValueError(*notes)
        assert notes == []
        assert content == whole or name == "manifest.json"
        assert all(torch.equal(checkpoint.model[key], tensor) for key, tensor in model.state_dict().items())

    said = ["checkpoint step00000001 is damaged and was passed over: "]
    fuzz(whole, read, 150, said, values=13 if name == "manifest.json" else 0)


TEXT = b"".join(b"line %d of a text, and what it says\n" % number for number in range(60))
REVIEWS = {"pos": 2, "neg": 2, "unsup": 4}


def make_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"a comment"
        archive.writestr("folder/text", TEXT)
    return buffer.getvalue()


def make_tar():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for label, number in REVIEWS.items():
            for index in range(number):
                member = tarfile.TarInfo(f"aclImdb/train/{label}/{index}_9.txt")
                member.size, member.mtime = 40, 1.5
                tar.addfile(member, io.BytesIO(b"%-40d" % index))
        tar.addfile(tarfile.TarInfo(f"aclImdb/{'long/' * 40}é"))
    return buffer.getvalue()


def read_text(path):
    assert load_corpus("text", None, path).describe().bytes > 0


def read_reviews(path):
    """From the archive itself: what is kept of it is left out."""
    row = row_of("imdb") | {"expected": REVIEWS, "sha256": {}, "forms": [[path.name]], "folders": [""]}
    row["kept"] = False
    assert data_set("imdb", **row).load(path.parent, None)


OF_ARCHIVES = ["--data-file: ", "--data text: ", "--data imdb: "]
"""how a refusal begins; that what an archive says of itself does not fit into the memory is one, too"""
FORMS = {
    "zip": (make_zip, bytes, "text.zip", read_text),
    "tar before packing": (make_tar, gzip.compress, "reviews.tar.gz", read_reviews),
    "tar.xz": (lambda: lzma.compress(make_tar()), bytes, "reviews.tar.xz", read_reviews),
}


@contextmanager
def address_space(extra):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.full][form == "zip" :]) for form in FORMS])
def test_whatever_is_in_an_archive_there_is_a_text_or_one_line(tmp_path, monkeypatch, form):
    make, pack, name, read_file_of = FORMS[form]
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)

    def read(content):
        (tmp_path / name).write_bytes(pack(content))
        read_file_of(tmp_path / name)

    with address_space(MEMORY):
        assert fuzz(make(), read, 200, OF_ARCHIVES)
    assert [file.name for file in tmp_path.iterdir()] == [name]
