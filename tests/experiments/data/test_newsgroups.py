"""Posts of 20 newsgroups."""

import pytest

from experiments.data import newsgroups
from experiments.data.registry import DATA_SETS
from tests.experiments.data.made_up_files import Server, known, write_tar

COUNTS = {"train": 40, "test": 20}


def posts():
    for split, count in COUNTS.items():
        for number in range(count):
            group = newsgroups.GROUPS[number % 20]
            body = f"{split} {number} caf\xe9 {group[:3]}\n\n-- \nsigned".encode("latin-1")
            header = f"From: a@b\nNewsgroups: {group}\nSubject: x".encode()
            yield f"20news-bydate-{split}/{group}/{number}", header + b"\n\n" + body + b"\n"


def test_posts_without_their_headers(tmp_path, server: Server):
    write_tar(tmp_path / "20newsgroups/20news-bydate.tar.xz", [*posts(), ("20news-bydate-train/notes", b"x")])
    write_tar(server.directory / "20news-bydate.tar.gz", reversed([*posts()]))
    examples = newsgroups.load(tmp_path, posts=COUNTS)
    assert len(examples.classes) == 20
    assert len(examples.train) + len(examples.validation) == 40
    rows = dict(examples.test.itertuples(index=False))
    assert rows["test 3 caf\xe9 com\n\n-- \nsigned"] == "comp.sys.ibm.pc.hardware"
    assert not any("Newsgroups" in text for text in examples.train["text"])

    offered = known(server.directory / "20news-bydate.tar.gz", f"{server.url}/20news-bydate.tar.gz")
    assert newsgroups.load(None, posts=COUNTS, download=offered).sha256 == examples.sha256
    (tmp_path / "b").mkdir()
    (tmp_path / "b/20news-bydate.tar.gz").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"--data newsgroups: .* is damaged or another file"):
        newsgroups.load(tmp_path / "b", posts=COUNTS, download=offered)


def test_all_posts_as_one_text(tmp_path):
    write_tar(tmp_path / "20news-bydate.tar.xz", posts())
    corpus = newsgroups.load_text(tmp_path, posts=COUNTS)
    content = b"".join(getattr(corpus, split).tobytes() for split in ("train", "validation", "test")).decode()
    texts = content.split("\n\n-- \nsigned")
    assert texts.pop() == ""
    found = [text.strip() for text in texts]
    assert sorted(found) == sorted(
        f"{split} {number} caf\xe9 {newsgroups.GROUPS[number % 20][:3]}"
        for split, count in COUNTS.items()
        for number in range(count)
    )
    assert found != sorted(found)
    write_tar(tmp_path / "20news-bydate.tar.xz", reversed([*posts()]))
    assert newsgroups.load_text(tmp_path, posts=COUNTS).sha256 == corpus.sha256


def test_wrong_archives(tmp_path):
    path = tmp_path / "20news-bydate.tar.xz"
    write_tar(path, posts())
    with pytest.raises(ValueError, match=r"holds \{'train': 40, 'test': 20\} posts, expected .*11314.*; replace"):
        newsgroups.load(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"--data newsgroups: .*\.tar\.xz cannot be read"):
        newsgroups.load(tmp_path, posts=COUNTS)
    write_tar(path, [("20news-bydate-train/sci.med/1", bytes(newsgroups.LONGEST_POST + 1))])
    with pytest.raises(ValueError, match="says that what follows is 262,145 bytes"):
        newsgroups.load(tmp_path, posts=COUNTS)


@pytest.mark.slow
def test_the_real_one(real):
    examples = real("newsgroups")
    assert tuple(examples.describe().splits.values()) == (10_258, 1_056, 7_532)
    assert examples.sha256 == "b616b12ca9ea6671fb52714503de0b1bf8760dd8240487d0eea53cd3aeac8f3c"
    assert {*examples.test["label"]} == {*examples.classes}
    assert not {*examples.train["text"]} & {*examples.validation["text"]}
    empty = sum((getattr(examples, split)["text"] == "").sum() for split in ("train", "validation", "test"))
    assert empty == 34
    text = real("newsgroups-text")
    assert text.sha256 == DATA_SETS["newsgroups-text"].known_sha256
    assert tuple(text.describe().splits.values()) == (29_053_412, 1_614_078, 1_614_079)
