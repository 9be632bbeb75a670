"""Tables and parallel texts: what is read, and what is wrong in which row."""

import re

import pytest

from experiments.data.tables import Table
from tests.experiments.data.made_up_files import write

COLUMNS = {"sentence": "text", "label": "label"}


def read(path, content, **settings):
    return Table(write(path, content), "--data mine").read(COLUMNS, **settings)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_columns_by_name_with_quotation_marks_as_they_are(tmp_path, name):
    content = 'id\tsentence\tlabel\n1\t"so it\u2028began \t0\r\n2\t \u00e4 "b" \t1\n'
    frame = read(tmp_path / name, b"\xef\xbb\xbf" + content.encode())
    assert frame.to_dict("list") == {"text": ['"so it\u2028began', '\u00e4 "b"'], "label": ["0", "1"]}
    assert frame.index.tolist() == [2, 3]


def test_a_header_that_the_file_does_not_have(tmp_path):
    frame = read(tmp_path / "a.tsv", "s\tone\t1\ns\ttwo\t0", header=("source", "sentence", "label"))
    assert frame["text"].tolist() == ["one", "two"]
    assert frame.index.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("sentence\tlabel\na\t1\nb\n", "row 3: 1 column, expected 2 (sentence, label)"),
        ("sentence\tlabel\na\t1\tx\nb\n", "row 2: 3 columns, expected 2 (sentence, label)"),
        ("sentence\tlabel\na\t1\n\nb\t0\n", "row 3: 1 column, expected 2 (sentence, label)"),
        ("sentence\ttext\na\t1\n", "row 1: there is no column 'label', expected sentence, label"),
        (b"sentence\tlabel\na\t1\nb\xff\t1\n", "row 3: it is not UTF-8 (invalid start byte)"),
        (b"\xef\xbb\xbfsentence\tlabel\n\xe4\t1\n", "row 2: it is not UTF-8 (invalid continuation byte)"),
        ("", "it is empty"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_row(tmp_path, content, told):
    path = tmp_path / "a.tsv"
    place = re.escape(f"--data mine: {path}") + (": " if "row " not in told else ", ")
    with pytest.raises(ValueError, match=f"^{place}{re.escape(told)}; replace or remove it$") as caught:
        read(path, content)
    assert "\n" not in str(caught.value)


def test_labels_and_scores(tmp_path):
    frame = read(tmp_path / "a.tsv", "sentence\tlabel\na\t1\nb\t0\n")
    good = Table(tmp_path / "a.tsv", "--data mine")
    assert good.classes(frame["label"], {"0": "no", "1": "yes"}).tolist() == ["yes", "no"]
    assert good.scores(frame["label"], 5.0).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"a\.tsv, row 3: the label is '0', expected 1 or 2; replace"):
        good.classes(frame["label"], {"1": "one", "2": "two"})
    for wrong in ("5.1", "-1", "nan", "high", ""):
        frame = read(tmp_path / "a.tsv", f"sentence\tlabel\na\t1\nb\t{wrong}\n")
        with pytest.raises(ValueError, match=rf"row 3: the score is '{wrong}', expected a number from 0 to 5; replace"):
            good.scores(frame["label"], 5.0)
