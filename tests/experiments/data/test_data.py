"""Finding, reading, checking, splitting and downloading: no network, only a server of our own on this machine."""

import functools
import gzip
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments.data.corpus import (
    Download,
    build_corpus,
    find_file,
    load_corpus,
    read_content,
    resolve_data_dir,
    split_90_5_5,
)
from experiments.data.registry import TASKS

ROOT = Path(__file__).parents[3]
TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 50


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINEAR_ROPE_DATA", raising=False)
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def refusal(name: str, data_dir: Path | None = None, data_file: Path | None = None) -> str:
    """The message with which load_corpus refuses; one line, as the command line prints it."""
    with pytest.raises(ValueError, match=r"\S") as caught:
        load_corpus(name, data_dir, data_file)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestCorpus:
    @pytest.mark.parametrize(
        ("length", "sizes"),
        [(100, (90, 5, 5)), (4_000_000, (3_600_000, 200_000, 200_000)), (39, (35, 2, 2)), (1, (0, 0, 1))],
    )
    def test_split_sizes(self, length: int, sizes: tuple[int, int, int]) -> None:
        content = np.random.default_rng(0).integers(0, 256, length, dtype=np.uint8)
        splits = split_90_5_5(content)
        assert tuple(map(len, splits)) == sizes
        assert np.array_equal(np.concatenate(splits), content)

    def test_describes_itself_in_json(self) -> None:
        corpus = build_corpus("mine", TEXT, source="a test", note="Only a test.")
        assert json.loads(json.dumps(corpus.describe())) == {
            "name": "mine",
            "sha256": hashlib.sha256(TEXT).hexdigest(),
            "source": "a test",
            "note": "Only a test.",
            "bytes": len(TEXT),
            "splits": {"train": 2025, "validation": 112, "test": 113},
        }
        assert b"".join(split.tobytes() for split in (corpus.train, corpus.validation, corpus.test)) == TEXT

    def test_other_content_than_expected_is_refused(self) -> None:
        expected = hashlib.sha256(TEXT).hexdigest()
        assert build_corpus("mine", TEXT, "here", "", expected_sha256=expected).sha256 == expected
        with pytest.raises(ValueError, match=r"here is damaged or another file .*replace or remove it"):
            build_corpus("mine", TEXT + b"!", "here", "", expected_sha256=expected)


class TestReading:
    def test_compressed_or_not_is_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_bytes(TEXT)
        (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
        with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
            archive.mkdir("folder")
            archive.writestr("folder/text", TEXT)
        for name in ("plain", "text.gz", "text.zip"):
            assert read_content(tmp_path / name) == TEXT
            assert read_content(tmp_path / name, limit=100) == TEXT[:100]

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        packed = gzip.compress(TEXT)
        damaged = {
            "not.gz": TEXT,
            "cut.gz": packed[: len(packed) // 2],
            "changed.gz": packed[:20] + bytes([packed[20] ^ 255]) + packed[21:],
            "not.zip": TEXT,
        }
        for name, content in damaged.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match=f"{name} cannot be read"):
                read_content(tmp_path / name)

    def test_a_zip_of_several_files_is_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
            archive.writestr("one", b"1")
            archive.writestr("two", b"2")
        with pytest.raises(ValueError, match="holds 2 files; give a zip of exactly one file"):
            read_content(tmp_path / "two.zip")

    def test_text_that_repeats_itself_may_be_packed_as_tightly_as_it_can(self, tmp_path: Path) -> None:
        text = b"a line like all the others\n" * 100_000
        packed = gzip.compress(text)
        assert len(text) > 200 * len(packed)
        (tmp_path / "small.gz").write_bytes(packed)
        assert read_content(tmp_path / "small.gz") == text

    @pytest.mark.parametrize("form", ["gz", "zip"])
    def test_a_bomb_is_refused_before_it_fills_the_memory(self, tmp_path: Path, form: str) -> None:
        """10 GiB of zeros in gzip members, 1 GiB in a zip's; read with half a GiB of address space."""
        zeros, path = bytes(2**26), tmp_path / f"bomb.{form}"
        if form == "zip":
            packer = zlib.compressobj(wbits=-15)
            piece = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("zeros", piece * 16 + packer.flush())
            content = bytearray(path.read_bytes())
            for header, method, size in ((0, 8, 22), (content.rindex(b"PK\x01\x02"), 10, 24)):
                content[header + method : header + method + 2] = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
                content[header + size : header + size + 4] = (2**30).to_bytes(4, "little")
            path.write_bytes(content)
        else:
            path.write_bytes(gzip.compress(zeros) * 160)
        code = (
            "import resource, sys, pathlib\n"
            "from experiments.data.corpus import read_content\n"
            "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
            "resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, used + 2**29))\n"
            "read_content(pathlib.Path(sys.argv[1]))\n"
        )
        process = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
        )
        assert "unpacks to 100 times its size and more" in process.stderr.splitlines()[-1]
        assert process.stderr.splitlines()[-1].startswith("ValueError: --data-file: ")

    def test_more_text_than_is_read_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "plain").write_bytes(TEXT)
        (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
        monkeypatch.setattr("experiments.data.corpus.LARGEST_TEXT", len(TEXT))
        assert read_content(tmp_path / "plain") == read_content(tmp_path / "text.gz") == TEXT
        monkeypatch.setattr("experiments.data.corpus.LARGEST_TEXT", len(TEXT) - 1)
        for name in ("plain", "text.gz"):
            with pytest.raises(ValueError, match=r"has more than 2,249 bytes, .*give a part of it"):
                read_content(tmp_path / name)
        assert read_content(tmp_path / "plain", limit=10) == TEXT[:10]

    def test_a_file_of_more_bytes_than_the_memory_holds_is_refused_at_once(self, tmp_path: Path) -> None:
        with (tmp_path / "sparse").open("wb") as file:
            file.truncate(2**40)
        with pytest.raises(ValueError, match=r"--data-file: .*sparse has more than"):
            read_content(tmp_path / "sparse")

    @pytest.mark.parametrize(
        "name", ["/etc/text", "../text", "folder/../../text", "C:\\text", "..\\text", "\\\\host\\text", "C:text"]
    )
    def test_a_zip_that_leads_out_of_its_directory_is_refused(self, tmp_path: Path, name: str) -> None:
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            archive.writestr(name, TEXT)
        with pytest.raises(ValueError, match="a name that leads out of a directory; give another file"):
            read_content(tmp_path / "bad.zip")

    def test_a_name_that_is_empty_is_a_file_s_as_any_other(self, tmp_path: Path) -> None:
        member = zipfile.ZipInfo("text")
        member.filename = ""
        with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
            archive.writestr(member, TEXT)
        assert read_content(tmp_path / "text.zip") == TEXT

    def test_a_link_in_a_zip_is_refused(self, tmp_path: Path) -> None:
        link = zipfile.ZipInfo("text")
        link.external_attr = 0o120777 << 16
        with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
            archive.writestr(link, "/etc/passwd")
        with pytest.raises(ValueError, match="holds a link and not a file"):
            read_content(tmp_path / "link.zip")

    def test_methods_that_unpack_without_bound_are_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "text.zip", "w", zipfile.ZIP_BZIP2) as archive:
            archive.writestr("text", TEXT)
        with pytest.raises(ValueError, match="is packed with a method other than deflate; unpack it"):
            read_content(tmp_path / "text.zip")

    def test_an_archive_in_an_archive_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "twice.gz").write_bytes(gzip.compress(gzip.compress(TEXT)))
        with zipfile.ZipFile(tmp_path / "inner.ZIP", "w") as archive:
            archive.writestr("text", TEXT)
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.write(tmp_path / "inner.ZIP", "inner.zip")
        for name in ("twice.gz", "outer.zip"):
            with pytest.raises(ValueError, match=f"{name} holds another archive; unpack it"):
                read_content(tmp_path / name)
        assert read_content(tmp_path / "inner.ZIP") == TEXT

    def test_a_zip_of_too_many_files_is_refused_before_they_are_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
            for number in range(100):
                archive.writestr(str(number), b"")
        monkeypatch.setattr("experiments.data.corpus.LARGEST_ZIP_DIRECTORY", 4000)
        with pytest.raises(ValueError, match="its table of contents is too long"):
            read_content(tmp_path / "many.zip")

    def test_encrypted_or_with_a_wrong_checksum_is_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
            archive.writestr("text", TEXT)
        content = (tmp_path / "good.zip").read_bytes()
        directory = content.index(b"PK\x01\x02")
        encrypted = bytearray(content)
        encrypted[6] |= 1
        encrypted[directory + 8] |= 1
        (tmp_path / "encrypted.zip").write_bytes(encrypted)
        (tmp_path / "changed.zip").write_bytes(content.replace(TEXT[:20], TEXT[:20].upper(), 1))
        with pytest.raises(ValueError, match=r"--data-file: .*encrypted.zip cannot be read \(.*encrypted"):
            read_content(tmp_path / "encrypted.zip")
        with pytest.raises(ValueError, match=r"changed.zip cannot be read \(Bad CRC-32"):
            read_content(tmp_path / "changed.zip")

    def test_find_file_takes_the_first_name_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").touch()
        (tmp_path / "c").touch()
        assert find_file(tmp_path, ["a", "b", "c"]) == tmp_path / "b"
        assert find_file(tmp_path, ["a", "d"]) is None
        assert find_file(None, ["b"]) is None


class TestDataDirectory:
    def test_argument_before_environment_before_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given, named = tmp_path / "given", tmp_path / "named"
        given.mkdir()
        named.mkdir()
        assert resolve_data_dir(None) is None
        monkeypatch.setenv("LINEAR_ROPE_DATA", "")
        assert resolve_data_dir(None) is None
        monkeypatch.setenv("LINEAR_ROPE_DATA", str(named))
        assert resolve_data_dir(None) == named
        assert resolve_data_dir(given) == given

    def test_one_that_is_no_directory_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        assert refusal("stdlib", data_dir=tmp_path / "absent").startswith("--data-dir: ")
        assert "is not a directory; give the directory" in refusal("stdlib", data_dir=tmp_path / "file")
        (tmp_path / "loop").symlink_to("loop")
        for path, reason in (
            (tmp_path / "loop", "Too many levels of symbolic links"),
            (tmp_path / ("x" * 300), "File name too long"),
            (Path("x/" * 2000), "File name too long"),
            (Path("a\0b"), "embedded null byte"),
            (Path("/dev/zero"), "is not a directory"),
        ):
            message = refusal("stdlib", data_dir=path)
            assert message.startswith("--data-dir: ")
            assert reason in message
        monkeypatch.setenv("LINEAR_ROPE_DATA", str(tmp_path / "absent"))
        assert refusal("enwik8").startswith("LINEAR_ROPE_DATA: ")


class TestLoadCorpus:
    def test_unknown_name_lists_the_known(self) -> None:
        message = refusal("enwik9")
        assert "'enwik9'" in message
        assert all(name in message for name in TASKS)

    def test_arguments_that_do_not_fit_together(self, tmp_path: Path) -> None:
        assert "--data-file FILE" in refusal("text")
        assert "--data text" in refusal("stdlib", data_file=tmp_path / "mine.txt")

    def test_a_file_of_the_users(self, tmp_path: Path) -> None:
        plain, packed = tmp_path / "mine.txt", tmp_path / "mine.gz"
        plain.write_bytes(TEXT)
        packed.write_bytes(gzip.compress(TEXT))
        corpus = load_corpus("text", None, plain)
        assert (corpus.name, corpus.source) == ("text", "mine.txt")
        assert "mine.txt" in corpus.note
        assert corpus.sha256 == load_corpus("text", None, packed).sha256 == hashlib.sha256(TEXT).hexdigest()

    def test_files_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        os.mkfifo(tmp_path / "pipe")
        assert "there is no file" in refusal("text", data_file=tmp_path / "absent")
        assert "is a directory" in refusal("text", data_file=tmp_path)
        assert "is empty" in refusal("text", data_file=tmp_path / "empty")
        assert "is not a regular file" in refusal("text", data_file=tmp_path / "pipe")
        (tmp_path / "loop").symlink_to("loop")
        for path, reason in (
            (Path("/dev/zero"), "is not a regular file"),
            (Path("/dev/full"), "is not a regular file"),
            (tmp_path / "loop", "Too many levels of symbolic links"),
            (tmp_path / ("x" * 300), "File name too long"),
            (Path("a\0b"), "embedded null byte"),
            (tmp_path / "empty" / "below", "Not a directory"),
        ):
            message = refusal("text", data_file=path)
            assert message.startswith("--data-file: ")
            assert reason in message

    def test_a_file_of_the_kernel_s_that_claims_to_be_empty_is_not_waited_for(self) -> None:
        assert "is empty" in refusal("text", data_file=Path("/proc/self/mounts"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_a_file_without_permission(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(TEXT)
        secret.chmod(0)
        assert "secret cannot be read (Permission denied)" in refusal("text", data_file=secret)


class Server:
    """A web server of the files of one directory; ``requests`` counts what it was asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests = 0
        count = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                count.requests += 1
                super().do_GET()

            def log_message(self, *arguments: object) -> None:
                pass

        handler = functools.partial(Handler, directory=str(directory))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    server = Server(tmp_path / "served")
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.server.shutdown()
    thread.join()
    server.server.server_close()


def offer(server: Server, content: bytes = TEXT) -> Download:
    """A download whose hash is TEXT's, with ``content`` on the server."""
    (server.directory / "text.bin").write_bytes(content)
    return Download(f"{server.url}/text.bin", f"sha256:{hashlib.sha256(TEXT).hexdigest()}", "text.bin")


class TestDownload:
    def test_is_kept_and_not_fetched_again(self, server: Server, tmp_path: Path) -> None:
        download = offer(server)
        assert download.cached() is None
        path = download.fetch()
        assert path == download.cached() == tmp_path / "cache" / "text.bin"
        assert path.read_bytes() == TEXT
        assert download.fetch() == path
        assert server.requests == 1

    def test_md5_is_known_too(self, server: Server) -> None:
        known = offer(server)
        assert Download(known.url, f"md5:{hashlib.md5(TEXT).hexdigest()}", "text.bin").fetch().read_bytes() == TEXT

    def test_wrong_content_is_refused_and_not_kept(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"does not have the known hash .* was not kept; try again"):
            offer(server, content=TEXT[:-1]).fetch()
        assert list((tmp_path / "cache").iterdir()) == []

    def test_a_damaged_copy_in_the_cache_is_replaced(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "text.bin").write_bytes(b"half")
        assert offer(server).fetch().read_bytes() == TEXT

    def test_unreachable_says_what_would_do(self, server: Server) -> None:
        missing = Download(f"{server.url}/absent", "sha256:0", "absent")
        with pytest.raises(ValueError, match=r"/absent could not be reached \(HTTPError 404\); .*--data stdlib"):
            missing.fetch()
        server.server.server_close()
        with pytest.raises(ValueError, match=r"\(ConnectionError\); .* place it as text.bin in --data-dir"):
            offer(server).fetch()

    def test_only_the_error_goes_to_stderr(self) -> None:
        code = "from experiments.data.corpus import Download; Download('http://127.0.0.1:1/x', 'sha256:0', 'x').fetch()"
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
        assert process.stdout.startswith("downloading http://127.0.0.1:1/x to ")
        assert process.stderr.startswith("Traceback")
        assert process.stderr.splitlines()[-1].startswith("ValueError: http://127.0.0.1:1/x could not be reached")

    def test_what_is_no_file_in_the_cache_is_not_waited_for(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "cache").mkdir()
        os.mkfifo(tmp_path / "cache" / "text.bin")
        with pytest.raises(ValueError, match=r"LINEAR_ROPE_CACHE: .*text.bin is not a regular file; remove it"):
            offer(server).fetch()

    def test_a_cache_that_cannot_be_written(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(ValueError, match=r"cannot be written .* set LINEAR_ROPE_CACHE to a directory that can"):
            offer(server).fetch()
