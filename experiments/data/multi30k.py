"""Descriptions of 31,014 pictures in English, translated into German (Elliott et al. 2016), and newer test splits."""

from functools import partial
from pathlib import Path

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, examples_of
from experiments.data.files import Download, fetch_all, find_all, where
from experiments.data.tables import Table, read_parallel

ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
SHA256 = {
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2017_flickr.en": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_flickr.de": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_mscoco.en": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
    "test_2017_mscoco.de": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
    "test_2018_flickr.en": "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
    "test_2018_flickr.de": "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
}
"""of the packed files"""
PAIRS = {
    "train": 29_000,
    "val": 1_014,
    "test_2016_flickr": 1_000,
    "test_2017_flickr": 1_000,
    "test_2017_mscoco": 461,
    "test_2018_flickr": 1_071,
}
TESTS = {
    "multi30k": "test_2016_flickr",
    "multi30k-2017": "test_2017_flickr",
    "multi30k-2017-mscoco": "test_2017_mscoco",
    "multi30k-2018": "test_2018_flickr",
}


def downloads(test: str) -> list[Download]:
    """The six files of a data set: English and German of each split."""
    names = [f"{split}.{language}" for split in ("train", "val", test) for language in ("en", "de")]
    return [
        Download(
            url=f"{ADDRESS}{name}.gz",
            known_hash=f"sha256:{SHA256[name]}",
            file_name=f"multi30k-{name}.gz",
            places=tuple(
                f"{folder}{name}{end}" for folder in ("multi30k/", "multi30k/data/task1/raw/") for end in (".gz", "")
            ),
        )
        for name in names
    ]


def load(name: str, data_dir: Path | None, _: object = None, *, pairs: dict[str, int] = PAIRS) -> Examples:
    """Task 1 of Multi30k, English to German, as its authors typed it; ``pairs`` is the number of each split.

    Raises ValueError if a file cannot be had, or is not as it should be.
    """
    test = TESTS[name]
    paths, source = fetch_all(data_dir, downloads(test))
    tables = [Table(path, f"--data {name}") for path in paths]
    frames = [
        read_parallel(*tables[2 * number : 2 * number + 2], rows=pairs[split])
        for number, split in enumerate(("train", "val", test))
    ]
    return examples_of(name, frames, source, f"Multi30k, English to German, not tokenised; test is {test}.")


def _data_set(name: str) -> DataSet:
    test = TESTS[name]

    def find(data_dir: Path | None) -> str | None:
        return where(find_all(data_dir, downloads(test)))

    return DataSet(
        name=name,
        description=f"English descriptions of pictures and their German translations; test is {test}.",
        load=partial(load, name),
        find=find,
        when_missing="downloaded when first used, or place multi30k/train.en.gz ... in --data-dir",
        url=ADDRESS,
        licence="none stated; from Flickr30k, for research and education, not commercial",
        size=f"29,000 + 1,014 + {PAIRS[test]:,} pairs, 1.3 MB packed",
        fetch=(f"curl -fL --create-dirs -o DIR/multi30k/#1.#2.gz '{ADDRESS}{{train,val,{test}}}.{{en,de}}.gz'",),
    )


DATA_SETS = tuple(map(_data_set, TESTS))
