"""Calls of DoFns at the end of a streaming job: when they are made, and what happens to their output."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import UserCodeError
from tests.ends import Tells, TellsAndCounts, called
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")

_ALL = [f"{name} {what}" for what in ("prepares", "shuts down") for name in ("first", "second", "third")]


def pipeline(*arguments: str) -> beam.Pipeline:
    # One task per level, so that one task makes each call.
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=1", *arguments]))


class Job:
    """A fed source, a DoFn, one with state, and one after a grouping; all in the global window."""

    def __init__(self, folder: Path) -> None:
        self.source, self.state, self.out, self.read = (folder / name for name in ("source", "state", "out", "read"))
        self.calls = folder / "calls"
        for each in (self.out, self.read):
            each.mkdir(parents=True)

    def submit(self) -> Any:
        p = pipeline(f"--checkpoint_dir={self.state}", "--allow_unsafe_triggers")
        numbers = fed(p, self.source) | "Read" >> beam.Map(lambda n, to: note(n, to) or n, str(self.read))
        keyed = numbers | "First" >> beam.ParDo(Tells("first", self.calls, 1000)) | beam.Map(lambda n: ("k", n))
        counted = keyed | "Second" >> beam.ParDo(TellsAndCounts("second", self.calls, ("k", 50_000)))
        summed = counted | beam.CombinePerKey(sum) | "Third" >> beam.ParDo(Tells("third", self.calls, ("end", 0)))
        _ = summed | "Out" >> beam.Map(note, str(self.out))
        return p.run()

    def submitted(self, count: int) -> Any:
        """Submit a job and wait until it has read `count` numbers."""
        feed(self.source, count)
        result = self.submit()
        while_running(result, lambda: len(noted(self.read)) >= count)
        return result

    def results(self) -> dict[str, int]:
        return dict(noted(self.out))


def _expected(count: int) -> dict[str, int]:
    return {"k": sum(range(count)) + 51_000, "count of k": count + 1, "end": 0}


@pytest.mark.contract("END-01", "END-03", "END-05")
def test_end_of_source_calls_all_and_suspension_none(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.submitted(4).suspend()
    assert called(job.calls) == []
    feed(job.source, 6, end=True)
    assert job.submit().wait_until_finish() == "DONE"
    assert job.results() == _expected(6), "nothing may be late"
    lines = job.calls.read_text().splitlines()
    assert called(job.calls) == _ALL, "from sources to sinks"
    assert [lines.count(f"{name} prepares") for name in ("first", "second", "third")] == [1, 1, 1]
    # A driver that finds the job ended repeats the last calls, because it is unknown whether they were made.
    job.calls.unlink()
    assert job.submit().wait_until_finish() == "DONE"
    assert called(job.calls) == _ALL[3:]


@pytest.mark.contract("END-02", "END-05")
def test_drain_calls_all(tmp_path: Path) -> None:
    job = Job(tmp_path)
    result = job.submitted(4)
    result.drain()
    assert result.wait_until_finish() == "DRAINED"
    assert job.results() == _expected(4)
    assert called(job.calls) == _ALL


@pytest.mark.contract("END-04", "END-05")
def test_cancellation_and_error_call_none(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.submitted(4).cancel()
    feed(job.source, 14, end=True)
    with pytest.raises(UserCodeError, match="unlucky"):
        job.submit().wait_until_finish()
    assert called(job.calls) == []
    assert job.results() == {}


@pytest.mark.contract("END-05")
def test_failed_shutdown_is_named_and_job_is_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls = tmp_path / "calls"
    with caplog.at_level(logging.WARNING, "arcbeam.streaming"), pipeline("--shutdown_seconds=5") as p:
        raises = p | beam.Create([1]) | "Raises" >> beam.ParDo(Tells("raises", calls, fails=True))
        hangs = raises | beam.Reshuffle() | "Hangs" >> beam.ParDo(Tells("hangs", calls, hangs=120.0))
        _ = hangs | "Again" >> beam.Reshuffle() | "Last" >> beam.ParDo(Tells("last", calls))
    assert p.result.state == "DONE"
    warnings = [record.getMessage() for record in caplog.records if "shutting down" in record.getMessage()]
    for expected in (r"'Raises'.*OSError: gone", r"'Hangs'.* [\d.]+ s$", r"'Last'.* [\d.]+ s "):
        assert any(re.search(expected, text) for text in warnings), (expected, warnings)
    assert called(calls)[3:] == ["raises shuts down", "hangs shuts down"]
