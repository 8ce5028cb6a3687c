"""The folders in which Spark keeps elements on disk, in a session that arcbeam makes on this machine: private ones.

Owns the setting. Spark creates its folder for shuffle data in the temporary folder, readable for all users of the
machine. So each folder that is configured (`SPARK_LOCAL_DIRS`, `spark.local.dir`, else the temporary folder) is
replaced by this user's folder in it. Sessions of users and of clusters are not changed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Final

from arcbeam.errors import SetupError
from arcbeam.spark.session.listening import Listening, is_on_this_machine
from arcbeam.spark.session.sparklog import conf_folder
from arcbeam.store.blobs.private import NotOursError, make_own_folder, own_folder, user_folder

SETTING: Final = "spark.local.dir"
VARIABLE: Final = "SPARK_LOCAL_DIRS"
"""It has priority over the setting."""
_NAME: Final = "spark"


def in_private_folders(master: str, chosen: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Listening:
    """Return the setting and the environment with which a session keeps its data in private folders.

    Args:
        master: the session's master.
        chosen: the user's settings of the session.
        environ: Spark's environment (default: this process's environment).

    Raises:
        SetupError: another user may have created such a folder.
        StoreError: the same, of the temporary folder.
    """
    env = os.environ if environ is None else environ
    if not is_on_this_machine(master):
        return Listening()
    if roots := env.get(VARIABLE):
        return Listening({}, {VARIABLE: private(roots)})
    roots = chosen.get(SETTING) or _elsewhere(env)
    return Listening({SETTING: private(roots) if roots else str(own_folder(_NAME))})


def private(roots: str) -> str:
    """Return this user's folders in some folders, separated by commas; create them if needed.

    Raises:
        SetupError: another user may have created one.
    """
    return ",".join(_private(root.strip()) for root in roots.split(",") if root.strip())


def _private(root: str) -> str:
    folder = user_folder(root) / _NAME
    try:
        make_own_folder(folder.parent)
        make_own_folder(folder)
    except NotOursError as e:
        raise SetupError(
            f"Spark cannot keep its data in '{root}': '{e.filename}' is unsafe, because {e.strerror}",
            f"remove it, or choose another folder with {SETTING} or {VARIABLE}",
        ) from e
    except OSError:
        return root  # Spark leaves out a folder in which it cannot write
    return str(folder)


def _elsewhere(env: Mapping[str, str]) -> str:
    """Return the setting in Spark's command line or file of defaults; "" if it is in neither."""
    name = re.escape(SETTING)
    if found := re.findall(rf"\b{name}=([^\s'\"]+)", env.get("PYSPARK_SUBMIT_ARGS", "")):
        return str(found[-1])
    with contextlib.suppress(OSError):
        text = (conf_folder(env) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        if found := re.findall(rf"^\s*{name}[\s=:]+(\S+)", text, re.MULTILINE):
            return str(found[-1])
    return ""
