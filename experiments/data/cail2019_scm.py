"""Which of two Chinese legal cases is more like a third? (CAIL2019-SCM, Xiao et al. 2019, arXiv 1911.08962)

It is RoFormer's task of long texts: most of its texts have 600 to 800 characters, and two go in together.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from experiments.data.corpus import DataSet
from experiments.data.examples import NEARER, Examples, cut, examples_of, fraction, mixed
from experiments.data.files import Download, fetch_all, fetching, find_all, find_file, in_data_directory, where
from experiments.data.tables import Table, told
from experiments.errors import why

if TYPE_CHECKING:
    import pandas as pd

URL = "https://cail.oss-cn-qingdao.aliyuncs.com/cail2019/CAIL2019-SCM.zip"
FILES = {"train": ("train.json",), "validation": ("valid.json", "dev.json"), "test": ("test.json",)}
TRIPLETS = {"train": 5_102, "validation": 1_500, "test": 1_536}
SAMPLE_SHA256 = "b801caa50f7bc718224092476961c2d317c6cc6400b13dcfeab7f96688c87b6d"
SAMPLE = Download(
    url="https://raw.githubusercontent.com/china-ai-law-challenge/CAIL2019/010ebcedb4a1faf0ae25576254d134fa518e4830/"
    "scm/baseline/tf_idf/input.txt",
    known_hash=f"sha256:{SAMPLE_SHA256}",
    file_name="cail2019-scm-input.txt",
    places=("cail2019_scm/input.txt", "cail2019_scm/input.txt.gz"),
)
SAMPLE_TRIPLETS = 500
PARTS = (0.8, 0.1, 0.1)
"""training, validation and test of the sample"""


class Triplet(msgspec.Struct):
    """A line of a file."""

    A: str
    B: str
    C: str


class Labelled(Triplet):
    label: Literal["B", "C"]


def read(table: Table, rows: int, *, labelled: bool) -> "pd.DataFrame":
    """The triplets of a file, one JSON object a line with texts A, B and C, and which is nearer to A as ``label``.

    Without labels B is the nearer one.

    Raises ValueError if a line is no such object, or there are not ``rows`` of them.
    """
    import pandas as pd

    kind = Labelled if labelled else Triplet
    triplets = []
    for row, line in enumerate(table.lines(), start=1):
        try:
            found = msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            expected = f"expected {', '.join(kind.__struct_fields__)} in a JSON object"
            raise table.wrong(f"{why(error)}; {expected}", row) from None
        nearer = NEARER[isinstance(found, Labelled) and found.label == "C"]
        triplets.append((found.A, found.B, found.C, nearer))
    if len(triplets) != rows:
        raise table.wrong(f"it has {len(triplets):,} rows, expected {rows:,}")
    return pd.DataFrame(triplets, columns=["text", *NEARER, "label"], dtype=str)


def swapped(frame: "pd.DataFrame") -> "pd.DataFrame":
    """``one`` and ``other`` exchanged in about half of the rows, told by the sha256 of the texts.

    Where the nearer text is always the first, a model would have nothing to learn.
    """
    frame = frame.copy()
    chosen = frame.apply(lambda row: fraction("\n".join(row[name] for name in ("text", *NEARER))) < 0.5, axis=1)
    frame.loc[chosen, ["one", "other"]] = frame.loc[chosen, ["other", "one"]].to_numpy()
    frame.loc[chosen, "label"] = frame.loc[chosen, "label"].map(dict(zip(NEARER, reversed(NEARER), strict=True)))
    return frame


def files_in(data_dir: Path | None) -> dict[str, Path]:
    """The file of each split that the data directory has."""
    folders = ("cail2019_scm/", "CAIL2019-SCM/")
    names = {
        split: [f"{folder}{name}{end}" for folder in folders for name in files for end in ("", ".gz")]
        for split, files in FILES.items()
    }
    return {split: path for split, files in names.items() if (path := find_file(data_dir, files))}


def load(data_dir: Path | None, _: object = None, *, triplets: dict[str, int] = TRIPLETS) -> Examples:
    """The labelled set with its official splits; ``triplets`` is the number there has to be of each.

    Raises ValueError if a file is not there or not as it should be.
    """
    files = files_in(data_dir)
    if missing := [names[0] for split, names in FILES.items() if split not in files]:
        raise ValueError(
            f"--data cail2019-scm: cail2019_scm/{missing[0]} is not there; place it in --data-dir (`data` prints the "
            "command), or use --data cail2019-scm-sample"
        )
    assert data_dir is not None
    tables = [Table(files[split], "--data cail2019-scm") for split in FILES]
    frames = [read(table, triplets[split], labelled=True) for split, table in zip(FILES, tables, strict=True)]
    source = in_data_directory(data_dir, files.values())
    note = "CAIL2019-SCM with its official splits." + told(table.left_out for table in tables)
    return examples_of("cail2019-scm", [mixed(frame) for frame in frames], source, note, classes=NEARER)


def load_sample(
    data_dir: Path | None, _: object = None, *, triplets: int = SAMPLE_TRIPLETS, sha256: str | None = SAMPLE_SHA256
) -> Examples:
    """500 triplets of the contest's own repository, without labels: B is taken for the nearer text.

    The contest promised that of its training data; that this file is such data is inferred, because others trained
    on it.

    Raises ValueError if the file cannot be had or is not as it should be.
    """
    (path,), source = fetch_all(data_dir, [SAMPLE])
    table = Table(path, "--data cail2019-scm-sample")
    frame = swapped(read(table, triplets, labelled=False))
    table.check(sha256)
    note = (
        "A sample of CAIL2019-SCM: 500 triplets without labels, in which B is taken for the nearer "
        "text and exchanged with C in half of them; split 80/10/10 by the sha256 of A. Many texts are B or C in "
        "another split. Figures are not comparable with published ones."
    ) + told([table.left_out])
    return examples_of("cail2019-scm-sample", cut(frame, ["text"], PARTS), source, note, classes=NEARER)


def _find(data_dir: Path | None) -> str | None:
    files = files_in(data_dir)
    return where([*files.values()]) if len(files) == len(FILES) else None


LICENCE = "none stated; cite arXiv 1911.08962"
DATA_SETS = (
    DataSet(
        name="cail2019-scm",
        description="Which of two Chinese legal cases is more like a third? With labels and official splits.",
        load=load,
        find=_find,
        when_missing="place cail2019_scm/train.json, valid.json and test.json in --data-dir",
        licence=LICENCE,
        size="5,102 + 1,500 + 1,536 triplets",
        # No hash of the archive is known for certain, so it is not downloaded without being asked for.
        fetch=(
            fetching(URL, "cail2019_scm/CAIL2019-SCM.zip"),
            "unzip -j DIR/cail2019_scm/CAIL2019-SCM.zip -d DIR/cail2019_scm",
        ),
    ),
    DataSet(
        name="cail2019-scm-sample",
        description="500 triplets of CAIL2019-SCM without labels: the first candidate is the nearer one.",
        load=load_sample,
        find=lambda data_dir: next(iter(find_all(data_dir, [SAMPLE])), None),
        when_missing=f"downloaded when first used, or place {SAMPLE.places[0]} in --data-dir",
        url=SAMPLE.url,
        licence=LICENCE,
        size="500 triplets, 2.7 MB",
        fetch=(fetching(SAMPLE.url, SAMPLE.places[0]),),
    ),
)
