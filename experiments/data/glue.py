"""Eight tasks of GLUE (Wang et al. 2019, arXiv 1804.07461), those of RoFormer's table 2 among them.

GLUE keeps the labels of its test splits, so the test split here is its development split (of MRPC: the corpus's own
test split, which has labels), and the validation split is a tenth of its training split, cut by ``examples.cut``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, cut, examples_of, mixed
from experiments.data.files import Download, fetch_all, fetching, find_all, find_file, in_data_directory, where
from experiments.data.tables import Table, told

VALIDATION = 0.1
"""of the training split"""
PARTS = (0.8, 0.1, 0.1)
"""training, validation and test of a task of which only a part is there"""
LARGEST_SCORE = 5.0
ADDRESS = "https://dl.fbaipublicfiles.com/glue/data/"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data/"
SAMPLE_OF_QQP = (
    "https://raw.githubusercontent.com/mieseung/Cutoff_with_Attribution/0ef7460ee83f01034891e92b4f405d2c14944daf/"
    "glue_data/QQP/new_dev.tsv"
)
ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}


@dataclass(frozen=True)
class Task:
    """A task and its files; sha256 of archives are those that `datasets` has recorded for them."""

    name: str
    folder: str
    """of its files, in ``glue/`` and in the archive"""
    about: str
    columns: Mapping[str, str]
    """columns of the file, and what they are to be called"""
    classes: Mapping[str, str] | None
    """labels of the file and the names of their classes, in order; None: labels are scores from 0 to 5"""
    archives: tuple[Download, ...]
    """the official files: one zip, or those of ``train`` and ``test`` themselves"""
    size: str
    licence: str
    train: str = "train.tsv"
    test: str = "dev.tsv"
    header: tuple[str, ...] | None = None
    """of files that have none"""
    rows: tuple[int | None, int | None] = (None, None)
    """of the training and the test file; None: not known for certain"""
    may_pass_over: int = 0
    rest: str | None = None
    """a file into which some copies have put a part of the training split"""
    test_is: str = "its development split, because GLUE keeps the labels of its test split"
    note: str = ""
    known_sha256: str = ""
    """that of its data set"""


def _zip(name: str, sha256: str) -> tuple[Download]:
    return (Download(f"{ADDRESS}{name}", f"sha256:{sha256}", name, (f"glue/{name}", name)),)


def _mrpc(split: str, sha256: str) -> Download:
    name = f"msr_paraphrase_{split}.txt"
    return Download(f"{SENTEVAL}{name}", f"sha256:{sha256}", name, (f"glue/MRPC/{name}",))


SENTENCE_PAIR = {"sentence1": "first", "sentence2": "second", "label": "label"}
QUESTION_PAIR = {"question1": "first", "question2": "second", "is_duplicate": "label"}
QUESTION_SENTENCE = {"question": "first", "sentence": "second", "label": "label"}
DUPLICATE = {"0": "not_duplicate", "1": "duplicate"}
SQUAD, QUORA = "CC BY-SA 4.0 (SQuAD)", "Quora's terms, not commercial"

TASKS = (
    Task(
        name="sst-2",
        folder="SST-2",
        about="GLUE SST-2: is a phrase of a film review negative or positive?",
        columns={"sentence": "text", "label": "label"},
        classes={"0": "negative", "1": "positive"},
        archives=_zip("SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
        size="67,349 + 872 phrases, 7 MB packed",
        licence="none stated; cite Socher et al. (2013)",
        rows=(67_349, 872),
        note="Training phrases are parts of the same sentences, so validation is easier than test. ",
        known_sha256="2b735236546b610493b4b9f74d4e62a4af3ec109b7e99afd6be88a773d82af71",
    ),
    Task(
        name="mrpc",
        folder="MRPC",
        about="GLUE MRPC: are two sentences of the news equivalent?",
        columns={"#1 String": "first", "#2 String": "second", "Quality": "label"},
        classes={"0": "not_equivalent", "1": "equivalent"},
        archives=(
            _mrpc("train", "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
            _mrpc("test", "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
        ),
        size="4,076 + 1,725 pairs, 1.5 MB",
        licence="Microsoft Shared Source License",
        train="msr_paraphrase_train.txt",
        test="msr_paraphrase_test.txt",
        rows=(4_076, 1_725),
        test_is="that of the original release, which has labels",
        note="What is downloaded is tokenised, the files of the original release are not: compare equal sha256 only. ",
        known_sha256="4f34ab2980ec9bd0bc2a37aec5f7cd96e06294cbf5fa79bfd14e65d240833683",
    ),
    Task(
        name="sts-b",
        folder="STS-B",
        about="GLUE STS-B: how alike are two sentences, from 0 to 5?",
        columns={"sentence1": "first", "sentence2": "second", "score": "label"},
        classes=None,
        archives=_zip("STS-B.zip", "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
        size="5,749 + 1,500 pairs, 0.8 MB packed",
        licence="scores CC BY-SA 4.0, texts various",
        rows=(5_749, 1_500),
        known_sha256="2377781e600d33c94d7c04bd800145e83f225983afe2a348c53897c58961cc41",
    ),
    Task(
        name="cola",
        folder="CoLA",
        about="GLUE CoLA: is a sentence acceptable English?",
        columns={"sentence": "text", "label": "label"},
        classes={"0": "unacceptable", "1": "acceptable"},
        archives=_zip("CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
        size="8,551 + 1,043 sentences, 0.4 MB packed",
        licence="none stated; cite Warstadt et al. (2018)",
        header=("source", "label", "mark", "sentence"),
        rows=(8_551, 1_043),
        rest="val.tsv",
    ),
    Task(
        name="rte",
        folder="RTE",
        about="GLUE RTE: does the first text entail the second?",
        columns=SENTENCE_PAIR,
        classes=ENTAILMENT,
        archives=_zip("RTE.zip", "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
        size="2,490 + 277 pairs, 0.7 MB packed",
        licence="none stated",
        rows=(2_490, 277),
    ),
    Task(
        name="qnli",
        folder="QNLI",
        about="GLUE QNLI: does a sentence answer a question?",
        columns=QUESTION_SENTENCE,
        classes=ENTAILMENT,
        archives=_zip("QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
        size="104,743 + 5,463 pairs, 11 MB packed",
        licence=SQUAD,
        rows=(104_743, 5_463),
    ),
    Task(
        name="qqp",
        folder="QQP",
        about="GLUE QQP: do two questions ask the same?",
        columns=QUESTION_PAIR,
        classes=DUPLICATE,
        archives=_zip("QQP-clean.zip", "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
        size="363,846 + 40,430 pairs, 42 MB packed",
        licence=QUORA,
        # The official files have a few; `datasets` passes over them too, silently.
        may_pass_over=10,
    ),
    Task(
        name="mnli",
        folder="MNLI",
        about="GLUE MNLI: does the first text entail the second, contradict it or neither? (matched genres)",
        columns={"sentence1": "first", "sentence2": "second", "gold_label": "label"},
        classes={label: label for label in ("entailment", "neutral", "contradiction")},
        archives=_zip("MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
        size="392,702 + 9,815 pairs, 313 MB packed",
        licence="various, see Williams et al. (2018)",
        test="dev_matched.tsv",
        rows=(392_702, 9_815),
    ),
)


@dataclass(frozen=True)
class Part:
    """One labelled file of a task whose other files are not there, cut into splits of its own."""

    name: str
    folder: str
    file: str
    about: str
    what: str
    columns: Mapping[str, str]
    classes: Mapping[str, str]
    size: str
    licence: str
    rows: int
    fetch: tuple[str, ...]
    known_sha256: str


PARTIAL = (
    Part(
        name="qnli-part",
        folder="QNLI",
        file="dev.tsv",
        about="The development split of GLUE QNLI alone, cut into training, validation and test.",
        what="QNLI's development split, 5,463 of its 110,206 labelled pairs",
        columns=QUESTION_SENTENCE,
        classes=ENTAILMENT,
        size="5,463 pairs, 0.5 MB packed",
        licence=SQUAD,
        rows=5_463,
        fetch=(fetching(f"{ADDRESS}QNLIv2.zip", "glue/QNLIv2.zip"), "unzip DIR/glue/QNLIv2.zip -d DIR/glue"),
        known_sha256="ad344ac361076ac79f8485ff170cbb1ec08066ae3b3481c1c7eaf2dcc953050f",
    ),
    Part(
        name="qqp-part",
        folder="QQP",
        file="qqp_sample.tsv",
        about="A sample of GLUE QQP, cut into training, validation and test.",
        what="a sample of 23,496 of QQP's 404,276 labelled pairs",
        columns=QUESTION_PAIR,
        classes=DUPLICATE,
        size="23,496 pairs, 1.3 MB packed",
        licence=QUORA,
        rows=23_496,
        # The first of its rows has no last tab; the names of the columns take its place.
        fetch=(
            fetching(SAMPLE_OF_QQP, "glue/QQP/new_dev.tsv"),
            r"(printf 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n'; tail -n +2 DIR/glue/QQP/new_dev.tsv) "
            "> DIR/glue/QQP/qqp_sample.tsv",
        ),
        known_sha256="46fe8d71e3de4a09756e1ce93cfd543eb66958fe9e623178b497fb676a9486d7",
    ),
)


def _names(folder: str, file: str) -> list[str]:
    """Where a file may lie in the data directory."""
    return [f"{place}{folder}/{file}{end}" for place in ("glue/", "") for end in ("", ".gz")]


def files_of(task: Task, data_dir: Path | None) -> list[Path]:
    """The files of a task in the data directory: ``train``, ``test`` and, if it is there, ``rest``; none if one lacks.

    An archive is not among them.
    """
    found = [find_file(data_dir, _names(task.folder, name)) for name in (task.train, task.test)]
    if task.rest:
        found.append(find_file(data_dir, _names(task.folder, task.rest)))
    return [path for path in found if path] if all(found[:2]) else []


def load(task: Task, data_dir: Path | None, _: object = None) -> Examples:
    """A task from its files in the data directory, or else from its official archive there, or downloaded.

    Raises ValueError if that cannot be had, is another archive, or a row is not as it should be.
    """
    origin = f"--data {task.name}"
    paths = files_of(task, data_dir)
    if data_dir is not None and paths:
        source = in_data_directory(data_dir, paths)
    else:
        paths, source = fetch_all(data_dir, task.archives)
        for path, archive in zip(paths, task.archives, strict=True):
            archive.check(path, origin)
    if paths[0].suffix == ".zip":
        tables = [Table(paths[0], origin, f"{task.folder}/{file}") for file in (task.train, task.test)]
    else:
        tables = [Table(path, origin) for path in paths]

    import pandas as pd

    def read(table: Table, rows: int | None) -> "pd.DataFrame":
        frame = table.read(task.columns, header=task.header, rows=rows, may_pass_over=task.may_pass_over)
        frame["label"] = (
            table.scores(frame["label"], LARGEST_SCORE)
            if task.classes is None
            else table.classes(frame["label"], task.classes)
        )
        return frame

    train, test, *rest = tables
    rows, test_rows = task.rows
    labelled = pd.concat([read(table, None if rest else rows) for table in (train, *rest)])
    if rest and rows not in (None, len(labelled)):
        raise train.wrong(f"with {rest[0].path.name} it has {len(labelled):,} rows, expected {rows:,}")
    training, validation = cut(labelled, _texts(task.columns), (1 - VALIDATION, VALIDATION))
    note = (
        f"GLUE's {task.folder}: test is {task.test_is}; validation is a tenth of its training split, and shares no "
        f"text with what is left of it. {task.note}"
    ).rstrip()
    classes = tuple(task.classes.values()) if task.classes else ()
    splits = (training, validation, mixed(read(test, test_rows)))
    return examples_of(task.name, splits, source, note + told(table.left_out for table in tables), classes)


def load_part(part: Part, data_dir: Path | None, _: object = None) -> Examples:
    """A part of a task, cut into 80, 10 and 10 %, so that no text is in two splits."""
    path = find_file(data_dir, _names(part.folder, part.file))
    if data_dir is None or path is None:
        raise ValueError(
            f"--data {part.name}: {_place(part)} is not there; place it in --data-dir, or use the whole task"
        )
    table = Table(path, f"--data {part.name}")
    frame = table.read(part.columns, rows=part.rows)
    frame["label"] = table.classes(frame["label"], part.classes)
    note = (
        f"A part: {part.what}, cut into 80, 10 and 10 % by the sha256 of its texts, no text in two splits. Figures are "
        "not comparable with published ones."
    ) + told([table.left_out])
    splits, source = cut(frame, _texts(part.columns), PARTS), in_data_directory(data_dir, [path])
    return examples_of(part.name, splits, source, note, classes=tuple(part.classes.values()))


def _texts(columns: Mapping[str, str]) -> list[str]:
    return [called for called in columns.values() if called != "label"]


def _place(part: Part) -> str:
    return f"glue/{part.folder}/{part.file}"


def _find(task: Task, data_dir: Path | None) -> str | None:
    return where(files_of(task, data_dir) or find_all(data_dir, task.archives))


def _data_set(task: Task) -> DataSet:
    places = [archive.places[0] for archive in task.archives]
    return DataSet(
        name=task.name,
        description=task.about,
        load=partial(load, task),
        find=partial(_find, task),
        when_missing=f"downloaded when first used, or place {' and '.join(places)} in --data-dir",
        url=task.archives[0].url,
        licence=task.licence,
        size=task.size,
        fetch=tuple(fetching(archive.url, place) for archive, place in zip(task.archives, places, strict=True)),
        known_sha256=task.known_sha256,
    )


def _part(part: Part) -> DataSet:
    return DataSet(
        name=part.name,
        description=part.about,
        load=partial(load_part, part),
        find=lambda data_dir: find_file(data_dir, _names(part.folder, part.file)),
        when_missing=f"place {_place(part)} in --data-dir, or use {part.name.removesuffix('-part')}",
        licence=part.licence,
        size=part.size,
        fetch=part.fetch,
        known_sha256=part.known_sha256,
    )


DATA_SETS = (*map(_data_set, TASKS), *map(_part, PARTIAL))
