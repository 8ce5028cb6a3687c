"""Errors while reading a file name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io import filebasedsource

from arcbeam.harness.files import filenames
from tests.harness.drive import Collect, Driven


class Picky(filebasedsource.FileBasedSource):
    """One record per file; fails on some files."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern, splittable=False, validate=False)

    def read_records(self, file_name: str, tracker: Any) -> Any:
        text = Path(file_name).read_text()
        if text == "bad":
            raise ValueError("no record")
        yield text


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for n, text in enumerate(["good", "fine", "bad"]):
        (tmp_path / f"{n}.txt").write_text(text)
    return tmp_path


def notes_of(p: Any, message: str = "no record") -> list[str]:
    """Return the notes of the exception that a pipeline's user code has raised."""
    with pytest.raises(Exception, match=message) as caught:
        p.run()
    error: BaseException = caught.value
    while getattr(error, "_tagged_with_step", False) and error.__context__ is not None:
        error = error.__context__
    filenames.note_file(error)
    filenames.note_file(error)
    return getattr(error, "__notes__", [])


def refuse_bad(line: str) -> str:
    if line == "bad":
        raise ValueError("no record")
    return line


@pytest.mark.contract("IO-01", "BAT-04")
class TestTheFileIsNamed:
    @pytest.mark.parametrize("lists", [True, False])
    def test_error_of_source_names_file(self, files: Path, lists: bool) -> None:
        p = Driven(record_lists=lists)
        _ = p | beam.io.Read(Picky(f"{files}/*.txt")) | Collect()
        assert notes_of(p) == [f"  while reading {files}/2.txt"]

    @pytest.mark.parametrize("lists", [True, False])
    def test_error_of_invalid_text_names_file(self, files: Path, lists: bool) -> None:
        (files / "1.txt").write_bytes(b"fine\n\xff\n")
        p = Driven(record_lists=lists)
        _ = p | beam.io.ReadFromText(f"{files}/*.txt") | Collect()
        assert notes_of(p, "decode") == [f"  while reading {files}/1.txt"]

    def test_error_of_read_all_names_file(self, files: Path) -> None:
        p = Driven()
        read = filebasedsource.ReadAllFiles(False, "auto", 1 << 20, 0, Picky)
        _ = p | beam.Create([f"{files}/*.txt"]) | read | Collect()
        assert notes_of(p) == [f"  while reading {files}/2.txt"]

    def test_error_on_record_names_no_file(self, files: Path) -> None:
        p = Driven()
        _ = p | beam.io.ReadFromText(f"{files}/*.txt") | beam.Map(refuse_bad) | Collect()
        assert notes_of(p) == []
