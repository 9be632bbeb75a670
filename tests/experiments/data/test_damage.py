"""Files of every data set, damaged: one line that names the file, the row where there is one, and what would do."""

import gzip
import lzma
import re

import pytest

from experiments.cli import main
from experiments.data.registry import data_set, row_of
from tests.experiments.data.made_up_files import (
    DOWNLOADED,
    OF_FILES,
    ROWS,
    documents,
    known,
    place,
    reader_of,
    small,
    tar,
    write,
)

OF_LINES = [name for name in OF_FILES if reader_of(name) in ("Tables", "Triplets", "Translations")]
OF_COLUMNS = [name for name in OF_LINES if reader_of(name) != "Translations"]
OF_DOCUMENTS = [name for name in OF_FILES if "Documents" in reader_of(name)]


def refused(name, directory, path, **changes):
    with pytest.raises(ValueError, match=rf"^--data {name}: ") as caught:
        small(name, **changes).load(directory, None)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert re.search(r"; replace or remove (it|them)$", message)
    return message


def lines(change):
    """A change of the lines of a packed file."""
    return lambda packed, name: gzip.compress(b"\n".join(change(gzip.decompress(packed).split(b"\n"), name)))


def without_a_column(found, name):
    """From the seventh row on, because some may be passed over."""
    shorter = [row.rpartition(b"\t")[0] or row.replace(b'"B": ', b'"X": ') for row in found[6:18]]
    return [*found[:6], *shorter, *found[18:]]


def with_a_wrong_label(found, name):
    fields = found[9].split(b"\t")
    fields[1 if row_of(name).get("header") else -1] = b"9"
    row = b"\t".join(fields) if len(fields) > 1 else found[9].replace(b'"label": "C"', b'"label": "9"')
    return [*found[:9], row, *found[10:]]


DAMAGES = {
    "half": (OF_FILES, lambda packed, name: packed[: len(packed) // 2], "cannot be read"),
    "no last byte": (OF_FILES, lambda packed, name: packed[:-1], "cannot be read"),
    "lines are gone": (
        [name for name in OF_LINES if "rows" in row_of(name)],
        lines(lambda found, name: [*found[:20], b""]),
        " has (19|20) (rows|lines), expected [0-9]+;",
    ),
    "not UTF-8": (
        OF_LINES,
        lines(lambda found, name: [*found[:4], found[4][:-1] + b"\xff", *found[5:]]),
        ", row 5: it is not UTF-8",
    ),
    "empty": (OF_LINES, lines(lambda found, name: []), "it is empty"),
    "a column lacks": (
        OF_COLUMNS,
        lines(without_a_column),
        r", row 7: ([0-9] columns?, expected [0-9] \(|Object missing required field `B`; expected A, B, C)",
    ),
    "a wrong label": (
        [name for name in OF_COLUMNS if name != "cail2019-scm-sample"],
        lines(with_a_wrong_label),
        r", row 10: (the (label|score) is '9', expected |Invalid enum value '9' - at `\$\.label`)",
    ),
}


@pytest.mark.parametrize(
    ("damage", "name"), [(damage, name) for damage, (names, *_) in DAMAGES.items() for name in names]
)
def test_a_damaged_file(tmp_path, damage, name):
    path, (_, change, told) = place(name, tmp_path, end=".gz")[-1], DAMAGES[damage]
    path.write_bytes(change(path.read_bytes(), name))
    assert re.search(told, refused(name, tmp_path, path))


@pytest.mark.parametrize("name", [name for name in DOWNLOADED if reader_of(name) in ("Triplets", "Translations")])
def test_one_letter_that_is_another(tmp_path, name):
    paths = place(name, tmp_path, end=".gz")
    content = {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in paths}
    small(name, content=known(content)).load(tmp_path, None)
    old, new = ("原", "被") if name == "cail2019-scm-sample" else ("says", "said")
    write(paths[0], gzip.decompress(paths[0].read_bytes()).replace(old.encode(), new.encode(), 1))
    message = refused(name, tmp_path, paths[0], content=known(content))
    assert "it is damaged or another file (the sha256 of its content is not " in message


@pytest.mark.parametrize("name", OF_DOCUMENTS)
def test_archives_of_other_documents(tmp_path, name):
    path, members = place(name, tmp_path)[0], [part for part in documents(name) if "unsup" not in part[0]]

    def packed(changed):
        write(path, tar(changed, "xz"))
        return path

    assert re.search(r"hold \{.*59.*\} texts, expected", refused(name, tmp_path, packed(members[1:])))
    if not row_of(name).get("posts"):
        message = refused(name, tmp_path, packed([*members[1:], (members[0][0], b"good\xff")]))
        assert f"{path}, {members[0][0]}: it is not UTF-8" in message
    content = lzma.decompress(tar(members, "xz"))
    path.write_bytes(lzma.compress(content[: len(content) // 2 // 512 * 512]))
    refused(name, tmp_path, path)


TABLE, TRIPLETS = ("sst-2", "glue/SST-2/train.tsv"), ("cail2019-scm", "cail2019_scm/train.json")


@pytest.mark.parametrize(
    ("name", "path", "content", "told"),
    [
        (*TABLE, "sentence\na\n", ", row 1: there is no column 'label', expected sentence, label"),
        (*TABLE, "sentence\tlabel\na\t1\nb\n", ", row 3: 1 column, expected 2 (sentence, label)"),
        (*TABLE, "sentence\tlabel\na\t1\tx\nb\n", ", row 2: 3 columns, expected 2 (sentence, label)"),
        (*TABLE, "sentence\tlabel\na\t1\n\nb\t0\n", ", row 3: 1 column, expected 2 (sentence, label)"),
        (*TABLE, b"sentence\tlabel\na\t1\nb\xff\t1\n", ", row 3: it is not UTF-8 (invalid start byte)"),
        *(
            ("sts-b", "glue/STS-B/train.tsv", f"sentence1\tsentence2\tscore\na\tb\t{score}\n", f", row 2: {told}")
            for score in ("5.1", "-1", "nan", "high", "")
            for told in (f"the score is '{score}', expected a number from 0 to 5",)
        ),
        (*TRIPLETS, "{", ", row 1: Input data was truncated; expected A, B, C, label in"),
        (*TRIPLETS, "[" * 100_000, ", row 1: Expected `object`, got `array`"),
        (
            *TRIPLETS,
            '{"A": "\\ud800", "B": "b", "C": "c", "label": "B"}',
            ", row 1: JSON is malformed: unexpected end of escaped utf-16",
        ),
        (
            "multi30k",
            "multi30k/train.en",
            "One.\n",
            ": it is damaged or another file (the sha256 of its content is not",
        ),
        ("wmt14", "wmt14/newstest2014.en", "One.\n", ": it has 1 lines, expected 3,003"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path, name, path, content, told):
    rows = {} if name != "wmt14" else {"rows": [ROWS] * 4 + [3003]}
    place(name, tmp_path)
    write(tmp_path / path, content)
    made = data_set(name, **row_of(name) | rows)
    with pytest.raises(ValueError, match=rf"^--data {name}: {re.escape(f'{tmp_path / path}{told}')}") as caught:
        made.load(tmp_path, None)
    assert re.search(r"^[^\n]*; replace or remove it$", str(caught.value))


def test_a_run_of_wrong_files_is_one_line_and_exit_status_2(tmp_path, capsys):
    place(TABLE[0], tmp_path)
    write(tmp_path / TABLE[1], "sentence\na\n")
    words = ["run", "glue", "--preset", "smoke", "--data", TABLE[0], "--data-dir", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    assert re.fullmatch(
        r"error: --data sst-2: .*, row 1: there is no column .*; replace or remove it\n", capsys.readouterr().err
    )


def test_some_broken_rows_may_be_passed_over(tmp_path):
    path = place("qqp", tmp_path)[0]
    path.write_text(path.read_text() + "1\t2\n" * 10)
    found = small("qqp").load(tmp_path, None)
    assert found.note.endswith("rows with another number of columns (10), spaces around a text (240).")
    path.write_text(path.read_text() + "1\t2\n")
    assert "row 62: 2 columns, expected 4 (index, " in refused("qqp", tmp_path, path)


def test_a_split_without_examples(tmp_path):
    for path in place("rte", tmp_path):
        path.write_text("\n".join(path.read_text().split("\n")[:2]))
    with pytest.raises(ValueError, match=r"--data rte \(glue/RTE/.*\): the (train|validation) split has no examples"):
        small("rte", rows=[1, 1]).load(tmp_path, None)
