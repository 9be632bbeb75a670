"""Reviews of IMDB with their labels."""

import re

import pytest

from experiments.data import imdb_sentiment
from experiments.data.registry import DATA_SETS
from tests.experiments.data.made_up_files import Server, known, write_tar

COUNTS = {f"{split}/{label}": 20 for split in ("train", "test") for label in ("neg", "pos")}


def reviews(**changed):
    found = {
        f"aclImdb/{split}/{label}/{i}_7.txt": f"{split} {label} {i} é<br />".encode()
        for split in ("test", "train")
        for label in ("pos", "neg")
        for i in range(20)
    }
    return [*found.items(), ("aclImdb/train/unsup/0_0.txt", b"no label"), ("aclImdb/train/urls_pos.txt", b"url")]


def test_labels_from_folders_wherever_the_archive_is(tmp_path, server: Server):
    write_tar(tmp_path / "a/imdb/aclImdb_labelled.tar.xz", reviews())
    write_tar(tmp_path / "b/imdb/aclImdb_v1.tar.gz", reversed(reviews()))
    write_tar(server.directory / "aclImdb_v1.tar.gz", reviews())
    part = imdb_sentiment.load(tmp_path / "a", reviews=COUNTS)
    assert part.classes == ("negative", "positive")
    assert len(part.train) + len(part.validation) == len(part.test) == 40
    rows = dict(part.test.itertuples(index=False))
    assert rows["test neg 3 é<br />"] == "negative"
    assert rows["test pos 3 é<br />"] == "positive"
    assert DATA_SETS["imdb-sentiment"].find(tmp_path / "a") == tmp_path / "a/imdb/aclImdb_labelled.tar.xz"

    given = tmp_path / "b/imdb/aclImdb_v1.tar.gz"
    official = imdb_sentiment.load(tmp_path / "b", reviews=COUNTS, download=known(given))
    offered = known(server.directory / "aclImdb_v1.tar.gz", f"{server.url}/aclImdb_v1.tar.gz")
    downloaded = imdb_sentiment.load(None, reviews=COUNTS, download=offered)
    assert part.sha256 == official.sha256 == downloaded.sha256
    with pytest.raises(ValueError, match=r"--data imdb-sentiment: .* is damaged or another file"):
        imdb_sentiment.load(tmp_path / "b", reviews=COUNTS, download=offered)


def test_short_reviews_can_be_left_out_of_validation_and_test_alone(tmp_path):
    long = {name: text + b" and so on" * 3 if re.search("[13579]_7", name) else text for name, text in reviews()}
    write_tar(tmp_path / "imdb/aclImdb_labelled.tar.xz", long.items())
    every, judged = (imdb_sentiment.load(tmp_path, reviews=COUNTS, words=words) for words in (0, 10))
    assert judged.train.equals(every.train)
    assert len(judged.test) == 20  # those of odd numbers
    for split in (judged.test, judged.validation):
        assert split["text"].str.contains("and so on").all()
    assert "10 words or more" in judged.note
    assert judged.sha256 != every.sha256


def test_wrong_archives(tmp_path):
    path = tmp_path / "imdb/aclImdb_labelled.tar.xz"
    write_tar(path, reviews())
    with pytest.raises(ValueError, match=r"holds \{'test/neg': 20, .*\} reviews, expected .*12500.*; replace"):
        imdb_sentiment.load(tmp_path)
    whole = path.read_bytes()
    for keep in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"--data imdb-sentiment: .*labelled\.tar\.xz cannot be read"):
            imdb_sentiment.load(tmp_path, reviews=COUNTS)
    write_tar(path, [("aclImdb/train/pos/0_9.txt", b"\xff")])
    with pytest.raises(ValueError, match=r"train/pos/0_9\.txt: it is not UTF-8 \(invalid start byte\); replace"):
        imdb_sentiment.load(tmp_path, reviews=COUNTS)


@pytest.mark.slow
@pytest.mark.full
def test_the_real_one(real):
    examples = real("imdb-sentiment")
    assert tuple(examples.describe().splits.values()) == (22_560, 2_440, 25_000)
    assert examples.sha256 == "ae4129f6f32b5bad11973c98ab1a9b6bb7a78219a3506342d6e46affd39fa1b7"
    assert examples.test["label"].value_counts().to_dict() == {"negative": 12_500, "positive": 12_500}
    assert not {*examples.train["text"]} & {*examples.validation["text"]}
    shared = {*examples.train["text"], *examples.validation["text"]} & {*examples.test["text"]}
    assert len(shared) == 123
    assert "123 reviews" in examples.note
    judged = real("imdb-sentiment-long")
    assert tuple(judged.describe().splits.values()) == (22_560, 362, 3_147)
    shared = {*judged.train["text"], *judged.validation["text"]} & {*judged.test["text"]}
    assert f"{len(shared)} reviews" in judged.note
