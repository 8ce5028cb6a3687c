"""Which of Beam's file sinks are warned about, and which are not."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.io import avroio, fileio, parquetio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger, window

from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.golden import check_message


class Row(typing.NamedTuple):
    n: int


SCHEMA = pa.schema([("n", pa.int64())])
AVRO = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
SINKS: dict[str, Callable[[], Any]] = {
    "text": lambda: beam.Map(str) | beam.io.WriteToText("/out/a"),
    "files": lambda: beam.Map(str) | fileio.WriteToFiles("/out"),
    "csv": lambda: beam.Map(Row).with_output_types(Row) | beam.io.WriteToCsv("/out/a"),
    "avro": lambda: beam.Map(lambda n: {"n": n}) | avroio.WriteToAvro("/out/a", AVRO),
    "parquet": lambda: beam.Map(lambda n: {"n": n}) | parquetio.WriteToParquet("/out/a", SCHEMA),
    "rows": lambda: beam.Map(lambda n: beam.Row(n=int(n))) | parquetio.WriteToParquet("/out/a"),
    "tables": lambda: beam.Map(lambda n: n) | parquetio.WriteToParquetBatched("/out/a", SCHEMA),
}
ONCE: dict[str, Any] = {"trigger": trigger.AfterWatermark(), "accumulation_mode": trigger.AccumulationMode.DISCARDING}
LATE = {**ONCE, "trigger": trigger.AfterWatermark(late=trigger.AfterCount(1)), "allowed_lateness": 60}
EARLY = {**ONCE, "trigger": trigger.AfterWatermark(early=trigger.AfterCount(1))}

# The trigger of a collection that was grouped after AfterProcessingTime.
AGAIN = {**ONCE, "trigger": trigger.Repeatedly(trigger._AfterSynchronizedProcessingTime())}


def warned(sink: str, windows: dict[str, Any], source: Any = None) -> tuple[str, ...]:
    p = beam.Pipeline(options=PipelineOptions(["--streaming", "--allow_unsafe_triggers"]))
    numbers = (
        p | (source or test_stream.TestStream().advance_watermark_to_infinity()) | beam.Map(int).with_output_types(int)
    )
    _ = numbers | beam.WindowInto(window.FixedWindows(10), **windows) | "Sink" >> SINKS[sink]()
    return translate(ParsedPipeline(pipeline_proto(p)), bounded=False).warnings


@pytest.mark.parametrize("sink", ["avro", "parquet", "rows", "tables"])
def test_sink_with_one_handle_is_warned_about(sink: str) -> None:
    for windows in ({}, ONCE, LATE):
        (text,) = warned(sink, windows)
        check_message(f"beam-sink-{sink}", text)


@pytest.mark.parametrize("sink", ["text", "files", "csv"])
def test_sink_is_warned_about_where_windows_fire_again(sink: str) -> None:
    assert warned(sink, {}) == warned(sink, ONCE) == warned(sink, {**ONCE, "allowed_lateness": 60}) == ()
    for windows in (LATE, EARLY, AGAIN, {"allowed_lateness": 60}):
        (text,) = warned(sink, windows)
        check_message(f"beam-sink-{sink}", text)


@pytest.mark.parametrize("sink", SINKS)
def test_sink_on_bounded_input_is_fine(sink: str) -> None:
    assert warned(sink, LATE, beam.Create([1])) == ()
