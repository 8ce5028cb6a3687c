"""The interpreter of a local session that the user made."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arcbeam.errors import EnvironmentMismatchError
from arcbeam.spark.session import interpreter


def _session(command: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=command))


def _python(folder: Path, arguments: str) -> str:
    command = folder / "python3"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
    command.chmod(0o755)
    return str(command)


@pytest.mark.contract("API-05")
def test_interpreter_without_arcbeam_is_refused(tmp_path: Path) -> None:
    command = _python(tmp_path, "-I -S")
    with pytest.raises(EnvironmentMismatchError) as caught:
        interpreter.check(_session(command))
    assert command in caught.value.message
    assert "arcbeam, apache_beam" in caught.value.message
    assert f"PYSPARK_PYTHON={sys.executable}" in caught.value.remedy


@pytest.mark.parametrize("command", [sys.executable, "no-such-python", ""])
def test_same_or_missing_interpreter_is_not_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_requested", None)
    interpreter.check(_session(command))


def test_link_to_same_environment_is_accepted(tmp_path: Path) -> None:
    interpreter.check(_session(_python(tmp_path, "")))


def test_silent_interpreter_is_left_to_spark() -> None:
    silent = shutil.which("true")
    assert silent
    interpreter.check(_session(silent))
