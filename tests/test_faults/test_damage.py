"""Files that are damaged, mistaken or malicious: one useful line that says so, or what is read is sound."""

import copy
import gzip
import io
import json
import lzma
import resource
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

from experiments.data.registry import data_set, load_corpus, row_of
from experiments.records.files import read_file, visible
from experiments.records.record import read_comparison, read_metrics, run_config, run_status
from experiments.studies.speed.records import read_records
from experiments.train.checkpoint import load_newest_checkpoint, save_checkpoint
from tests.made_up import comparison_fields
from tests.test_faults.conftest import FUZZING

SPEED = Path(__file__).parents[2] / "results" / "reference" / "speed" / "measurements.jsonl"
RUN = Path("elu+1-none") / "seed0"
TOKENS = (
    *(b"NaN", b"1e999", b"-", b"0", b"9" * 30, b'"', b"{", b"}", b"[" * 2000, b"null", b"\\ud800", b"\\", b"\xff"),
    *(b"\0", b"\n", b"\r", b",", b":", b"\xef\xbb\xbf", b"1" * 5000, b"\0" * 4096, b"\xff\xff\xff\x7f"),
)
VALUES = (
    *(None, True, -1, 0, 2**53, 2**63, 10**400, 0.5, 1e99, 1e308, float("nan"), float("inf"), "", "1", "..", "/etc"),
    *("a/../../b", "<b>&", "\0", "\u202e", "n" * 10000, [], [[]], [1, 1], {}, {"a": {}}, "failed", "train", "time"),
)


def damage(whole):
    """The content with a piece left out, put in, written over or with one bit flipped."""
    places = st.integers(0, len(whole) - 1)
    pieces = st.tuples(places, st.integers(0, 300)).map(lambda drawn: whole[: drawn[0]] + whole[sum(drawn) :])
    cut = places.map(lambda end: whole[:end])
    put_in = st.tuples(places, st.sampled_from(TOKENS)).map(lambda drawn: drawn[1].join(parts(whole, drawn[0])))
    after = st.tuples(st.integers(0, 24), st.binary()).map(lambda drawn: whole[: drawn[0]] + drawn[1])
    flips = st.tuples(places, st.integers(0, 7)).map(
        lambda drawn: bytes([whole[drawn[0]] ^ 1 << drawn[1]]).join((whole[: drawn[0]], whole[drawn[0] + 1 :]))
    )
    return pieces | cut | put_in | after | flips


def parts(whole, place):
    return whole[:place], whole[place:]


def places_in(value, place=()):
    """The place of every value inside a JSON value, the first two of a list."""
    yield place
    for key in value if isinstance(value, dict) else range(min(len(value), 2)) if isinstance(value, list) else ():
        yield from places_in(value[key], (*place, key))


def replaced(value, place, new):
    if not place:
        return new
    value = copy.copy(value)
    value[place[0]] = replaced(value[place[0]], place[1:], new)
    return value


def other_values(whole):
    """JSON, or JSON lines, in which one value is another."""
    lines = [json.loads(line) for line in (whole.splitlines() if whole.endswith(b"}\n") else [whole])]
    there = [(number, place) for number, line in enumerate(lines) for place in places_in(line)]

    def made(drawn):
        (number, place), new = drawn
        changed = [*lines[:number], replaced(lines[number], place, new), *lines[number + 1 :]]
        return "".join(json.dumps(line) + "\n" for line in changed).encode()

    return st.tuples(st.sampled_from(there), st.sampled_from(VALUES)).map(made)


def refusal(read, content):
    """The ValueError that reading ends with, in words; empty if there is none."""
    try:
        read(content)
    except ValueError as error:
        return str(error) if type(error) is ValueError else repr(error)
    return ""


def fuzz(read, whole, contents, examples, said):
    """Read damaged contents; the message of an error is one line with one of the words ``said``, and what would do."""
    refused = []

    @settings(max_examples=examples, **FUZZING)
    @given(contents)
    def each(content):
        message = refusal(read, content)
        if message:
            refused.append(message)
            assert any(word in message for word in said), message
            assert "; " in message or "was passed over" in message, message
            assert "\n" not in message
            assert visible(message) == message
            assert len(message) < 5000

    read(whole)
    each()
    assert len(refused) > examples // 4


def check_json(value):
    """That any JSON reader and any text file could take it."""
    json.dumps(msgspec.to_builtins(value), allow_nan=False, ensure_ascii=False).encode()


def check_metrics(root):
    rows = read_metrics(root / RUN / "metrics.jsonl")
    check_json(rows)
    assert all(row.step >= 0 <= row.tokens for row in rows)
    assert len({(row.step, row.split) for row in rows}) == len(rows)


def check_comparison(root):
    comparison = read_comparison(root)
    check_json(comparison)
    assert all((root / variant.name).resolve().relative_to(root.resolve()).parts for variant in comparison.variants)
    assert len(set(comparison.seeds)) == len(comparison.seeds)


ROWS = [{"step": step, "tokens": 64 * step, "split": "train", "loss": 2.5, "seconds": 0.1} for step in (1, 2)]
ROWS += [{"step": 2, "tokens": 128, "split": split, "bits_per_byte": 3.25} for split in ("validation", "test")]
MADE_WITH = {"variant": RUN.parent.name, "seed": 0, "data_sha256": "ab" * 32, "config": {"steps": 2, "data": "stdlib"}}
STATUS = {"state": "failed", "reason": "why", "notes": ["one"], "time": 1.5}
STATUS |= {"trained_with": [{"kernel": "PyTorch", "torch": "2.13", "code_sha256": "ab"}]}
RECORDS = {
    "comparison.json": ([comparison_fields(variants=["elu+1-none", "softmax-none"])], check_comparison),
    str(RUN / "status.json"): ([STATUS], lambda root: check_json(run_status(root, "elu+1-none", 0))),
    str(RUN / "config.json"): ([MADE_WITH], lambda root: check_json(run_config(root, "elu+1-none", 0))),
    str(RUN / "metrics.jsonl"): (ROWS, check_metrics),
    "measurements.jsonl": (None, lambda root: check_json(read_records(root))),
}


@pytest.mark.full
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_refused_in_one_line_or_read_soundly(tmp_path, name):
    lines, check = RECORDS[name]
    if lines is None:  # one of every kind
        rows = [json.loads(line) for line in read_file(SPEED, "").splitlines()]
        lines = list({(row["kind"], row["topic"]): row for row in rows}.values())
        (tmp_path / "comparison.json").write_bytes((SPEED.parent / "comparison.json").read_bytes())
    whole = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (tmp_path / RUN).mkdir(parents=True)

    def read(content):
        (tmp_path / name).write_bytes(content)
        check(tmp_path)

    fuzz(read, whole, damage(whole) | other_values(whole), 1500, [Path(name).name])


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

    fuzz(read, whole, damage(whole), 500, ["checkpoint step00000001 is damaged and was passed over: "])


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

    whole = make()
    with address_space(2**29):
        fuzz(read, whole, damage(whole), 600, ["--data-file: ", "--data text: ", "--data imdb: "])
    assert [file.name for file in tmp_path.iterdir()] == [name]
