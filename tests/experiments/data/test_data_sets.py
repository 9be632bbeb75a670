"""The data sets, made small in the tests; the real ones where LINEAR_ROPE_DATA has them."""

import gzip
import hashlib
import io
import os
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from experiments.cli import main
from experiments.data import archives, enwik8, imdb, stdlib
from experiments.data.corpus import Corpus, corpus_of_text
from experiments.data.files import Download
from experiments.data.registry import DATA_SETS, load_corpus
from tests.experiments.data.made_up_files import write_tar

ROOT = Path(__file__).parents[3]
OFFLINE = "http://127.0.0.1:1/"  # a port that nothing listens on
GENERATED = [*(f"recall-{length}" for length in (64, 128, 256, 512)), "recall-256-full", "copying-32", "copying-128"]
GENERATED += ["induction-64", "induction-256"]
GENERATED += [f"{group}-{length}" for length in (16, 64, 128) for group in ("parity", "s3", "a5", "s5")]
TEXTS = ["stdlib", "enwik8", "enwik8-4MB", "imdb", "wikitext-2", "wikitext-103", "newsgroups-text", "text"]
LABELLED_SETS = ["sst-2", "mrpc", "sts-b", "cola", "rte", "qnli", "qqp", "mnli", "qnli-part", "qqp-part"]
LABELLED_SETS += ["imdb-sentiment", "imdb-sentiment-long", "newsgroups", "cail2019-scm", "cail2019-scm-sample"]
LABELLED_SETS += ["late-verdicts", "numerals"]
LABELLED_SETS += ["multi30k", "multi30k-2017", "multi30k-2017-mscoco", "multi30k-2018", "wmt14", "wmt14-sample"]
TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 50
REAL_DATA = Path(os.environ["LINEAR_ROPE_DATA"]) if os.environ.get("LINEAR_ROPE_DATA") else None


def whole(corpus: Corpus) -> bytes:
    return b"".join(split.tobytes() for split in (corpus.train, corpus.validation, corpus.test))


class TestCorpus:
    @pytest.mark.parametrize(
        ("length", "sizes"),
        [(100, (90, 5, 5)), (4_000_000, (3_600_000, 200_000, 200_000)), (39, (35, 2, 2)), (1, (0, 0, 1))],
    )
    def test_split_sizes(self, length: int, sizes: tuple[int, int, int]) -> None:
        content = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8)
        corpus = corpus_of_text("mine", content, source="a test", note="Only a test.")
        splits = dict(zip(("train", "validation", "test"), sizes, strict=True))
        told = {"name": "mine", "source": "a test", "note": "Only a test.", "bytes": length, "splits": splits}
        sha256 = hashlib.sha256(content).hexdigest()
        assert msgspec.to_builtins(corpus.describe()) == told | {"sha256": sha256}
        assert whole(corpus) == content.tobytes()


class TestRegistry:
    def test_names_and_what_is_there_without_any_data(self) -> None:
        assert list(DATA_SETS) == [*TEXTS, *GENERATED, *LABELLED_SETS]
        here = {name for name, data_set in DATA_SETS.items() if data_set.find(None) is not None}
        assert here == {"stdlib", "late-verdicts", "numerals", *GENERATED}

    def test_arguments_that_do_not_fit_together(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"--data: there is no data set 'enwik9'; did you mean 'enwik8'\? .*text"):
            load_corpus("enwik9")
        with pytest.raises(ValueError, match="--data-file FILE"):
            load_corpus("text")
        with pytest.raises(ValueError, match="--data text"):
            load_corpus("stdlib", data_file=tmp_path / "mine.txt")

    @pytest.mark.parametrize("name", ["enwik8", "enwik8-4MB", "imdb", "sst-2", "newsgroups", "multi30k", "wikitext-2"])
    def test_what_would_be_downloaded_is_refused_if_it_may_not_be(
        self, own_cache: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        own_cache.mkdir()
        (own_cache / "enwik8.zip").write_bytes(b"half of it, which would be downloaded again")
        (own_cache / "aclImdb_v1.tar.gz").write_bytes(b"half of it")
        with pytest.raises(ValueError, match=r"would be downloaded from http\S+, .*run without --dry-run"):
            load_corpus(name, may_download=False)
        assert capsys.readouterr().out == ""

    def test_what_is_here_is_loaded_without_downloading(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_bytes(TEXT)
        for name, data_file in (("copying-32", None), ("text", tmp_path / "mine")):
            assert load_corpus(name, data_file=data_file, may_download=False).name == name
        (tmp_path / "enwik8").write_bytes(TEXT)
        with pytest.raises(ValueError, match="damaged or another file"):
            load_corpus("enwik8", tmp_path, may_download=False)

    @pytest.mark.parametrize("command", ["list", "data", "doctor"])
    def test_those_of_installed_packages_and_of_one_that_cannot_be_imported(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "own_data.py").write_text(
            "from experiments.data.corpus import DataSet, corpus_of_text\n"
            "mine = DataSet('mine', 'My text.', lambda data_dir, data_file: corpus_of_text('mine', b'abc' * 100))\n"
        )
        (tmp_path / "own-1.0.dist-info").mkdir()
        (tmp_path / "own-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        groups = "[linear_rope.data]\nbad = no:bad\nmine = own_data:mine\n[linear_rope.studies]\nasked = no:asked\n"
        (tmp_path / "own-1.0.dist-info" / "entry_points.txt").write_text(groups)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(DATA_SETS, "_items", dict(DATA_SETS._items))
        assert main([command]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "data set 'bad' cannot be imported (ModuleNotFoundError: No module named 'no')" in told
        assert ("My text." if command != "doctor" else "mine here: made by its own code") in told
        assert load_corpus("mine", may_download=False).describe().bytes == 300
        with pytest.raises(ValueError, match=r"cannot be imported \(ModuleNotFoundError: .*mend or remove"):
            load_corpus("bad")


class TestText:
    def test_a_file_of_the_users(self, tmp_path: Path) -> None:
        plain, packed = tmp_path / "mine.txt", tmp_path / "mine.gz"
        plain.write_bytes(TEXT)
        packed.write_bytes(gzip.compress(TEXT))
        corpus = load_corpus("text", None, plain)
        assert (corpus.name, corpus.source) == ("text", "mine.txt")
        assert "mine.txt" in corpus.note
        assert corpus.sha256 == load_corpus("text", None, packed).sha256 == hashlib.sha256(TEXT).hexdigest()

        (tmp_path / "empty").touch()
        with pytest.raises(ValueError, match="--data text: empty is empty; give"):
            load_corpus("text", data_file=tmp_path / "empty")


class TestStdlib:
    def test_the_running_python(self) -> None:
        corpus = load_corpus("stdlib")
        assert corpus.sha256 == hashlib.sha256(whole(corpus)).hexdigest()
        assert corpus.describe().bytes > 5_000_000
        assert sys.version.split()[0] in corpus.source

    def test_takes_sources_in_order_and_leaves_out_the_rest(self, tmp_path: Path) -> None:
        kept = ["a/z.py", "a.py", "b/latest.py", "os.py", "unittest/case.py"]
        left_out = ["site-packages/torch.py", "test/test_os.py", "a/tests/helper.py", "idlelib/idle_test/mock.py"]
        left_out += ["config-3.11-linux/python-config.py", "_sysconfigdata_linux.py", "sitecustomize.py", "LICENSE.txt"]
        for name in reversed(kept + left_out):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"# {name}\n")
        expected = "".join(f"# {name}\n" for name in sorted(kept))
        assert whole(stdlib.load(None, None, directory=tmp_path)).decode() == expected

        with pytest.raises(ValueError, match=r"no standard library sources in .*--data text --data-file FILE"):
            stdlib.load(None, None, directory=tmp_path / "python311.zip")


class TestEnwik8:
    CONTENT = bytes(range(256)) * 4
    SHA256 = hashlib.sha256(CONTENT).hexdigest()

    def zipped(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("enwik8", self.CONTENT)
        return buffer.getvalue()

    @pytest.mark.parametrize("name", ["enwik8", "enwik8.zip", "enwik8.gz", "enwik8/enwik8.zip"])
    def test_found_in_the_data_directory(self, tmp_path: Path, name: str) -> None:
        packed = {"": self.CONTENT, ".zip": self.zipped(), ".gz": gzip.compress(self.CONTENT)}
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(packed[path.suffix])
        corpus = enwik8.load(tmp_path, None, sha256=self.SHA256)
        assert whole(corpus) == self.CONTENT
        assert corpus.source == f"{name} in the data directory"
        assert DATA_SETS["enwik8"].find(tmp_path) == path

    def test_taken_from_the_cache(self, own_cache: Path) -> None:
        own_cache.mkdir()
        (own_cache / "enwik8.zip").write_bytes(self.zipped())
        download = Download(OFFLINE, f"sha256:{hashlib.sha256(self.zipped()).hexdigest()}", "enwik8.zip")
        assert enwik8.load(None, None, download=download, sha256=self.SHA256).source == f"downloaded from {OFFLINE}"

    def test_another_file_of_that_name_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(enwik8, "SIZE", len(self.CONTENT))
        (tmp_path / "enwik8").write_bytes(self.CONTENT + b"!")
        with pytest.raises(ValueError, match="enwik8 in the data directory is damaged or another file"):
            enwik8.load(tmp_path, None, sha256=self.SHA256)
        with pytest.raises(ValueError, match=enwik8.SHA256):
            load_corpus("enwik8", tmp_path)


class TestEnwik8Prefix:
    FULL = np.random.default_rng(0).integers(0, 256, 4_100_000, dtype=np.uint8).tobytes()
    PREFIX = FULL[:4_000_000]
    SHA256 = hashlib.sha256(PREFIX).hexdigest()

    def test_from_its_own_file_or_cut_from_enwik8_and_a_longer_one_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "enwik8").write_bytes(self.FULL)
        cut = enwik8.load_prefix(tmp_path, None, sha256=self.SHA256)
        assert cut.source == "the first 4,000,000 bytes of enwik8 in the data directory"
        (tmp_path / "enwik8_first4000000").write_bytes(self.PREFIX)
        own = enwik8.load_prefix(tmp_path, None, sha256=self.SHA256)
        assert own.source == "enwik8_first4000000 in the data directory"
        assert cut.sha256 == own.sha256 == self.SHA256
        (tmp_path / "enwik8_first4000000").write_bytes(self.FULL)
        with pytest.raises(ValueError, match="damaged or another file"):
            enwik8.load_prefix(tmp_path, None, sha256=self.SHA256)

    @pytest.mark.skipif(not (REAL_DATA and DATA_SETS["enwik8-4MB"].find(REAL_DATA)), reason="no enwik8 is there")
    def test_the_real_one(self) -> None:
        corpus = load_corpus("enwik8-4MB", REAL_DATA)
        assert corpus.train[:10].tobytes() == b"<mediawiki"
        assert corpus.describe().bytes == 4_000_000
        assert "not comparable with published enwik8 figures" in corpus.note


COUNTS = {"pos": 3, "neg": 3, "unsup": 6}
LABELLED = [(f"aclImdb/train/{label}/{i}_9.txt", f"{label} {i}".encode()) for label in ("pos", "neg") for i in range(3)]
UNLABELLED = [(f"aclImdb/train/unsup/{i}_0.txt", f"unsup {i}".encode()) for i in range(6)]
OTHERS = [("aclImdb/test/pos/0_9.txt", b"TEST"), ("aclImdb/train/urls_pos.txt", b"URL"), ("aclImdb/README", b"READ")]


class TestImdb:
    def parts(self, folder: Path) -> Path:
        write_tar(folder / "imdb" / "aclImdb_labelled.tar.xz", OTHERS + LABELLED)
        write_tar(folder / "imdb" / "aclImdb_unsup.tar.xz", UNLABELLED)
        return folder

    def official(self, folder: Path, odd: Iterable[tarfile.TarInfo] = ()) -> Download:
        """The official form of the archive, its members in another order; returns how it would be known."""
        path = folder / "aclImdb_v1.tar.gz"
        write_tar(path, [*reversed(UNLABELLED), *OTHERS, *reversed(LABELLED)], odd)
        return Download(OFFLINE, f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}", path.name)

    def expected(self) -> bytes:
        reviews = sorted(LABELLED + UNLABELLED, key=lambda item: hashlib.sha256(item[0].encode()).hexdigest())
        return b"\n\n".join(text for _, text in reviews)

    def test_all_sources_give_the_same_text(self, tmp_path: Path, own_cache: Path) -> None:
        from_parts = imdb.load(self.parts(tmp_path / "a"), None, reviews=COUNTS)
        tail = tarfile.TarInfo("aclImdb/train/pos/9_9.txt\n")  # not named like a review
        given = imdb.load(tmp_path / "b", None, download=self.official(tmp_path / "b", odd=[tail]), reviews=COUNTS)
        downloaded = imdb.load(None, None, download=self.official(own_cache), reviews=COUNTS)
        assert whole(from_parts) == whole(given) == whole(downloaded) == self.expected()
        assert "imdb/aclImdb_unsup.tar.xz" in from_parts.source
        assert given.source == "aclImdb_v1.tar.gz in the data directory"
        assert downloaded.source == f"downloaded from {OFFLINE}"
        assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "cache"}, "nothing is unpacked"
        assert {path.suffix for path in own_cache.iterdir()} == {".sha256", ".txt", ".gz"}

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            *(
                (name, tarfile.REGTYPE)
                for name in ("../0_9.txt", "/0_9.txt", "C:\\9_9.txt", "aclImdb\\..\\..\\9_9.txt")
            ),
            *(("aclImdb/x", kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)),
        ],
    )
    def test_an_archive_of_anything_but_files_inside_it_is_refused(
        self, tmp_path: Path, name: str, kind: bytes
    ) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "README"
        write_tar(tmp_path / "bad.tar.gz", LABELLED, [member])
        with pytest.raises(ValueError, match=r"--data imdb: .*is a link, a device or leads out of it\); replace"):
            list(imdb.reviews_of(tmp_path / "bad.tar.gz"))

    @pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
    def test_a_header_of_a_terabyte_is_refused_without_reading_it(self, tmp_path: Path, kind: bytes) -> None:
        member = tarfile.TarInfo("aclImdb/README")
        member.type, member.size = kind, 2**40
        with gzip.open(tmp_path / "bomb.tar.gz", "wb") as file:
            file.write(member.tobuf(tarfile.GNU_FORMAT) + bytes(2**20))
        started = time.monotonic()
        with pytest.raises(ValueError, match=r"to more than 1,073,741,824 bytes|1,099,511,627,776 bytes long"):
            list(imdb.reviews_of(tmp_path / "bomb.tar.gz"))
        assert time.monotonic() - started < 5

    def test_an_archive_of_too_much_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_tar(tmp_path / "long.tar.gz", LABELLED)
        with gzip.open(tmp_path / "long.tar.gz", "ab") as file:
            file.write(bytes(2**20))  # what follows the last member counts too
        monkeypatch.setattr(archives, "MOST_MEMBERS", len(LABELLED))
        assert dict(imdb.reviews_of(tmp_path / "long.tar.gz")) == dict(LABELLED)
        for limit, value, told in (("LARGEST_ARCHIVE", 2**20, "1,048,576 bytes"), ("MOST_MEMBERS", 5, "5 members")):
            monkeypatch.setattr(archives, limit, value)
            with pytest.raises(ValueError, match=f"more than {told}"):
                list(imdb.reviews_of(tmp_path / "long.tar.gz"))

    def test_a_cache_that_is_not_a_directory_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "loop").symlink_to("loop")
        self.parts(tmp_path)
        for cache in (tmp_path / "loop", tmp_path / ("x" * 300)):
            monkeypatch.setenv("LINEAR_ROPE_CACHE", str(cache))
            with pytest.raises(ValueError, match="set LINEAR_ROPE_CACHE to a directory that can"):
                imdb.load(tmp_path, None, reviews=COUNTS)

    def test_a_review_that_is_too_long_or_a_pipe_is_refused(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "huge.tar.gz", [("aclImdb/train/pos/9_9.txt", bytes(10**6)), *LABELLED])
        os.mkfifo(tmp_path / "pipe.tar.gz")
        for name, reason in (("huge", "a header says that what follows is 1,000,000 bytes"), ("pipe", "not a regular")):
            with pytest.raises(ValueError, match=reason):
                list(imdb.reviews_of(tmp_path / f"{name}.tar.gz"))

    def test_incomplete_and_damaged_archives_are_refused(self, tmp_path: Path, own_cache: Path) -> None:
        with pytest.raises(ValueError, match=r"hold \{'neg': 3, 'pos': 3, 'unsup': 6\} reviews, expected"):
            imdb.load(self.parts(tmp_path), None, reviews={**COUNTS, "pos": 4})
        spoilt = self.parts(tmp_path / "spoilt")
        write_tar(spoilt / "imdb" / "aclImdb_labelled.tar.xz", [*LABELLED[1:], (LABELLED[0][0], b"good\xff")])
        with pytest.raises(ValueError, match=r"labelled\.tar\.xz, aclImdb/train/pos/0_9\.txt: it is not UTF-8"):
            imdb.load(spoilt, None, reviews=COUNTS)
        assert not own_cache.exists()
        unlabelled = self.parts(tmp_path / "a") / "imdb" / "aclImdb_unsup.tar.xz"
        whole_archive = unlabelled.read_bytes()
        for keep in (20, len(whole_archive) // 2, len(whole_archive) - 1):
            unlabelled.write_bytes(whole_archive[:keep])
            with pytest.raises(ValueError, match=r"aclImdb_unsup.tar.xz cannot be read"):
                imdb.load(tmp_path / "a", None, reviews=COUNTS)
        download = self.official(tmp_path / "b")
        (tmp_path / "b" / "aclImdb_v1.tar.gz").write_bytes(b"something else")
        with pytest.raises(ValueError, match=f"its hash is not {download.known_hash}"):
            imdb.load(tmp_path / "b", None, download=download, reviews=COUNTS)

    def test_the_joined_text_is_kept_and_checked(self, tmp_path: Path, own_cache: Path) -> None:
        data_dir = self.parts(tmp_path)
        first = imdb.load(data_dir, None, reviews=COUNTS)
        (joined,) = own_cache.glob("*.txt")
        # A wrong expectation shows whether the archives are read: not while the kept text is whole ...
        assert whole(imdb.load(data_dir, None, reviews={})) == whole(first)
        for damage in (b"", joined.read_bytes()[:-1], b"x" + joined.read_bytes()[1:]):
            joined.unlink()
            joined.write_bytes(damage)
            with pytest.raises(ValueError, match="expected"):
                imdb.load(data_dir, None, reviews={})
        # ... and then joining again repairs it.
        assert whole(imdb.load(data_dir, None, reviews=COUNTS)) == self.expected() == joined.read_bytes()

        # Other archives are another text.
        write_tar(data_dir / "imdb" / "aclImdb_unsup.tar.xz", [(name, text + b"!") for name, text in UNLABELLED])
        assert whole(imdb.load(data_dir, None, reviews=COUNTS)).count(b"!") == 6

    @pytest.mark.slow
    @pytest.mark.full
    @pytest.mark.skipif(
        not (REAL_DATA and imdb.find(REAL_DATA)), reason="LINEAR_ROPE_DATA names no directory with imdb"
    )
    def test_the_real_one(self) -> None:
        corpus = load_corpus("imdb", REAL_DATA)
        assert 99_000_000 < corpus.describe().bytes < 101_000_000
        assert corpus.sha256 == load_corpus("imdb", REAL_DATA).sha256
