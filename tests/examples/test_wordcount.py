"""Word count: its words, and all of it on two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import wordcount


@pytest.mark.parametrize(
    ("line", "words"),
    [("", []), ("It's a 'quoted' word", ["it's", "a", "quoted", "word"]), ("snake_case, x2", ["snake", "case", "x"])],
)
def test_words(line: str, words: list[str]) -> None:
    assert wordcount.words(line) == words


@pytest.mark.usefixtures("spark")
def test_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be\n")
    (tmp_path / "b.txt").write_text("To do\n" * 100)
    arguments = ["--runner=arcbeam.ArcbeamRunner", "--input", f"{tmp_path}/*.txt", "--output", str(tmp_path / "out")]
    assert wordcount.main(arguments) == 0
    assert dict(wordcount.read_counts(str(tmp_path / "out"))) == {"to": 102, "be": 2, "or": 1, "not": 1, "do": 100}
    assert capsys.readouterr().out.startswith("206 words, 5 different ones")
