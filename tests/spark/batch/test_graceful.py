"""Calls of DoFns at the end of a bounded pipeline."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from tests.ends import Tells, TellsAndCounts, called
from tests.notes import note, noted

pytestmark = pytest.mark.usefixtures("spark")


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=1", *arguments]))


@pytest.mark.contract("END-05")
def test_bounded_pipeline_prepares_then_shuts_down_dofns(tmp_path: Path) -> None:
    calls, out = tmp_path / "calls", tmp_path / "out"
    out.mkdir()
    with pipeline() as p:
        first = p | beam.Create([1, 2], reshuffle=False) | "First" >> beam.ParDo(Tells("first", calls, 1000))
        keyed = first | beam.Map(lambda n: ("k", n))
        counted = keyed | "Second" >> beam.ParDo(TellsAndCounts("second", calls, ("k", 50_000)))
        summed = counted | beam.CombinePerKey(sum) | "Third" >> beam.ParDo(Tells("third", calls, ("end", 0)))
        _ = summed | "Out" >> beam.Map(note, str(out))
    assert dict(noted(out)) == {"k": 51_003, "count of k": 3, "end": 0}
    assert called(calls) == [
        f"{name} {what}" for what in ("prepares", "shuts down") for name in ("first", "second", "third")
    ]


@pytest.mark.contract("END-04", "END-05")
def test_failed_bounded_pipeline_calls_no_shutdown(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with pytest.raises(UserCodeError, match="unlucky"), pipeline() as p:
        _ = p | beam.Create([12, 13], reshuffle=False) | beam.ParDo(Tells("it", calls))
    assert called(calls) == []


@pytest.mark.contract("END-05")
def test_failed_shutdown_is_logged_and_pipeline_is_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = tmp_path / "calls"
    with caplog.at_level(logging.WARNING, "arcbeam.batch"), pipeline("--shutdown_seconds=4") as p:
        raises = p | beam.Create([1], reshuffle=False) | "Raises" >> beam.ParDo(Tells("raises", calls, fails=True))
        _ = raises | beam.Reshuffle() | "Hangs" >> beam.ParDo(Tells("hangs", calls, hangs=120.0))
    assert p.result.state == "DONE"
    warnings = [record.getMessage() for record in caplog.records if "shutting down" in record.getMessage()]
    assert len(warnings) == 2, warnings
    assert re.search(r"'Raises'.*OSError: gone", warnings[0])
    assert re.search(r"'Hangs'.* 4 s\b", warnings[1])
