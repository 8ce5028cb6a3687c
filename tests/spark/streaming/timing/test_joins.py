"""Joins within bounds of time, of two streams on Spark."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window

from arcbeam import ArcbeamRunner
from arcbeam.io import JoinWithin

pytestmark = pytest.mark.usefixtures("spark")


def click(name: str, at: int) -> Any:
    return window.TimestampedValue(("ad", name), at)


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("how", ["inner", "left"])
def test_partners_join_immediately_and_others_at_watermark(how: Any) -> None:
    script = (
        test_stream.TestStream()
        .add_elements([click("seen at 1", 1), click("seen at 5", 5)], tag="left")
        .add_elements([click("clicked at 9", 9)], tag="right")
        .advance_watermark_to(12, tag="left")
        .advance_watermark_to(12, tag="right")
        .add_elements([click("clicked at 14", 14)], tag="right")
        .add_elements([click("seen at 30", 30)], tag="left")
        .advance_watermark_to_infinity(tag="left")
        .advance_watermark_to_infinity(tag="right")
    )
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=2"])) as p:
        both = p | script
        joined = (both["left"], both["right"]) | JoinWithin(after=10, how=how)
        reported = joined | beam.Map(lambda pair, time=beam.DoFn.TimestampParam: (*pair[1], int(time)))
        pairs = [
            ("seen at 1", "clicked at 9", 9),
            ("seen at 5", "clicked at 9", 9),
            ("seen at 5", "clicked at 14", 14),
        ]
        alone = [("seen at 30", None, 40)] if how == "left" else []
        assert_that(reported, equal_to(pairs + alone))
