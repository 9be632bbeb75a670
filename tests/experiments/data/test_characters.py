"""Every reader keeps each byte of a text, or names what it leaves out in the note of the run."""

import json

import numpy as np
import pytest

from experiments.config import Config
from experiments.data import (
    cail2019_scm,
    enwik8,
    glue,
    imdb,
    imdb_sentiment,
    multi30k,
    newsgroups,
    stdlib,
    wikitext,
    wmt14,
)
from experiments.data.corpus import corpus_of_text
from experiments.data.registry import load_corpus
from experiments.training.chosen_objective import make_objective
from experiments.training.subwords import SubwordTokenizer
from tests.experiments.data.made_up_files import known, write, write_tar, write_zip
from tests.experiments.data.test_glue import TASKS, content, place

BYTES = b"\xef\xbb\xbf" + bytes(range(256)) + b"\r\n\xed\xa0\x80\xff\xfe\x00\x0c\xe2\x80\xa8" + b"no last end\r"
"""a byte order mark, every byte, a lone surrogate, what is no UTF-8"""
CONTROLS = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 161)]))
TEXT = f"\x1c\u3000{CONTROLS}\ufeff\u200b\u2028\u2029\ufffd\ue000\U000e0001{CONTROLS}\x1f\x85"
"""valid UTF-8, without tabs and line feeds; ``str.strip`` and ``str.splitlines`` would take much of it"""


def splits_of(corpus):
    return b"".join(getattr(corpus, split).tobytes() for split in ("train", "validation", "test"))


@pytest.mark.parametrize("name", ["mine", "mine.gz", "mine.zip"])
def test_a_file_of_one_s_own(tmp_path, name):
    path = write_zip(tmp_path / name, {"text": BYTES}) if name.endswith("zip") else write(tmp_path / name, BYTES)
    corpus = load_corpus("text", data_file=path)
    assert splits_of(corpus) == BYTES
    objective = make_objective(corpus, Config(context=4, batch_size=2))
    assert objective.splits["train"].tobytes() == corpus.train.tobytes()


def test_texts_of_bytes_from_files_archives_and_sources(tmp_path):
    write(tmp_path / "enwik8.gz", BYTES)
    sha256 = corpus_of_text("a", BYTES).sha256
    assert splits_of(enwik8.load(tmp_path, None, sha256=sha256)) == BYTES
    assert splits_of(enwik8.load_prefix(tmp_path, None, sha256=sha256)) == BYTES
    members = {f"wikitext-2-raw/wiki.{split}.raw": BYTES for split in ("train", "valid", "test")}
    official = known(write_zip(tmp_path / "a.zip", members), places=("a.zip",))
    assert splits_of(wikitext.load("wikitext-2", tmp_path, official=official)) == BYTES * 3
    write(tmp_path / "library/os.py", BYTES)
    assert splits_of(stdlib.load(None, None, directory=tmp_path / "library")) == BYTES


def test_byte_pairs_go_back_to_every_byte(tmp_path, monkeypatch):
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path))
    content = np.frombuffer(BYTES * 3, np.uint8)
    tokenizer = SubwordTokenizer.train(content, 300)
    for each in (content, content[::-1].copy()):
        assert tokenizer.decode(tokenizer.encode(each)) == each.tobytes()


def test_film_reviews(tmp_path):
    labels = {"pos": 1, "neg": 1, "unsup": 1}
    write_tar(tmp_path / "a.tar.xz", [(f"aclImdb/train/{label}/0_0.txt", TEXT.encode()) for label in labels])
    assert imdb.join_reviews([tmp_path / "a.tar.xz"], labels) == b"\n\n".join([TEXT.encode()] * 3)
    reviews = {f"{split}/{label}": 20 for split in ("train", "test") for label in ("neg", "pos")}
    texts = {name: [f"{TEXT}{name} {number}\r\n" for number in range(20)] for name in reviews}
    members = [(f"aclImdb/{name}/{n}_1.txt", text.encode()) for name in reviews for n, text in enumerate(texts[name])]
    write_tar(tmp_path / "imdb/aclImdb_labelled.tar.xz", members)
    found = imdb_sentiment.load(tmp_path, reviews=reviews)
    assert sorted(found.test["text"]) == sorted(texts["test/neg"] + texts["test/pos"])


def test_posts_are_latin_1_without_the_white_space_around_them(tmp_path):
    body = bytes(byte for byte in range(256) if byte not in b"\r\n")  # with control characters at both of its ends
    posts = [("train", n, body + b"\r\n%d" % n) for n in range(40)] + [("test", 0, b"\xa0x\x1c"), ("test", 1, b" y\n")]
    name = "20news-bydate-{}/sci.med/{}"
    write_tar(
        tmp_path / "20news-bydate.tar.xz", [(name.format(split, n), b"From: a\n\n" + text) for split, n, text in posts]
    )
    counts = {"train": 40, "test": 2}
    found = newsgroups.load(tmp_path, posts=counts)
    assert sorted(found.test["text"]) == ["y", "\xa0x\x1c"]
    assert set(found.train["text"]) <= {body.decode("latin-1") + f"\n{n}" for n in range(40)}
    told = "Left out of the files: carriage returns at ends of lines (40), white space around a post (1)."
    assert "read as latin-1" in found.note
    assert found.note.endswith(told)
    corpus = newsgroups.load_text(tmp_path, posts=counts)
    assert body.decode("latin-1").encode() in splits_of(corpus)
    assert corpus.note.endswith(told)


def test_tables(tmp_path):
    task = place("sst-2", tmp_path)
    lines = content("sst-2", task.train).splitlines()
    lines[1] = f" {TEXT}  \t1"
    lines[2] = f"{TEXT[:-1]}\t1"
    write(tmp_path / "glue/SST-2/train.tsv.gz", "\ufeff" + "\r\n".join(lines))
    found = glue.load(task, tmp_path)
    assert {TEXT, TEXT[:-1]} <= set(found.train["text"]) | set(found.validation["text"])
    told = "byte order marks (1), carriage returns at ends of lines (40), spaces around a text (79)."
    assert found.note.endswith(f"Left out of the files: {told}")  # each made-up text has a space behind it


def test_rows_that_are_passed_over_are_told(tmp_path):
    task = place("qqp", tmp_path)
    path = tmp_path / "glue/QQP/train.tsv.gz"
    write(path, content("qqp", task.train) + "broken\n")
    assert "rows with another number of columns (1)" in glue.load(task, tmp_path).note
    assert TASKS["qqp"].may_pass_over


def test_parallel_texts(tmp_path):
    counts = {"train": 3, "val": 1, "test_2016_flickr": 1}
    for split, count in counts.items():
        for language in ("en", "de"):
            write(tmp_path / f"multi30k/{split}.{language}", "\n".join([f" {TEXT}{language}", "", " "][:count]))
    found = multi30k.load("multi30k", tmp_path, pairs=counts, sha256={})
    assert found.train.to_numpy().tolist() == [[f"{TEXT}en", f"{TEXT}de"]]
    assert found.note.endswith("Left out of the files: pairs with an empty side (2), spaces around a text (8).")
    for name in wmt14.SAMPLE:
        write(tmp_path / f"wmt_ende_sample/{name}.txt", f"\ufeff{TEXT}{name}\r\n")
    pairs = {"train": 1, "val": 1, "test": 1}
    found = wmt14.load_sample(tmp_path, pairs=pairs, sha256={})
    assert found.train.iloc[0].tolist() == [f"{TEXT}src-train", f"{TEXT}tgt-train"]
    assert "byte order marks (6), carriage returns at ends of lines (6)." in found.note
    for name in (*wmt14.TRAINING, wmt14.VALIDATION, wmt14.TEST):
        for language in ("en", "de"):
            write(tmp_path / f"wmt14/{name}.{language}", f"{TEXT}\n {TEXT}\r\n")
    found = wmt14.load(tmp_path, sentences=dict.fromkeys(wmt14.SENTENCES, 2))
    assert set(found.train["source"]) == set(found.test["target"]) == {TEXT}
    assert found.note.endswith("carriage returns at ends of lines (10), spaces around a text (10).")


def test_lines_of_json(tmp_path):
    counts = {"train": 1, "validation": 1, "test": 1}
    row = {"A": TEXT + "\0\r\n", "B": f" {TEXT} ", "C": "\x1c", "label": "B"}
    for name, ascii_only in (("train.json", True), ("valid.json", False), ("test.json.gz", False)):
        write(tmp_path / "cail2019_scm" / name, f"\ufeff{json.dumps(row, ensure_ascii=ascii_only)}\r\n")
    found = cail2019_scm.load(tmp_path, triplets=counts)
    for split in (found.train, found.validation, found.test):
        assert split.iloc[0].tolist() == [row["A"], row["B"], row["C"], "one"]
    assert found.note.endswith("byte order marks (3), carriage returns at ends of lines (3).")
    write(tmp_path / "cail2019_scm/input.txt", "".join(f"{json.dumps(row | {'A': str(n)})}\n" for n in range(60)))
    found = cail2019_scm.load_sample(tmp_path, triplets=60, sha256=None)
    assert {row["B"], row["C"]} == {*found.train["one"], *found.train["other"]}
    assert "Left out" not in found.note
