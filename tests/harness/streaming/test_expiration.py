"""A callback on window expiration: once for each key and window, after all else, with the state of that window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.harness.batch.statefulplans import call_on_expiration
from tests.harness.drive import Collect
from tests.harness.streaming import test_stateful
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.harness.streaming.test_stateful import (
    KINDS,
    SECOND,
    Interpreter,
    Pipeline,
    at,
    bounded,
    outputs_of,
    streaming,
)


class Expiring(Interpreter):
    """The same, with a callback on window expiration."""

    EXPIRES = TimerSpec("expires", TimeDomain.WATERMARK)

    @on_timer(EXPIRES)
    def on_expires(
        self,
        key: Any = beam.DoFn.KeyParam,
        window: Any = beam.DoFn.WindowParam,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(Interpreter.BAG),
        value: Any = beam.DoFn.StateParam(Interpreter.VALUE),
        sum: Any = beam.DoFn.StateParam(Interpreter.SUM),
        set: Any = beam.DoFn.StateParam(Interpreter.SET),
        list: Any = beam.DoFn.StateParam(Interpreter.LIST),
        event: Any = beam.DoFn.TimerParam(Interpreter.EVENT),
        clock: Any = beam.DoFn.TimerParam(Interpreter.CLOCK),
        expires: Any = beam.DoFn.TimerParam(EXPIRES),
    ) -> Iterator[Any]:
        states = {"bag": bag, "value": value, "sum": sum, "set": set, "list": list}
        last = window.max_timestamp().micros
        assert time.micros in (last, last // test_stateful.unit * test_stateful.unit, last + 1)
        yield repr(key), "expires", ""
        for what in KINDS:
            yield from test_stateful._obey(repr(key), ("read", what, 0), window, states, {})
        # What is set here never fires, and what is written is removed.
        if not test_stateful.in_worker:
            with pytest.raises(ValueError, match="is the callback on window expiration"):
                expires.set(time)
        bag.add(1)
        event.set(time, dynamic_timer_tag="9")
        clock.set(at(test_stateful._clock(test_stateful._end(window)) + 1), dynamic_timer_tag="9")


@pytest.mark.contract("ENG-12")
@pytest.mark.parametrize("seed", range(10))
def test_callback_on_window_expiration_follows_all_else(seed: int) -> None:
    pipeline = Pipeline(seed, fn=Expiring)
    there, here = bounded(pipeline, call_on_expiration), streaming(pipeline, seed, call_on_expiration)
    assert outputs_of(here) == outputs_of(there)
    assert here.left == []
    for outputs in outputs_of(here).values():
        calls = [n for n, (rest, _) in enumerate(outputs) if rest[0] == "expires"]
        assert calls == [len(outputs) - 1 - len(KINDS)]


class AtExpiration(beam.DoFn):
    """Outputs its elements when their window expires."""

    BAG = BagStateSpec("bag", VarIntCoder())
    EXPIRES = TimerSpec("expires", TimeDomain.WATERMARK)

    def process(self, element: Any, bag: Any = beam.DoFn.StateParam(BAG)) -> None:
        bag.add(element[1])

    @on_timer(EXPIRES)
    def on_expires(
        self,
        key: Any = beam.DoFn.KeyParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        declared: Any = beam.DoFn.TimerParam(EXPIRES),
    ) -> Iterator[Any]:
        yield key, list(bag.read())


def build_with_lateness(p: Any) -> None:
    """Build a pipeline whose windows of ten seconds expire five seconds after their end."""
    stamp = beam.Map(lambda n: TimestampedValue(("k", n), n)).with_output_types(tuple[str, int])
    timed = p | beam.Create([3, 4, 5], reshuffle=False) | stamp
    _ = timed | beam.WindowInto(FixedWindows(10), allowed_lateness=5) | beam.ParDo(AtExpiration()) | Collect()


def cut_with_lateness(shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
    """Let the second element be late, and the third one too late."""
    watermarks = [SECOND * 12, SECOND * 16, SECOND * 17] if shard.of.stateful else [0] * len(arrived)
    for (key, one), watermark in zip(arrived, watermarks, strict=True):
        shard.settle(MicroBatch([(key, [one])], Timestamp(watermark)))
    shard.settle(MicroBatch((), MAX_TIMESTAMP))


def check_lateness(p: Any) -> None:
    """Check the outputs of that pipeline; in milliseconds, as SDK workers have times."""
    assert [(value, time.micros // 1000) for value, time, _ in p.windowed()] == [(("k", [3, 4]), 9_999)]


@pytest.mark.contract("ENG-12")
def test_expiration_waits_for_late_elements() -> None:
    with InMicroBatches(cut_with_lateness, edit=call_on_expiration) as p:
        build_with_lateness(p)
    check_lateness(p)
    assert len(p.drops) == 1
