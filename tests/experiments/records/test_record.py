import json

import pytest

from experiments.records.files import write_atomically
from experiments.records.record import MetricsLog, read_metrics

ROW = json.dumps({"step": 1, "tokens": 10, "split": "train", "loss": 2.5}) + "\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def failing(error):
    def fail(*arguments):
        raise error

    return fail


def test_a_row_that_is_there_is_not_written_twice(path):
    notes = []
    for loss in (2.5, 2.5, 7.0):
        assert notes == []
        with MetricsLog(path, notes.append) as log:  # wall-clock times may differ
            log.append(1, 10, "train", {"loss": loss, "seconds": len(path.read_bytes())})
            log.append(2, 20, "train", {"loss": loss})
    assert [row.metrics["loss"] for row in read_metrics(path)] == [2.5, 2.5]
    assert len(notes) == 1, "two rows differ from those on record, which is told once"
    assert (
        "step 1 was trained again from a checkpoint and did not repeat exactly: train loss 7.0, on record" in notes[0]
    )


def test_an_unfinished_last_line_is_dropped_with_a_note(path):
    path.write_text(ROW + '{"step": 2, "tok')
    assert len(read_metrics(path)) == 1
    notes = []
    with MetricsLog(path, notes.append) as log:
        log.append(2, 20, "train", {"loss": 2.0})
    assert "dropped" in notes[0]
    assert [row.step for row in read_metrics(path)] == [1, 2]


def test_a_failed_write_leaves_the_old_content(path, monkeypatch):
    write_atomically(path, "old")
    monkeypatch.setattr("os.replace", failing(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_row_that_cannot_be_written_whole_leaves_no_part_of_itself(path, monkeypatch):
    path.write_text(ROW)
    with MetricsLog(path, print) as log:
        monkeypatch.setattr("os.fsync", failing(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            log.append(2, 20, "train", {"loss": 2.0})
        monkeypatch.undo()
        assert path.read_text() == ROW
        log.append(2, 20, "train", {"loss": 2.0})
    assert [row.step for row in read_metrics(path)] == [1, 2]
