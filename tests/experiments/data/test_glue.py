"""The tasks of GLUE, from small files; the real ones where LINEAR_ROPE_DATA has them."""

import re
from dataclasses import replace

import pytest

from experiments.cli import main
from experiments.data import glue
from experiments.data.registry import DATA_SETS, load_data
from tests.experiments.data.made_up_files import Server, known, write, write_zip

TASKS = {task.name: task for task in glue.TASKS}
HEADERS = {
    "sst-2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "cola": None,
    "rte": "index\tsentence1\tsentence2\tlabel",
    "qnli": "index\tquestion\tsentence\tlabel",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
}
ROWS = 40


def content(name, what, rows=ROWS):
    """A file of a task with texts that are all different."""
    task = TASKS[name]
    header = HEADERS[name].lstrip("\ufeff").split("\t") if HEADERS[name] else task.header
    labels = list(task.classes or ["0.0", "2.5", "5.000"])
    lines = [HEADERS[name]] if HEADERS[name] else []
    for row in range(rows):
        values = {column: f'{what} "{column} {row} ' for column in header}
        values[next(column for column, ours in task.columns.items() if ours == "label")] = labels[row % len(labels)]
        lines.append("\t".join(values[column] for column in header))
    return "\n".join(lines) + "\n"


def place(name, directory, end=".gz", rows=ROWS):
    task = TASKS[name]
    for file in (task.train, task.test):
        write(directory / "glue" / task.folder / f"{file}{end}", content(name, file, rows))
    return replace(task, rows=(rows, rows))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_from_the_data_directory(tmp_path, name, end):
    examples = glue.load(place(name, tmp_path, end), tmp_path)
    task = TASKS[name]
    assert DATA_SETS[name].find(tmp_path) == f"2 files in {tmp_path / 'glue' / task.folder}"
    assert examples.kind == ("text" if name in ("sst-2", "cola") else "pair")
    assert examples.classes == tuple((task.classes or {}).values())
    assert len(examples.train) + len(examples.validation) == len(examples.test) == ROWS
    assert f"glue/{task.folder}/{task.train}{end} and " in examples.source
    columns = [column for column, ours in task.columns.items() if ours != "label"]
    texts = examples.texts("test").to_numpy()
    assert f'{task.test} "{columns[0]} 7' in texts[:, 0]
    rows = {text: label for text, label in zip(texts[:, 0], examples.labels("test"), strict=True)}
    number = 7 % len(examples.classes or "123")
    assert rows[f'{task.test} "{columns[0]} 7'] == (number if examples.classes else [0.0, 2.5, 5.0][number])


def test_f1_is_of_the_pairs_that_are_alike():
    assert TASKS["mrpc"].classes == {"0": "not_equivalent", "1": "equivalent"}
    assert TASKS["qqp"].classes == {"0": "not_duplicate", "1": "duplicate"}


def zipped(name, path, folder=None):
    task = TASKS[name]
    members = {f"{folder or task.folder}/{file}": content(name, file) for file in (task.train, task.test)}
    return write_zip(path, {**members, f"{task.folder}/original/train.tsv": "other"})


@pytest.mark.parametrize("name", [name for name in TASKS if name != "mrpc"])
def test_from_the_official_archive_there_or_downloaded(tmp_path, name, server: Server):
    archive = zipped(name, server.directory / f"{name}.zip")
    official = known(archive, f"{server.url}/{archive.name}", (f"glue/{archive.name}",))
    task = replace(TASKS[name], archives=(official,), rows=(ROWS, ROWS))
    downloaded = glue.load(task, None)
    assert downloaded.source == f"downloaded from {server.url}/{archive.name}"
    zipped(name, tmp_path / "there/glue" / archive.name)
    write(tmp_path / "unpacked/glue" / task.folder / f"{task.train}", content(name, task.train))
    given = glue.load(task, tmp_path / "there")
    assert given.source == f"glue/{archive.name} in the data directory"
    # Half of the unpacked files are not enough.
    assert glue.load(task, tmp_path / "unpacked").source == downloaded.source
    assert server.requests == 1
    assert given.sha256 == downloaded.sha256 == glue.load(place(name, tmp_path), tmp_path).sha256


def test_mrpc_is_two_files_to_be_downloaded(server: Server):
    names = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
    paths = [write(server.directory / name, content("mrpc", name)) for name in names]
    archives = tuple(known(path, f"{server.url}/{path.name}") for path in paths)
    examples = glue.load(replace(TASKS["mrpc"], archives=archives, rows=(ROWS, ROWS)), None)
    assert examples.source == " and ".join(f"downloaded from {server.url}/{name}" for name in names)
    assert "test is that of the original release" in examples.note


def test_a_wrong_archive_is_refused_here_and_there(tmp_path, server: Server):
    archive = zipped("rte", server.directory / "RTE.zip")
    official = known(archive, f"{server.url}/RTE.zip", ("RTE.zip",))
    task = replace(TASKS["rte"], archives=(official,))
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"does not have the known hash .*place it as RTE\.zip in --data-dir"):
        glue.load(task, None)
    (tmp_path / "RTE.zip").write_bytes(archive.read_bytes())
    with pytest.raises(ValueError, match=r"--data rte: .*RTE\.zip is damaged or another file \(its hash is not sha256"):
        glue.load(task, tmp_path)


def test_no_text_is_in_two_splits_and_the_rest_of_cola_is_joined(tmp_path):
    lines = "".join(f"gj04\t1\t\tSentence {number // 4}.\n" for number in range(400))
    write(tmp_path / "glue/CoLA/train.tsv", lines)
    write(tmp_path / "glue/CoLA/val.tsv", "gj04\t0\t*\tSentence bad.\n" * 3)
    write(tmp_path / "glue/CoLA/dev.tsv", "gj04\t1\t\tGood.")
    examples = glue.load(replace(TASKS["cola"], rows=(403, 1)), tmp_path)
    assert len(examples.train) + len(examples.validation) == 403
    assert len(examples.validation) % 4 in (0, 3)
    assert not {*examples.train["text"]} & {*examples.validation["text"]}
    with pytest.raises(ValueError, match=r"train\.tsv: with val\.tsv it has 403 rows, expected 8,551; replace"):
        load_data("cola", tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("sentence\tlabel\na\t1\nb\n", "train.tsv, row 3: 1 column, expected 2 (sentence, label)"),
        ("sentence\na\n", "train.tsv, row 1: there is no column 'label', expected sentence, label"),
        ("sentence\tlabel\na\t1\n", "train.tsv: it has 1 rows, expected 67,349"),
        (b"sentence\tlabel\n\xff\t1\n", "train.tsv, row 2: it is not UTF-8 (invalid start byte)"),
        (b"", "train.tsv: it is empty"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_status_2(tmp_path, capsys, content, told):
    write(tmp_path / "glue/SST-2/train.tsv", content)
    write(tmp_path / "glue/SST-2/dev.tsv", "sentence\tlabel\na\t1\n")
    words = ["run", "convergence", "--preset", "smoke", "--data", "sst-2", "--data-dir", str(tmp_path)]
    assert main(words) == 2
    assert capsys.readouterr().err == f"error: --data sst-2: {tmp_path}/glue/SST-2/{told}; replace or remove it\n"


@pytest.mark.parametrize(
    ("name", "label", "told"),
    [("sst-2", "2", "label is '2', expected 0 or 1"), ("sts-b", "6", "score is '6', expected")],
)
def test_a_wrong_label(tmp_path, name, label, told):
    task = place(name, tmp_path, end="")
    path = tmp_path / "glue" / task.folder / "dev.tsv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], f"{lines[-1].rpartition(chr(9))[0]}\t{label}"]))
    with pytest.raises(ValueError, match=rf"--data {name}: .*dev\.tsv, row {ROWS + 1}: the {told}"):
        glue.load(task, tmp_path)


def test_a_split_without_examples(tmp_path):
    task = place("rte", tmp_path, rows=1)
    with pytest.raises(ValueError, match=r"--data rte \(glue/RTE/.*\): the (train|validation) split has no examples"):
        glue.load(task, tmp_path)


def test_official_files_with_some_broken_rows(tmp_path):
    place("qqp", tmp_path, end="")
    path = tmp_path / "glue/QQP/train.tsv"
    path.write_text(path.read_text() + "1\t2\t3\n" * 3)
    examples = load_data("qqp", tmp_path)
    assert len(examples.train) + len(examples.validation) == ROWS
    path.write_text(path.read_text() + "1\t2\t3\n" * 8)
    with pytest.raises(ValueError, match=rf"train\.tsv, row {ROWS + 2}: 3 columns, expected 6 \(id, "):
        load_data("qqp", tmp_path)


@pytest.mark.parametrize("part", glue.PARTIAL, ids=lambda part: part.name)
def test_a_part_is_cut_and_says_so(tmp_path, part):
    with pytest.raises(ValueError, match=rf"--data {part.name}: glue/{part.folder}/{part.file} is not there; place it"):
        load_data(part.name, tmp_path)
    write(tmp_path / "glue" / part.folder / f"{part.file}.gz", content(part.name.removesuffix("-part"), "x", 300))
    examples = glue.load_part(replace(part, rows=300), tmp_path)
    assert sum(len(getattr(examples, split)) for split in ("train", "validation", "test")) == 300
    assert len(examples.train) > 200
    assert "A part: " in examples.note
    assert "not comparable with published" in examples.note
    with pytest.raises(ValueError, match=rf"{part.file}\.gz: it has 300 rows, expected {part.rows:,}"):
        load_data(part.name, tmp_path)


def test_a_copy_with_another_content_is_noted(tmp_path):
    write(tmp_path / "glue/QQP/qqp_sample.tsv", content("qqp", "x", 23_496))
    assert "This copy has another content than that of the committed results" in load_data("qqp-part", tmp_path).note


REAL = {
    "sst-2": ((60_722, 6_627, 872), "2b735236546b", "it 's a charming and often affecting journey ."),
    "mrpc": ((3_654, 422, 1_725), "4f34ab2980ec", "PCCW's chief operating officer, Mike Butcher, and Alex Arena"),
    "sts-b": ((5_231, 518, 1_500), "2377781e600d", "A man with a hard hat is dancing."),
    "cola": ((7_735, 816, 1_043), "b7c817f83eac", "The sailors rode the breeze clear of the rocks."),
    "rte": ((2_244, 246, 277), "479e03b56653", "Dana Reeve, the widow of the actor Christopher Reeve"),
    "qnli-part": ((4_343, 628, 492), "ad344ac36107", None),
    "qqp-part": ((18_877, 2_297, 2_322), "46fe8d71e3de", None),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_ones(real, name):
    examples, (counts, sha256, first) = real(name), REAL[name]
    assert tuple(examples.describe().splits.values()) == counts
    assert examples.sha256.startswith(sha256)
    splits = ("train", "validation", "test") if name.endswith("-part") else ("train", "validation")
    seen = [{text for _, column in examples.texts(split).items() for text in column} for split in splits]
    assert not any(one & other for number, one in enumerate(seen) for other in seen[:number])
    if first:
        assert examples.texts("test").iloc[:, 0].str.startswith(first).sum() >= 1
    if examples.classes:
        assert {*examples.test["label"]} == {*examples.classes}
    assert re.search("GLUE's|A part:", examples.note)
    assert "another content" not in examples.note
