"""Event time of elements and timers in streaming jobs on Spark, and what a job does while nothing is due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, userstate, window
from apache_beam.utils.timestamp import Duration

from arcbeam import ArcbeamRunner
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from tests.notes import note, noted
from tests.offsets import Endless
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")

At = window.TimestampedValue


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", *arguments]))


def counts(result: Any, attribute: str) -> dict[tuple[str, str], int]:
    """Return counters of dropped elements: committed or attempted values, by transform and name."""
    found = result.metrics().query(MetricsFilter().with_namespace("arcbeam"))["counters"]
    return {
        (str(counter.key.step).partition("/")[0], counter.key.metric.name): getattr(counter, attribute)
        for counter in found
        if counter.key.metric.name.startswith("dropped")
    }


@pytest.mark.contract("ENG-10", "API-06")
def test_late_elements_are_counted_by_dropping_transform() -> None:
    script = (
        test_stream.TestStream()
        .add_elements([At("a", 1), At("b", 11)])
        .advance_watermark_to(12)
        .add_elements([At("in time, for there is lateness", 2)])
        .advance_watermark_to(16)
        .add_elements([At("too late", 3), At("too late", 4), At("c", 14)])
        .advance_watermark_to_infinity()
    )
    p = pipeline("--allow_unsafe_triggers")
    keyed = p | script | beam.WithKeys(0)
    kept = keyed | "StateMetrics" >> beam.WindowInto(
        window.FixedWindows(10),
        trigger=trigger.AfterWatermark(late=trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
        allowed_lateness=5,
    )  # fmt: skip
    once = keyed | "Once" >> beam.WindowInto(
        window.FixedWindows(10),
        trigger=trigger.AfterCount(1),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
        allowed_lateness=100,
    )  # fmt: skip
    panes = kept | "Late" >> beam.GroupByKey() | beam.MapTuple(lambda _, values: sorted(values))
    assert_that(panes, equal_to([["a"], ["in time, for there is lateness"], ["b", "c"]]))
    firsts = once | "Closed" >> beam.GroupByKey() | beam.MapTuple(lambda _, values: sorted(values))
    assert_that(firsts, equal_to([["a"], ["b"]]), label="firsts")
    result = p.run()
    result.wait_until_finish()
    expected = {("Late", "droppedDueToLateness"): 2, ("Closed", "droppedDueToClosedWindow"): 4}
    assert counts(result, "committed") == expected
    assert counts(result, "attempted") == expected


class Order(beam.DoFn):
    """Outputs a key's elements and timers, in order."""

    SEEN = userstate.ReadModifyWriteStateSpec("seen", beam.coders.VarIntCoder())
    DUE = userstate.TimerSpec("due", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, list[int]],
        seen: Any = beam.DoFn.StateParam(SEEN),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        for at in element[1]:
            due.set(at, dynamic_timer_tag=str(at))
        ordinal = (seen.read() or 0) + 1
        seen.write(ordinal)
        yield element[0], ordinal, "element"

    @userstate.on_timer(DUE)
    def fired(
        self,
        key: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        seen: Any = beam.DoFn.StateParam(SEEN),
        due: Any = beam.DoFn.TimerParam(DUE),
    ) -> Iterator[Any]:
        ordinal = (seen.read() or 0) + 1
        seen.write(ordinal)
        yield key, ordinal, int(at)
        if int(at) == 3:
            due.set(4, dynamic_timer_tag="between")


@pytest.mark.contract("ENG-04", "ENG-12")
def test_elements_of_a_key_precede_its_timers() -> None:
    script = (
        test_stream.TestStream()
        .add_elements([At(("a", [9, 3]), 0), At(("b", [7]), 0)])
        .add_elements([At(("a", [5]), 0)])
        .advance_watermark_to(6)
        .add_elements([At(("a", [8]), 6)])
        .advance_watermark_to_infinity()
    )
    with pipeline() as p:
        arrived = (
            p | script | beam.Map(lambda pair: pair).with_output_types(tuple[str, list[int]]) | beam.ParDo(Order())
        )
        of_a = ["element", "element", 3, 4, 5, "element", 8, 9]
        of_b = ["element", 7]
        expected = [(key, n, what) for key, of in (("a", of_a), ("b", of_b)) for n, what in enumerate(of, 1)]
        assert_that(arrived, equal_to(expected))


class Hourly(beam.DoFn):
    """Polls a source that has nothing, and polls again in an hour."""

    def __init__(self, notes: str) -> None:
        self._notes = notes

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Endless())) -> Iterator[Any]:
        note("looked", self._notes)
        yield from ()
        tracker.defer_remainder(Duration(3600))


@pytest.mark.contract("ENG-07", "SDF-04")
def test_no_micro_batch_runs_while_nothing_is_due(tmp_path: Path) -> None:
    state, notes = tmp_path / "state", tmp_path / "notes"
    notes.mkdir()
    p = pipeline(f"--checkpoint_dir={state}")
    looks = p | beam.Create([0], reshuffle=False) | beam.ParDo(Hourly(str(notes)))
    _ = looks | beam.WithKeys(0) | beam.WindowInto(window.FixedWindows(10)) | beam.GroupByKey()
    result = p.run()
    try:
        while_running(result, lambda: noted(notes))
        micro_batches = -1
        # The last micro-batch may still send results; then the job sleeps.
        while (now := _micro_batches(state)) != micro_batches:
            micro_batches = now
            result.wait_until_finish(1500)
        assert result.wait_until_finish(3000) == "RUNNING"
        assert _micro_batches(state) == micro_batches
        assert noted(notes) == ["looked"]
    finally:
        result.cancel()


def _micro_batches(state: Path) -> int:
    newest = read_newest(FolderBlobs(state))
    return -1 if newest is None else known(newest).micro_batch
