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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from arcbeam.spark.session.java import Check, check_java, find_java

MEMORY_MINIMUM_MB = 2048
DISK_MINIMUM_MB = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """The versions from `minimum` on, before `below` (None: without an end)."""

    minimum: tuple[int, ...]
    below: tuple[int, ...] | None = None

    @staticmethod
    def parse(text: str) -> Range:
        """Read `>=2.76,<2.78`, in any order, with other text around it."""
        lower = re.search(r">=\s*([\d.]+)", text)
        upper = re.search(r"<\s*([\d.]+)", text)
        return Range(_numbers(lower[1]) if lower else (), _numbers(upper[1]) if upper else None)

    def __contains__(self, version: str) -> bool:
        numbers = _numbers(version)
        if numbers[: len(self.minimum)] < self.minimum:
            return False
        return self.below is None or numbers[: len(self.below)] < self.below

    def __str__(self) -> str:
        lower = f">={'.'.join(map(str, self.minimum))}" if self.minimum else ""
        upper = f"<{'.'.join(map(str, self.below))}" if self.below else ""
        return ",".join(filter(None, (lower, upper)))


def ranges(requirements: Iterable[str]) -> dict[str, Range]:
    """Return the accepted versions of each distribution that is always needed, from a package's requirements."""
    found = {}
    for requirement in requirements:
        needed, _, marker = requirement.partition(";")
        if (name := re.match(r"[A-Za-z0-9_.-]+", needed)) and "extra" not in marker:
            found[name[0]] = Range.parse(needed)
    return found


def accepted() -> dict[str, Range]:
    """Return the versions that the installed arcbeam accepts, by distribution, and of Python; empty if not installed.

    Their only source is `pyproject.toml`, of which the installed metadata is a copy.
    """
    try:
        metadata = importlib.metadata.metadata("arcbeam")
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {**ranges(metadata.get_all("Requires-Dist") or ()), "python": Range.parse(metadata["Requires-Python"] or "")}


def installed(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python(version: tuple[int, int, int], range_: Range) -> Check:
    """Check a Python version."""
    found = ".".join(map(str, version))
    if found in range_:
        return Check("Python", True, found)
    return Check("Python", False, f"{found}; arcbeam needs {range_}", "install arcbeam in such a Python")


def check_version(name: str, distribution: str, version: str | None, range_: Range) -> Check:
    """Check the version of a distribution."""
    remedy = f"pip install '{distribution}{range_}'"
    if version is None:
        return Check(name, False, "not installed", remedy)
    if version not in range_:
        return Check(name, False, f"{version}; arcbeam needs {range_}", remedy)
    return Check(name, True, version)


def check_itself(version: str | None) -> Check:
    """Check that arcbeam's metadata is installed: without it the accepted versions are unknown."""
    if version is None:
        return Check("arcbeam", False, "not installed", "pip install arcbeam; in its source tree: pip install -e .")
    return Check("arcbeam", True, version)


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


def check_local_dirs(environ: Mapping[str, str] | None = None) -> Check:
    """Report whether other users of this machine can read the data that Spark keeps on disk."""
    env = os.environ if environ is None else environ
    roots = env.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    own = ", ".join(f"{root.strip()}/arcbeam-{os.getuid()}/spark" for root in roots.split(","))
    rest = (
        "other users can read the data of your own sessions, unless spark.local.dir is a folder with mode 0700 "
        "(docs/howto/security.md, Files)"
    )
    return Check("Spark's files", True, f"local sessions of arcbeam: {own}, private; {rest}")


def checks(environ: Mapping[str, str] | None = None) -> list[Check]:
    """Return the checks of all that a pipeline needs on this machine, each with its remedy.

    Args:
        environ: has JAVA_HOME and PATH (default: this process's environment).
    """
    v = sys.version_info
    of = accepted()
    anything = Range(())
    found = [
        check_itself(installed("arcbeam")),
        check_python((v.major, v.minor, v.micro), of.get("python", anything)),
        check_java(find_java(environ)),
        *(
            check_version(name, distribution, version, of.get(distribution, anything))
            for name, distribution, version in (
                ("PySpark", "pyspark", installed("pyspark") or installed("pyspark-client")),
                ("PyArrow", "pyarrow", installed("pyarrow")),
                ("pandas", "pandas", installed("pandas")),
                ("Apache Beam", "apache-beam", installed("apache-beam")),
            )
        ),
        check_memory(available_memory_mb()),
        check_temp(tempfile.gettempdir()),
        check_ports(environ),
        check_local_dirs(environ),
    ]
    return [*found, Check("System", True, f"{platform.platform()}, {os.cpu_count()} CPUs")]
