import gzip
import json
import os
from pathlib import Path

import pytest

from experiments.records.files import LARGEST_RECORD, packed, write_atomically, write_json
from experiments.records.record import MetricsLog, read_metrics, read_record
from experiments.records.schema import MetricsRow, Status


def test_rows_are_appended_and_read_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    notes = []
    with MetricsLog(path, notes.append) as log:
        log.append(1, 10, "train", {"loss": 2.5})
        log.append(1, 10, "validation", {"bits_per_byte": 3.0})
    assert notes == []
    assert read_metrics(path) == [
        MetricsRow(1, 10, "train", {"loss": 2.5}),
        MetricsRow(1, 10, "validation", {"bits_per_byte": 3.0}),
    ]


def test_a_row_that_is_there_is_not_written_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    notes = []
    for loss in (2.5, 7.0):
        with MetricsLog(path, notes.append) as log:
            log.append(1, 10, "train", {"loss": loss})
            log.append(2, 20, "train", {"loss": loss})
    assert [row.metrics["loss"] for row in read_metrics(path)] == [2.5, 2.5]
    assert len(notes) == 1, "two rows differ from those on record, which is told once"
    assert (
        "step 1 was trained again from a checkpoint and did not repeat exactly: train loss 7.0, on record 2.5"
        in notes[0]
    )


def test_an_unfinished_last_line_is_dropped_with_a_note(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps({"step": 1, "tokens": 10, "split": "train", "loss": 2.5}) + "\n"
    path.write_text(whole + '{"step": 2, "tok')
    assert len(read_metrics(path)) == 1
    notes = []
    with MetricsLog(path, notes.append) as log:
        log.append(2, 20, "train", {"loss": 2.0})
    assert "dropped" in notes[0]
    assert [row.step for row in read_metrics(path)] == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "tokens": 10, "split": "train"}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_that_is_not_json_names_the_file(tmp_path):
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(ValueError, match=r"status\.json"):
        read_record(tmp_path / "status.json", Status)


def test_a_repeated_row_may_differ_in_wall_clock_time_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    notes = []
    for seconds in (1.0, 2.0):
        with MetricsLog(path, notes.append) as log:
            log.append(1, 10, "train", {"loss": 2.5, "seconds": seconds, "tokens_per_second": 10 / seconds})
    assert notes == []


def test_a_row_that_cannot_be_written_whole_leaves_no_part_of_itself(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, print) as log:
        log.append(1, 10, "train", {"loss": 2.5})
        whole = path.read_bytes()
        monkeypatch.setattr(
            "os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space left"):
            log.append(2, 20, "train", {"loss": 2.0})
        monkeypatch.undo()
        assert path.read_bytes() == whole
        log.append(2, 20, "train", {"loss": 2.0})
    assert [row.step for row in read_metrics(path)] == [1, 2]


def test_a_step_that_is_there_twice_for_a_split_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = {"step": 1, "tokens": 10, "split": "train", "loss": 2.5}
    path.write_text("".join(json.dumps(row | change) + "\n" for change in ({}, {"split": "test"}, {"loss": 3.0})))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 3 .* the train split has a row for step 1 already"):
        read_metrics(path)


def read_any(path):
    return read_record(path, dict)


def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_RECORD + 1)
    odd = (tmp_path, tmp_path / "pipe", tmp_path / "large", Path("/dev/zero"), Path("/dev/tty"))
    for read in (read_any, read_metrics):
        for path in odd:
            with pytest.raises(ValueError, match=r"is not a regular file|is larger than|cannot be read \("):
                read(path)
    with pytest.raises(ValueError, match=r"absent\.json cannot be read \(there is no such file\)"):
        read_any(tmp_path / "absent.json")


def test_a_text_that_no_file_can_hold_is_written_visibly(tmp_path):
    write_json(tmp_path / "comparison.json", {"command": "half \ud800"})
    assert (tmp_path / "comparison.json").read_text() == '{\n  "command": "half \\ud800"\n}\n'
    assert read_any(tmp_path / "comparison.json") == {"command": r"half \ud800"}


def test_a_packed_file_is_read_in_place_of_one_that_is_not_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = json.dumps({"step": 1, "tokens": 10, "split": "train", "loss": 2.5}) + "\n"
    packed(path).write_bytes(gzip.compress(row.encode()))
    assert [each.metrics for each in read_metrics(path)] == [{"loss": 2.5}]
    packed(path).write_bytes(gzip.compress(row.encode())[:-9])
    with pytest.raises(ValueError, match=r"metrics\.jsonl\.gz cannot be unpacked"):
        read_metrics(path)
    packed(path).write_bytes(gzip.compress(bytes(LARGEST_RECORD + 1), 1))
    with pytest.raises(ValueError, match=r"metrics\.jsonl\.gz is larger than"):
        read_metrics(path)
