"""Words of files that arrive while the pipeline runs: each counted once, in a window that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.streaming_words import main


@pytest.mark.contract("API-01", "IO-01")
@pytest.mark.usefixtures("spark")
def test_each_file_is_counted_once(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a").write_text("to be or not to be")
    (folder / "b").write_text("Not yet")
    options = ["--runner=arcbeam.ArcbeamRunner", "--streaming", f"--folder={folder}", f"--output={output}"]
    assert main([*options, "--every=1", "--seconds=3"]) == 0
    lines = [line for file in output.iterdir() for line in file.read_text().splitlines()]
    assert lines == ["be\t2", "not\t2", "to\t2", "or\t1", "yet\t1"]
