"""The interpreter of a local session's Python workers, compared with this process's before anything runs in them.

Owns that check; workers on other machines check their versions themselves (`versions`). A session made in a virtual
environment that is not activated, without `PYSPARK_PYTHON`, has the system's Python in its workers. Without this check,
every task would fail there with an error of Spark's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from arcbeam.errors import EnvironmentMismatchError
from arcbeam.sizes import remembered
from arcbeam.spark.session.versions import Versions

_SECONDS = 30.0

_ASK = """
import importlib.util, json, sys
needed = [name for name in %r if importlib.util.find_spec(name) is None]
print(json.dumps(["%%d.%%d" %% sys.version_info[:2], needed]))
"""
_NEEDED = ("arcbeam", "apache_beam", "pyarrow", "pandas", "lmdb")


def check(spark: Any) -> None:
    """Raise EnvironmentMismatchError if the workers of a classic local session cannot run arcbeam's tasks."""
    command = str(getattr(spark.sparkContext, "pythonExec", "") or "")
    found = shutil.which(command)
    if found is None or _same_place(found, sys.executable):
        return  # Spark reports a missing command in one line
    answer = _requested(found)
    if answer is None:
        return
    python, missing = answer
    here = Versions.here().python
    if python == here and not missing:
        return
    lacks = f"has no {', '.join(missing)}" if missing else "has another version"
    raise EnvironmentMismatchError(
        f"the session's Python workers would run {found} (Python {python}), which {lacks}; "
        f"this process runs {sys.executable} (Python {here})",
        f"set PYSPARK_PYTHON={sys.executable} before the session is made, or activate the virtual environment, "
        "or let arcbeam make the session",
    )


def _same_place(one: str, other: str) -> bool:
    """Return whether two commands are in one folder and are one file: a virtual environment is a folder of links."""
    try:
        return os.path.samefile(os.path.dirname(one), os.path.dirname(other)) and os.path.samefile(one, other)
    except OSError:
        return False


@remembered()
def _requested(command: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the version of an interpreter and the modules that it lacks; None if it does not answer."""
    try:
        done = subprocess.run(
            [command, "-c", _ASK % (_NEEDED,)], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        python, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return str(python), tuple(missing)
