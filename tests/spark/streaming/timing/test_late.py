"""Elements that groupings of streaming jobs on Spark drop, as a collection."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, window

from arcbeam import ArcbeamRunner
from arcbeam.io import LateElement, WithLate

pytestmark = pytest.mark.usefixtures("spark")

At = window.TimestampedValue


def reported(late: LateElement) -> tuple[Any, ...]:
    return late.key, late.value, int(late.timestamp), int(late.window.start), int(late.watermark), late.reason


@pytest.mark.contract("WM-09", "ENG-10")
@pytest.mark.parametrize("fusion", [(), ("--no_fusion",)])
def test_late_elements_are_a_groupable_collection(fusion: tuple[str, ...]) -> None:
    script = (
        test_stream.TestStream()
        .add_elements([At(("a", 1), 1), At(("b", 2), 11)])
        .advance_watermark_to(12)
        .add_elements([At(("a", 4), 2)])
        .advance_watermark_to(16)
        .add_elements([At(("a", 8), 3), At(("b", 16), 4), At(("a", 32), 14)])
        .advance_watermark_to(24)
        .add_elements([At(("a", 64), 5)])
        .advance_watermark_to_infinity()
    )
    options = PipelineOptions(["--streaming", "--shards=2", "--allow_unsafe_triggers", *fusion])
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        pairs = p | script
        kept = pairs | "StateMetrics" >> beam.WindowInto(window.FixedWindows(10), allowed_lateness=5)
        totals, late = kept | "Totals" >> WithLate(beam.CombinePerKey(sum))
        assert_that(totals, equal_to([("a", 1), ("a", 4), ("b", 2), ("a", 32)]), label="totals")
        expected = [
            ("a", 8, 3, 0, 16, "expired"),
            ("b", 16, 4, 0, 16, "expired"),
            ("a", 64, 5, 0, 24, "expired"),
        ]
        assert_that(late | "said" >> beam.Map(reported), equal_to(expected), label="late")

        # Grouped by the time of the drop, nothing is lost.
        at_drop = late | beam.Map(lambda e: At(e.value, e.watermark)) | beam.WindowInto(window.FixedWindows(10))
        together = at_drop | beam.WithKeys(0) | "Again" >> beam.GroupByKey() | beam.Map(lambda kv: sorted(kv[1]))
        assert_that(together, equal_to([[8, 16], [64]]), label="again")

        once = pairs | "Once" >> beam.WindowInto(
            window.FixedWindows(10),
            trigger=trigger.AfterCount(1),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=100,
        )
        firsts, rest = once | "Firsts" >> WithLate(beam.GroupByKey())
        assert_that(firsts | beam.MapTuple(lambda k, v: (k, *v)), equal_to([("a", 1), ("b", 2), ("b", 16), ("a", 32)]))
        closed = [("a", 4, 2, 0, 12, "closed"), ("a", 8, 3, 0, 16, "closed"), ("a", 64, 5, 0, 24, "closed")]
        assert_that(rest | "rest" >> beam.Map(reported), equal_to(closed), label="rest")
