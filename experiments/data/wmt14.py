"""WMT 2014's news translation from English to German, and a small sample of it.

The training data are Europarl v7, Common Crawl and News Commentary v9; validation is newstest2013, test newstest2014.
"""

from collections.abc import Mapping
from pathlib import Path

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, examples_of
from experiments.data.files import Download, fetch_all, find_all, find_file, in_data_directory, where
from experiments.data.tables import Table, read_parallel, told

SITE = "https://www.statmt.org"
TRAINING = ("training/europarl-v7.de-en", "commoncrawl.de-en", "training/news-commentary-v9.de-en")
VALIDATION, TEST = "dev/newstest2013", "newstest2014"
ARCHIVES = (
    "wmt13/training-parallel-europarl-v7",
    "wmt13/training-parallel-commoncrawl",
    "wmt14/training-parallel-nc-v9",
    "wmt14/dev",
)
SENTENCES = dict(zip((*TRAINING, VALIDATION, TEST), (1_920_209, 2_399_123, 201_288, 3_000, 3_003), strict=True))
FOLDER = "wmt14"

REPOSITORY = "https://raw.githubusercontent.com/OpenNMT/OpenNMT-py/3518fbab3092b21f12d78f9054097dffabb4025e/data/"
SAMPLE = {
    "src-train": "db668a7d798bddf21d1ab8fcb403efbc724ba01b70472ad30d1e2049fd46e12b",
    "tgt-train": "fe1f824a189baa650eec46269e66eef07f7304ba7572598ebbe61c55eeff7d01",
    "src-val": "a32a3554fb6c1073b7ed8e0e43828e88ff35d2292e13b42503b479f43c69c782",
    "tgt-val": "df700a3ffe2b4309af3bdaba9c6385b5e6fe647ac408e36759a136eef43959ed",
    "src-test": "5fde93388f630f7afd3208f24b4c68d3f992ddb15e0bc2491ee3b4f9ea44845b",
    "tgt-test": "d0de86aa401fea9734095fe694ac16f58371d09bcad7d86aef71776cacc80b1d",
}
"""files and their sha256"""
SAMPLE_PAIRS = {"train": 10_000, "val": 3_000, "test": 2_737}
DOWNLOADS = [
    Download(
        url=f"{REPOSITORY}{name}.txt",
        known_hash=f"sha256:{sha256}",
        file_name=f"wmt14-sample-{name}.txt",
        places=tuple(f"wmt_ende_sample/{name}.txt{end}" for end in ("", ".gz")),
    )
    for name, sha256 in SAMPLE.items()
]
ESCAPES = {"&apos;": "'", "&quot;": '"', "&#91;": "[", "&#93;": "]", "&#124;": "|", "&lt;": "<", "&gt;": ">"}
"""of Moses's tokenizer; ``&amp;`` has to come after them"""


def files_in(data_dir: Path | None) -> dict[str, Path]:
    """The files of WMT 2014 that the data directory has, by their names in its archives."""
    names = [f"{name}.{language}" for name in (*TRAINING, VALIDATION, TEST) for language in ("en", "de")]
    places = {name: [f"{FOLDER}/{name}", f"{FOLDER}/{name}.gz"] for name in names}
    return {name: path for name in names if (path := find_file(data_dir, places[name]))}


def load(data_dir: Path | None, _: object = None, *, sentences: dict[str, int] = SENTENCES) -> Examples:
    """4.5 million pairs, as they are in the files; ``sentences`` is the number there has to be in each.

    Pairs with an empty side, of which Europarl has some, are left out. Needs some 4 GB of memory.

    Raises ValueError if a file is not there or not as it should be.
    """
    import pandas as pd

    files = files_in(data_dir)
    expected = [f"{name}.{language}" for name in (*TRAINING, VALIDATION, TEST) for language in ("en", "de")]
    if missing := [name for name in expected if name not in files]:
        raise ValueError(
            f"--data wmt14: {FOLDER}/{missing[0]} is not there; place it in --data-dir (`data` prints the commands), "
            "or use --data multi30k or --data wmt14-sample"
        )
    assert data_dir is not None

    tables = {name: Table(path, "--data wmt14") for name, path in files.items()}

    def read(name: str) -> "pd.DataFrame":
        return read_parallel(tables[f"{name}.en"], tables[f"{name}.de"], rows=sentences[name])

    frames = (pd.concat([read(name) for name in TRAINING]), read(VALIDATION), read(TEST))
    note = (
        "WMT 2014, English to German: Europarl v7, Common Crawl and News Commentary v9, not tokenised; validation is "
        "newstest2013, test newstest2014 (3,003 pairs)."
    ) + told(table.left_out for table in tables.values())
    return examples_of("wmt14", frames, in_data_directory(data_dir, files.values()), note)


def load_sample(
    data_dir: Path | None,
    _: object = None,
    *,
    pairs: Mapping[str, int] = SAMPLE_PAIRS,
    sha256: Mapping[str, str] = SAMPLE,
) -> Examples:
    """The sample that OpenNMT-py came with, tokenised, with the escapes of its tokenizer undone (``&apos;`` is ').

    They are no part of the text, and a model would spend several bytes on each. The spaces around punctuation are left:
    what the text was cannot be known.

    Raises ValueError if a file cannot be had, or is not as it should be.
    """
    paths, source = fetch_all(data_dir, DOWNLOADS)
    tables = [Table(path, "--data wmt14-sample") for path in paths]
    frames = [
        read_parallel(*tables[2 * number : 2 * number + 2], rows=rows).map(unescaped)
        for number, rows in enumerate(pairs.values())
    ]
    for table in tables:
        table.check(sha256.get(table.path.name.partition(".")[0].removeprefix("wmt14-sample-")))
    note = (
        "A sample of WMT 2014, English to German: 10,000 pairs, tokenised, its escapes undone; test is 2,737 pairs of "
        "newstest2014. Figures are not comparable with published ones."
    ) + told(table.left_out for table in tables)
    return examples_of("wmt14-sample", frames, source, note)


def unescaped(text: str) -> str:
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text.replace("&amp;", "&")


def _find(data_dir: Path | None) -> str | None:
    files = files_in(data_dir)
    return str(data_dir / FOLDER) if data_dir and len(files) == 2 * (len(TRAINING) + 2) else None


def _find_sample(data_dir: Path | None) -> str | None:
    return where(find_all(data_dir, DOWNLOADS))


LICENCE = "for research; see statmt.org/wmt14"
DATA_SETS = (
    DataSet(
        name="wmt14",
        description="English to German, 4.5 million pairs; test is newstest2014.",
        load=load,
        find=_find,
        when_missing="place the files of WMT 2014 in --data-dir, under wmt14/",
        licence=LICENCE,
        size="4.5 million + 3,000 + 3,003 pairs, 1.6 GB packed",
        # No hash of the archives is known for certain; sacrebleu checks what it fetches.
        fetch=(
            f"mkdir -p DIR/{FOLDER}",
            *(f"curl -fL {SITE}/{archive}.tgz | tar xz -C DIR/{FOLDER}" for archive in ARCHIVES),
            *(
                f"sacrebleu -t wmt14/full -l en-de --echo {side} > DIR/{FOLDER}/{TEST}.{language}"
                for side, language in (("src", "en"), ("ref", "de"))
            ),
        ),
    ),
    DataSet(
        name="wmt14-sample",
        description="English to German, 10,000 pairs of WMT 2014, tokenised: for trying out.",
        load=load_sample,
        find=_find_sample,
        when_missing="downloaded when first used, or place wmt_ende_sample/src-train.txt ... in --data-dir",
        url=REPOSITORY,
        licence=LICENCE,
        size="10,000 + 3,000 + 2,737 pairs, 4.3 MB",
        fetch=(
            f"curl -fL --create-dirs -o DIR/wmt_ende_sample/#1-#2.txt '{REPOSITORY}{{src,tgt}}-{{train,val,test}}.txt'",
        ),
    ),
)
