"""The order of a worker's path: Spark's zip files, and the same packages as installed folders.

Each process that imports a module from a zip file compiles it again; an installed module has its bytecode. Must not
import PySpark, because this module decides which PySpark is imported.
"""

from __future__ import annotations

import re
import sys
import zipimport
from importlib.machinery import PathFinder
from pathlib import Path

_ARCHIVE = re.compile(r"pyspark\.zip|py4j-(.+)-src\.zip|spark-core_[\d.]+-[^/]*\.jar")
_PACKAGES = ("pyspark", "py4j")


def put_installed_first() -> None:
    """Move Spark's archives to the end of the path if the same versions of their content are installed.

    This is the case if Spark runs from the installed PySpark. Call this before PySpark is imported.
    """
    found = [entry for entry in sys.path if _ARCHIVE.fullmatch(Path(entry).name)]
    homes = {Path(entry).parents[2] for entry in found if entry.endswith(".zip")}
    if len(homes) != 1 or not _is_installed(home := homes.pop(), found):
        return
    # A jar has no Python; the search for a missing module need not read its list of files.
    last = [entry for entry in found if home in Path(entry).parents]
    sys.path[:] = [entry for entry in sys.path if entry not in last] + last


def forget() -> None:
    """Drop what was read of zip files on the path.

    The first task of each worker reads all of it again: once for PySpark's archive itself, and once for each package in
    it. That takes longer than everything else in a new worker.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _is_installed(home: Path, archives: list[str]) -> bool:
    """Return whether, without the archives, the path leads to the packages in and next to Spark's own folder."""
    without = [entry for entry in sys.path if entry not in archives]
    for name in _PACKAGES:
        spec = PathFinder.find_spec(name, without)
        expected = (home if name == "pyspark" else home.parent / name) / "__init__.py"
        if spec is None or spec.origin is None or Path(spec.origin) != expected:
            return False
    versions = {match[1] for entry in archives if (match := _ARCHIVE.fullmatch(Path(entry).name)) and match[1]}
    return all((home.parent / f"py4j-{version}.dist-info").is_dir() for version in versions)
