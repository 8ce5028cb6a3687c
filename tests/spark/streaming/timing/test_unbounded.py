"""State that nothing lets go: what a streaming job on Spark says about it."""

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
def test_a_job_says_once_which_transform_never_lets_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = PipelineOptions(["--shards=2", "--allow_unsafe_triggers"])
    with caplog.at_level(logging.WARNING, "arcbeam"), beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        numbers = p | beam.Create([0], reshuffle=False) | beam.ParDo(Feed()).with_output_types(tuple[str, int])
        together = numbers | "Together" >> beam.GroupByKey()
        _ = together | beam.Map(lambda pair, to: note((pair[0], sorted(pair[1])), to), str(tmp_path))
    said = [record.getMessage() for record in caplog.records if "puts out nothing" in record.getMessage()]
    assert len(said) == 1
    assert "Together puts out nothing before its input ends" in said[0]
    assert noted(tmp_path) == [("k", [0, 1, 2, 3, 4])]
