"""Is everything here that a pipeline needs?

Owns the checks of the machine: versions, Java, memory, the temporary folder, Spark's addresses. Pure and fast: looks at
files, installed distributions and `java -version`; starts no Spark and imports neither Beam nor PySpark, so that it
can speak when they are missing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from arcbeam.errors import SetupError

PYTHON_MINIMUM = (3, 11)
JAVA_MINIMUM = 17
BEAM = "2.77"
"""The minor version of Beam whose internals this project is written against."""
PYSPARK_MINIMUM = (4, 1)
PYARROW_MINIMUM = (18,)
PANDAS_MINIMUM = (2, 2)
MEMORY_MINIMUM_MB = 2048
DISK_MINIMUM_MB = 1024

_JAVA_REMEDY = (
    f"install a Java runtime {JAVA_MINIMUM} or newer (Debian, Ubuntu: apt-get install default-jre-headless; "
    "macOS: brew install openjdk; elsewhere: https://adoptium.net) and put it on PATH or point JAVA_HOME at it; "
    "only --spark_remote with a server elsewhere does without"
)
_VERSION = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at and what came of it.

    Attributes:
        name: what was looked at.
        ok: whether a pipeline can run with it.
        found: what is there, for people.
        remedy: what to do; empty if ok.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Java:
    """The Java that Spark would start.

    Attributes:
        path: the executable.
        version: as it says itself, for example "17.0.15" or "1.8.0_392"; empty if it could not be run or read.
        origin: "JAVA_HOME" or "PATH".
        problem: why `version` is empty.
    """

    path: str
    version: str
    origin: str
    problem: str = ""

    @property
    def major(self) -> int:
        """17 of "17.0.15", 8 of "1.8.0_392"; 0 if there is no version."""
        numbers = [int(n) for n in re.findall(r"\d+", self.version)[:2]]
        if not numbers:
            return 0
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java(environ: Mapping[str, str] | None = None) -> Java | None:
    """The Java that Spark would start: of JAVA_HOME if that is set, else the first on PATH.

    Args:
        environ: where JAVA_HOME and PATH are looked up (default: this process's environment).

    Returns:
        None if there is none. A Java that cannot be run comes back with an empty version.
    """
    env = os.environ if environ is None else environ
    home = env.get("JAVA_HOME", "")
    if home:
        # SUBTLE: Spark does not fall back to PATH when JAVA_HOME is set and wrong, so neither do we.
        return _ask(str(Path(home, "bin", "java")), "JAVA_HOME")
    path = shutil.which("java", path=env.get("PATH", ""))
    return _ask(path, "PATH") if path else None


def _ask(path: str, origin: str) -> Java:
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(path, "", origin, f"{type(error).__name__}: {error}")
    match = _VERSION.search(said.stderr) or _VERSION.search(said.stdout)
    if match is None:
        words = (said.stderr or said.stdout).strip().splitlines()
        return Java(path, "", origin, words[0] if words else f"exit code {said.returncode}, no output")
    return Java(path, match.group(1), origin)


def check_java(java: Java | None) -> Check:
    """Judges the Java that was found: none, one that does not run, one too old, or a good one."""
    if java is None:
        return Check("Java", False, "no Java: JAVA_HOME is not set and there is no java on PATH", _JAVA_REMEDY)
    where = f"{java.path} (from {java.origin})"
    if not java.version:
        return Check("Java", False, f"{where} does not run: {java.problem}", _JAVA_REMEDY)
    if java.major < JAVA_MINIMUM:
        found = f"Java {java.version} at {where} is too old: Spark 4 needs {JAVA_MINIMUM} or newer"
        return Check("Java", False, found, _JAVA_REMEDY)
    return Check("Java", True, f"{java.version} at {where}")


def require_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will start, if it can run Spark.

    Args:
        environ: where JAVA_HOME and PATH are looked up (default: this process's environment).

    Raises:
        SetupError: there is none, it does not run, or it is too old.
    """
    java = find_java(environ)
    check = check_java(java)
    if java is None or not check.ok:
        raise SetupError(f"Spark cannot start: {check.found}", check.remedy)
    return java


def check_python(version: tuple[int, int, int]) -> Check:
    """Judges a Python version."""
    found = ".".join(map(str, version))
    if version[:2] >= PYTHON_MINIMUM:
        return Check("Python", True, found)
    wanted = ".".join(map(str, PYTHON_MINIMUM))
    return Check("Python", False, f"{found} is too old", f"install Python {wanted} or newer and arcbeam in it")


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_beam(version: str | None) -> Check:
    """Judges the installed Beam: exactly one minor version will do, because its internals are used."""
    remedy = f"pip install 'apache-beam=={BEAM}.*'"
    if version is None:
        return Check("Apache Beam", False, "not installed", remedy)
    if _numbers(version)[:2] != _numbers(BEAM):
        return Check("Apache Beam", False, f"{version}; arcbeam is made for {BEAM}", remedy)
    return Check("Apache Beam", True, version)


def check_minimum(name: str, distribution: str, version: str | None, minimum: tuple[int, ...]) -> Check:
    """Judges a distribution of which any version from `minimum` on will do."""
    remedy = f"pip install '{distribution}>={'.'.join(map(str, minimum))}'"
    if version is None:
        return Check(name, False, "not installed", remedy)
    if _numbers(version)[: len(minimum)] < minimum:
        return Check(name, False, f"{version} is too old", remedy)
    return Check(name, True, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def available_memory_mb() -> int | None:
    """MiB that a new process could have now, within this machine and its container; None if that cannot be known."""
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
        pass  # not Linux, or no second version of control groups: what was found so far holds
    if not candidates and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        candidates.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20)
    return min(candidates, default=None)


def check_memory(available_mb: int | None) -> Check:
    """Judges the memory that is free."""
    if available_mb is None:
        return Check("Memory", True, "unknown on this system")
    if available_mb < MEMORY_MINIMUM_MB:
        remedy = f"free some, or give the machine or container at least {MEMORY_MINIMUM_MB} MiB"
        return Check("Memory", False, f"{available_mb} MiB available", remedy)
    return Check("Memory", True, f"{available_mb} MiB available")


def check_temp(folder: str, minimum_mb: int = DISK_MINIMUM_MB) -> Check:
    """Judges a temporary folder: it can be written to, and has some space."""
    remedy = "point TMPDIR (or --arcbeam_temp and spark.local.dir) at a folder with space that you may write to"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free_mb = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        return Check("Temporary folder", False, f"{folder} cannot be written to: {error.strerror}", remedy)
    if free_mb < minimum_mb:
        return Check("Temporary folder", False, f"{folder}: only {free_mb} MiB free", remedy)
    return Check("Temporary folder", True, f"{folder}: {free_mb} MiB free")


def check_ports(environ: Mapping[str, str] | None = None) -> Check:
    """Says where Spark listens; a local session of arcbeam's is on loopback unless the environment names an address."""
    env = os.environ if environ is None else environ
    named = [f"{name}={env[name]}" for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME") if env.get(name)]
    local = f"the address of {', '.join(named)}" if named else "127.0.0.1 only"
    rest = "clusters and sessions of your own: as their settings say (docs/howto/security.md, Ports)"
    return Check("Spark's ports", True, f"local sessions of arcbeam: {local}, with authentication; {rest}")


def checks(environ: Mapping[str, str] | None = None) -> list[Check]:
    """Everything a pipeline needs on this machine, each with what to do if it is not right.

    Args:
        environ: where JAVA_HOME and PATH are looked up (default: this process's environment).
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
