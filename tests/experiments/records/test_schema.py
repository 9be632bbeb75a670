import copy
import json
from pathlib import Path

import pytest

from experiments.records.record import read_comparison, read_json
from experiments.records.schema import (
    check_comparison,
    check_measurement,
    check_metrics_row,
    check_run_config,
    check_status,
)
from experiments.records.strict_json import DEEPEST, Source, parse_json, visible
from experiments.studies.speed.records import read_records

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
FILE = Source("the file", "for the test")
GONE = object()

ROW = {"step": 10, "tokens": 640, "split": "train", "loss": 2.5}
STATUS = {"state": "failed", "reason": "why", "notes": ["one"], "time": 1.5}
RUN = {"variant": "elu+1-none", "seed": 0, "data_sha256": "ab", "config": {"steps": 100}}
SAMPLES = [
    {"case": "linear-rope", "length": 512, "seconds": [0.25, 0.5], "state_bytes": 8},
    {"case": "softmax rope", "length": 512, "seconds": [0.25, 0.5]},
]
PLACE = {"topic": "module", "length": 512, "cases": [["linear-rope", 512]]}
TIME = PLACE | {"kind": "time", "direction": "forward", "samples": SAMPLES}
MEMORY = PLACE | {
    **{"kind": "memory", "direction": "forward+backward", "case": "linear-rope"},
    **{"rise": 2, "returned": 1, "method": "made up"},
}
RATE = TIME | {"topic": "rate", "length": None, "chunk_size": 64}


@pytest.fixture(scope="module")
def comparison(make_comparison, tmp_path_factory):
    return read_comparison(make_comparison(tmp_path_factory.mktemp("schema"), "elu+1-none,softmax-none", 2))


def changed(value, place, new):
    """A copy of the value with something else, or nothing, at a place given by keys and indices."""
    value = copy.deepcopy(value)
    inside = value
    for key in place[:-1]:
        inside = inside[key]
    if new is GONE:
        del inside[place[-1]]
    else:
        inside[place[-1]] = new
    return value


def refusal(check, value):
    with pytest.raises(ValueError, match=r"^the file") as error:
        check(value, FILE)
    message = str(error.value)
    assert message.endswith("; for the test")
    assert "\n" not in message
    assert len(message) < 300
    return message.removeprefix("the file").removesuffix("; for the test")


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (("name",), GONE, " lacks name"),
        (("name",), 3, ": $.name is 3, expected `str`"),
        (("config",), [], ": $.config is [], expected `object`"),
        (("config", "steps"), GONE, ": $.config lacks steps"),
        (("config", "steps"), 0, ": $.config.steps is 0, expected `int` >= 1"),
        (("config", "context"), 2.5, ": $.config.context is 2.5, expected `int`"),
        (("seeds",), [0, -1], ": $.seeds[1] is -1, expected `int` >= 0"),
        (("seeds",), [0, True], ": $.seeds[1] is True, expected `int`"),
        (("seeds",), [1, 0, 1], ": $.seeds holds 1 twice"),
        (("seeds",), [], ": $.seeds is empty, and there are variants"),
        (("data",), [], ": $.data is empty, and there are variants"),
        (("data", 0, "sha256"), None, ": $.data[0].sha256 is null, expected `str`"),
        (("data", 0, "splits"), {"train": "all"}, ": $.data[0].splits[...], expected `int`, got `str`"),
        (("evaluated_windows",), {}, ": $.evaluated_windows lacks validation"),
        (("git", "dirty"), "no", ": $.git.dirty is 'no', expected `bool`"),
        (("variants", 0, "parameters"), -1, ": $.variants[0].parameters is -1, expected `int` >= 0"),
        (("variants", 1, "name"), "elu+1-none", ": $.variants holds 'elu+1-none' twice"),
        (("variants", 1, "name"), "", ": $.variants[1].name is '', expected `str` of length >= 1"),
        (("notes",), "one", ": $.notes is 'one', expected `array`"),
    ],
)
def test_what_is_wrong_in_a_comparison_is_named_with_its_place(comparison, place, new, message):
    assert refusal(check_comparison, changed(comparison, place, new)) == message


@pytest.mark.parametrize(
    "name",
    ["..", "../elsewhere", "a/../../b", "a\\..\\b", "/absolute", "a//b", "a/", ".", "a/./b", "\0", "a\nb", "\u202ea"],
)
def test_a_variant_outside_the_directory_or_invisible_is_refused(comparison, name):
    message = refusal(check_comparison, changed(comparison, ("variants", 1, "name"), name))
    assert message.startswith(": $.variants[1].name is ")
    assert message.endswith(("which is no path inside the comparison's directory", "which has control characters"))


def test_a_variant_with_a_name_too_long_for_a_directory_is_refused(comparison):
    message = refusal(check_comparison, changed(comparison, ("variants", 1, "name"), "é" * 101))
    assert message.endswith("which is longer than 200 bytes")


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "group/variant", "a\\b", "$x$", "=1+1", "..a", "é" * 100]
)
def test_other_variant_names_are_allowed(comparison, name):
    check_comparison(changed(comparison, ("variants", 1, "name"), name), FILE)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        *((check_status, STATUS), (check_status, {"state": "queued"}), (check_run_config, RUN)),
        *((check_metrics_row, ROW), (check_measurement, TIME), (check_measurement, MEMORY), (check_measurement, RATE)),
    ],
)
def test_what_a_run_writes_is_allowed(check, value):
    check(value, FILE)


@pytest.mark.parametrize(
    ("check", "value"), [(check_status, STATUS), (check_run_config, RUN), (check_measurement, TIME)]
)
def test_keys_of_another_version_are_allowed(comparison, check, value):
    check(value | {"of another version": {"a": [1]}}, FILE)
    check_comparison(comparison | {"of another version": [None]}, FILE)


@pytest.mark.parametrize(
    ("check", "value", "place", "new", "message"),
    [
        (
            check_status,
            STATUS,
            ("state",),
            "ready",
            ": $.state is 'ready', expected one of queued, running, done, failed",
        ),
        (check_status, STATUS, ("state",), GONE, " lacks state"),
        (check_status, STATUS, ("reason",), 3, ": $.reason is 3, expected `str | null`"),
        (check_run_config, RUN, ("seed",), "0", ": $.seed is '0', expected `int`"),
        (check_run_config, RUN, ("config",), None, ": $.config is null, expected `object`"),
        (check_metrics_row, ROW, ("step",), -1, ": $.step is -1, expected `int` >= 0"),
        (check_metrics_row, ROW, ("step",), GONE, " lacks step"),
        (check_metrics_row, ROW, ("tokens",), GONE, " lacks tokens"),
        (check_metrics_row, ROW, ("split",), GONE, " lacks split"),
        (check_metrics_row, ROW, ("split",), "dev", ": $.split is 'dev', expected one of train, validation, test"),
        (check_metrics_row, ROW, ("loss",), "2.5", ": $.loss is '2.5', expected `float`"),
        (check_metrics_row, ROW, ("loss",), None, ": $.loss is null, expected `float`"),
        (check_metrics_row, ROW, ("loss",), True, ": $.loss is True, expected `float`"),
        (check_metrics_row, ROW, ("loss",), 1e101, ": $.loss is 1e+101, expected `float` <= 1e+100"),
        (check_measurement, TIME, ("kind",), "space", ": $.kind is 'space', expected one of time, memory"),
        (check_measurement, TIME, ("length",), 0, ": $.length is 0, expected `int` >= 1"),
        (check_measurement, TIME, ("length",), None, ": $.length is null, which the topic module cannot have"),
        (check_measurement, TIME, ("length",), 64, ": $.samples[0].length is 512, expected 64"),
        (
            check_measurement,
            TIME,
            ("direction",),
            "step",
            ": $.topic and $.direction are 'module' and 'step', expected",
        ),
        (check_measurement, TIME, ("samples", 1, "seconds"), [], ": $.samples[1].seconds is [], expected `array` of"),
        (check_measurement, TIME, ("samples", 1, "seconds"), [1.0], ": $.samples[1].seconds has another number of"),
        (
            check_measurement,
            TIME,
            ("samples", 1, "seconds", 0),
            0,
            ": $.samples[1].seconds[0] is 0, expected `float` >=",
        ),
        (
            check_measurement,
            TIME,
            ("samples", 1, "case"),
            "linear-rope",
            ": $.samples holds ('linear-rope', 512) twice",
        ),
        (check_measurement, RATE, ("chunk_size",), GONE, " lacks chunk_size"),
        (check_measurement, RATE, ("length",), 512, ": $.length is 512, which the topic rate cannot have"),
        (check_measurement, MEMORY, ("rise",), GONE, " lacks rise, returned and method, and has no failures"),
        (check_measurement, MEMORY, ("direction",), "forward", ": $.topic and $.direction are 'module' and 'forward'"),
        (check_measurement, MEMORY, ("returned",), -1, ": $.returned is -1, expected `int` >= 0"),
    ],
)
def test_what_is_wrong_in_a_record_is_named_with_its_place(check, value, place, new, message):
    assert refusal(check, changed(value, place, new)).startswith(message)


@pytest.mark.parametrize("check", [check_comparison, check_status, check_run_config, check_metrics_row])
@pytest.mark.parametrize("value", [[], None, "text", 3])
def test_what_is_no_object_is_refused(check, value):
    assert ", expected `object`" in refusal(check, value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON (Expecting value"),
        (b"{", "is not JSON (Expecting property name"),
        (b"\x00\xff\x80binary", "is not JSON ('utf-8' codec"),
        (b'{"a": NaN}', "is not JSON (NaN is no number"),
        (b'{"a": -Infinity}', "is not JSON (-Infinity is no number"),
        (b'{"a": 1e999}', "is not JSON (1e999 is beyond what a float can hold"),
        (b'{"a": 9223372036854775808}', "is not JSON (9223372036854775808 is beyond 64 bits"),
        (b"1" * 10000, "is not JSON (" + "1" * 60 + " is beyond 64 bits"),
        (b"[" * 100000, f"is nested more than {DEEPEST} levels deep"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), f"is nested more than {DEEPEST} levels deep"),
    ],
)
def test_json_that_cannot_be_recorded_is_refused_in_one_line(content, message):
    said = refusal(parse_json, content)
    assert said.strip().startswith(message)


def test_the_largest_numbers_and_the_deepest_nesting_are_read():
    deep = "[" * DEEPEST + "]" * DEEPEST
    content = f'{{"a": 9223372036854775807, "b": -9223372036854775808, "c": 1e308, "d": {deep[1:-1]}}}'
    assert parse_json(content.encode(), FILE) == json.loads(content)


def test_a_lone_surrogate_becomes_text_that_any_file_can_hold():
    assert parse_json(rb'{"\ud800": ["\udfffx", "\ud83d\ude00"]}', FILE) == {r"\ud800": [r"\udfffx", "\U0001f600"]}


def test_what_cannot_be_seen_is_written_out():
    assert visible("a\x07\u202eb\ud800\x9b\nc\td é 日") == r"a\x07\u202eb\ud800\x9b" + "\nc\td é 日"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in REFERENCE.glob("*/comparison.json")))
def test_the_committed_records_pass_unchanged(name):
    root = REFERENCE / name
    assert read_comparison(root) == json.loads((root / "comparison.json").read_text())
    for path in root.rglob("status.json"):
        check_status(read_json(path), FILE)
    if (root / "measurements.jsonl").exists():
        assert len(read_records(root)) == len((root / "measurements.jsonl").read_text().splitlines())
