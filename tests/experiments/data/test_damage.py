"""Real files, damaged: one line that names the file and, where there is one, the row; exit status 2."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from tests.experiments.data.conftest import REAL_DATA

FILES = {
    "multi30k": ["multi30k/val.de.gz", "multi30k/test_2016_flickr.en.gz"],
    "wmt14-sample": ["wmt_ende_sample/src-val.txt.gz"],
    "cail2019-scm-sample": ["cail2019_scm/input.txt.gz"],
    "sst-2": ["glue/SST-2/dev.tsv.gz"],
    "mrpc": ["glue/MRPC/msr_paraphrase_test.txt.gz"],
    "sts-b": ["glue/STS-B/dev.tsv.gz"],
    "cola": ["glue/CoLA/dev.tsv.gz"],
    "rte": ["glue/RTE/dev.tsv.gz"],
    "qnli-part": ["glue/QNLI/dev.tsv.gz"],
    "qqp-part": ["glue/QQP/qqp_sample.tsv.gz"],
}
HASHED = ("multi30k", "wmt14-sample", "cail2019-scm-sample")
"""those whose files are known by their sha256 wherever they lie"""
WITH_COLUMNS = [name for name in FILES if name not in ("multi30k", "wmt14-sample")]


def refused(directory, name, path, change, capsys, *, packed=False):
    """The message of a run whose data have ``change`` in the content of one file, or in its packed bytes."""
    if REAL_DATA is None or not (Path(REAL_DATA) / path).is_file():
        pytest.skip(f"LINEAR_ROPE_DATA names no directory with {path}")
    shutil.copytree((Path(REAL_DATA) / path).parent, (directory / path).parent)
    file = directory / path
    content = file.read_bytes()
    file.write_bytes(change(content) if packed else gzip.compress(change(gzip.decompress(content))))
    study = "translation" if name in ("multi30k", "wmt14-sample") else "glue"
    words = ["run", study, "--preset", "smoke", "--data", name, "--data-dir", str(directory)]
    assert main([*words, "--out", str(directory / "out")]) == 2
    assert not (directory / "out").exists()
    message = capsys.readouterr().err
    assert message.startswith(f"error: --data {name}: {file}")
    assert message.count("\n") == 1
    assert message.endswith("; replace or remove it\n")
    return message


EACH = [(name, path) for name, paths in FILES.items() for path in paths]


@pytest.mark.parametrize(("name", "path"), EACH)
def test_a_truncated_file(tmp_path, capsys, name, path):
    assert "cannot be read" in refused(tmp_path, name, path, lambda content: content[:-9], capsys, packed=True)


@pytest.mark.parametrize(("name", "path"), EACH)
def test_lines_that_are_gone(tmp_path, capsys, name, path):
    def halved(content):
        return content[: content.index(b"\n", len(content) // 2) + 1]

    assert re.search(r" (rows|lines), expected [0-9,]+;", refused(tmp_path, name, path, halved, capsys))


@pytest.mark.parametrize(("name", "path"), EACH)
def test_an_encoding_error(tmp_path, capsys, name, path):
    def spoilt(content):
        lines = content.split(b"\n")
        lines[4] = lines[4][:-1] + b"\xff"
        return b"\n".join(lines)

    assert ", row 5: it is not UTF-8" in refused(tmp_path, name, path, spoilt, capsys)


@pytest.mark.parametrize("name", WITH_COLUMNS)
def test_a_row_that_lacks_a_column(tmp_path, capsys, name):
    def lacking(content):
        lines = content.split(b"\n")
        lines[6] = re.sub(rb'"B"', b'"X"', lines[6]) if name == "cail2019-scm-sample" else lines[6].rpartition(b"\t")[0]
        return b"\n".join(lines)

    message = refused(tmp_path, name, FILES[name][0], lacking, capsys)
    assert re.search(r", row 7: (.* columns?, expected [0-9]+ \(|Object missing required field `B`)", message)


@pytest.mark.parametrize("name", HASHED)
def test_one_letter_that_is_another(tmp_path, capsys, name):
    old, new = ("原告", "被告") if name == "cail2019-scm-sample" else ("e", "a")
    message = refused(
        tmp_path, name, FILES[name][0], lambda content: content.replace(old.encode(), new.encode(), 1), capsys
    )
    assert "it is damaged or another file (the sha256 of its content is not " in message
