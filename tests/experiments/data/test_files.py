"""Finding, reading, checking and downloading files: no network, only a server of our own on this machine."""

import gzip
import hashlib
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from experiments.data.files import Download, members_of, read_content, resolve_data_dir
from experiments.data.registry import load_data
from tests.experiments.data.made_up_files import tar, write

TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 50
MEMBERS = [(f"texts/{number}", b"text %d" % number) for number in range(4)]


def zipped(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_packed_or_not_is_the_same(tmp_path):
    nameless = zipfile.ZipInfo("text")
    nameless.filename = ""
    write(tmp_path / "plain", TEXT)
    write(tmp_path / "text.gz", TEXT)
    zipped(tmp_path / "text.zip", ("folder/", b""), ("folder/text", TEXT))
    zipped(tmp_path / "nameless.ZIP", (nameless, TEXT))
    for path in tmp_path.iterdir():
        assert read_content(path) == TEXT
        assert read_content(path, limit=100) == TEXT[:100]


def test_what_is_damaged_or_no_file_is_refused_at_once(tmp_path):
    packed, good = gzip.compress(TEXT), zipped(tmp_path / "good.zip", ("text", TEXT)).read_bytes()
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[good.index(b"PK\x01\x02") + 8] |= 1
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, content, reason in (
        ("not.gz", TEXT, "Not a gzipped file"),
        ("cut.gz", packed[: len(packed) // 2], ".*ended before"),
        ("changed.gz", packed[:20] + bytes([packed[20] ^ 255]) + packed[21:], ""),
        ("not.zip", TEXT, ".*not a zip file"),
        ("encrypted.zip", bytes(encrypted), ".*encrypted"),
        ("changed.zip", good.replace(TEXT[:20], TEXT[:20].upper(), 1), "Bad CRC-32"),
        ("absent", None, "No such file"),
        (".", None, "it is a directory"),
        ("pipe", None, "it is not a regular file"),
        ("/dev/zero", None, "it is not a regular file"),
        ("loop", None, "Too many levels of symbolic links"),
        ("x" * 300, None, "File name too long"),
        ("a\0b", None, ".*embedded null"),
    ):
        if content is not None:
            (tmp_path / path).write_bytes(content)
        with pytest.raises(ValueError, match=rf"(?s)^--data-file: .* cannot be read \({reason}.*\); give one file"):
            read_content(tmp_path / path)


def test_a_zip_has_the_file_of_a_name_or_one_alone(tmp_path):
    two = zipped(tmp_path / "two.zip", ("a/one", b"1"), ("a/two", b"2"))
    assert [read_content(two, member=f"a/{name}") for name in ("one", "two")] == [b"1", b"2"]
    for path, member, said in (
        (two, "a/three", "holds 0 files a/three, and not one"),
        (two, None, "holds 2 files, and not one"),
        (zipped(tmp_path / "none.zip"), None, "holds 0 files, and not one"),
    ):
        with pytest.raises(ValueError, match=said):
            read_content(path, member=member)


def test_more_text_than_there_is_memory_is_refused(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"--data-file: .*sparse cannot be read \(it has .* more than half of"):
        read_content(tmp_path / "sparse")
    assert read_content(tmp_path / "sparse", limit=10) == bytes(10)


@pytest.mark.parametrize("path", ["/proc/self/mounts", "/proc/kmsg"])
def test_a_file_of_the_kernel_s_that_claims_to_be_empty_is_not_waited_for(path):
    with pytest.raises(ValueError, match=r"is empty; give|cannot be read \((Operation not|Permission|No such)"):
        load_data("text", data_file=Path(path))


def members(path):
    return {match["number"]: content for match, content in members_of(path, re.compile("texts/(?P<number>.)"), "mine")}


@pytest.mark.parametrize("form", ["gz", "xz"])
def test_files_of_wanted_names_alone_are_read_from_an_archive(tmp_path, form):
    odd = []
    for name, kind in (("../0", tarfile.REGTYPE), ("texts/9", tarfile.SYMTYPE), ("texts/8", tarfile.CHRTYPE)):
        odd.append(tarfile.TarInfo(name))
        odd[-1].type, odd[-1].linkname = kind, "/etc/passwd"
    path = write(tmp_path / f"a.tar.{form}", tar([*MEMBERS, ("other", b"x")], form, odd))
    assert members(path) == {name[-1]: content for name, content in MEMBERS}
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("name", ["texts/1", "other"])
def test_a_header_of_a_terabyte_is_refused_at_once(tmp_path, kind, name):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, 2**40
    path = write(tmp_path / "bomb.tar.gz", gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)))
    with pytest.raises(ValueError, match=r"^mine: .*bomb\.tar\.gz cannot be read \(.*; replace or remove it"):
        members(path)


def test_the_data_directory_is_the_argument_or_else_the_environment_s(tmp_path, monkeypatch):
    assert resolve_data_dir(None) is None
    monkeypatch.setenv("LINEAR_ROPE_DATA", "")
    assert resolve_data_dir(None) is None
    monkeypatch.setenv("LINEAR_ROPE_DATA", str(tmp_path))
    assert resolve_data_dir(None) == tmp_path
    assert resolve_data_dir(tmp_path / "..") == tmp_path / ".."
    (tmp_path / "file").touch()
    for path, reason in (("absent", "No such file"), ("file", "Not a directory"), ("a\0b", ".*embedded null")):
        message = rf"^--data-dir: .* is not a directory that can be read \({reason}.*\); give the directory"
        with pytest.raises(ValueError, match=message):
            resolve_data_dir(tmp_path / path)
    monkeypatch.setenv("LINEAR_ROPE_DATA", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"^LINEAR_ROPE_DATA: "):
        load_data("enwik8")


def offer(server, content=TEXT):
    """A download whose hash is TEXT's, with ``content`` on the server."""
    write(server.directory / "text.bin", content)
    return Download(f"{server.url}/text.bin", hashlib.sha256(TEXT).hexdigest(), "text.bin", "mine/text.bin")


def test_a_download_is_kept_and_not_fetched_again(server, own_cache):
    download = offer(server)
    write(own_cache / "text.bin", b"half, which does not count")
    assert download.cached() is None
    path = download.fetch()
    assert path == download.cached() == download.fetch() == own_cache / "text.bin"
    assert path.read_bytes() == TEXT
    assert server.requests == 1
    path.unlink()
    with pytest.raises(ValueError, match=r"does not have the known hash .* was not kept; try again"):
        offer(server, content=TEXT[:-1]).fetch()
    assert list(own_cache.iterdir()) == []


def test_unreachable_says_what_would_do(server, own_cache, monkeypatch, capsys):
    missing = Download(f"{server.url}/absent", "0", "absent", "absent")
    with pytest.raises(ValueError, match=r"/absent could not be reached \(HTTPError 404\); .*--data stdlib"):
        missing.fetch()
    server.server_close()
    capsys.readouterr()
    with pytest.raises(ValueError, match=r"\(ConnectionError\); .* place it as mine/text.bin in --data-dir"):
        offer(server).fetch()
    told = capsys.readouterr()
    assert (told.out.startswith(f"downloading {server.url}/text.bin to "), told.err) == (True, "")
    write(own_cache / "file", b"")
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(own_cache / "file" / "cache"))
    with pytest.raises(ValueError, match=r"cannot be written .* set LINEAR_ROPE_CACHE to a directory that can"):
        offer(server).fetch()
