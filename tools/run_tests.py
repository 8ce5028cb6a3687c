"""Runs the tests in two processes side by side: those that share a Spark session, and all others.

    python tools/run_tests.py [PYTEST ARGUMENT ...]

What shares a session waits for Spark most of the time; the others compute. The first are shown as they go, the others
when both have ended. An argument `-m EXPRESSION` narrows both. Ends with 0 if both do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Runs them; the exit code."""
    given, chosen = _split(list(arguments))
    with tempfile.TemporaryFile("w+") as told:
        others = _started("not spark", chosen, ["-q", "-o", "cache_dir=.pytest_cache/others", *given], told)
        try:
            codes = [_started("spark", chosen, given).wait()]
            codes.append(others.wait())
        finally:
            others.kill()
        told.seek(0)
        print("\nThe tests without the shared Spark session:\n", told.read(), sep="\n")
    return max(codes)


def _split(arguments: list[str]) -> tuple[list[str], str]:
    """The arguments without `-m EXPRESSION`, and the expression."""
    if "-m" not in arguments:
        return arguments, ""
    at = arguments.index("-m")
    return arguments[:at] + arguments[at + 2 :], arguments[at + 1]


def _started(which: str, chosen: str, given: list[str], told: object = None) -> subprocess.Popen[bytes]:
    expression = f"{which} and ({chosen})" if chosen else which
    return subprocess.Popen([sys.executable, "-m", "pytest", "-m", expression, *given], stdout=told)  # type: ignore[call-overload, no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
