"""WikiText from its archive."""

import hashlib

import pytest

from experiments.data import wikitext
from tests.experiments.data.made_up_files import Server, known, write_zip

MEMBERS = {f"wikitext-2-raw/wiki.{split}.raw": f" = {split} = \n" for split in ("train", "valid", "test")}


def test_official_splits_there_or_downloaded(tmp_path, server: Server):
    archive = write_zip(server.directory / "wikitext-2-raw-v1.zip", MEMBERS)
    official = known(archive, f"{server.url}/{archive.name}", (f"wikitext/{archive.name}",))
    downloaded = wikitext.load("wikitext-2", None, official=official)
    write_zip(tmp_path / "wikitext/wikitext-2-raw-v1.zip", MEMBERS)
    given = wikitext.load("wikitext-2", tmp_path, official=official)
    assert server.requests == 1
    for corpus in (given, downloaded):
        splits = [getattr(corpus, split).tobytes().decode() for split in ("train", "validation", "test")]
        assert splits == list(MEMBERS.values())
        assert corpus.sha256 == hashlib.sha256("".join(splits).encode()).hexdigest()
    with pytest.raises(ValueError, match=r"--data wikitext-2: .*zip is damaged or another file"):
        wikitext.load("wikitext-2", tmp_path)


def test_an_archive_without_a_split(tmp_path):
    archive = write_zip(tmp_path / "a.zip", {name: text for name, text in MEMBERS.items() if "valid" not in name})
    with pytest.raises(ValueError, match=r"cannot be read \(.*it holds 0 files wikitext-2-raw/wiki\.valid\.raw"):
        wikitext.load("wikitext-2", tmp_path, official=known(archive, places=("a.zip",)))
