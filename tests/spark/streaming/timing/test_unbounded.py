"""State that is never cleared: the warning of a streaming job on Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from tests.notes import note, noted
from tests.offsets import Endless

pytestmark = pytest.mark.usefixtures("spark")


class Feed(beam.DoFn):
    @beam.DoFn.unbounded_per_element()
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Endless(5))) -> Iterator[Any]:
        at = tracker.current_restriction().start
        while tracker.try_claim(at):
            yield "k", at
            at += 1


@pytest.mark.contract("WM-08")
def test_job_warns_once_about_endless_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = PipelineOptions(["--shards=2", "--allow_unsafe_triggers"])
    with caplog.at_level(logging.WARNING, "arcbeam"), beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        numbers = p | beam.Create([0], reshuffle=False) | beam.ParDo(Feed()).with_output_types(tuple[str, int])
        together = numbers | "Together" >> beam.GroupByKey()
        _ = together | beam.Map(lambda pair, to: note((pair[0], sorted(pair[1])), to), str(tmp_path))
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("arcbeam")]
    (warning,) = (text for text in ours if "Together" in text)
    assert warning.index("Together") < warning.index("unbounded")
    assert noted(tmp_path) == [("k", [0, 1, 2, 3, 4])]
