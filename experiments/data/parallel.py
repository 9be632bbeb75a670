"""Translations: two files of a sentence a line each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data.examples import Examples, examples_of
from experiments.data.files import Files
from experiments.data.tables import Table, told, without_spaces

if TYPE_CHECKING:
    import pandas as pd

ESCAPES = {"&apos;": "'", "&quot;": '"', "&#91;": "[", "&#93;": "]", "&#124;": "|", "&lt;": "<", "&gt;": ">"}
"""of Moses's tokenizer; ``&amp;`` has to come after them"""


@dataclass(frozen=True, kw_only=True)
class Translations(Files):
    """Pairs of files, source and target: the last pair for testing, the one before for validation."""

    rows: Sequence[int]
    """lines of each pair"""
    content: Mapping[str, str] = field(default_factory=dict)
    """by names: sha256 of what is in files"""
    language: str = ""
    """of the targets, as in ISO 639-1; BLEU of some needs another tokenizer"""
    escaped: bool = False
    """whether escapes of a tokenizer are undone (``&apos;`` is '), which are no part of the text"""

    def load(self, data_dir: Path | None, _: Path | None = None) -> Examples:
        """Raises ValueError if a file cannot be had, or is not as it should be."""
        import pandas as pd

        paths, source = self.get(data_dir)
        tables = [Table(path, self.origin) for path in paths]
        pairs = zip(tables[::2], tables[1::2], self.rows, strict=True)
        frames = [read_parallel(one, other, rows=rows) for one, other, rows in pairs]
        for table, name in zip(tables, self.forms[-1], strict=True):
            table.check(self.content.get(name))
        splits = [pd.concat(frames[:-2]), *frames[-2:]]
        if self.escaped:
            splits = [split.map(unescaped) for split in splits]
        note = self.note + told(table.left_out for table in tables)
        return examples_of(self.name, splits, source, note, language=self.language)


def unescaped(text: str) -> str:
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text.replace("&amp;", "&")


def read_parallel(source: Table, target: Table, *, rows: int | None = None) -> "pd.DataFrame":
    """``source`` and ``target`` of two files, a sentence a line without the spaces around it.

    Pairs with an empty side are left out, and counted. Raises ValueError if one has more lines than the other, or not
    ``rows``.
    """
    import pandas as pd

    sources, targets = source.lines(), target.lines()
    for table, lines in ((source, sources), (target, targets)):
        if rows not in (None, len(lines)):
            raise table.wrong(f"it has {len(lines):,} lines, expected {rows:,}")
    if len(sources) != len(targets):
        raise target.wrong(f"it has {len(targets):,} lines, and {source.path} {len(sources):,}; they must be equal")
    texts = {"source": without_spaces(sources, source.left_out), "target": without_spaces(targets, target.left_out)}
    frame = pd.DataFrame({name: pd.Series(column, dtype=str) for name, column in texts.items()})
    whole = frame[(frame["source"] != "") & (frame["target"] != "")]
    source.left_out["pairs with an empty side"] = len(frame) - len(whole)
    return whole
