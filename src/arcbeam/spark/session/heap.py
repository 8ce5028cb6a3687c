"""How much memory the JVM of a local session of our own may use.

Spark's default is 1 GiB whatever the machine. In a local session that one heap serves all tasks: what they exchange,
sort and keep for a second reader. Owns the default; what the user has set anywhere comes first, and sessions of the
user's and of clusters are not touched.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from arcbeam.spark.session.sparklog import conf_folder

_KEY = "spark.driver.memory"
_LEAST, _MOST = 1 << 30, 16 << 30
_SHARE = 4
"""A quarter, as Java takes it when nobody says more: the rest is for the Python workers and the page cache."""

_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def settings(
    chosen: Mapping[str, str], environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> dict[str, str]:
    """The heap of a local session that starts a JVM; nothing if the user says how much.

    Args:
        chosen: the user's settings of the session.
        environ: of Spark (default: this process's environment).
        root: where the system tells its limits.
    """
    env = os.environ if environ is None else environ
    if _KEY in chosen or env.get("SPARK_DRIVER_MEMORY") or "driver" in env.get("PYSPARK_SUBMIT_ARGS", ""):
        return {}
    with contextlib.suppress(OSError):
        defaults = (conf_folder(env) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        if re.search(rf"^\s*{re.escape(_KEY)}\b", defaults, re.MULTILINE):
            return {}
    heap = min(max(_LEAST, available(root) // _SHARE), _MOST)
    return {_KEY: f"{heap >> 20}m"}


def available(root: Path = Path("/")) -> int:
    """Bytes of memory that this process can have: the machine's, or what its container is given."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found = min(found, int((root / name).read_text(encoding="ascii")))
    return found
