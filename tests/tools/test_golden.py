"""The helper that compares messages with golden files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden import check_message, texts


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Golden files of this test alone."""
    monkeypatch.setattr(texts, "_MESSAGES", tmp_path)
    monkeypatch.delenv("ARCBEAM_GOLDEN", raising=False)
    return tmp_path


def test_update_writes_text_with_placeholders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCBEAM_GOLDEN", "update")
    check_message(
        "cannot-drain", "Cannot drain /x/job in /x: 3.25 s", PATH="/x/job", DIR="/x", TIME=re.compile(r"\d+\.\d+")
    )
    assert (folder / "cannot-drain.txt").read_text() == "Cannot drain {PATH} in {DIR}: {TIME} s\n"


def test_same_text_passes(folder: Path) -> None:
    (folder / "a.txt").write_text("no job at {PATH}\n")
    check_message("a", "no job at /tmp/1", PATH=Path("/tmp/1"))


def test_other_text_fails(folder: Path) -> None:
    (folder / "a.txt").write_text("no job\n")
    with pytest.raises(AssertionError, match=r"-no job\n\+a job"):
        check_message("a", "a job")


def test_missing_file_fails() -> None:
    with pytest.raises(AssertionError, match=r"no golden text a\.txt"):
        check_message("a", "text")


def test_malformed_id_is_refused() -> None:
    with pytest.raises(ValueError, match="lower-case"):
        check_message("../a", "text")
