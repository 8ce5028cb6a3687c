"""A script whose pickles differ from process to process: prints the fingerprints of its pipeline, as JSON."""

from __future__ import annotations

import datetime
import json
import sys
import time
import typing
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.utils.timestamp import Timestamp

from arcbeam.translate import ParsedPipeline
from arcbeam.translate.identifying.fingerprints import fingerprints
from arcbeam.translate.proto import pipeline_proto

STARTED = time.time()
WORDS = {"alpha", "beta", "gamma", "delta"}


class Row(typing.NamedTuple):
    number: int
    text: str


beam.coders.registry.register_coder(Row, beam.coders.RowCoder)


class Keep(beam.DoFn):
    COUNT = userstate.CombiningValueStateSpec("count", sum)
    NAMES = frozenset({"x", "yy", "zzz"})

    def __init__(self, started: datetime.datetime, run: uuid.UUID) -> None:
        self._started, self._run, self._name = started, run, f"run {uuid.uuid4()}"

    def process(self, pair: tuple[str, int], count: Any = beam.DoFn.StateParam(COUNT)) -> Iterator[Any]:
        count.add(1)
        if pair[0] in {"q", "w", "e"}:
            yield pair, STARTED, WORDS, self.NAMES


def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)


def build(p: beam.Pipeline) -> None:
    now = Timestamp.now()
    ticks = p | PeriodicImpulse(start_timestamp=now, stop_timestamp=now + 30, fire_interval=1)
    times = p | "Times" >> beam.Create([time.time(), Timestamp.now(), datetime.datetime.now()])
    _ = p | "Seconds" >> beam.Create([int(time.time())])
    _ = p | "Rows" >> beam.Create([Row(1, "x")])
    pairs = p | "Pairs" >> beam.Create([("a", 1), ("b", 2)])
    _ = pairs | beam.ParDo(Keep(datetime.datetime.now(), uuid.uuid4()))
    _ = pairs | "Side" >> beam.Map(lambda pair, side: (pair, factorial(3)), beam.pvalue.AsList(times))
    counts = ticks | beam.WindowInto(window.FixedWindows(10)) | beam.Map(lambda x: ("k", 1)) | beam.CombinePerKey(sum)
    _ = counts | "Format" >> beam.Map(str) | beam.io.WriteToText("/somewhere/out")
    tagged = pairs | beam.ParDo(lambda pair: [pair]).with_outputs("left", "right", "middle")
    _ = (tagged.left, tagged.right, tagged.middle) | beam.Flatten()


if __name__ == "__main__":
    p = beam.Pipeline(options=PipelineOptions(["--streaming", f"--job_name=job-{uuid.uuid4()}", *sys.argv[1:]]))
    build(p)
    found = fingerprints(ParsedPipeline(pipeline_proto(p)), time.time())
    sys.stdout.write(json.dumps({name: asdict(of) for name, of in found.items()}))
