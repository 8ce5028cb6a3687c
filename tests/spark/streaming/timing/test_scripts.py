"""Pipelines with a TestStream on Spark: its events happen one by one, and its clock is the pipeline's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.test_stream_service import TestStreamServiceController as Controller
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, userstate, window
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.errors import JobFailedError, UserCodeError
from tests.notes import note, noted
from tests.offsets import UpTo

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("ENG-09")]

At = window.TimestampedValue


def pipeline(*arguments: str) -> beam.Pipeline:
    """Return a pipeline without --streaming: the TestStream makes it a streaming job."""
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=2", *arguments]))


def stream() -> Any:
    return test_stream.TestStream()


def _pane(values: Any, pane: Any = beam.DoFn.PaneInfoParam, at: Any = beam.DoFn.TimestampParam) -> tuple[Any, ...]:
    return sorted(values), int(at), {0: "early", 1: "on time", 2: "late"}[pane.timing]


def test_each_event_waits_for_earlier_ones() -> None:
    script = (
        stream()
        .advance_watermark_to(0)
        .add_elements([At("a", 1), At("b", 2)])
        .add_elements([At("c", 3)])
        .advance_watermark_to(11)
        .add_elements([At("late", 4), At("d", 12)])
        .advance_watermark_to(25)
        .add_elements([At("too late", 4)])
        .advance_watermark_to_infinity()
    )
    with pipeline() as p:
        windowed = p | script | beam.WindowInto(
            window.FixedWindows(10),
            trigger=trigger.AfterWatermark(early=trigger.AfterCount(1), late=trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=10,
        )  # fmt: skip
        panes = windowed | beam.WithKeys(0) | beam.GroupByKey() | beam.Values() | beam.Map(_pane)
        assert_that(
            panes,
            equal_to(
                [
                    (["a"], 9, "early"),
                    (["b"], 9, "early"),
                    (["c"], 9, "early"),
                    ([], 9, "on time"),
                    (["late"], 9, "late"),
                    (["d"], 19, "early"),
                    ([], 19, "on time"),
                ]
            ),
        )


class Alarm(beam.DoFn):
    """Outputs its input an hour later, by the pipeline's clock."""

    KEPT = userstate.BagStateSpec("kept", beam.coders.StrUtf8Coder())
    ALARM = userstate.TimerSpec("alarm", userstate.TimeDomain.REAL_TIME)

    def process(
        self, element: Any, kept: Any = beam.DoFn.StateParam(KEPT), alarm: Any = beam.DoFn.TimerParam(ALARM)
    ) -> None:
        kept.add(element[1])
        alarm.set(Timestamp.now() + Duration(3600))

    @userstate.on_timer(ALARM)
    def ring(self, kept: Any = beam.DoFn.StateParam(KEPT)) -> Iterator[Any]:
        yield "".join(sorted(kept.read())), int(Timestamp.now())
        kept.clear()


def test_only_the_script_moves_the_clock() -> None:
    script = stream().add_elements(["a"]).advance_processing_time(1800).add_elements(["b"])
    script = script.advance_processing_time(1800).advance_processing_time(1800).add_elements(["c"])
    with pipeline() as p:
        alarms = p | script.advance_processing_time(4000) | beam.WithKeys(0) | beam.ParDo(Alarm())
        assert_that(alarms, equal_to([("ab", 5400), ("c", 9400)]))


def test_each_output_has_its_own_watermark() -> None:
    script = (
        stream()
        .add_elements([At("x", 1)], tag="one")
        .add_elements([At("y", 1)], tag="two")
        .advance_watermark_to(20, tag="one")
        .add_elements([At("late", 2)], tag="one")
        .add_elements([At("z", 2)], tag="two")
    )
    with pipeline() as p:
        outputs = p | script
        for tag, expected in (("one", [["x"]]), ("two", [["y", "z"]])):
            windowed = outputs[tag] | f"Window {tag}" >> beam.WindowInto(window.FixedWindows(10))
            grouped = windowed | f"Key {tag}" >> beam.WithKeys(0) | f"Group {tag}" >> beam.GroupByKey()
            assert_that(grouped | f"Values {tag}" >> beam.Values(), equal_to(expected), label=tag)


class Hourly(beam.DoFn, UpTo):
    """Yields a number, and the rest of them an hour later."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[Any]:
        position = tracker.current_restriction().start
        if tracker.try_claim(position):
            yield position, int(Timestamp.now())
            tracker.defer_remainder(Timestamp.now() + Duration(3600))


def test_deferred_work_waits_until_script_ends() -> None:
    with pipeline() as p:
        polled = p | "Poll" >> beam.Create([4]) | beam.ParDo(Hourly())
        _ = p | stream().add_elements([1]).advance_processing_time(3599).advance_processing_time(2)
        assert_that(polled, equal_to([(0, 0), (1, 3601), (2, 7201), (3, 10801)]))


class _Events:
    def __init__(self, script: Any) -> None:
        self._protos = [event.to_runner_api(script.coder) for event in script._events]

    def read_multiple(self, keys: Any) -> Iterator[Any]:
        yield from self._protos


def test_service_has_times_in_microseconds() -> None:
    script = stream().add_elements([At("a", 1000)]).advance_watermark_to(11_000).add_elements([At("b", 2000)])
    service = Controller(reader=_Events(script))
    service.start()
    try:
        with pipeline() as p:
            windowed = p | test_stream.TestStream(endpoint=service.endpoint) | beam.WindowInto(window.FixedWindows(10))
            grouped = windowed | beam.WithKeys(0) | beam.GroupByKey() | beam.Values()
            assert_that(grouped, equal_to([["a"]]))
    finally:
        service.stop()


def test_missing_service_fails_the_job() -> None:
    p = pipeline()
    _ = p | test_stream.TestStream(endpoint="localhost:1") | beam.Map(print)
    with pytest.raises(JobFailedError, match="'TestStream' at 'localhost:1'"):
        p.run().wait_until_finish()


class Ordinal(beam.DoFn):
    """Numbers its elements; fails at one the first time."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[str]:
        seen.add(1)
        if element[1] == "c" and not self._flag.exists():
            self._flag.touch()
            raise RuntimeError("not yet")
        yield f"{element[1]}{seen.read()} at {int(Timestamp.now())}"


def test_resumed_job_continues_script_and_clock(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()

    def run() -> Any:
        p = pipeline("--streaming", f"--checkpoint_dir={tmp_path / 'state'}")
        script = stream().add_elements(["a"]).advance_processing_time(5).add_elements(["b"])
        keyed = p | script.add_elements(["c"]).advance_processing_time(2).add_elements(["d"]) | beam.WithKeys(0)
        _ = keyed | "Keep" >> beam.ParDo(Ordinal(tmp_path / "failed")) | "Note" >> beam.Map(note, str(results))
        return p.run()

    with pytest.raises(UserCodeError, match="not yet"):
        run().wait_until_finish()
    assert sorted(noted(results)) == ["a1 at 0", "b2 at 5"]
    assert run().wait_until_finish() == "DONE"
    assert sorted(noted(results)) == ["a1 at 0", "b2 at 5", "c3 at 5", "d4 at 7"]
