"""DoFns that prepare to shut down, in a streaming job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate

import arcbeam
from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard

CALLS: list[str] = []


class Totals(beam.DoFn, arcbeam.GracefulShutdown):
    SUM = userstate.CombiningValueStateSpec("sum", sum)

    def start_bundle(self) -> None:
        CALLS.append("start")

    def process(self, element: tuple[str, int], sum: Any = beam.DoFn.StateParam(SUM)) -> Iterator[Any]:
        sum.add(element[1])
        yield element[0], sum.read()

    def prepare_to_shutdown(self) -> list[Any]:
        CALLS.append("prepare")
        return [("end", len(CALLS))]

    def finish_bundle(self) -> None:
        CALLS.append("finish")


@pytest.mark.contract("END-05")
def test_final_outputs_hold_watermark_until_preparation() -> None:
    CALLS.clear()
    outputs: list[int] = []

    def cut(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        for micro_batch in (
            MicroBatch([(key, [one]) for key, one in arrived], MIN_TIMESTAMP),
            MicroBatch((), MAX_TIMESTAMP, runs=2, fresh=True),
            MicroBatch((), MAX_TIMESTAMP, runs=2, prepare=True),
        ):
            report = shard.run(micro_batch)
            outputs.append(output_time(micro_batch.upstream, report.local, "main"))
            assert report.unprepared is not micro_batch.prepare

    with InMicroBatches(cut) as p:
        _ = p | beam.Create([("a", 1), ("a", 2)], reshuffle=False) | beam.ParDo(Totals()) | Collect()
    assert p.values() == [("a", 1), ("a", 3), ("end", 7)], "only one of two runs of a micro-batch counts"
    assert outputs[:3] == [MIN_TIMESTAMP, END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP]
    assert CALLS[:8] == ["start", "finish", "start", "prepare", "finish", "start", "prepare", "finish"]
