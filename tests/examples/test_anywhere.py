"""The examples are what users copy: each is a script that runs from any folder and does not depend on its name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name != "__init__.py")
OFFLINE = [path for path in SCRIPTS if path.stem not in ("flight_delays", "kafka_to_kafka")]
"""Examples that fetch no data, and need no broker."""


def called(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Return the output of a command in a folder from which the examples cannot be imported."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_no_example_imports_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not [name for name in names if name.split(".")[0] == "examples"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_starts(path: Path, tmp_path: Path) -> None:
    done = called(tmp_path, path, "--help")
    assert (done.returncode, "--output" in done.stdout) == (0, True), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("path", OFFLINE, ids=lambda path: path.stem)
@pytest.mark.parametrize("with_arcbeam", [False, True])
def test_each_runs(path: Path, with_arcbeam: bool, tmp_path: Path) -> None:
    command = ["-c", "from arcbeam.cli.main import main; main()", "run"] if with_arcbeam else []
    streaming = path.stem.startswith("streaming") or path.stem == "exactly_once_sql"
    done = called(tmp_path, *command, path, *(["--streaming"] if streaming and with_arcbeam else []))
    assert done.returncode == 0, done.stderr
    if streaming and not with_arcbeam:
        return  # Beam's own runner lists the folder once
    assert list((tmp_path / "build").iterdir()), "results must be below the current folder"
    assert done.stdout.strip(), "it must print the results"
    assert "incubator" not in done.stderr
