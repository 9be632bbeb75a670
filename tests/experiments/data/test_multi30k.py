"""Multi30k: parallel texts in files of their own."""

import gzip

import pytest

from experiments.data import multi30k
from experiments.data.registry import DATA_SETS
from tests.experiments.data.made_up_files import Server, known, write

COUNTS = {"train": 3, "val": 2, "test_2016_flickr": 2, "test_2017_flickr": 1}


def files(directory, end=".gz"):
    for split, count in COUNTS.items():
        for language in ("en", "de"):
            text = "".join(f"{split} {language} {row}.\n" for row in range(count))
            write(directory / f"{split}.{language}{end}", text)


@pytest.mark.parametrize("folder", ["multi30k", "multi30k/data/task1/raw"])
def test_six_files_and_another_test_split(tmp_path, folder):
    files(tmp_path / folder, end="" if "raw" in folder else ".gz")
    examples = multi30k.load("multi30k", tmp_path, pairs=COUNTS, sha256={})
    assert examples.kind == "translation"
    assert examples.train.iloc[0].tolist() == ["train en 0.", "train de 0."]
    assert examples.test["source"].tolist() == ["test_2016_flickr en 0.", "test_2016_flickr en 1."]
    assert DATA_SETS["multi30k"].find(tmp_path) == f"6 files in {tmp_path / folder}"
    newer = multi30k.load("multi30k-2017", tmp_path, pairs=COUNTS, sha256={})
    assert newer.test["target"].tolist() == ["test_2017_flickr de 0."]
    assert newer.train.equals(examples.train)


def test_downloaded(server: Server, monkeypatch):
    files(server.directory)
    offered = [
        known(server.directory / f"{split}.{language}.gz", f"{server.url}/{split}.{language}.gz", ("absent",))
        for split in ("train", "val", "test_2016_flickr")
        for language in ("en", "de")
    ]
    monkeypatch.setattr(multi30k, "downloads", lambda test: offered)
    examples = multi30k.load("multi30k", None, pairs=COUNTS, sha256={})
    assert examples.test["target"].tolist() == ["test_2016_flickr de 0.", "test_2016_flickr de 1."]
    assert examples.source.startswith(f"downloaded from {server.url}/train.en.gz and ")
    assert server.requests == 6
    (server.directory / "val.de.gz").write_bytes(gzip.compress(b"other"))
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(server.directory / "cache"))
    with pytest.raises(ValueError, match=r"val\.de\.gz sent does not have the known hash"):
        multi30k.load("multi30k", None, pairs=COUNTS, sha256={})


def test_wrong_files(tmp_path):
    files(tmp_path / "multi30k")
    with pytest.raises(ValueError, match=r"--data multi30k: .*train\.en\.gz: it has 3 lines, expected 29,000; replace"):
        multi30k.load("multi30k", tmp_path)
    path = write(tmp_path / "multi30k/val.de.gz", "Eins.\n")
    with pytest.raises(ValueError, match=r"val\.de\.gz: it has 1 lines, expected 2; replace"):
        multi30k.load("multi30k", tmp_path, pairs=COUNTS, sha256={})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"--data multi30k: .*val\.de\.gz cannot be read \(Compressed file ended"):
        multi30k.load("multi30k", tmp_path, pairs=COUNTS, sha256={})
    write(path, b"Eins.\nZw\xe4i.\n")
    with pytest.raises(ValueError, match=r"val\.de\.gz, row 2: it is not UTF-8"):
        multi30k.load("multi30k", tmp_path, pairs=COUNTS, sha256={})


@pytest.mark.parametrize("name", multi30k.TESTS)
def test_the_real_ones(real, name):
    examples = real(name)
    count = multi30k.PAIRS[multi30k.TESTS[name]]
    assert tuple(examples.describe().splits.values()) == (29_000, 1_014, count)
    assert examples.train["source"][0] == "Two young, White males are outside near many bushes."
    assert examples.train["target"][0] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    if name == "multi30k":
        assert examples.test["source"][0] == "A man in an orange hat starring at something."
