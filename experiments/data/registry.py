"""The data sets: a new one is rows of ``catalog.toml``, and a file beside this one if no reader reads it yet.

From outside the project an installed package's entry point in the group ``linear_rope.data`` is a ``DataSet``, and a
``--plugin`` module calls ``DATA_SETS.add(name, data_set, module=__name__)``; ``data_set`` makes one of a row.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from pkgutil import resolve_name
from string import Template
from typing import TYPE_CHECKING, Any

from experiments.data.files import DataSet, Files, resolve_data_dir
from experiments.extensions import Registry, choices

if TYPE_CHECKING:
    from experiments.data.corpus import Data

ABOUT = {field.name for field in fields(DataSet)}
CATALOG = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text("utf-8"))


def row_of(name: str) -> dict[str, Any]:
    """The row of a built-in data set, joined with those of its families, and with its words filled in."""
    row = CATALOG["data"][name]
    while family := row.get("family"):
        row = _joined(CATALOG["families"][family], {key: value for key, value in row.items() if key != "family"})
    words = {"name": name} | row | row.get("arguments", {}) | row.get("words", {})
    return {key: _filled(value, words) for key, value in row.items() if key != "words"}


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both, and the second's where both have something; tables in them are joined too."""
    both = {key: {**first[key], **second[key]} for key in first if isinstance(second.get(key), dict)}
    return {**first, **second, **both}


def _filled(value: Any, words: Mapping[str, Any]) -> Any:
    """``value`` with ``words`` in place of their names behind a $."""
    if isinstance(value, list):
        return [_filled(item, words) for item in value]
    return Template(value).safe_substitute(words) if isinstance(value, str) else value


def data_set(name: str, *, reader: str, **row: Any) -> DataSet:
    """A data set of a row: what ``DataSet`` says of it, and what ``reader`` needs to read it.

    ``reader`` is the "module:name" of a class that is derived from ``Files``. ``when_missing`` and ``fetch`` follow
    from what is downloaded if they are not given.

    Raises ValueError if a key is missing in the row, or there is no such key.
    """
    try:
        files = resolve_name(reader)(name=name, **{key: value for key, value in row.items() if key not in ABOUT})
        return _of_files(files, files.load, row)
    except TypeError as error:  # it names the key
        raise ValueError(f"data set {name}: {error}; give the keys of DataSet and of {reader}") from None


def _built_in(name: str) -> DataSet:
    """A data set of the catalog, whose reader is imported (NumPy and all) when the data are loaded."""
    row = row_of(name)
    files = Files(name=name, **{field.name: row[field.name] for field in fields(Files) if field.name in row})

    def load(data_dir: Path | None, data_file: Path | None) -> Any:
        return data_set(name, **row).load(data_dir, data_file)

    return _of_files(files, load, row)


def _of_files(files: Files, load: Callable[[Path | None, Path | None], Any], row: Mapping[str, Any]) -> DataSet:
    """What a row, and what is downloaded, say of a data set."""
    about, downloads = {key: value for key, value in row.items() if key in ABOUT}, files.downloads
    if downloads:
        places = " and ".join(download.place for download in downloads)
        about.setdefault("when_missing", f"downloaded when first used, or place {places} in --data-dir")
        about.setdefault("fetch", [download.command for download in downloads])
        folder = f"{downloads[0].url.rpartition('/')[0]}/"
        about["url"] = downloads[0].url if len(downloads) == 1 else folder
    return DataSet(name=files.name, load=load, find=files.find, **about | {"fetch": tuple(about.get("fetch", ()))})


DATA_SETS: Registry[DataSet] = Registry(
    "data set", "linear_rope.data", {name: _built_in(name) for name in CATALOG["data"]}
)


def load_data(
    name: str, data_dir: Path | None = None, data_file: Path | None = None, may_download: bool = True
) -> "Data":
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
