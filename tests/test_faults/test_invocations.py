"""A thousand wrong command lines: each is refused in one line, with status 2, and changes no file."""

import contextlib
import dataclasses
import gzip
import io
import os
import re
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cli import COMMANDS, main
from experiments.config import LIMITS, Config
from experiments.data.registry import DATA_SETS
from experiments.options import ALL, RunOptions, flags
from experiments.studies.registry import STUDIES
from experiments.variants import is_variant
from tests.test_faults.damage import FUZZING

EXAMPLES = 1500
LEAST = 1000

LONG = "x" * 300
WHOLE_NUMBERS = [field.name for field in dataclasses.fields(Config) if field.name in LIMITS]
NO_NUMBERS = ["", " ", "nan", "1.5", "1e3", "0x10", "1,5", "١x", "\0", "\n", "\ud800", "\udcff", "é", "3 4", "None?"]
NO_PATHS = ["", "\0", "a\0b", "\ud800", LONG, "x/" * 3000, "loop", "loop/below", "file/below"]
NO_DIRECTORIES = [*NO_PATHS, "absent", "file", "pipe", "/dev/zero", "absent\nand so on", "absent\udcff", "<b>"]
NO_TEXTS = [
    *NO_PATHS,
    *("absent", "absent\n", "absent\udcff", "<b>absent</b>", " "),
    *("directory", "pipe", "/dev/zero", "/dev/full", "empty", "short", "cut.gz", "not.gz", "not.zip", "twice.gz"),
]
NO_PLACES = [*NO_PATHS, "file", "pipe", "full", "dangling", f"new/{LONG}", "/dev/null", "/dev/null/x"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A working directory with one of everything that is no use."""
    directory = tmp_path_factory.mktemp("scratch")
    for name in ("directory", "full"):
        (directory / name).mkdir()
    (directory / "full" / "report.md").write_text("mine")
    (directory / "file").write_text("x" * 100_000)
    (directory / "empty").touch()
    (directory / "short").write_text("short")
    packed = gzip.compress(b"some text " * 1000)
    (directory / "cut.gz").write_bytes(packed[:-10])
    (directory / "twice.gz").write_bytes(gzip.compress(packed))
    (directory / "not.gz").write_bytes(b"some text " * 1000)
    (directory / "not.zip").write_bytes(b"PK\x03\x04some text " * 1000)
    (directory / "loop").symlink_to("loop")
    (directory / "dangling").symlink_to("nowhere/at/all")
    os.mkfifo(directory / "pipe")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delenv("LINEAR_ROPE_DATA", raising=False)
        patch.setenv("LINEAR_ROPE_CACHE", str(directory / "cache"))
        yield directory


def given_as(name, value):
    """The two ways of giving a value to an option."""
    flag = "--" + name.replace("_", "-")
    return st.sampled_from([[flag, value], [f"{flag}={value}"]])


def value_of(names, values):
    """An option of these, which may be one, with a value of these."""
    names = [names] if isinstance(names, str) else names
    return st.tuples(st.sampled_from(names), st.sampled_from(values)).flatmap(lambda option: given_as(*option))


def not_among(names):
    """Text that is none of ``names``, and no option either: another check has those.

    Hypothesis tries the strings of the code under test too, so every name that means something has to be here.
    """
    return st.text(max_size=30).filter(lambda text: text not in names and not text.startswith("-"))


def named(name, names):
    return not_among(names).flatmap(lambda value: given_as(name, value))


def are_variants(text):
    return all(is_variant(name.strip()) for name in text.split(","))


def no_choice_of(name):
    """For an option that takes one of a few words."""
    kinds = {**typing.get_type_hints(Config), **typing.get_type_hints(RunOptions)}
    return named(name, typing.get_args(kinds[name]))


def out_of_range(name):
    smallest, largest = LIMITS[name]
    below = st.integers(max_value=smallest - 1)
    above = st.integers(min_value=largest + 1, max_value=10**4000)
    return st.one_of(below, above).flatmap(lambda value: given_as(name, str(value)))


wrong_numbers = st.one_of(
    value_of(WHOLE_NUMBERS, [*NO_NUMBERS, "9" * 5000, "-" + "9" * 5000]),
    st.sampled_from(WHOLE_NUMBERS).flatmap(out_of_range),
)
NO_FRACTIONS = [text for text in NO_NUMBERS if text not in ("1.5", "1e3")]
wrong_fractions = value_of(
    ["learning_rate", "weight_decay", "gradient_clip", "dropout"],
    [*NO_FRACTIONS, "inf", "-inf", "-1", "1e31", "-1e-9", "1e999"],
)
wrong_times = value_of("run_timeout", [*NO_FRACTIONS, "0", "-0.0", "-1", "-inf", "-1e-9"])
wrong_counts = value_of(["seeds", "workers"], [*NO_NUMBERS, "0", "-1", "10000000000", "9" * 5000])
wrong_choices = st.sampled_from(["preset", "device", "precision", "denominator"]).flatmap(no_choice_of)
wrong_names = st.one_of(
    not_among(()).filter(lambda text: not are_variants(text)).flatmap(lambda value: given_as("variants", value)),
    value_of("variants", ["softmax-none,softmax-none", "softmax-none,", ",", "softmax-none,x", "SOFTMAX-NONE"]),
    named("data", DATA_SETS),
    st.just(["--data", "text"]),
)
wrong_paths = st.one_of(
    value_of("data_file", NO_TEXTS), value_of("data_dir", NO_DIRECTORIES), value_of("out", NO_PLACES)
)
TOGETHER = (
    *("--heads 3", "--dim 130", "--num-features 63", "--context 1", "--context 16777216 --batch-size 1000"),
    *("--dim 131072 --layers 10000", "--data stdlib --data-file file", "--dry-run=yes", "--dry-run yes"),
    *("--variants performer-pytorch --redraw-every 5", "--variants performer-pytorch --dropout 0.5"),
)
wrong_together = st.sampled_from([words.split() for words in TOGETHER])
unknown_options = st.text(max_size=60).map(lambda text: [f"--z{text}"])
junk = not_among(()).filter(bool).map(lambda text: [f"z{text}"])
WRONG_FOR_RUN = (
    *(wrong_numbers, wrong_fractions, wrong_counts, wrong_choices, wrong_times, wrong_names, wrong_paths),
    *(wrong_together, unknown_options, junk),
)
# What is right and does not mend any of the above.
RIGHT = ("--seeds 2", "--steps=3", "--dry-run", "--preset smoke", "--learning-rate 1e-3", "--threads 1")
right = st.lists(
    st.sampled_from([words.split() for words in RIGHT]),
    max_size=3,
    unique_by=lambda option: option[0].partition("=")[0],
)


@st.composite
def wrong_runs(draw):
    wrong = draw(st.one_of(*WRONG_FOR_RUN))
    names = {word.partition("=")[0] for word in wrong}
    options = [option for option in draw(right) if option[0].partition("=")[0] not in names]
    if draw(st.booleans()) and wrong[0].startswith("--"):
        # Of an option that is given twice the last counts.
        options += [option for option in (["--steps=3"], ["--seeds", "2"]) if option[0].partition("=")[0] in names]
    options.insert(draw(st.integers(len(options) if names & {"--steps", "--seeds"} else 0, len(options))), wrong)
    return ["run", draw(st.sampled_from(["convergence", "decay"])), *(word for option in options for word in option)]


not_with_speed = st.sampled_from([["--steps", "3"], ["--seeds=2"], ["--variants", "elu+1-none"], ["--data-dir", "."]])
wrong_speed = st.one_of(not_with_speed, value_of("out", NO_PLACES), wrong_choices, unknown_options, junk).map(
    lambda words: ["run", "speed", *words]
)
missing_values = st.tuples(
    st.lists(st.sampled_from(["--dry-run", "--steps=3"]), max_size=2, unique=True),
    st.sampled_from([name for name in flags(RunOptions) if name not in ("--dry-run", "--steps", "--prepare")]),
    st.sampled_from([[], ["--steps", "3"]]),
).map(lambda parts: ["run", "decay", *parts[0], parts[1], *parts[2]])
wrong_studies = not_among([ALL, *STUDIES]).map(lambda name: ["run", name])
wrong_reports = st.one_of(
    st.sampled_from([*NO_PATHS, "absent", "file", "pipe", "empty", "directory", "full", "/dev/zero"]).map(
        lambda path: ["report", path]
    ),
    st.just(["report"]),
    st.one_of(junk, unknown_options).map(lambda words: ["report", "directory", *words]),
)
wrong_others = st.tuples(st.sampled_from(["list", "doctor", "data"]), st.one_of(junk, unknown_options)).map(
    lambda parts: [parts[0], *parts[1]]
)
wrong_data = value_of("data_dir", NO_DIRECTORIES).map(lambda words: ["data", *words])
wrong_commands = not_among(COMMANDS).map(lambda name: [name])

# Most of them where most options are.
wrong_invocations = st.one_of(
    *[wrong_runs()] * 8,
    *(wrong_speed, missing_values, wrong_studies, wrong_reports, wrong_others, wrong_data, wrong_commands),
)


def files_of(directory):
    """Whatever is there, with what would change if it were written."""
    return {
        path: (status.st_mode, status.st_size, status.st_mtime_ns)
        for path in [directory, *directory.rglob("*")]
        for status in [path.lstat()]
    }


def test_every_wrong_invocation_is_refused_in_one_line_and_changes_no_file(scratch, counts):
    before = files_of(scratch)
    tried = set()

    @settings(max_examples=EXAMPLES, **FUZZING)
    @given(wrong_invocations)
    def refused(arguments):
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
    counts["invalid invocations tried"] += len(tried)
    assert len(tried) >= LEAST
