"""Part files of bounded jobs on Spark: written after a source that runs in rounds, published at the end or never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from arcbeam.io import JsonLines, Roll, WriteParts
from tests.io.parts.jobs import left, published, successes

pytestmark = pytest.mark.usefixtures("spark")
LINES = [str(n) for n in range(1000)]


def write(folder: Path, last: Any = None, **arguments: Any) -> None:
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([])) as p:
        lines = p | beam.io.ReadFromText(str(folder / "lines"))
        parts = lines | WriteParts(str(folder / "out"), **arguments)
        if last is not None:
            _ = parts | beam.Map(last)
        lines | "Shards" >> WriteParts(str(folder / "shards"), JsonLines(), shards=2)


@pytest.mark.contract("END-01", "END-06")
def test_all_parts_or_none_are_published(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n")

    def fail(part: Any) -> None:
        raise ValueError(f"seen {part.path}")

    with pytest.raises(UserCodeError, match="seen"):
        write(tmp_path, fail)
    assert published(tmp_path / "out") == published(tmp_path / "shards") == {}
    assert left(tmp_path) == []

    write(tmp_path, roll=Roll(elements=300), success="_SUCCESS")
    found = published(tmp_path / "out")
    assert sorted((line for lines in found.values() for line in lines), key=int) == LINES
    assert max(map(len, found.values())) <= 300
    (success,) = successes(tmp_path / "out").values()
    assert {file["name"]: file["records"] for file in success["files"]} == {n: len(of) for n, of in found.items()}
    assert list(published(tmp_path / "shards")) == ["part-00000-00000.jsonl", "part-00001-00000.jsonl"]
    assert left(tmp_path) == []

    write(tmp_path, roll=Roll(elements=1000), shards=1)
    again = published(tmp_path / "out")
    assert len(again) < len(found)
    assert sorted((line for lines in again.values() for line in lines), key=int) == LINES
    assert left(tmp_path) == []
