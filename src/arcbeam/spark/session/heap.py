"""The memory of the JVM of a local session that arcbeam makes.

Spark's default is 1 GiB on any machine. In a local session that one heap serves all tasks: data that they exchange,
sort and persist. Owns the default. The user's settings have priority, and sessions of users and of clusters are not
changed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from arcbeam.spark.session.sparklog import conf_folder

_KEY = "spark.driver.memory"
_HEAP_BYTES_MIN, _HEAP_BYTES_MAX = 1 << 30, 16 << 30
_SHARE = 4
"""A quarter, as is Java's own default. The rest is for the Python workers and the page cache."""

_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def settings(
    chosen: Mapping[str, str], environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> dict[str, str]:
    """Return the heap setting of a local session that starts a JVM; empty if the user has set it.

    Args:
        chosen: the user's settings of the session.
        environ: Spark's environment (default: this process's environment).
        root: the folder with the system's limits.
    """
    env = os.environ if environ is None else environ
    if _KEY in chosen or env.get("SPARK_DRIVER_MEMORY") or "driver" in env.get("PYSPARK_SUBMIT_ARGS", ""):
        return {}
    with contextlib.suppress(OSError):
        defaults = (conf_folder(env) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        if re.search(rf"^\s*{re.escape(_KEY)}\b", defaults, re.MULTILINE):
            return {}
    heap = min(max(_HEAP_BYTES_MIN, available(root) // _SHARE), _HEAP_BYTES_MAX)
    return {_KEY: f"{heap >> 20}m"}


def available(root: Path = Path("/")) -> int:
    """Return the bytes of memory for this process: the machine's, or its container's limit."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found = min(found, int((root / name).read_text(encoding="ascii")))
    return found
