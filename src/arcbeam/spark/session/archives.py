"""The zip files that Spark puts in front of a worker's path, and the same packages beside them, installed.

Owns the order of the two. A module of a zip file is compiled anew by each process that imports it; an installed one has
its bytecode. Must not import PySpark: which one that is, is decided here.
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
    """Puts Spark's archives last on the path if what they hold is installed, in the same version; else, does nothing.

    So it is where the Spark that runs is the one in the installed PySpark. To be called before PySpark is imported.
    """
    found = [entry for entry in sys.path if _ARCHIVE.fullmatch(Path(entry).name)]
    homes = {Path(entry).parents[2] for entry in found if entry.endswith(".zip")}
    if len(homes) != 1 or not _is_installed(home := homes.pop(), found):
        return
    # A jar has no Python; what looks for a module that is nowhere need not have its list of files read.
    last = [entry for entry in found if home in Path(entry).parents]
    sys.path[:] = [entry for entry in sys.path if entry not in last] + last


def forget() -> None:
    """Lets go of what was read of zip files on the path.

    The first task of each worker has all of it read anew: once for PySpark's archive itself, and once more for each of
    the packages in it. That takes longer than all else that a new worker does.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _is_installed(home: Path, archives: list[str]) -> bool:
    """Whether without the archives, the path leads to the packages in and beside Spark's own folder."""
    without = [entry for entry in sys.path if entry not in archives]
    for name in _PACKAGES:
        spec = PathFinder.find_spec(name, without)
        expected = (home if name == "pyspark" else home.parent / name) / "__init__.py"
        if spec is None or spec.origin is None or Path(spec.origin) != expected:
            return False
    versions = {match[1] for entry in archives if (match := _ARCHIVE.fullmatch(Path(entry).name)) and match[1]}
    return all((home.parent / f"py4j-{version}.dist-info").is_dir() for version in versions)
