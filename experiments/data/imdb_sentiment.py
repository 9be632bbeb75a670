"""Is a film review of IMDB negative or positive? (Maas et al. 2011; as bytes a task of Long Range Arena)"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.data.archives import members_of
from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, cut, examples_of, mixed
from experiments.data.files import Download, fetching, find_file
from experiments.data.imdb import DOWNLOAD, LICENCE, OFFICIAL_NAMES, PART_NAMES

ORIGIN = "--data imdb-sentiment"
CLASSES = {"neg": "negative", "pos": "positive"}
REVIEW_NAME = re.compile(r"aclImdb/(train|test)/(neg|pos)/[0-9]{1,5}_[0-9]{1,2}\.txt")
REVIEWS = {f"{split}/{label}": 12_500 for split in ("train", "test") for label in CLASSES}
VALIDATION = 0.1
"""of the training split"""
NAME_OF_LONG = "imdb-sentiment-long"
LONG = 400
"""words; in WordPiece some 500 tokens"""


def archive_in(data_dir: Path | None) -> Path | None:
    """The archive of the labelled reviews, or else the official one of all."""
    return find_file(data_dir, (PART_NAMES[0], *OFFICIAL_NAMES))


def load(
    data_dir: Path | None,
    _: object = None,
    *,
    words: int = 0,
    download: Download = DOWNLOAD,
    reviews: Mapping[str, int] = REVIEWS,
) -> Examples:
    """The 25,000 reviews for training, a tenth of them for validation, and the 25,000 for testing.

    Texts are as they are in the files, with their ``<br />``. Those of fewer ``words`` are left out of validation and
    test. ``reviews`` is the number there has to be of each split and label.

    Raises ValueError if the archive cannot be had or read (see ``members_of``), or holds other reviews.
    """
    found = archive_in(data_dir)
    if found is not None and found.suffix == ".gz":
        download.check(found, ORIGIN)
    (archive,), source = download.unless_found(data_dir, [found] if found else [])
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    counts: Counter[str] = Counter()
    for name, content in members_of(archive, REVIEW_NAME, ORIGIN):
        _, split, label, _ = name.split("/")
        try:
            rows[split].append((content.decode(), CLASSES[label]))
        except UnicodeDecodeError as error:
            reason = f"{archive}, {name}: it is not UTF-8 ({error.reason})"
            raise ValueError(f"{ORIGIN}: {reason}; replace or remove it") from None
        counts[f"{split}/{label}"] += 1
    if counts != reviews:
        raise ValueError(
            f"{ORIGIN}: {archive} holds {dict(sorted(counts.items()))} reviews, expected "
            f"{dict(sorted(reviews.items()))}; replace or remove it"
        )

    import pandas as pd

    labelled, test = (pd.DataFrame(rows[split], columns=["text", "label"], dtype=str) for split in ("train", "test"))
    training, validation = cut(labelled, ["text"], (1 - VALIDATION, VALIDATION))
    validation, test = (table[[len(text.split()) >= words for text in table["text"]]] for table in (validation, test))
    note = (
        "IMDB's film reviews with their official test split; validation is a tenth of the training split, and shares "
        f"no text with what is left of it. {20 if words else 123} reviews of the test split are in the training split "
        "too."
    )
    if words:
        note += f" Validation and test have reviews of {words} words or more alone, training has those of any length."
    return examples_of(
        NAME_OF_LONG if words else "imdb-sentiment",
        (training, validation, mixed(test)),
        source,
        note,
        classes=tuple(CLASSES.values()),
    )


DATA_SET = DataSet(
    name="imdb-sentiment",
    description="Is a film review negative or positive? 50,000 of IMDB, 230 words each in the mean.",
    load=load,
    find=lambda data_dir: archive_in(data_dir) or DOWNLOAD.cached(),
    when_missing="downloaded when first used, or place aclImdb_v1.tar.gz in --data-dir",
    url=DOWNLOAD.url,
    licence=LICENCE,
    size="25,000 + 25,000 reviews, 84 MB packed",
    fetch=(fetching(DOWNLOAD.url, OFFICIAL_NAMES[1]),),
)
LONG_REVIEWS = replace(
    DATA_SET,
    name=NAME_OF_LONG,
    description=f"The same, validated and tested on reviews of {LONG} words or more.",
    load=partial(load, words=LONG),
    size="22,560 + 3,147 reviews, 84 MB packed",
    known_sha256="41d308bb14c9722131a14e64a42f4095e0f1ade669c2e8ca119c78d622345286",
)
DATA_SETS = (DATA_SET, LONG_REVIEWS)
