"""Which of 20 newsgroups is a post from? (Lang 1995, sorted by date into training and test by Rennie)

And all posts as one text.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from experiments.data.archives import members_of
from experiments.data.corpus import BETWEEN, Corpus, DataSet, begin_after, corpus_of_text
from experiments.data.examples import Examples, cut, examples_of, mixed
from experiments.data.files import Download, fetching, find_file
from experiments.data.tables import told

ORIGIN = "--data newsgroups"
# The sha256 that scikit-learn has for it, which downloads it from another place.
DOWNLOAD = Download(
    url="http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
    known_hash="sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    file_name="20news-bydate.tar.gz",
)
NAMES = [f"{folder}20news-bydate.tar.{end}" for folder in ("20newsgroups/", "") for end in ("xz", "gz")]
GROUPS = (
    "alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware comp.sys.mac.hardware comp.windows.x "
    "misc.forsale rec.autos rec.motorcycles rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med "
    "sci.space soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc talk.religion.misc"
).split()
POST_NAME = re.compile(rf"20news-bydate-(train|test)/({'|'.join(map(re.escape, GROUPS))})/[0-9]{{1,7}}")
LONGEST_POST = 2**18
"""bytes; the longest has 160,616"""
POSTS = {"train": 11_314, "test": 7_532}
VALIDATION = 0.1
"""of the training split"""
SPACES = " \t\n\r\v\f"
"""white space of ASCII; ``str.strip`` would take control characters of latin-1 too"""


def _archive(data_dir: Path | None, download: Download) -> tuple[Path, str]:
    """The archive, and where it was found. Raises ValueError if it cannot be had."""
    found = find_file(data_dir, NAMES)
    if found is not None and found.suffix == ".gz":
        download.check(found, ORIGIN)
    (archive,), source = download.unless_found(data_dir, [found] if found else [])
    return archive, source


def _posts_in(archive: Path, posts: Mapping[str, int], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of every post; ``left_out`` counts what is in none of them.

    Raises ValueError if the archive holds another number of posts.
    """
    counts = dict.fromkeys(posts, 0)
    for name, content in members_of(archive, POST_NAME, ORIGIN, LONGEST_POST):
        left_out["carriage returns at ends of lines"] += content.count(b"\r\n")
        _, _, body = content.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
        counts[name.partition("/")[0].rpartition("-")[2]] += 1
        text = body.strip(SPACES)
        left_out["white space around a post"] += text != body
        yield name, text
    if counts != posts:
        raise ValueError(f"{ORIGIN}: {archive} holds {counts} posts, expected {dict(posts)}; replace or remove it")


def load(
    data_dir: Path | None, _: object = None, *, download: Download = DOWNLOAD, posts: Mapping[str, int] = POSTS
) -> Examples:
    """The posts without their header lines, read as latin-1; ``posts`` is the number there has to be for each split.

    The header ends at the first empty line. It names the group ("Newsgroups:"), so a model that sees it has nothing to
    learn; that is what scikit-learn calls removing headers. Signatures and quotations are kept, and so are 34 posts
    that are empty then.

    Raises ValueError if the archive cannot be had or read (see ``members_of``), or holds another number of posts.
    """
    archive, source = _archive(data_dir, download)
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    left_out = Counter[str]()
    for name, body in _posts_in(archive, posts, left_out):
        folder, group, _ = name.split("/")
        rows[folder.rpartition("-")[2]].append((body, group))

    import pandas as pd

    labelled, test = (pd.DataFrame(rows[split], columns=["text", "label"], dtype=str) for split in ("train", "test"))
    training, validation = cut(labelled, ["text"], (1 - VALIDATION, VALIDATION))
    note = (
        "20 newsgroups, read as latin-1, split by date, without header lines but with signatures and quotations "
        "(figures with headers are higher); validation is a tenth of the training split, and shares no text with what "
        "is left of it. 27 posts of the test split, 16 of them empty, are in the original training split too."
    ) + told([left_out])
    return examples_of("newsgroups", (training, validation, mixed(test)), source, note, classes=tuple(GROUPS))


def load_text(
    data_dir: Path | None, _: object = None, *, download: Download = DOWNLOAD, posts: Mapping[str, int] = POSTS
) -> Corpus:
    """All posts, as ``load`` reads them, as one text in UTF-8, split 90/5/5 by bytes.

    They are sorted by the sha256 of their names, which mixes groups and dates, and joined with a blank line.
    """
    archive, source = _archive(data_dir, download)
    left_out = Counter[str]()
    found = _posts_in(archive, posts, left_out)
    mixed_posts = sorted(found, key=lambda post: hashlib.sha256(post[0].encode()).digest())
    bodies = [body.encode() for _, body in mixed_posts]
    note = (
        "Posts to 20 newsgroups without header lines, mixed, from latin-1 to UTF-8, split 90/5/5 by bytes: a split of "
        "our own."
    ) + told([left_out])
    lengths = [len(body) + len(BETWEEN) for body in bodies]
    content = BETWEEN.join(bodies)
    return corpus_of_text("newsgroups-text", content, source, note, documents=lambda: begin_after(accumulate(lengths)))


DATA_SET = DataSet(
    name="newsgroups",
    description="Which of 20 newsgroups is a post from? 18,846 posts, 285 words each in the mean.",
    load=load,
    find=lambda data_dir: find_file(data_dir, NAMES) or DOWNLOAD.cached(),
    when_missing="downloaded when first used, or place 20news-bydate.tar.gz in --data-dir",
    url=DOWNLOAD.url,
    licence="none stated (Usenet posts)",
    size="11,314 + 7,532 posts, 14 MB packed",
    fetch=(fetching(DOWNLOAD.url, "20newsgroups/20news-bydate.tar.gz"),),
    known_sha256="b616b12ca9ea6671fb52714503de0b1bf8760dd8240487d0eea53cd3aeac8f3c",
)
TEXT = replace(
    DATA_SET,
    name="newsgroups-text",
    description="The posts to 20 newsgroups as one text: 32 MB of conversation.",
    load=load_text,
    known_sha256="d464a927186645b1db188c7774e820e3da932481def8c0c80ef3eaa017bdd867",
)
