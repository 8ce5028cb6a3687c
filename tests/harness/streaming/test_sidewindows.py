"""Which windows of side inputs may be read before their end."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, Repeatedly
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import IntervalWindow
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches


class _Written:
    """Has contents in one window, as a stage has written it."""

    def __init__(self, window: bytes) -> None:
        self._window = window

    def has_chunks(self, channel: int, window: bytes) -> bool:
        return window == self._window

    has_keys = has_chunks


def test_window_of_early_firing_is_found_as_it_was_written() -> None:
    windows = beam.WindowInto(
        FixedWindows(10), trigger=Repeatedly(AfterCount(1)), accumulation_mode=AccumulationMode.DISCARDING
    )
    with InMicroBatches(None) as p:
        numbers = p | beam.Create([1]) | beam.Map(lambda x: TimestampedValue(x, x)) | windows
        early = numbers | beam.Map(lambda x: ("a", x)) | beam.GroupByKey()
        _ = numbers | "Look" >> beam.Map(lambda x, some: (x, list(some)), beam.pvalue.AsIter(early)) | Collect()
    parts = {stage.id: StageParts(stage, Settings()) for stage in p.plan.stages}
    (reader,) = (stage for stage in p.plan.stages if stage.side_inputs)
    (side,) = reader.side_inputs
    (writer,) = (stage.id for stage in p.plan.stages if side.channel in stage.sinks)
    coder, theirs = parts[writer].written[side.channel]
    window = IntervalWindow(Timestamp(0), Timestamp(10_000_000))
    sides = parts[reader.id].sides
    ((channel, needed),) = sides.needed(window)
    assert sides.is_there(channel, needed, _Written(coder.encode(theirs.theirs(window))))
