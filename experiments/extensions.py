"""Modules and packages of a user's that add to the registries.

Whatever of them takes part in a run is named and hashed in the record (``origins``).
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from linear_rope.registry import Registry, choices, forget_packages

__all__ = ["Registry", "choices", "load_plugin", "origins"]


def load_plugin(module: str) -> None:
    """Import a module of the user's, which adds to registries when it is imported.

    Raises:
        ValueError: it cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as python -m has it; an installed command has not
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"--plugin {module} cannot be imported ({type(error).__name__}: {error}); give the name of a module that "
            "python -c 'import NAME' finds"
        ) from error
    forget_packages()


def origins(modules: Iterable[str]) -> list[dict[str, Any]]:
    """Of every module from outside: its name, its package and version, and the sha256 of its code."""
    found, names = [], sorted(modules)
    packages = packages_distributions() if names else {}  # which reads the list of files of all that is installed
    for name in names:
        package = next(iter(packages.get(name.partition(".")[0], [])), "")
        number = version(package) if package else ""
        found.append({"module": name, "package": package, "version": number, "sha256": _code_sha256(name)})
    return found


def _code_sha256(name: str) -> str:
    """Of the Python files of the module's top-level package, or of the file that it is."""
    top = sys.modules[name.partition(".")[0]]
    places = [Path(path) for path in getattr(top, "__path__", [])]
    files = sorted(path for place in places for path in place.rglob("*.py")) or [Path(str(top.__file__))]
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
