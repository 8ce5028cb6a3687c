"""Runs the tests in concurrent processes: one for those that share a Spark session, and one per core for all others.

    python tools/run_tests.py [PYTEST ARGUMENT ...]

Tests with the shared session mostly wait for Spark, and take longest; the others use what processor time is left. All
tests of a file run in one process. The output of the first is shown at once, that of the others when all have ended. An
argument `-m EXPRESSION` narrows both. The exit code is 0 if both succeed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_BYTECODE = Path(__file__).resolve().parent.parent / "build" / "bytecode"


def main(arguments: Sequence[str]) -> int:
    """Run the tests; return the exit code."""
    given, chosen = _split(list(arguments))
    with tempfile.TemporaryFile("w+") as output:
        own = ["-q", "-o", "cache_dir=.pytest_cache/others", "-n", str(_cores()), "--dist", "loadfile"]
        # Otherwise files with few tests come last, which are the longest: at the end, processes would wait for one.
        own.append("--no-loadscope-reorder")
        others = _started("not spark", chosen, [*own, *given], output, last=True)
        try:
            codes = [_started("spark", chosen, given).wait()]
            codes.append(others.wait())
        finally:
            others.kill()
        output.seek(0)
        print("\nThe tests without the shared Spark session:\n", output.read(), sep="\n")
    return max(codes)


def _split(arguments: list[str]) -> tuple[list[str], str]:
    """Return the arguments without `-m EXPRESSION`, and the expression."""
    if "-m" not in arguments:
        return arguments, ""
    at = arguments.index("-m")
    return arguments[:at] + arguments[at + 2 :], arguments[at + 1]


def _cores() -> int:
    """Return how many cores this process may use; at most 8, because each process takes memory."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _started(
    which: str, chosen: str, given: list[str], output: IO[str] | None = None, last: bool = False
) -> subprocess.Popen[bytes]:
    expression = f"{which} and ({chosen})" if chosen else which
    command = [sys.executable, "-m", "pytest", "-m", expression, *given]
    environ = dict(os.environ)
    if environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Tests start hundreds of processes, which would each compile all modules.
        environ["PYTHONPYCACHEPREFIX"] = str(_BYTECODE)
    if last and (nice := shutil.which("nice")) is not None:
        command = [nice, "-n", "5", *command]
    return subprocess.Popen(command, stdout=output, env=environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
