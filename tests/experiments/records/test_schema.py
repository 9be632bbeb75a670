"""Every record file is refused in one line if it is not what schema.py says, and read if it only holds more."""

import copy
import json
from pathlib import Path

import msgspec
import pytest

from experiments.records.record import (
    decoded,
    is_finished,
    read_comparison,
    read_metrics,
    read_record,
    run_config,
    run_status,
)
from experiments.records.schema import Comparison, RunConfig, Status
from tests.made_up import comparison_fields, make_record

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
GONE = object()

ROW = {"step": 10, "tokens": 640, "split": "train", "loss": 2.5}
STATUS = {"state": "failed", "reason": "why", "notes": ["one"], "time": 1.5}
RUN = {"variant": "elu+1-none", "seed": 0, "data_sha256": "ab", "config": {"steps": 100}}


def changed(value, place, new):
    """A copy of the value with something else, or nothing, at a place given by keys and indices."""
    value = inside = copy.deepcopy(value)
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = new
    if new is GONE:
        del inside[place[-1]]
    return value


def refusal(kind, value):
    with pytest.raises(ValueError, match=r"^the file ") as error:
        decoded(json.dumps(value).encode(), kind, "the file", "for the test")
    message = str(error.value)
    assert message.endswith("; for the test")
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("place", "new", "names"),
    [
        (("name",), GONE, "name"),
        (("config",), [], "$.config"),
        (("config", "steps"), GONE, "config.steps is None"),
        (("seeds",), [1, 0, 1], "seeds holds 1 twice"),
        (("seeds",), [], "with variants there are seeds"),
        (("evaluated_windows",), {}, "evaluated_windows.validation"),
        (("variants", 0, "parameters"), -1, "$.variants[0].parameters"),
        (("variants", 1, "name"), "elu+1-none", "variants holds 'elu+1-none' twice"),
        (("variants", 0, "name"), "../elsewhere", "no path inside"),
        (("variants", 0, "name"), "a\\..\\b", "no path inside"),
        (("variants", 0, "name"), "a\nb", "control characters"),
        (("variants", 0, "name"), "a" * 201, "longer than 200 bytes"),
    ],
)
def test_a_comparison_that_is_wrong_is_refused_with_the_place(place, new, names):
    fields = comparison_fields(variants=["elu+1-none", "softmax-none"])
    assert names in refusal(Comparison, changed(fields, place, new))


@pytest.mark.parametrize(
    ("kind", "value", "name", "new"),
    [
        (Status, STATUS, "state", "ready"),
        (Status, STATUS, "state", GONE),
        (Status, STATUS, "trained_with", [{"kernel": "PyTorch"}]),
        *((RunConfig, RUN, name, []) for name in RUN),
    ],
)
def test_a_run_s_file_that_is_wrong_is_refused(kind, value, name, new):
    assert name in refusal(kind, changed(value, (name,), new))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (changed(ROW, ("step",), GONE), "lacks step"),
        (ROW | {"split": "dev"}, "split"),
        (ROW | {"loss": 1e101}, "metrics"),
        ([], "is wrong"),
        (ROW | {"loss": 3.0}, "the train split has a row for step 10 already"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(tmp_path, row, said):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 .*and run again") as error:
        read_metrics(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b'{"a": 1e999}', b'"\xff"', b"null", b"1" * 5000]
)
def test_what_is_no_json_object_is_refused_in_one_line(content):
    with pytest.raises(ValueError, match=r"^the file [^\n]*; for the test$"):
        decoded(content, Comparison, "the file", "for the test")


def test_keys_that_are_not_known_are_passed_over():
    fields = comparison_fields(variants=["elu+1-none"])
    novel = changed(fields, ("novelty",), {"deep": [1]}) | {"git": fields["git"] | {"branch": "x"}}
    assert msgspec.convert(novel, Comparison) == msgspec.convert(fields, Comparison)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in REFERENCE.glob("*/comparison.json")))
def test_every_committed_record_is_read_and_would_be_written_as_it_is(name):
    root = REFERENCE / name
    comparison = read_comparison(root)
    there = json.loads((root / "comparison.json").read_text(encoding="utf-8"))
    written = msgspec.to_builtins(comparison)
    objective = there.get("objective", {})
    assert objective == {key: written["objective"][key] for key in objective}  # a newer version says more
    written |= {"objective": objective}
    assert there == {key: written.get(key, there[key]) for key in there}
    assert written.keys() - there.keys() <= {"objective"}
    for run in list(comparison.runs)[:3]:
        assert run_status(root, *run).state == "done"
        assert is_finished(root, *run, comparison.config["steps"])


def test_a_run_s_file_is_read_from_its_directory(tmp_path):
    assert run_status(tmp_path, "a", 0) == Status(state="queued")
    directory = tmp_path / "a" / "seed0"
    directory.mkdir(parents=True)
    (directory / "status.json").write_text(json.dumps(STATUS))
    assert run_status(tmp_path, "a", 0) == read_record(directory / "status.json", Status) == Status(**STATUS)
    (directory / "config.json").write_text(json.dumps(RUN))
    with pytest.raises(ValueError, match=r"is that of elu\+1-none seed 0, not of a seed 0"):
        run_config(tmp_path, "a", 0)


def test_a_study_that_trains_nothing_has_no_floor():
    record = make_record(experiment="speed")
    assert record.floor is None
    assert record.floors_of("bits_per_byte") == []
