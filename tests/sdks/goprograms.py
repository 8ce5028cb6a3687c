"""The programs of the Go SDK: how they are built and run, and what they have collected."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODULE = Path(__file__).parent / "go"
_SECONDS = 240.0
"""For a run. A build may take longer: it compiles the SDK once for each machine."""


GO_BOOT = "github.com/apache/beam/sdks/v2/go/container"
PYTHON_BOOT = "github.com/apache/beam/sdks/v2/python/container"


def built(package: str, folder: Path, *how: str) -> Path:
    """Build a program of the module, or of a module that it requires; skip the test where that is impossible.

    Args:
        package: "./programs", or a package of the SDK: `GO_BOOT`, `PYTHON_BOOT`.
        folder: for the program.
        how: the command of `go`; ("build",) if empty. ("test", "-c") builds the package's tests.
    """
    if shutil.which("go") is None:
        pytest.skip("there is no `go` on this machine")
    known = subprocess.run(
        ["go", "list", "-deps", package], cwd=MODULE, capture_output=True, text=True, timeout=_SECONDS
    )
    if known.returncode:
        pytest.skip(f"the Go module is not available: {known.stderr.strip().splitlines()[-1]}")
    path = folder / package.strip("./").replace("/", "-")
    made = subprocess.run(
        ["go", *(how or ("build",)), "-buildvcs=false", "-o", str(path), package],
        cwd=MODULE,
        capture_output=True,
        text=True,
    )
    assert not made.returncode, made.stderr
    return path


@contextmanager
def programs_in(folder: Path) -> Iterator[Path]:
    """Build "./programs". At the end, remove its copies: Go's boot program makes one in /tmp for each worker."""
    binary, mark = built("./programs", folder), uuid.uuid4().bytes
    with binary.open("ab") as file:
        file.write(mark)  # bytes after a program's end do nothing
    yield binary
    for copy in Path("/tmp").glob("bin*/worker"):  # not ours to choose
        with contextlib.suppress(OSError), copy.open("rb") as file:
            file.seek(-len(mark), os.SEEK_END)
            if file.read() == mark:
                shutil.rmtree(copy.parent)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of a program.

    Attributes:
        code: exit status; 0: the job is done.
        log: what it has written to its standard error.
        collected: the sorted lines of each file that it has written.
    """

    code: int
    log: str
    collected: dict[str, list[str]]

    def metrics(self) -> dict[str, Any]:
        """Return the values of the user's metrics by name."""
        return {each["name"]: each["value"] for each in map(json.loads, self.collected["metrics"])}


def process(boot: Path, **environment: str) -> tuple[str, ...]:
    """Return the options of a PROCESS environment with a boot program."""
    config = json.dumps({"command": str(boot), "env": environment})
    return "--environment_type=PROCESS", f"--environment_config={config}"


def ran(binary: Path, program: str, output: Path, *arguments: str) -> Ran:
    """Run a program to its end.

    Args:
        binary: the built programs.
        program: which of them.
        output: an empty folder.
        arguments: more of them, as the runner.
    """
    command = [str(binary), f"--program={program}", f"--output={output}", *arguments]
    # The Go SDK leaves the worker binary that it builds: 200 MB for each run.
    with tempfile.TemporaryDirectory() as scratch:
        environ = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=output, env=environ)
    collected = {path.name: sorted(path.read_text().splitlines()) for path in output.iterdir() if path.is_file()}
    return Ran(done.returncode, done.stderr, collected)
