"""Which windows of side inputs may be read before their end."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, Repeatedly
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue

from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, IntervalWindow
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches


class _Written:
    """Has contents in one window, as a stage has written it."""

    def __init__(self, window: bytes) -> None:
        self._window = window

    def has_chunks(self, channel: int, window: bytes) -> bool:
        return window == self._window

    has_keys = has_chunks


@pytest.mark.contract("ENG-05")
@pytest.mark.parametrize(
    ("windows", "window", "early"),
    [
        (GlobalWindows(), GLOBAL_WINDOW, True),
        (FixedWindows(10), IntervalWindow(Timestamp(0), Timestamp(10_000_000)), False),
    ],
)
def test_early_firings_are_read_in_the_global_window(windows: Any, window: Any, early: bool) -> None:
    into = beam.WindowInto(windows, trigger=Repeatedly(AfterCount(1)), accumulation_mode=AccumulationMode.DISCARDING)
    with InMicroBatches(None) as p:
        numbers = p | beam.Create([1]) | beam.Map(lambda x: TimestampedValue(x, x)) | into
        firing = numbers | beam.Map(lambda x: ("a", x)) | beam.GroupByKey()
        _ = numbers | "Look" >> beam.Map(lambda x, some: (x, list(some)), beam.pvalue.AsIter(firing)) | Collect()
    parts = {stage.id: StageParts(stage, TaskSettings()) for stage in p.plan.stages}
    (reader,) = (stage for stage in p.plan.stages if stage.side_inputs)
    (side,) = reader.side_inputs
    (writer,) = (stage.id for stage in p.plan.stages if side.channel in stage.sinks)
    coder, theirs = parts[writer].written[side.channel]
    sides = parts[reader.id].sides
    ((channel, needed),) = sides.needed(window)
    assert sides.is_there(channel, needed, _Written(coder.encode(theirs.theirs(window)))) == early
