"""Warnings about state that is never cleared: which transforms get one, and its text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger, userstate, window

from arcbeam.io import DeduplicateWithinWatermark, OutputMode
from arcbeam.io.kafka import WriteToKafka
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.golden import check_message
from tests.offsets import Endless


class Feed(beam.DoFn):
    @beam.DoFn.unbounded_per_element()
    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        yield "k", 1


class Counting(beam.DoFn):
    SEEN = userstate.CombiningValueStateSpec("seen", VarIntCoder(), sum)

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield seen.read()


def warned(build: Any, source: Any = None, bounded: bool = False) -> tuple[str, ...]:
    p = beam.Pipeline(options=PipelineOptions(["--allow_unsafe_triggers"]))
    arrived = p | source if source else p | beam.Create([0]) | "Feed" >> beam.ParDo(Feed())
    build(arrived | beam.Map(lambda e: e).with_output_types(tuple[str, int]))
    return translate(ParsedPipeline(pipeline_proto(p)), bounded=bounded).warnings


FIRING = {"accumulation_mode": trigger.AccumulationMode.DISCARDING}


@pytest.mark.contract("WM-08")
def test_grouping_without_firing_and_uncleared_state_are_warned_about() -> None:
    (text,) = warned(lambda arrived: arrived | "Together" >> beam.GroupByKey())
    check_message("unbounded-grouping-never-fires", text)
    after_end = trigger.AfterWatermark(late=trigger.AfterCount(1))
    windowed = beam.WindowInto(window.GlobalWindows(), trigger=after_end, **FIRING)
    (text,) = warned(lambda arrived: arrived | windowed | "Totals" >> beam.CombinePerKey(sum))
    assert text.partition(" ")[0] == "'Totals/GroupByKey'"
    (text,) = warned(lambda arrived: arrived | "Count" >> beam.ParDo(Counting()))
    check_message("unbounded-state-never-cleared", text)


def test_state_of_shards_is_not_warned_about() -> None:
    pytest.importorskip("confluent_kafka")
    pairs = beam.Map(lambda pair: (b"k", b"v"))
    write = WriteToKafka({"bootstrap.servers": "localhost:9"}, "t", staging="/staging")
    assert warned(lambda arrived: arrived | "Pairs" >> pairs | write) == ()


@pytest.mark.contract("WM-08")
def test_each_transform_is_warned_about_once() -> None:
    def build(arrived: Any) -> None:
        arrived | "one" >> beam.GroupByKey()
        arrived | "two" >> beam.GroupByKey()
        arrived | "three" >> beam.ParDo(Counting())

    assert [text.split()[0] for text in warned(build)] == ["'one'", "'three'", "'two'"]


def twice(arrived: Any) -> Any:
    totals = arrived | OutputMode.complete() | beam.CombinePerKey(sum)
    return totals | "again" >> beam.GroupByKey()


FINE: dict[str, Any] = {
    "windows": lambda arrived: arrived | beam.WindowInto(window.FixedWindows(1)) | beam.GroupByKey(),
    "sessions": lambda arrived: arrived | beam.WindowInto(window.Sessions(1)) | beam.ParDo(Counting()),
    "a trigger and its continuation": twice,
    "timers": lambda arrived: arrived | DeduplicateWithinWatermark(5),
    "an exchange": lambda arrived: arrived | beam.Reshuffle(),
    "no state": lambda arrived: arrived | beam.MapTuple(lambda _, v: v),
}


@pytest.mark.contract("WM-08")
@pytest.mark.parametrize("fine", FINE)
def test_ending_or_firing_grouping_is_not_warned_about(fine: str) -> None:
    assert warned(FINE[fine]) == ()


def test_bounded_input_is_not_warned_about() -> None:
    assert warned(lambda arrived: arrived | beam.GroupByKey(), source=beam.Create([("k", 1)])) == ()
    assert warned(lambda arrived: arrived | beam.GroupByKey(), source=beam.Create([("k", 1)]), bounded=True) == ()
    script = test_stream.TestStream().add_elements([("k", 1)])
    assert warned(lambda arrived: arrived | beam.GroupByKey(), source=script) == ()
