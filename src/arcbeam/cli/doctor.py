"""Checks of the installation.

Owns the checks of the machine: versions, Java, memory, the temporary folder, Spark's addresses. Pure and fast: reads
files, installed distributions and `java -version`. It starts no Spark, and imports neither Beam nor PySpark, so that it
works when they are missing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from arcbeam.spark.session.java import Check, check_java, find_java

PYTHON_MINIMUM = (3, 11)
BEAM = "2.77"
"""The minor version of Beam whose internals this project is written against."""
PYSPARK_MINIMUM = (4, 1)
PYARROW_MINIMUM = (18,)
PANDAS_MINIMUM = (2, 2)
MEMORY_MINIMUM_MB = 2048
DISK_MINIMUM_MB = 1024


def check_python(version: tuple[int, int, int]) -> Check:
    """Check a Python version."""
    found = ".".join(map(str, version))
    if version[:2] >= PYTHON_MINIMUM:
        return Check("Python", True, found)
    wanted = ".".join(map(str, PYTHON_MINIMUM))
    return Check("Python", False, f"{found} is too old", f"install Python {wanted} or newer, and install arcbeam there")


def installed(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_beam(version: str | None) -> Check:
    """Check the installed Beam: exactly one minor version is accepted, because arcbeam uses its internals."""
    remedy = f"pip install 'apache-beam=={BEAM}.*'"
    if version is None:
        return Check("Apache Beam", False, "not installed", remedy)
    if _numbers(version)[:2] != _numbers(BEAM):
        return Check("Apache Beam", False, f"{version}; arcbeam needs {BEAM}", remedy)
    return Check("Apache Beam", True, version)


def check_minimum(name: str, distribution: str, version: str | None, minimum: tuple[int, ...]) -> Check:
    """Check a distribution with a minimum version."""
    remedy = f"pip install '{distribution}>={'.'.join(map(str, minimum))}'"
    if version is None:
        return Check(name, False, "not installed", remedy)
    if _numbers(version)[: len(minimum)] < minimum:
        return Check(name, False, f"{version} is too old", remedy)
    return Check(name, True, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def available_memory_mb() -> int | None:
    """Return the MiB available to a new process on this machine and in its container; None if unknown."""
    candidates = []
    try:
        meminfo = Path("/proc/meminfo").read_text()
        if match := re.search(r"MemAvailable:\s+(\d+) kB", meminfo):
            candidates.append(int(match.group(1)) // 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit.isdigit():
            candidates.append((int(limit) - int(used)) // 2**20)
    except OSError:
        pass  # not Linux, or no control groups of version 2: the earlier results are used
    if not candidates and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        candidates.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20)
    return min(candidates, default=None)


def check_memory(available_mb: int | None) -> Check:
    """Check the available memory."""
    if available_mb is None:
        return Check("Memory", True, "unknown on this system")
    if available_mb < MEMORY_MINIMUM_MB:
        remedy = f"free memory, or give the machine or container at least {MEMORY_MINIMUM_MB} MiB"
        return Check("Memory", False, f"{available_mb} MiB available", remedy)
    return Check("Memory", True, f"{available_mb} MiB available")


def check_temp(folder: str, minimum_mb: int = DISK_MINIMUM_MB) -> Check:
    """Check a temporary folder: it is writable and has free space."""
    remedy = "set TMPDIR (or --arcbeam_temp and spark.local.dir) to a writable folder with free space"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free_mb = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        return Check("Temporary folder", False, f"{folder} is not writable: {error.strerror}", remedy)
    if free_mb < minimum_mb:
        return Check("Temporary folder", False, f"{folder}: only {free_mb} MiB free", remedy)
    return Check("Temporary folder", True, f"{folder}: {free_mb} MiB free")


def check_ports(environ: Mapping[str, str] | None = None) -> Check:
    """Report Spark's addresses. A local session of arcbeam uses loopback unless the environment sets an address."""
    env = os.environ if environ is None else environ
    named = [f"{name}={env[name]}" for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME") if env.get(name)]
    local = f"the address of {', '.join(named)}" if named else "127.0.0.1 only"
    rest = "clusters and your own sessions use the ports in their Spark settings (docs/howto/security.md, Ports)"
    return Check("Spark's ports", True, f"local sessions of arcbeam: {local}, with authentication; {rest}")


def checks(environ: Mapping[str, str] | None = None) -> list[Check]:
    """Return the checks of all that a pipeline needs on this machine, each with its remedy.

    Args:
        environ: has JAVA_HOME and PATH (default: this process's environment).
    """
    v = sys.version_info
    found = [
        check_python((v.major, v.minor, v.micro)),
        check_java(find_java(environ)),
        check_minimum("PySpark", "pyspark", installed("pyspark") or installed("pyspark-client"), PYSPARK_MINIMUM),
        check_minimum("PyArrow", "pyarrow", installed("pyarrow"), PYARROW_MINIMUM),
        check_minimum("pandas", "pandas", installed("pandas"), PANDAS_MINIMUM),
        check_beam(installed("apache-beam")),
        check_memory(available_memory_mb()),
        check_temp(tempfile.gettempdir()),
        check_ports(environ),
    ]
    return [*found, Check("System", True, f"{platform.platform()}, {os.cpu_count()} CPUs")]
