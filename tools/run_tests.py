"""Runs the tests in two concurrent processes: those that share a Spark session, and all others.

    python tools/run_tests.py [PYTEST ARGUMENT ...]

Tests with the shared session mostly wait for Spark; the others compute. The output of the first is shown at once, that
of the others when both have ended. An argument `-m EXPRESSION` narrows both. The exit code is 0 if both succeed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the tests; return the exit code."""
    given, chosen = _split(list(arguments))
    with tempfile.TemporaryFile("w+") as output:
        others = _started("not spark", chosen, ["-q", "-o", "cache_dir=.pytest_cache/others", *given], output)
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


def _started(which: str, chosen: str, given: list[str], output: object = None) -> subprocess.Popen[bytes]:
    expression = f"{which} and ({chosen})" if chosen else which
    return subprocess.Popen([sys.executable, "-m", "pytest", "-m", expression, *given], stdout=output)  # type: ignore[call-overload, no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
