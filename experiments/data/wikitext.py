"""WikiText (Merity et al. 2016, arXiv 1609.07843): good articles of Wikipedia, as raw text with the official splits."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from experiments.data.corpus import Corpus, DataSet
from experiments.data.files import Download, fetch_all, fetching, find_all, read_content

SITE = "https://wikitext.smerity.com/"
# sha256 that `datasets` has recorded for the same files at their first address, which is gone.
DOWNLOADS = {
    "wikitext-2": "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
    "wikitext-103": "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
}
SIZES = {"wikitext-2": "13 MB of text, 5 MB packed", "wikitext-103": "549 MB of text, 192 MB packed"}


def download(name: str) -> Download:
    file = f"{name}-raw-v1.zip"
    return Download(f"{SITE}{file}", f"sha256:{DOWNLOADS[name]}", file, (f"wikitext/{file}", file))


def load(name: str, data_dir: Path | None, _: object = None, *, official: Download | None = None) -> Corpus:
    """The raw text, with capitals and rare words, from the official archive.

    Raises ValueError if that cannot be had or is another file.
    """
    official = official or download(name)
    (path,), source = fetch_all(data_dir, [official])
    official.check(path, f"--data {name}")
    train, validation, test = (
        np.frombuffer(read_content(path, None, f"--data {name}", f"{name}-raw/wiki.{split}.raw"), dtype=np.uint8)
        for split in ("train", "valid", "test")
    )
    digest = hashlib.sha256()
    for part in (train, validation, test):
        digest.update(part.data)
    note = f"Raw text of {name} with its official splits; bits per byte, not per word."
    return Corpus(name, train, validation, test, digest.hexdigest(), source, note)


def _data_set(name: str) -> DataSet:
    official = download(name)
    return DataSet(
        name=name,
        description=f"Good articles of English Wikipedia: {SIZES[name].split(',')[0]}, official splits.",
        load=partial(load, name),
        find=lambda data_dir: next(iter(find_all(data_dir, [official])), None),
        when_missing=f"downloaded when first used, or place {official.places[0]} in --data-dir",
        url=official.url,
        licence="CC BY-SA 4.0",
        size=SIZES[name],
        fetch=(fetching(official.url, official.places[0]),),
    )


DATA_SETS = tuple(map(_data_set, DOWNLOADS))
