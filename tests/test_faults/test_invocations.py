"""A thousand wrong command lines: each is refused in one line, with status 2, and changes no file."""

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
from experiments.variants import is_variant
from tests.test_faults.conftest import FUZZING

LONG = "x" * 300
LIMITS = {name: get_args(kind)[1] for name, kind in SETTINGS.items() if int in get_args(kind)}
NUMBERS = list(LIMITS)
NO_FRACTIONS = ["", " ", "nan", "0x10", "1,5", "١x", "\0", "\n", "\ud800", "\udcff", "é", "3 4", "None?", "-inf", "-1"]
NO_NUMBERS = [*NO_FRACTIONS, "1.5", "1e3", "9" * 5000, "-" + "9" * 5000]
NO_PATHS = ["", "\0", "a\0b", "\ud800", LONG, "x/" * 3000, "loop", "loop/below", "file/below"]
NO_TEXTS = [*NO_PATHS, "absent", "absent\n", "absent\udcff", "<b>absent</b>", " ", "directory", "pipe", "/dev/zero"]
NO_TEXTS += ["/dev/full", "empty", "short", "cut.gz", "not.gz", "not.zip", "twice.gz"]
NO_DIRECTORIES = [*NO_PATHS, "absent", "file", "pipe", "/dev/zero", "absent\nand so on", "absent\udcff", "<b>"]
NO_PLACES = [*NO_PATHS, "file", "pipe", "full", "dangling", f"new/{LONG}", "/dev/null", "/dev/null/x"]
WRONG = [
    (NUMBERS, NO_NUMBERS),
    (["learning_rate", "weight_decay", "gradient_clip", "dropout"], [*NO_FRACTIONS, "inf", "1e31", "-1e-9", "1e999"]),
    (["run_timeout"], [*NO_FRACTIONS, "0", "-0.0", "-1e-9"]),
    (["seeds", "workers"], [*NO_NUMBERS, "0", "10000000000"]),
    (["preset", "device", "precision", "denominator", "data"], ["", "SMOKE", "\0", "\ud800", LONG, "a,b"]),
    (["data"], ["text"]),
    (["variants"], ["softmax-none,softmax-none", "softmax-none,", ",", "softmax-none,x", "SOFTMAX-NONE"]),
    (["data_file"], NO_TEXTS),
    (["data_dir"], NO_DIRECTORIES),
    (["out"], NO_PLACES),
]
WRONG_OPTIONS = [(name, value) for names, values in WRONG for name in names for value in values]
TOGETHER = ("--heads 3", "--dim 130", "--num-features 63", "--context 16777216 --batch-size 1000", "--dry-run 3")
TOGETHER += (
    "--dim 131072 --layers 10000",
    "--data stdlib --data-file file",
    "--variants performer-pytorch --dropout 0.5",
)
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
    contents |= {"cut.gz": packed[:-10], "twice.gz": gzip.compress(packed), "not.gz": b"some text " * 1000}
    contents |= {"not.zip": b"PK\x03\x04some text " * 1000}
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / "loop").symlink_to("loop")
    (directory / "dangling").symlink_to("nowhere/at/all")
    os.mkfifo(directory / "pipe")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delenv("LINEAR_ROPE_DATA", raising=False)
        patch.setenv("LINEAR_ROPE_CACHE", str(directory / "cache"))
        yield directory


def given_as(option):
    """The two ways of giving a value to an option."""
    flag = "--" + option[0].replace("_", "-")
    return st.sampled_from([[flag, option[1]], [f"{flag}={option[1]}"]])


def not_among(names):
    """Text that is none of ``names``, and no option either: Hypothesis tries the strings of the code under test too."""
    return st.text(max_size=30).filter(lambda text: text not in names and not text.startswith("-"))


def are_variants(text):
    return all(is_variant(name.strip()) for name in text.split(","))


out_of_range = st.tuples(st.sampled_from(NUMBERS), st.booleans()).map(
    lambda drawn: (drawn[0], str(LIMITS[drawn[0]].le + 1 if drawn[1] else LIMITS[drawn[0]].ge - 1))
)
no_variants = not_among(()).filter(lambda text: not are_variants(text)).map(lambda text: ("variants", text))
unknown_options = st.text(max_size=60).map(lambda text: [f"--z{text}"])
junk = not_among(()).filter(bool).map(lambda text: [f"z{text}"])
wrong_words = st.one_of(
    st.one_of(st.sampled_from(WRONG_OPTIONS), out_of_range, no_variants).flatmap(given_as),
    st.sampled_from([words.split() for words in TOGETHER]),
    unknown_options,
    junk,
)


wrong_runs = st.tuples(
    st.sampled_from(["convergence", "decay"]), st.lists(st.sampled_from(RIGHT), max_size=3), wrong_words
)


def files_of(directory):
    """Whatever is there, with what would change if it were written."""
    return {
        path: (status.st_mode, status.st_size, status.st_mtime_ns)
        for path in [directory, *directory.rglob("*")]
        for status in [path.lstat()]
    }


def test_every_wrong_invocation_is_refused_in_one_line_and_changes_no_file(scratch):
    before, tried = files_of(scratch), set()

    @settings(max_examples=1500, **FUZZING)
    @given(wrong_runs)
    def refused(drawn):
        study, right, wrong = drawn
        names = {word.partition("=")[0] for word in wrong}
        kept = [words.split() for words in right if re.split("[= ]", words)[0] not in names]
        arguments = ["run", study, *(word for words in kept for word in words), *wrong]
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = main(arguments)
        message = errors.getvalue()
        assert status == 2, (status, message, output.getvalue())
        assert re.fullmatch(r"([a-z ]+: loading PyTorch \.\.\.\n)?", output.getvalue())
        assert message.startswith("error: ")
        assert message.endswith("\n")
        assert message[:-1].isprintable(), message
        assert len(message) < 5000
        assert files_of(scratch) == before
        tried.add(tuple(arguments))

    refused()
    assert len(tried) >= 1000
