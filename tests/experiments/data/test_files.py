"""Finding, reading, checking and downloading files: no network, only a server of our own on this machine."""

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from experiments.data.files import Download, members_of, read_content, resolve_data_dir
from experiments.data.registry import load_corpus
from tests.experiments.data.made_up_files import Server, tar, write

ROOT = Path(__file__).parents[3]
TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 50

MEMBERS = [(f"texts/{number}", b"text %d" % number) for number in range(4)]
WANTED = re.compile("texts/(?P<number>[0-9])")


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


class TestReading:
    def test_compressed_or_not_is_the_same(self, tmp_path: Path) -> None:
        nameless = zipfile.ZipInfo("text")
        nameless.filename = ""
        (tmp_path / "plain").write_bytes(TEXT)
        (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
        zipped(tmp_path / "text.zip", ("folder/", b""), ("folder/text", TEXT))
        zipped(tmp_path / "nameless.ZIP", (nameless, TEXT))
        for path in tmp_path.iterdir():
            assert read_content(path) == TEXT
            assert read_content(path, limit=100) == TEXT[:100]

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        packed = gzip.compress(TEXT)
        good = zipped(tmp_path / "good.zip", ("text", TEXT)).read_bytes()
        directory = good.index(b"PK\x01\x02")
        encrypted = bytearray(good)
        encrypted[6] |= 1
        encrypted[directory + 8] |= 1
        damaged = {
            "not.gz": (TEXT, "Not a gzipped file"),
            "cut.gz": (packed[: len(packed) // 2], "ended before"),
            "changed.gz": (packed[:20] + bytes([packed[20] ^ 255]) + packed[21:], ""),
            "not.zip": (TEXT, "not a zip file"),
            "encrypted.zip": (bytes(encrypted), "encrypted"),
            "changed.zip": (good.replace(TEXT[:20], TEXT[:20].upper(), 1), "Bad CRC-32"),
        }
        for name, (content, reason) in damaged.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match=rf"^--data-file: .*{name} cannot be read \(.*{reason}.*\); give"):
                read_content(tmp_path / name)

    def test_a_file_of_a_zip_by_its_name(self, tmp_path: Path) -> None:
        path = zipped(tmp_path / "two.zip", ("a/one", b"1"), ("a/two", b"2"))
        assert [read_content(path, member=f"a/{name}") for name in ("one", "two")] == [b"1", b"2"]
        with pytest.raises(ValueError, match="holds 0 files a/three, and not one"):
            read_content(path, member="a/three")

    def test_a_zip_of_other_than_one_file_is_refused(self, tmp_path: Path) -> None:
        for names in ((), ("one", "two")):
            path = zipped(tmp_path / "bad.zip", *((name, b"1") for name in names))
            with pytest.raises(ValueError, match=f"holds {len(names)} files, and not one"):
                read_content(path)

    def test_text_that_repeats_itself_may_be_packed_as_tightly_as_it_can(self, tmp_path: Path) -> None:
        text = b"a line like all the others\n" * 100_000
        (tmp_path / "small.gz").write_bytes(gzip.compress(text))
        assert read_content(tmp_path / "small.gz") == text

    @pytest.mark.parametrize("form", ["gz", "zip"])
    def test_a_bomb_is_refused_whatever_memory_there_is(self, tmp_path: Path, form: str) -> None:
        """10 GiB of zeros in gzip members, 1 GiB in a zip's; read with half a GiB of address space."""
        zeros, path = bytes(2**26), tmp_path / f"bomb.{form}"
        if form == "zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as member:
                for _ in range(16):
                    member.write(zeros)
        else:
            path.write_bytes(gzip.compress(zeros) * 160)
        code = (
            "import resource, sys, pathlib\n"
            "from experiments.data.files import read_content\n"
            "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))\n"
            "read_content(pathlib.Path(sys.argv[1]))\n"
        )
        process = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
        )
        told = process.stderr.splitlines()[-1]
        assert re.match(r"ValueError: --data-file: .*(does not fit into the memory|has more than [0-9,]+ bytes)", told)

    def test_more_text_than_is_read_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "plain").write_bytes(TEXT)
        (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
        with (tmp_path / "sparse").open("wb") as file:
            file.truncate(2**40)
        with pytest.raises(ValueError, match=r"--data-file: .*sparse cannot be read \(it has more than"):
            read_content(tmp_path / "sparse")
        monkeypatch.setattr("experiments.data.files.LARGEST_TEXT", len(TEXT))
        assert read_content(tmp_path / "plain") == read_content(tmp_path / "text.gz") == TEXT
        monkeypatch.setattr("experiments.data.files.LARGEST_TEXT", len(TEXT) - 1)
        for name in ("plain", "text.gz"):
            with pytest.raises(ValueError, match=r"has more than 2,249 bytes"):
                read_content(tmp_path / name)
        assert read_content(tmp_path / "plain", limit=10) == TEXT[:10]

    def test_what_is_no_file_is_refused_at_once(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").touch()
        for path, reason in (
            (tmp_path / "absent", "No such file"),
            (tmp_path, "it is a directory"),
            (tmp_path / "pipe", "it is not a regular file"),
            (Path("/dev/zero"), "it is not a regular file"),
            (tmp_path / "loop", "Too many levels of symbolic links"),
            (tmp_path / ("x" * 300), "File name too long"),
            (Path("a\0b"), ".*embedded null"),
            (tmp_path / "file" / "below", "Not a directory"),
        ):
            with pytest.raises(ValueError, match=rf"^--data-file: .* cannot be read \({reason}.*\); give one file"):
                read_content(path)

    @pytest.mark.parametrize("path", ["/proc/self/mounts", "/proc/kmsg"])
    def test_a_file_of_the_kernel_s_that_claims_to_be_empty_is_not_waited_for(self, path: str) -> None:
        with pytest.raises(ValueError, match=r"is empty; give|cannot be read \((Operation not|Permission|No such)"):
            load_corpus("text", data_file=Path(path))


class TestArchives:
    def read(self, path: Path) -> dict[str, bytes]:
        return {match["number"]: content for match, content in members_of(path, WANTED, "--data mine")}

    @pytest.mark.parametrize("form", ["gz", "xz"])
    def test_files_of_wanted_names_alone_are_read(self, tmp_path: Path, form: str) -> None:
        odd = []
        for name, kind in (("../0", tarfile.REGTYPE), ("texts/9", tarfile.SYMTYPE), ("texts/8", tarfile.CHRTYPE)):
            odd.append(tarfile.TarInfo(name))
            odd[-1].type, odd[-1].linkname = kind, "/etc/passwd"
        path = write(tmp_path / f"a.tar.{form}", tar([*MEMBERS, ("other", b"x")], form, odd))
        assert self.read(path) == {name[-1]: content for name, content in MEMBERS}
        assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"

    @pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
    @pytest.mark.parametrize("name", ["texts/1", "other"])
    def test_a_header_of_a_terabyte_is_refused_at_once(self, tmp_path: Path, kind: bytes, name: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, 2**40
        path = write(tmp_path / "bomb.tar.gz", gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)))
        started = time.monotonic()
        with pytest.raises(
            ValueError, match=r"^--data mine: .*bomb\.tar\.gz cannot be read \(.*; replace or remove it"
        ):
            self.read(path)
        assert time.monotonic() - started < 5

    def test_an_archive_of_too_much_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # What follows the last member counts too.
        path = write(tmp_path / "long.tar.gz", tar(MEMBERS, "gz") + gzip.compress(bytes(2**20)))
        assert len(self.read(path)) == 4
        monkeypatch.setattr("experiments.data.files.LARGEST_TEXT", 2**20)
        with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
            self.read(path)

    def test_what_is_no_archive_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.tar.gz")
        write(tmp_path / "text.tar.gz", TEXT)
        for name, reason in (
            ("pipe", "it is not a regular file"),
            ("text", "Not a gzipped file"),
            ("absent", "No such"),
        ):
            with pytest.raises(ValueError, match=reason):
                self.read(tmp_path / f"{name}.tar.gz")


class TestDataDirectory:
    def test_argument_before_environment_before_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert resolve_data_dir(None) is None
        monkeypatch.setenv("LINEAR_ROPE_DATA", "")
        assert resolve_data_dir(None) is None
        monkeypatch.setenv("LINEAR_ROPE_DATA", str(tmp_path))
        assert resolve_data_dir(None) == tmp_path
        assert resolve_data_dir(tmp_path / "..") == tmp_path / ".."

    def test_one_that_is_no_directory_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "loop").symlink_to("loop")
        for path, reason in (
            (tmp_path / "absent", "No such file"),
            (tmp_path / "file", "Not a directory"),
            (tmp_path / "loop", "Too many levels of symbolic links"),
            (tmp_path / ("x" * 300), "File name too long"),
            (Path("a\0b"), ".*embedded null"),
            (Path("/dev/zero"), "Not a directory"),
        ):
            message = rf"^--data-dir: .* is not a directory that can be read \({reason}.*\); give the directory"
            with pytest.raises(ValueError, match=message):
                resolve_data_dir(path)
        monkeypatch.setenv("LINEAR_ROPE_DATA", str(tmp_path / "absent"))
        with pytest.raises(ValueError, match=r"^LINEAR_ROPE_DATA: "):
            load_corpus("enwik8")


def offer(server: Server, content: bytes = TEXT) -> Download:
    """A download whose hash is TEXT's, with ``content`` on the server."""
    write(server.directory / "text.bin", content)
    return Download(f"{server.url}/text.bin", hashlib.sha256(TEXT).hexdigest(), "text.bin", "mine/text.bin")


class TestDownload:
    def test_is_kept_and_not_fetched_again(self, server: Server, tmp_path: Path) -> None:
        download = offer(server)
        write(tmp_path / "cache" / "text.bin", b"half, which does not count")
        assert download.cached() is None
        path = download.fetch()
        assert path == download.cached() == tmp_path / "cache" / "text.bin"
        assert path.read_bytes() == TEXT
        assert download.fetch() == path
        assert server.requests == 1

    def test_wrong_content_is_refused_and_not_kept(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"does not have the known hash .* was not kept; try again"):
            offer(server, content=TEXT[:-1]).fetch()
        assert list((tmp_path / "cache").iterdir()) == []

    def test_unreachable_says_what_would_do(self, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
        missing = Download(f"{server.url}/absent", "0", "absent", "absent")
        with pytest.raises(ValueError, match=r"/absent could not be reached \(HTTPError 404\); .*--data stdlib"):
            missing.fetch()
        server.server_close()
        capsys.readouterr()
        with pytest.raises(ValueError, match=r"\(ConnectionError\); .* place it as mine/text.bin in --data-dir"):
            offer(server).fetch()
        told = capsys.readouterr()
        assert told.out.startswith(f"downloading {server.url}/text.bin to ")
        assert told.err == ""

    def test_what_is_no_file_in_the_cache_is_not_waited_for(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        os.mkfifo(tmp_path / "cache" / "text.bin")
        with pytest.raises(ValueError, match=r"LINEAR_ROPE_CACHE: .*text.bin .*not a regular file\); replace"):
            offer(server).fetch()

    def test_a_cache_that_cannot_be_written(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(ValueError, match=r"cannot be written .* set LINEAR_ROPE_CACHE to a directory that can"):
            offer(server).fetch()
