"""What is known of this user's GPUs: JSON files in the cache directory, a part for each name."""

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "LINEAR_ROPE_CACHE"


def directory() -> Path:
    """What LINEAR_ROPE_CACHE names, or else linear-rope in the platform's cache directory."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    variable, default = "XDG_CACHE_HOME", "Library/Caches" if sys.platform == "darwin" else ".cache"
    if sys.platform == "win32":
        variable, default = "LOCALAPPDATA", "AppData/Local"
    of_all = os.environ.get(variable)
    return (Path(of_all) if of_all else Path.home() / default) / "linear-rope"


def load(file: Path) -> dict[str, dict[str, Any]]:
    """All parts; none of a file that is not there or is damaged, as if nothing were known."""
    with suppress(OSError, ValueError):
        parts = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(parts, dict) and all(isinstance(part, dict) for part in parts.values()):
            return parts
    return {}


def add(file: Path, part: str, entries: dict[str, Any]) -> None:
    """Put entries into a part, by a temporary file, so that nobody reads half of it. May raise OSError."""
    parts = load(file)
    parts[part] = parts.get(part, {}) | entries
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as temporary:
        json.dump(parts, temporary, indent=1, sort_keys=True)
    Path(temporary.name).replace(file)
