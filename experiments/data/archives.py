"""The documents of tar archives, whose folders say their split and label: reviews, and posts to newsgroups."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data.examples import Examples, cut, examples_of, mixed, names_of
from experiments.data.files import Files, members_of
from experiments.data.tables import told

SPACES = " \t\n\r\v\f"
"""white space of ASCII; ``str.strip`` would take control characters of latin-1 too"""


@dataclass(frozen=True, kw_only=True)
class Documents(Files):
    """The files of archives whose name matches ``pattern``."""

    pattern: str
    expected: Mapping[str, int]
    """how many there have to be of each value of the group ``counted`` in ``pattern``"""
    posts: bool = False
    """latin-1, of which the header lines and the white space around the rest are left out; other texts are UTF-8"""

    def documents(self, paths: Sequence[Path], left_out: Counter[str]) -> Iterator[tuple[re.Match[str], str]]:
        """The match and the text of each; ``left_out`` counts what is in no text.

        Raises ValueError if an archive is not as it should be, or they hold another number of texts.
        """
        counts = Counter[str]()
        for path in paths:
            self.check(path)
            for match, content in members_of(path, re.compile(self.pattern), self.origin):
                counts[match["counted"]] += 1
                try:
                    yield match, _body(content, left_out) if self.posts else content.decode()
                except UnicodeDecodeError as error:
                    what = f"{path}, {match[0]}: it is not UTF-8 ({error.reason})"
                    raise ValueError(f"{self.origin}: {what}; replace or remove it") from None
        if counts != self.expected:
            held = f"hold {dict(sorted(counts.items()))} texts, expected {dict(sorted(self.expected.items()))}"
            raise ValueError(f"{self.origin}: {' and '.join(map(str, paths))} {held}; replace or remove them")


def _body(post: bytes, left_out: Counter[str]) -> str:
    """The header ends at the first empty line. It names the group ("Newsgroups:"), so a model that sees it has nothing
    to learn; that is what scikit-learn calls removing headers. Signatures and quotations are kept.
    """
    left_out["carriage returns at ends of lines"] += post.count(b"\r\n")
    _, _, body = post.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
    text = body.strip(SPACES)
    left_out["white space around a post"] += text != body
    return text


@dataclass(frozen=True, kw_only=True)
class LabelledDocuments(Documents):
    """Documents with their official test split; validation is a tenth of the training split.

    ``pattern`` has the groups ``split`` and ``label`` too.
    """

    classes: Mapping[str, str] | Sequence[str]
    """what labels are called"""
    shortest: int = 0
    """words of a text in validation and test"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if an archive cannot be had, or is not as it should be."""
        import pandas as pd

        paths, source = self.get(data_dir)
        rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
        names, left_out = names_of(self.classes), Counter[str]()
        for match, text in self.documents(paths, left_out):
            rows[match["split"]].append((text, names.get(match["label"], match["label"])))
        labelled, test = (pd.DataFrame(found, columns=["text", "label"], dtype=str) for found in rows.values())
        training, *others = *cut(labelled, ["text"], (0.9, 0.1)), mixed(test)
        judged = [table[[len(text.split()) >= self.shortest for text in table["text"]]] for table in others]
        return examples_of(self.name, [training, *judged], source, self.note + told([left_out]), tuple(names.values()))
