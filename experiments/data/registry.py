"""The data sets: a new one is a file beside this one, with a ``DATA_SET`` (or several), and a line here.

From outside the project an installed package's entry point in the group ``linear_rope.data`` is a ``DataSet``, and a
``--plugin`` module calls ``DATA_SETS.add(name, data_set, module=__name__)``.
"""

from dataclasses import replace
from pathlib import Path

from experiments.data import (
    associative_recall,
    cail2019_scm,
    copying,
    enwik8,
    glue,
    imdb,
    imdb_sentiment,
    induction,
    late_verdicts,
    multi30k,
    newsgroups,
    numerals,
    state_tracking,
    stdlib,
    text,
    wikitext,
    wmt14,
)
from experiments.data.corpus import Corpus, Data, DataSet, text_of
from experiments.data.files import resolve_data_dir
from experiments.extensions import Registry, choices

DATA_SETS: Registry[DataSet] = Registry(
    "data set",
    "linear_rope.data",
    {
        data_set.name: data_set
        for data_set in (
            stdlib.DATA_SET,
            *enwik8.DATA_SETS,
            imdb.DATA_SET,
            *wikitext.DATA_SETS,
            newsgroups.TEXT,
            text.DATA_SET,
            *associative_recall.DATA_SETS,
            *copying.DATA_SETS,
            *induction.DATA_SETS,
            *state_tracking.DATA_SETS,
            *glue.DATA_SETS,
            *imdb_sentiment.DATA_SETS,
            newsgroups.DATA_SET,
            *cail2019_scm.DATA_SETS,
            late_verdicts.DATA_SET,
            numerals.DATA_SET,
            *multi30k.DATA_SETS,
            *wmt14.DATA_SETS,
        )
    },
)


def load_data(
    name: str, data_dir: Path | None = None, data_file: Path | None = None, may_download: bool = True
) -> Data:
    """The data set called ``name``, a text or labelled examples.

    ``data_dir`` is a directory to look in before downloading; None stands for the environment variable
    LINEAR_ROPE_DATA, if it is set. ``data_file`` is the file of ``--data text``. Without ``may_download`` a data set
    that is not on this machine is refused.

    Raises ValueError, in one line that names the fix, when the arguments do not fit together or the data cannot be
    found, read, reached or recognised.
    """
    if name not in DATA_SETS:
        raise ValueError(f"--data: there is no data set {name!r}; {choices(name, list(DATA_SETS))}")
    data_set = DATA_SETS[name]
    if data_set.needs_file and data_file is None:
        raise ValueError(f"--data {name} reads a file of yours; name it with --data-file FILE")
    if data_file is not None and not data_set.needs_file:
        raise ValueError(f"--data-file goes with --data text, not with --data {name}; change one of them")
    directory = resolve_data_dir(data_dir)
    if not may_download and data_set.url is not None and data_set.find(directory) is None:
        raise ValueError(
            f"--data {name} is not on this machine and would be downloaded from {data_set.url}, which --dry-run does "
            f"not do; run without --dry-run, or use what is here, such as --data stdlib ({data_set.when_missing})"
        )
    data = data_set.load(directory, data_file)
    note = data.note
    if data_set.known_sha256 not in ("", data.sha256):
        note += " This copy has another content than that of the committed results: compare no figures with theirs."
    return replace(data, objective=data_set.objective, note=note)


def load_corpus(
    name: str, data_dir: Path | None = None, data_file: Path | None = None, may_download: bool = True
) -> Corpus:
    """``load_data`` of a text. Raises ValueError for labelled examples too."""
    return text_of(load_data(name, data_dir, data_file, may_download))
