"""Hundreds of wrong command lines: each is refused in one line, with status 2, and changes no file."""

import contextlib
import gzip
import io
import os
import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli import main
from experiments.config import SETTINGS
from tests.test_faults.conftest import FUZZING

LONG = "x" * 300
LIMITS = {name: get_args(kind)[1] for name, kind in SETTINGS.items() if int in get_args(kind)}
NO_FRACTIONS = ["", " ", "nan", "0x10", "1,5", "١x", "\0", "\n", "\ud800", "\udcff", "é", "3 4", "None?", "-inf", "-1"]
NO_NUMBERS = [*NO_FRACTIONS, "1.5", "1e3", "9" * 5000, "-" + "9" * 5000]
NO_PATHS = ["", "\0", "a\0b", "\ud800", LONG, "x/" * 3000, "loop", "loop/below", "file/below", "pipe", "/dev/zero"]
NO_TEXTS = [*NO_PATHS, "absent", "absent\n", "absent\udcff", "<b>absent</b>", " ", "directory", "/dev/full", "empty"]
NO_TEXTS += ["short", "cut.gz", "not.gz", "not.zip"]
WRONG = {
    "learning_rate weight_decay gradient_clip dropout": [*NO_FRACTIONS, "inf", "1e31", "-1e-9", "1e999"],
    "run_timeout": [*NO_FRACTIONS, "0", "-0.0", "-1e-9"],
    "seeds workers": [*NO_NUMBERS, "0", "10000000000"],
    "preset device precision denominator data": ["", "SMOKE", "\0", "\ud800", LONG, "a,b"],
    "data": ["text"],
    "variants": ["softmax-none,softmax-none", "softmax-none,", ",", "softmax-none,x", "SOFTMAX-NONE"],
    "data_file": NO_TEXTS,
    "data_dir": [*NO_PATHS, "absent", "file", "absent\nand so on", "absent\udcff", "<b>"],
    "out": [*NO_PATHS, "file", "full", "/dev/null", "/dev/null/x"],
    " ".join(LIMITS): NO_NUMBERS,
}
WRONG_OPTIONS = [(name, value) for names, values in WRONG.items() for name in names.split() for value in values]
WRONG_OPTIONS += [(name, str(value)) for name, at in LIMITS.items() for value in (at.le + 1, at.ge - 1)]
TOGETHER = ("--heads 3", "--dim 130", "--num-features 63", "--context 16777216 --batch-size 1000", "--dry-run 3")
TOGETHER += ("--dim 131072 --layers 10000", "--data stdlib --data-file file", "junk", "--junk", "\0", "\udcff")
TOGETHER += ("--variants performer-pytorch --dropout 0.5",)
# What is right and does not mend any of the above.
RIGHT = ("--seeds 2", "--steps=3", "--dry-run", "--preset smoke", "--learning-rate 1e-3", "--threads 1")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A working directory with one of everything that is no use."""
    directory = tmp_path_factory.mktemp("scratch")
    for name in ("directory", "full"):
        (directory / name).mkdir()
    packed = gzip.compress(b"some text " * 1000)
    contents = {"full/report.md": b"mine", "file": b"x" * 100_000, "empty": b"", "short": b"short"}
    contents |= {"cut.gz": packed[:-10], "not.gz": b"some text " * 1000, "not.zip": b"PK\x03\x04some text " * 1000}
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / "loop").symlink_to("loop")
    os.mkfifo(directory / "pipe")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delenv("LINEAR_ROPE_DATA", raising=False)
        patch.setenv("LINEAR_ROPE_CACHE", str(directory / "cache"))
        yield directory


def as_words(option):
    """The two ways of giving a value to an option."""
    flag = "--" + option[0].replace("_", "-")
    return st.sampled_from([[flag, option[1]], [f"{flag}={option[1]}"]])


WRONG_WORDS = st.sampled_from(WRONG_OPTIONS).flatmap(as_words) | st.sampled_from([each.split(" ") for each in TOGETHER])


def files_of(directory):
    """Whatever is there, with what would change if it were written."""
    found = {path: path.lstat() for path in [directory, *directory.rglob("*")]}
    return {path: (status.st_mode, status.st_size, status.st_mtime_ns) for path, status in found.items()}


def test_every_wrong_invocation_is_refused_in_one_line_and_changes_no_file(scratch):
    before = files_of(scratch)

    @settings(max_examples=400, **FUZZING)
    @given(st.sampled_from(["convergence", "decay"]), st.lists(st.sampled_from(RIGHT), max_size=3), WRONG_WORDS)
    def refused(study, right, wrong):
        names = {word.partition("=")[0] for word in wrong}
        kept = [words.split() for words in right if re.split("[= ]", words)[0] not in names]
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = main(["run", study, *(word for words in kept for word in words), *wrong])
        message = errors.getvalue()
        assert status == 2, (status, message, output.getvalue())
        assert re.fullmatch(r"([a-z ]+: loading PyTorch \.\.\.\n)?", output.getvalue())
        assert message.startswith("error: ")
        assert message.endswith("\n")
        assert message[:-1].isprintable(), message
        assert len(message) < 5000
        assert files_of(scratch) == before

    refused()
