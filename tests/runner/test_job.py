"""A job, by itself."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.options import ArcbeamOptions
from arcbeam.runner import job
from arcbeam.runner.job import Job
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto, plan_of


@pytest.mark.contract("PAGE-03")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("id", "more", "shown"),
    [("", [], False), ("j-1", [], True), ("", ["--page_address=127.0.0.1:0"], True)],
    ids=["alone", "at a server", "with a page"],
)
def test_running_tasks_report_progress_if_a_page_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str, more: list[str], shown: bool
) -> None:
    monkeypatch.setattr(job, "watched", lambda: False)  # there is perhaps a terminal
    options = PipelineOptions(["--keep_job_temp", f"--arcbeam_temp={tmp_path}", *more]).view_as(ArcbeamOptions)
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    assert Job(plan_of(ParsedPipeline(pipeline_proto(p)), options, name="words"), options, id=id).run() == "DONE"
    assert bool(list(tmp_path.glob("*/pulses/*"))) is shown
