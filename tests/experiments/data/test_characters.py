"""Every reader keeps each byte of a text, or names what it leaves out in the note of the run."""

import hashlib
import json
import zipfile

import pytest

from experiments.config import Config
from experiments.data.registry import load_data, row_of
from experiments.train.chosen_objective import make_objective
from tests.experiments.data.made_up_files import ROWS, documents, place, small, tar, write

BYTES = b"\xef\xbb\xbf" + bytes(range(256)) + b"\r\n\xed\xa0\x80\xff\xfe\x00\x0c\xe2\x80\xa8" + b"no last end\r"
"""a byte order mark, every byte, a lone surrogate, what is no UTF-8"""
CONTROLS = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 161)]))
TEXT = f"\x1c\u3000{CONTROLS}\ufeff\u200b\u2028\u2029\ufffd\ue000\U000e0001{CONTROLS}\x1f\x85"
"""valid UTF-8, without tabs and line feeds; ``str.strip`` and ``str.splitlines`` would take much of it"""


def splits_of(corpus):
    return b"".join(getattr(corpus, split).tobytes() for split in ("train", "validation", "test"))


def zipped(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members:
            archive.writestr(name, BYTES)
    return path


@pytest.mark.parametrize("name", ["mine", "mine.gz", "mine.zip"])
def test_a_file_of_one_s_own(tmp_path, name):
    path = zipped(tmp_path / name, ["text"]) if name.endswith("zip") else write(tmp_path / name, BYTES)
    corpus = load_data("text", data_file=path)
    assert splits_of(corpus) == BYTES
    objective = make_objective(corpus, Config(context=4, batch_size=2))
    assert objective.splits["train"].tobytes() == corpus.train.tobytes()


def test_texts_of_bytes_from_files_archives_and_sources(tmp_path):
    write(tmp_path / "enwik8.gz", BYTES)
    known = {"length": len(BYTES), "content": hashlib.sha256(BYTES).hexdigest()}
    assert splits_of(small("enwik8", **known).load(tmp_path, None)) == BYTES
    assert splits_of(small("enwik8-4MB", **known).load(tmp_path, None)) == BYTES
    zipped(tmp_path / "wikitext/wikitext-2-raw-v1.zip", row_of("wikitext-2")["members"])
    assert splits_of(small("wikitext-2").load(tmp_path, None)) == BYTES * 3
    write(tmp_path / "library/os.py", BYTES)
    assert splits_of(small("stdlib", directory=tmp_path / "library").load(None, None)) == BYTES


def test_film_reviews(tmp_path):
    for name in ("imdb", "imdb-sentiment"):
        changed = [(path, f"{TEXT}{path}\r".encode()) for path, _ in documents(name)]
        for part in ("labelled", "unsup"):
            members = [member for member in changed if ("unsup" in member[0]) == (part == "unsup")]
            write(tmp_path / f"imdb/aclImdb_{part}.tar.xz", tar(members, "xz"))
        found = small(name).load(tmp_path, None)
        if name == "imdb":
            assert sorted(splits_of(found).split(b"\n\n")) == sorted(text for _, text in changed)
        else:
            assert sorted(found.test["text"]) == sorted(text.decode() for path, text in changed if "/test/" in path)


def test_posts_are_latin_1_without_the_white_space_around_them(tmp_path):
    body = bytes(byte for byte in range(256) if byte not in b"\r\n")  # with control characters at both of its ends
    posts = [(name, b"From: a\n\n" + body + b"\r\n%d" % n) for n, (name, _) in enumerate(documents("newsgroups"))]
    posts[-2:] = [(posts[-2][0], b"From: a\n\n\xa0x\x1c"), (posts[-1][0], b"From: a\n\n y\n")]
    write(tmp_path / "20news-bydate.tar.xz", tar(posts, "xz"))
    found = small("newsgroups").load(tmp_path, None)
    assert {"y", "\xa0x\x1c"} < set(found.test["text"])
    assert set(found.train["text"]) <= {body.decode("latin-1") + f"\n{n}" for n in range(ROWS)}
    told = f"of the files: carriage returns at ends of lines ({2 * ROWS - 2}), white space around a post (1)."
    assert "read as latin-1" in found.note
    assert found.note.endswith(told)
    corpus = small("newsgroups-text").load(tmp_path, None)
    assert body.decode("latin-1").encode() in splits_of(corpus)
    assert corpus.note.endswith(told)


def test_tables(tmp_path):
    path = place("sst-2", tmp_path)[0]
    lines = path.read_text().splitlines()
    lines[1] = f"1\t {TEXT}  \t1"
    lines[2] = f"2\t{TEXT[:-1]}\t1"
    write(path, "\ufeff" + "\r\n".join(lines))
    found = small("sst-2").load(tmp_path, None)
    assert {TEXT, TEXT[:-1]} <= set(found.train["text"]) | set(found.validation["text"])
    told = "byte order marks (1), carriage returns at ends of lines (60), spaces around a text (119)."
    assert found.note.endswith(f"Left out of the files: {told}")  # each made-up text has a space behind it


def test_parallel_texts(tmp_path):
    for path in place("multi30k", tmp_path):
        write(path, "\n".join([f" {TEXT}{path.suffix}", "", " "]))
    found = small("multi30k", rows=[3, 3, 3]).load(tmp_path, None)
    assert found.train.to_numpy().tolist() == [[f"{TEXT}.en", f"{TEXT}.de"]]
    assert found.note.endswith("Left out of the files: pairs with an empty side (6), spaces around a text (12).")
    for path in place("wmt14-sample", tmp_path):
        write(path, f"\ufeff{TEXT}{path.stem}\r\n")
    found = small("wmt14-sample", rows=[1, 1, 1]).load(tmp_path, None)
    assert found.train.iloc[0].tolist() == [f"{TEXT}src-train", f"{TEXT}tgt-train"]
    assert "byte order marks (6), carriage returns at ends of lines (6)." in found.note


def test_lines_of_json(tmp_path):
    row = {"A": TEXT + "\0\r\n", "B": f" {TEXT} ", "C": "\x1c", "label": "B"}
    for path in place("cail2019-scm", tmp_path):
        write(path, f"\ufeff{json.dumps(row, ensure_ascii=path.name == 'train.json')}\r\n")
    found = small("cail2019-scm", rows=[1, 1, 1]).load(tmp_path, None)
    for split in (found.train, found.validation, found.test):
        assert split.iloc[0].tolist() == [row["A"], row["B"], row["C"], "one"]
    assert found.note.endswith("byte order marks (3), carriage returns at ends of lines (3).")
