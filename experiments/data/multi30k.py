"""Descriptions of 31,014 pictures in English, translated into German (Elliott et al. 2016), and newer test splits."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, examples_of
from experiments.data.files import Download, fetch_all, find_all, where
from experiments.data.tables import Table, read_parallel, told

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
CONTENT = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
    "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
    "test_2017_mscoco.en": "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2",
    "test_2017_mscoco.de": "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22",
    "test_2018_flickr.en": "4e585c2dd525911a6ea7730e9d0b516239af3f1b1ffae6a2130223cfb639f25e",
    "test_2018_flickr.de": "39fcc8b3331d76fb42d648d019c6898b0d5e58baac87bc2a0bb93f44ec8db207",
}
"""sha256 of what is packed in them"""
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


def load(
    name: str,
    data_dir: Path | None,
    _: object = None,
    *,
    pairs: Mapping[str, int] = PAIRS,
    sha256: Mapping[str, str] = CONTENT,
) -> Examples:
    """Task 1 of Multi30k, English to German, as its authors typed it.

    ``pairs`` is the number of each split, ``sha256`` that of the content of each file that is to be checked.

    Raises ValueError if a file cannot be had, or is not as it should be.
    """
    test = TESTS[name]
    paths, source = fetch_all(data_dir, downloads(test))
    tables = [Table(path, f"--data {name}") for path in paths]
    frames = [
        read_parallel(*tables[2 * number : 2 * number + 2], rows=pairs[split])
        for number, split in enumerate(("train", "val", test))
    ]
    for table in tables:
        table.check(sha256.get(table.path.name.removesuffix(".gz").removeprefix("multi30k-")))
    note = f"Multi30k, English to German, not tokenised; test is {test}." + told(table.left_out for table in tables)
    return examples_of(name, frames, source, note)


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
