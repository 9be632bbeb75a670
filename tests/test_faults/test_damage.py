"""Files that are damaged, mistaken or malicious: one useful line that says so, or what is read is sound."""

import gzip
import io
import json
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

from experiments.data.registry import data_set, load_data, row_of
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


@st.composite
def damage(draw, whole):
    """The content with a piece left out, put in or written over, cut off, or with one bit flipped."""
    place = draw(st.integers(0, len(whole) - 1))
    before, after = whole[:place], whole[place:]
    what = draw(st.sampled_from(["piece", "end", "token", "head", "bit"]))
    if what == "piece":
        return before + after[draw(st.integers(0, 300)) :]
    if what == "end":
        return before
    if what == "token":
        return before + draw(st.sampled_from(TOKENS)) + after
    if what == "head":
        return whole[: draw(st.integers(0, 24))] + draw(st.binary())
    return before + bytes([after[0] ^ 1 << draw(st.integers(0, 7))]) + after[1:]


@st.composite
def other_value(draw, lines):
    """JSON lines in which one value, at any depth, is another."""
    lines = json.loads(json.dumps(lines))
    inside, key = lines, draw(st.sampled_from(range(len(lines))))
    while isinstance(inside[key], dict | list) and inside[key] and draw(st.booleans()):
        inside = inside[key]
        key = draw(st.sampled_from([*inside] if isinstance(inside, dict) else range(len(inside))))
    inside[key] = draw(st.sampled_from(VALUES))
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def fuzz(read, whole, contents, examples, said):
    """Read damaged contents; the message of an error is one line with one of the words ``said``, and what would do."""
    refused = []

    @settings(max_examples=examples, **FUZZING)
    @given(contents)
    def each(content):
        try:
            read(content)
        except ValueError as error:
            message = str(error) if type(error) is ValueError else repr(error)
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

    fuzz(read, whole, damage(whole) | other_value(lines), 1500, [Path(name).name])


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

    fuzz(read, whole, damage(whole), 200, ["checkpoint step00000001 is damaged and was passed over: "])


TEXT = b"".join(b"line %d of a text, and what it says\n" % number for number in range(60))
REVIEWS = {"pos": 2, "neg": 2, "unsup": 4}


def make_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
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
    return buffer.getvalue()


def read_text(path):
    assert load_data("text", None, path).describe().bytes > 0


def read_reviews(path):
    """From the archive itself: what is kept of it is left out."""
    row = row_of("imdb") | {"expected": REVIEWS, "sha256": {}, "forms": [[path.name]], "folders": [""], "kept": False}
    assert data_set("imdb", **row).load(path.parent, None)


@contextmanager
def address_space(extra):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize(
    ("whole", "pack", "name", "read_archive"),
    [
        pytest.param(make_zip(), bytes, "text.zip", read_text, id="zip"),
        pytest.param(make_tar(), gzip.compress, "reviews.tar.gz", read_reviews, id="tar", marks=pytest.mark.full),
    ],
)
def test_whatever_is_in_an_archive_there_is_a_text_or_one_line(tmp_path, monkeypatch, whole, pack, name, read_archive):
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)

    def read(content):
        (tmp_path / name).write_bytes(pack(content))
        read_archive(tmp_path / name)

    with address_space(2**29):
        fuzz(read, whole, damage(whole), 250, ["--data-file: ", "--data text: ", "--data imdb: "])
    assert [file.name for file in tmp_path.iterdir()] == [name]
