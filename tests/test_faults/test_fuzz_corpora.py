"""Damaged and forged files in every form that a text can have: a result or one useful line, in bounded memory."""

import gzip
import io
import lzma
import resource
import tarfile
import zipfile
from contextlib import contextmanager
from functools import partial

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data.registry import data_set, load_corpus, row_of
from tests.test_faults.damage import FUZZING, WORD, inputs_of

MEMORY = 2**29
"""bytes of address space for all that is read, beyond what the tests have when they begin"""
FEWEST, MOST = 16, 32
"""inputs made by one program"""

TEXT = b"".join(b"line %d of a text, and what it says\n" % number for number in range(60))
REVIEWS = {"pos": 2, "neg": 2, "unsup": 4}


def make_gzip():
    return gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:])


def make_zip(compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = b"a comment"
        archive.mkdir("folder")
        with archive.open("folder/text", "w", force_zip64=compression == zipfile.ZIP_STORED) as member:
            member.write(TEXT)
    return buffer.getvalue()


def make_tar(form=tarfile.PAX_FORMAT):
    """Every kind of header that is passed: long names, extended headers, folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("aclImdb/train")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for label, number in REVIEWS.items():
            for index in range(number):
                member = tarfile.TarInfo(f"aclImdb/train/{label}/{index}_9.txt")
                member.size, member.mtime = 40, 1.5 if form == tarfile.PAX_FORMAT else 1
                tar.addfile(member, io.BytesIO(b"%-40d" % index))
        tar.addfile(tarfile.TarInfo(f"aclImdb/{'long/' * 40}é"))
    return buffer.getvalue()


fast_gzip = partial(gzip.compress, compresslevel=1)
fast_xz = partial(lzma.compress, preset=0)


@contextmanager
def address_space(extra):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_text(path):
    assert load_corpus("text", None, path).describe().bytes > 0


def read_reviews(path):
    """From the archive itself: what is kept of it is left out."""
    row = row_of("imdb") | {"expected": REVIEWS, "sha256": {}, "forms": [[path.name]], "folders": [""]}
    row["reader"] = row["reader"].replace("KeptDocuments", "JoinedDocuments")
    assert data_set("imdb", **row).load(path.parent, None)


FORMS = {
    "plain": (lambda: TEXT, bytes, "text.txt", read_text, 40),
    "gzip": (make_gzip, bytes, "text.gz", read_text, 350),
    "zip": (make_zip, bytes, "text.zip", read_text, 350),
    "stored zip": (lambda: make_zip(zipfile.ZIP_STORED), bytes, "text.zip", read_text, 250),
    "tar before packing": (make_tar, fast_gzip, "reviews.tar.gz", read_reviews, 250),
    "GNU tar before packing": (lambda: make_tar(tarfile.GNU_FORMAT), fast_gzip, "reviews.tar.gz", read_reviews, 250),
    "tar.gz": (lambda: fast_gzip(make_tar()), bytes, "reviews.tar.gz", read_reviews, 200),
    "tar.xz": (lambda: fast_xz(make_tar()), bytes, "reviews.tar.xz", read_reviews, 200),
}


SAMPLE = ("plain", "zip")


@pytest.mark.parametrize(
    "form", [form if form in SAMPLE else pytest.param(form, marks=pytest.mark.full) for form in FORMS]
)
def test_whatever_is_in_a_file_there_is_a_text_or_one_line(tmp_path, monkeypatch, counts, form):
    make, pack, name, read, examples = FORMS[form]
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)
    original, path = make(), tmp_path / name
    path.write_bytes(pack(original))
    read(path)  # the file is a good one before it is changed
    outcomes = {"read": 0, "refused": 0}

    @settings(max_examples=examples, **FUZZING)
    @given(st.binary(min_size=WORD * FEWEST, max_size=WORD * MOST))
    def readable_or_refused(program):
        for content in inputs_of(program, original):
            path.write_bytes(pack(content))
            try:
                read(path)
            except ValueError as error:
                message = str(error)
                assert message.startswith(("--data-file: ", "--data text: ", "--data imdb: ")), message
                assert "\n" not in message
                assert "; " in message, message  # what would do
                assert "does not fit into the memory" not in message
                outcomes["refused"] += 1
            else:
                outcomes["read"] += 1
            counts["inputs fuzzed"] += 1

    with address_space(MEMORY):
        readable_or_refused()
    assert outcomes["read"]
    assert outcomes["refused"] or form == "plain"  # any bytes are a text there
    assert sum(outcomes.values()) >= examples * FEWEST
    assert [file.name for file in tmp_path.iterdir()] == [name]
