"""Files of each form, damaged: one line that names the file, the row where there is one, and what would do."""

import gzip
import hashlib
import re

import pytest

from experiments.cli import main
from experiments.data.registry import data_set, row_of
from tests.experiments.data.made_up_files import ROWS, documents, place, small, tar, write

EVERY = ("enwik8", "wikitext-2", "imdb", "newsgroups", "sst-2", "sts-b", "cail2019-scm", "multi30k")
OF_LINES = EVERY[-4:]


def refused(name, directory, path, **changes):
    with pytest.raises(ValueError, match=rf"^--data {name}: [^\n]*; replace or remove (it|them)$") as caught:
        small(name, **changes).load(directory, None)
    assert str(path) in str(caught.value)
    return str(caught.value)


def lines(change):
    """A change of the lines of a packed file."""
    return lambda packed: gzip.compress(b"\n".join(change(gzip.decompress(packed).split(b"\n"))))


@pytest.mark.parametrize(
    ("names", "change", "told"),
    [
        (EVERY, lambda packed: packed[: len(packed) // 2], "cannot be read"),
        (EVERY, lambda packed: packed[:-1], "cannot be read"),
        (OF_LINES, lines(lambda found: [*found[:20], b""]), " has (19|20) (rows|lines), expected [0-9]+;"),
        (OF_LINES, lines(lambda found: [*found[:4], found[4][:-1] + b"\xff", *found[5:]]), ", row 5: it is not UTF-8"),
        (OF_LINES, lines(lambda found: []), "it is empty"),
    ],
    ids=["half", "no last byte", "lines are gone", "not UTF-8", "empty"],
)
def test_a_damaged_file(tmp_path, names, change, told):
    for name in names:
        path = place(name, tmp_path / name, end=".gz")[-1]
        path.write_bytes(change(path.read_bytes()))
        assert re.search(told, refused(name, tmp_path / name, path))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("multi30k", "says", "said"), ("wmt14-sample", "says", "said"), ("cail2019-scm-sample", "原", "被")],
)
def test_one_letter_that_is_another(tmp_path, name, old, new):
    paths = place(name, tmp_path, end=".gz")
    content = {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in paths}
    sha256 = {file: hashlib.sha256(text).hexdigest() for file, text in content.items()}
    small(name, sha256=sha256).load(tmp_path, None)
    write(paths[0], content[paths[0].name.removesuffix(".gz")].replace(old.encode(), new.encode(), 1))
    message = refused(name, tmp_path, paths[0], sha256=sha256)
    assert "is damaged or another file (its hash is not sha256:" in message


def test_archives_of_other_documents(tmp_path):
    for name in ("imdb", "imdb-sentiment", "newsgroups"):
        path, members = place(name, tmp_path)[0], [part for part in documents(name) if "unsup" not in part[0]]
        write(path, tar(members[1:], "xz"))
        assert re.search(r"hold \{.*59.*\} texts, expected", refused(name, tmp_path, path))
        if name != "newsgroups":
            write(path, tar([*members[1:], (members[0][0], b"good\xff")], "xz"))
            assert f"{path}, {members[0][0]}: it is not UTF-8" in refused(name, tmp_path, path)


TABLE, TRIPLETS = ("sst-2", "glue/SST-2/train.tsv"), ("cail2019-scm", "cail2019_scm/train.json")
SCORES = ("sts-b", "glue/STS-B/train.tsv", "sentence1\tsentence2\tscore\na\tb\t")


@pytest.mark.parametrize(
    ("name", "path", "content", "told"),
    [
        (*TABLE, "sentence\na\n", ", row 1: there is no column 'label', expected sentence, label"),
        (*TABLE, "sentence\tlabel\na\t1\nb\n", ", row 3: 1 column, expected 2 (sentence, label)"),
        (*TABLE, "sentence\tlabel\na\t1\tx\nb\n", ", row 2: 3 columns, expected 2 (sentence, label)"),
        (*TABLE, "sentence\tlabel\na\t1\n\nb\t0\n", ", row 3: 1 column, expected 2 (sentence, label)"),
        (*TABLE, "sentence\tlabel\na\t9\n", ", row 2: the label is '9', expected 0 or 1"),
        *(
            (*SCORES[:2], f"{SCORES[2]}{score}\n", f", row 2: the score is '{score}', expected a number from 0 to 5")
            for score in ("5.1", "-1", "nan", "high", "")
        ),
        (*TRIPLETS, "{", ", row 1: Input data was truncated; expected A, B, C, label in"),
        (*TRIPLETS, "[" * 100_000, ", row 1: Expected `object`, got `array`"),
        (*TRIPLETS, '{"A": "a", "B": "b"}', ", row 1: Object missing required field `C`; expected A, B, C"),
        (*TRIPLETS, '{"A": "a", "B": "b", "C": "c", "label": "9"}', ", row 1: Invalid enum value '9' - at `$.label`"),
        (*TRIPLETS, '{"A": "\\ud800", "B": "b", "C": "c", "label": "B"}', ", row 1: JSON is malformed: unexpected end"),
        ("multi30k", "multi30k/train.en", "One.\n", " is damaged or another file (its hash is not sha256:"),
        ("wmt14", "wmt14/newstest2014.en", "One.\n", ": it has 1 lines, expected 3,003"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path, name, path, content, told):
    rows = {} if name != "wmt14" else {"rows": [ROWS] * 4 + [3003]}
    place(name, tmp_path)
    write(tmp_path / path, content)
    made = data_set(name, **row_of(name) | rows)
    message = rf"^--data {name}: {re.escape(f'{tmp_path / path}{told}')}[^\n]*; replace or remove it$"
    with pytest.raises(ValueError, match=message):
        made.load(tmp_path, None)


def test_a_run_of_wrong_files_is_one_line_and_exit_status_2(tmp_path, capsys):
    place(TABLE[0], tmp_path)
    write(tmp_path / TABLE[1], "sentence\na\n")
    words = ["run", "glue", "--preset", "smoke", "--data", TABLE[0], "--data-dir", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    told = r"error: --data sst-2: .*, row 1: there is no column .*; replace or remove it\n"
    assert re.fullmatch(told, capsys.readouterr().err)


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
