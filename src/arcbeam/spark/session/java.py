"""The Java that Spark would start, and whether Spark can run on it.

Owns the search and the check. Imports neither Beam nor PySpark, so that `arcbeam doctor` works when they are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from arcbeam.errors import SetupError

JAVA_MINIMUM = 17

_JAVA_REMEDY = (
    f"install a Java runtime {JAVA_MINIMUM} or newer (Debian, Ubuntu: apt-get install default-jre-headless; "
    "macOS: brew install openjdk; elsewhere: https://adoptium.net) and put it on PATH or point JAVA_HOME at it. "
    "Only --spark_remote with a server elsewhere works without Java"
)
_VERSION = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the installation and its result.

    Attributes:
        name: the subject of the check.
        ok: whether a pipeline can run with it.
        found: what was found, for display.
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
        version: the version that it reports, for example "17.0.15" or "1.8.0_392"; empty if it could not be run or
            read.
        origin: "JAVA_HOME" or "PATH".
        problem: why `version` is empty.
    """

    path: str
    version: str
    origin: str
    problem: str = ""

    @property
    def major(self) -> int:
        """The major version: 17 for "17.0.15", 8 for "1.8.0_392"; 0 if there is no version."""
        numbers = [int(n) for n in re.findall(r"\d+", self.version)[:2]]
        if not numbers:
            return 0
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java(environ: Mapping[str, str] | None = None) -> Java | None:
    """Return the Java that Spark would start: that of JAVA_HOME if it is set, else the first on PATH.

    Args:
        environ: where to look up JAVA_HOME and PATH (default: this process's environment).

    Returns:
        None if there is no Java. A Java that cannot be run is returned with an empty version.
    """
    env = os.environ if environ is None else environ
    home = env.get("JAVA_HOME", "")
    if home:
        # SUBTLE: Spark does not fall back to PATH if JAVA_HOME is set and wrong, so neither does this function.
        return _ask(str(Path(home, "bin", "java")), "JAVA_HOME")
    path = shutil.which("java", path=env.get("PATH", ""))
    return _ask(path, "PATH") if path else None


def _ask(path: str, origin: str) -> Java:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java(path, "", origin, f"{type(error).__name__}: {error}")
    match = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    if match is None:
        words = (done.stderr or done.stdout).strip().splitlines()
        return Java(path, "", origin, words[0] if words else f"exit code {done.returncode}, no output")
    return Java(path, match.group(1), origin)


def check_java(java: Java | None) -> Check:
    """Check the Java that was found: none, one that does not run, one too old, or a suitable one."""
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
    """Return the Java that Spark will start, if Spark can run on it.

    Args:
        environ: where to look up JAVA_HOME and PATH (default: this process's environment).

    Raises:
        SetupError: there is no Java, it does not run, or it is too old.
    """
    java = find_java(environ)
    check = check_java(java)
    if java is None or not check.ok:
        raise SetupError(f"Spark cannot start: {check.found}", check.remedy)
    return java
