"""Files of every data set, damaged: one line that names the file, the row where there is one, and what would do."""

import gzip
import lzma
import re

import pytest

from experiments.cli import main
from experiments.data.registry import row_of
from tests.experiments.data.made_up_files import OF_FILES, documents, known, place, reader_of, small, tar, write

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


@pytest.mark.parametrize("name", [name for name in OF_LINES if "content" in row_of(name)])
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


@pytest.mark.parametrize(
    ("name", "path", "content", "told"),
    [
        (
            "sst-2",
            "glue/SST-2/train.tsv",
            "sentence\na\n",
            "row 1: there is no column 'label', expected sentence, label",
        ),
        (
            "sst-2",
            "glue/SST-2/train.tsv",
            "sentence\tlabel\na\t1\nb\n",
            "row 3: 1 column, expected 2 (sentence, label)",
        ),
        ("cail2019-scm", "cail2019_scm/train.json", "{", "row 1: Input data was truncated; expected A, B, C, label in"),
        ("cail2019-scm", "cail2019_scm/train.json", "[" * 100_000, "row 1: Expected `object`, got `array`"),
        (
            "cail2019-scm",
            "cail2019_scm/train.json",
            '{"A": "\\ud800", "B": "b", "C": "c", "label": "B"}',
            "row 1: JSON is malformed: unexpected end of escaped utf-16",
        ),
        ("multi30k", "multi30k/train.en", "One.\n", "it has 1 lines, expected 29,000"),
    ],
)
def test_a_run_of_wrong_files_is_one_line_and_exit_status_2(tmp_path, capsys, name, path, content, told):
    place(name, tmp_path)
    write(tmp_path / path, content)
    study = "translation" if name == "multi30k" else "glue"
    words = ["run", study, "--preset", "smoke", "--data", name, "--data-dir", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    message = capsys.readouterr().err
    assert re.match(rf"error: --data {name}: {re.escape(str(tmp_path / path))}[,:] {re.escape(told)}", message)
    assert message.endswith("; replace or remove it\n")
    assert message.count("\n") == 1


def test_some_broken_rows_may_be_passed_over(tmp_path):
    path = place("qqp", tmp_path)[0]
    path.write_text(path.read_text() + "1\t2\n" * 10)
    found = small("qqp").load(tmp_path, None)
    assert found.note.endswith("rows with another number of columns (10), spaces around a text (240).")
    path.write_text(path.read_text() + "1\t2\n")
    assert "row 62: 2 columns, expected 4 (index, " in refused("qqp", tmp_path, path)


def test_parallel_files_of_other_lengths(tmp_path):
    path = place("multi30k", tmp_path)[1]
    path.write_text(path.read_text() + "more\n")
    refused("multi30k", tmp_path, path)


def test_a_split_without_examples(tmp_path):
    for path in place("rte", tmp_path):
        path.write_text("\n".join(path.read_text().split("\n")[:2]))
    with pytest.raises(ValueError, match=r"--data rte \(glue/RTE/.*\): the (train|validation) split has no examples"):
        small("rte", rows=[1, 1]).load(tmp_path, None)
