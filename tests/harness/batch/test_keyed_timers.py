"""Timers of both domains in stateful stages, and independence of bundles."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from tests.harness.batch.statefulplans import NOW, VirtualClock, applied, cuts, timed
from tests.harness.drive import Collect, Driven


class Script(beam.DoFn):
    """Elements are orders: ("set", family, tag, at) or ("clear", family, tag). Yields the timers that fire."""

    A = TimerSpec("a", TimeDomain.WATERMARK)
    B = TimerSpec("b", TimeDomain.WATERMARK)
    FIRED = BagStateSpec("fired", StrUtf8Coder())

    def process(
        self, element: Any, a: Any = beam.DoFn.TimerParam(A), b: Any = beam.DoFn.TimerParam(B)
    ) -> Iterator[Any]:
        key, (what, family, tag, *at) = element
        timer = {"a": a, "b": b}[family]
        if what == "set":
            timer.set(Timestamp.of(at[0]), dynamic_timer_tag=tag)
        else:
            timer.clear(dynamic_timer_tag=tag)
        yield key, what

    @on_timer(A)
    def on_a(self, key: Any = beam.DoFn.KeyParam, tag: Any = beam.DoFn.DynamicTimerTagParam) -> Iterator[Any]:
        yield key, f"a{tag}"

    @on_timer(B)
    def on_b(self, key: Any = beam.DoFn.KeyParam, tag: Any = beam.DoFn.DynamicTimerTagParam) -> Iterator[Any]:
        yield key, f"b{tag}"


def fired(p: Driven, key: str = "k") -> list[tuple[Any, float]]:
    """Return what a key has fired, and when, in order."""
    return [(value[1], at) for value, at in p.timestamped() if value[0] == key and value[1] not in ("set", "clear")]


@pytest.mark.contract("ENG-04", "ENG-12")
@cuts
def test_data_first_then_timers_by_timestamp(shards: int, bundle_elements: int) -> None:
    steps = [
        ("set", "a", "1", 30),
        ("set", "b", "1", 10),
        ("set", "a", "2", 20),
        ("set", "b", "2", -5),
        ("set", "a", "", 15),
    ]
    p = applied(Script(), [(key, step, 0) for step in steps for key in ("k", "l", "m")], shards, bundle_elements)
    for key in ("k", "l", "m"):
        assert [what for k, what in p.values() if k == key][:5] == ["set"] * 5
        assert fired(p, key) == [("b2", -5), ("b1", 10), ("a", 15), ("a2", 20), ("a1", 30)]


@pytest.mark.contract("ENG-12")
@cuts
def test_last_setting_of_timer_counts(shards: int, bundle_elements: int) -> None:
    steps = [
        ("set", "a", "x", 30),
        ("set", "a", "x", 10),
        ("set", "a", "y", 20),
        ("clear", "a", "y"),
        ("set", "a", "z", 5),
        ("clear", "a", "z"),
        ("set", "a", "z", 40),
        ("clear", "b", "never set"),
        ("set", "b", "x", 7),
        ("clear", "a", "other"),
    ]
    p = applied(Script(), [("k", step, 0) for step in steps], shards, bundle_elements)
    assert fired(p) == [("bx", 7), ("ax", 10), ("az", 40)]


@cuts
def test_timers_are_separate_per_window(shards: int, bundle_elements: int) -> None:
    elements = [("k", ("set", "a", "x", 100), 1), ("k", ("set", "a", "x", 50), 11), ("k", ("clear", "a", "x"), 21)]
    p = applied(Script(), elements, shards, bundle_elements, windowing=FixedWindows(10))
    starts = [(w.start, at) for (_, what), at, w in p.windowed() if what == "ax"]
    assert starts == [(10, Timestamp(50)), (0, Timestamp(100))], "in a bounded run, no end of a window limits them"


class Looping(beam.DoFn):
    """Counts down by firing itself; also sets a timer that is earlier than its next one."""

    LEFT = ReadModifyWriteStateSpec("left", VarIntCoder())
    LOOP = TimerSpec("loop", TimeDomain.WATERMARK)
    BETWEEN = TimerSpec("between", TimeDomain.WATERMARK)

    def process(
        self, element: Any, left: Any = beam.DoFn.StateParam(LEFT), loop: Any = beam.DoFn.TimerParam(LOOP)
    ) -> None:
        left.write(element[1])
        loop.set(10)

    @on_timer(LOOP)
    def on_loop(
        self,
        at: Any = beam.DoFn.TimestampParam,
        left: Any = beam.DoFn.StateParam(LEFT),
        loop: Any = beam.DoFn.TimerParam(LOOP),
        between: Any = beam.DoFn.TimerParam(BETWEEN),
    ) -> Iterator[Any]:
        yield "k", f"loop {left.read()}"
        left.write(left.read() - 1)
        if left.read():
            loop.set(at + 10)
            between.set(at + 5)

    @on_timer(BETWEEN)
    def on_between(self, left: Any = beam.DoFn.StateParam(LEFT)) -> Iterator[Any]:
        yield "k", f"between {left.read()}"


@pytest.mark.contract("ENG-04", "ENG-12")
@cuts
def test_timers_that_set_timers_terminate(shards: int, bundle_elements: int) -> None:
    p = applied(Looping(), [("k", 3, 0)], shards, bundle_elements)
    assert fired(p) == [("loop 3", 10), ("between 2", 15), ("loop 2", 20), ("between 1", 25), ("loop 1", 30)]


def test_timer_at_end_of_time_fires() -> None:
    end = MAX_TIMESTAMP.micros / 1e6
    p = applied(Script(), [("k", ("set", "a", "last", MAX_TIMESTAMP), 0)])
    assert fired(p) == [("alast", end)]


class AtWindowEnd(beam.DoFn):
    VALUES = BagStateSpec("values", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        w: Any = beam.DoFn.WindowParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        values.add(element[1])
        end.set(w.end)

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, values: Any = beam.DoFn.StateParam(VALUES)) -> Iterator[Any]:
        yield key, sum(values.read())


@pytest.mark.contract("ENG-08", "ENG-12", "BAT-03")
@cuts
def test_sums_at_the_end_of_each_window_feed_a_grouping(shards: int, bundle_elements: int) -> None:
    chance = random.Random(7)
    elements = [(f"k{chance.randrange(20)}", chance.randrange(100), chance.randrange(60)) for _ in range(150)]
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        sums = timed(p, elements) | beam.WindowInto(FixedWindows(10)) | beam.ParDo(AtWindowEnd())
        sums | Collect("sums")
        sums | beam.Map(lambda kv: (kv[0][-1], kv[1])) | beam.CombinePerKey(sum) | Collect("by last digit")
    expected: dict[Any, int] = {}
    digits: dict[Any, int] = {}
    for key, value, at in elements:
        start = at // 10 * 10
        expected[key, start] = expected.get((key, start), 0) + value
        digits[key[-1], start] = digits.get((key[-1], start), 0) + value
    assert {(k, int(w.start)): v for (k, v), _, w in p.windowed("sums")} == expected
    assert {(k, int(w.start)): v for (k, v), _, w in p.windowed("by last digit")} == digits
    assert all(at == w.end for _, at, w in p.windowed("sums"))


# Processing-time timers.


class Later(beam.DoFn):
    """Elements are delays in seconds of a processing-time timer, by tag; None clears it."""

    LATER = TimerSpec("later", TimeDomain.REAL_TIME)
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    SEEN = BagStateSpec("seen", PickleCoder())

    def process(
        self,
        element: Any,
        later: Any = beam.DoFn.TimerParam(LATER),
        event: Any = beam.DoFn.TimerParam(EVENT),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> None:
        _, (tag, delay) = element
        seen.add(tag)
        if tag == "event":
            event.set(delay)
        elif delay is None:
            later.clear(dynamic_timer_tag=tag)
        else:
            later.set(NOW + delay, dynamic_timer_tag=tag)

    @on_timer(LATER)
    def on_later(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        seen: Any = beam.DoFn.StateParam(SEEN),
        later: Any = beam.DoFn.TimerParam(LATER),
        event: Any = beam.DoFn.TimerParam(EVENT),
    ) -> Iterator[Any]:
        yield key, tag, len(list(seen.read()))
        if tag == "again":
            later.set(NOW + 100, dynamic_timer_tag="last")
            event.set(77)

    @on_timer(EVENT)
    def on_event(self, key: Any = beam.DoFn.KeyParam, later: Any = beam.DoFn.TimerParam(LATER)) -> Iterator[Any]:
        yield key, "event", 0
        later.clear(dynamic_timer_tag="cleared by event")


@pytest.mark.contract("ENG-12", "BAT-03")
@pytest.mark.parametrize("bundle_elements", [1, 3, 500_000])
def test_processing_time_timers_fire_by_due_time_over_all_keys(bundle_elements: int) -> None:
    clock = VirtualClock()
    elements = [
        ("a", ("x", 30), 5),
        ("b", ("x", 10), 6),
        ("b", ("again", 20), 7),
        ("c", ("x", 5), 8),
        ("c", ("x", None), 8),
        ("d", ("past", -5), 9),
        ("e", ("cleared by event", 50), 9),
        ("e", ("event", 3), 9),
    ]
    p = applied(Later(), elements, 1, bundle_elements, prepare=clock.install)
    assert clock.waits == [10, 20, 30, 100]
    early = [(value, at) for value, at in p.timestamped() if value[0] in "de"]
    assert sorted(early) == [(("d", "past", 1), 9), (("e", "event", 0), 3)]
    late = [(value, at) for value, at in p.timestamped() if value[0] in "abc"]
    # Timestamps of outputs are event times: those of the elements that have set the timers.
    assert late == [
        (("b", "x", 2), 6),
        (("b", "again", 2), 7),
        (("b", "event", 0), 77),
        (("a", "x", 1), 5),
        (("b", "last", 2), 7),
    ]


def test_timer_does_not_fire_early_by_system_clock() -> None:
    p = applied(NotBefore(), [(key, 0.05, 0) for key in "abc"])
    assert sorted(p.values()) == [("a", True), ("b", True), ("c", True)]


class NotBefore(beam.DoFn):
    DUE = ReadModifyWriteStateSpec("due", PickleCoder())
    LATER = TimerSpec("later", TimeDomain.REAL_TIME)

    def process(
        self, element: Any, due: Any = beam.DoFn.StateParam(DUE), later: Any = beam.DoFn.TimerParam(LATER)
    ) -> None:
        due.write(Timestamp.now() + element[1])
        later.set(due.read())

    @on_timer(LATER)
    def on_later(self, key: Any = beam.DoFn.KeyParam, due: Any = beam.DoFn.StateParam(DUE)) -> Iterator[Any]:
        yield key, Timestamp.now() >= due.read()
