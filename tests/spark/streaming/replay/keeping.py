"""The stateful DoFns of a replayed job: cells and timers of both time domains.

Owns what is kept, and when it is output. A kept element is a value with whether its side input had anything, as bytes.
Must not know how the pipeline is connected.

In the SDK, an event time timer holds the watermark at its time, and a processing time timer at the time of the element
that set it. So elements wait for a timer at their own time, or at the end of their window.
"""

from __future__ import annotations

import time as clock_of_the_day
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.utils.windowed_value import WindowedValue

from simulator.scenario.kinds import Keep
from tests.spark.streaming.replay.usercode import Made, Pair, last_of
from tests.spark.streaming.replay.windows import at

_JOINED = {None: b"?", True: b"+", False: b"-"}
_IS_JOINED = {mark: joined for joined, mark in _JOINED.items()}


def _kept(value: bytes, side: Iterable[bytes] | None) -> bytes:
    return _JOINED[None if side is None else any(True for _ in side)] + value


def _made(key: bytes, kept: bytes, time: int, window: Any) -> Any:
    # With its window: for a value with only a time, the SDK's window function decides the windows.
    return WindowedValue(Made(key, kept[1:], _IS_JOINED[kept[:1]]), at(time), (window,))


class UntilEnd(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """All elements of a window are output together, at its end."""

    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())
    BAG = BagStateSpec("bag", BytesCoder())
    KNOWN = SetStateSpec("known", BytesCoder())
    SUM = CombiningValueStateSpec("sum", sum)
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        bag: Any = beam.DoFn.StateParam(BAG),
        known: Any = beam.DoFn.StateParam(KNOWN),
        size: Any = beam.DoFn.StateParam(SUM),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        kept = _kept(element[1], side)
        count.write((count.read() or 0) + 1)
        bag.add(kept)
        known.add(kept)
        size.add(len(kept))
        # A timer that never fires, and one that is set twice.
        end.set(at(min(time.micros + 1, last_of(window))), dynamic_timer_tag="never")
        end.set(at(time.micros))
        end.set(at(last_of(window)))
        end.clear(dynamic_timer_tag="never")

    @on_timer(END)
    def over(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        bag: Any = beam.DoFn.StateParam(BAG),
        known: Any = beam.DoFn.StateParam(KNOWN),
        size: Any = beam.DoFn.StateParam(SUM),
    ) -> Iterator[Any]:
        assert not tag, f"a cleared timer fired: {tag}"
        assert time.micros == last_of(window), f"a timer for the end of {window} fires at {time}"
        values = list(bag.read())
        agreed = (count.read(), size.read(), set(known.read())) == (len(values), sum(map(len, values)), set(values))
        assert agreed, f"the cells of {key!r} in {window} do not agree: {count.read()}, {size.read()}, {values}"
        for kept in values:
            yield _made(key, kept, last_of(window), window)
        for cell in (count, bag, known, size):
            cell.clear()


class UntilExpiration(beam.DoFn):  # type: ignore[misc]
    """All elements of a window are output together, when it expires. Nothing is cleared."""

    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())
    BAG = BagStateSpec("bag", BytesCoder())
    EXPIRES = TimerSpec("expires", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        count: Any = beam.DoFn.StateParam(COUNT),
        bag: Any = beam.DoFn.StateParam(BAG),
    ) -> None:
        count.write((count.read() or 0) + 1)
        bag.add(_kept(element[1], side))

    @on_timer(EXPIRES)
    def expired(
        self,
        key: Any = beam.DoFn.KeyParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        count: Any = beam.DoFn.StateParam(COUNT),
        bag: Any = beam.DoFn.StateParam(BAG),
        declared: Any = beam.DoFn.TimerParam(EXPIRES),
    ) -> Iterator[Any]:
        assert time.micros == last_of(window), f"the expiration of {window} has the time {time}"
        values = list(bag.read())
        assert count.read() == len(values), f"the cells of {key!r} in {window} do not agree: {count.read()}, {values}"
        for kept in values:
            yield _made(key, kept, last_of(window), window)


class ByTheClock(beam.DoFn):  # type: ignore[misc]
    """Elements of a moment are output together, some processing time after the last of them, or at their window's end.

    Args:
        kind: what is kept.
    """

    IN_TIME = OrderedListStateSpec("in time", BytesCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)
    CLOCK = TimerSpec("clock", TimeDomain.REAL_TIME)

    def __init__(self, kind: Keep) -> None:
        self.pause = kind.pause / 1e6

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        in_time: Any = beam.DoFn.StateParam(IN_TIME),
        end: Any = beam.DoFn.TimerParam(END),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> None:
        in_time.add((time, _kept(element[1], side)))
        clock.set(clock_of_the_day.time() + self.pause, dynamic_timer_tag=str(time.micros))
        end.set(at(last_of(window)))

    @on_timer(CLOCK)
    def due(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        in_time: Any = beam.DoFn.StateParam(IN_TIME),
    ) -> Iterator[Any]:
        assert time.micros == int(tag), f"a timer of the clock that holds {tag} has the time {time.micros}"
        values = list(in_time.read_range(time, at(time.micros + 1)))
        for when, kept in values:
            yield _made(key, kept, when.micros, window)
        in_time.clear_range(time, at(time.micros + 1))

    @on_timer(END)
    def over(
        self,
        key: Any = beam.DoFn.KeyParam,
        window: Any = beam.DoFn.WindowParam,
        in_time: Any = beam.DoFn.StateParam(IN_TIME),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        values = list(in_time.read())
        assert [when for when, _ in values] == sorted(when for when, _ in values), f"out of order: {values}"
        for when, kept in values:
            yield _made(key, kept, when.micros, window)
            clock.clear(dynamic_timer_tag=str(when.micros))
        in_time.clear()


class ByTheClockUntilExpiration(ByTheClock):
    """The same, but what is left is output when its window expires."""

    EXPIRES = TimerSpec("expires", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        in_time: Any = beam.DoFn.StateParam(ByTheClock.IN_TIME),
        clock: Any = beam.DoFn.TimerParam(ByTheClock.CLOCK),
    ) -> None:
        in_time.add((time, _kept(element[1], side)))
        clock.set(clock_of_the_day.time() + self.pause, dynamic_timer_tag=str(time.micros))

    @on_timer(EXPIRES)
    def expired(
        self,
        key: Any = beam.DoFn.KeyParam,
        window: Any = beam.DoFn.WindowParam,
        in_time: Any = beam.DoFn.StateParam(ByTheClock.IN_TIME),
        declared: Any = beam.DoFn.TimerParam(EXPIRES),
    ) -> Iterator[Any]:
        for _, kept in in_time.read():
            yield _made(key, kept, last_of(window), window)


class Each(beam.DoFn):  # type: ignore[misc]
    """Each element has its own timer."""

    BAG = BagStateSpec("bag", BytesCoder())
    EACH = TimerSpec("each", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        each: Any = beam.DoFn.TimerParam(EACH),
    ) -> None:
        tag = f"{element[1].decode()}@{time.micros}"
        bag.add(tag.encode() + b":" + _kept(element[1], side))
        each.set(time, dynamic_timer_tag=tag)

    @on_timer(EACH)
    def its_time(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
    ) -> Iterator[Any]:
        assert tag.endswith(f"@{time.micros}"), f"the timer {tag} fires at {time.micros}"
        there = [entry.split(b":", 1) for entry in bag.read()]
        bag.clear()
        for name, kept in there:
            if name.decode() == tag:
                yield _made(key, kept, time.micros, window)
            else:
                bag.add(name + b":" + kept)


class InDrawers(beam.DoFn):  # type: ignore[misc]
    """Elements wait in drawers, each drawer with one timer at its earliest element."""

    BAG = BagStateSpec("bag", BytesCoder())
    DRAWER = TimerSpec("drawer", TimeDomain.WATERMARK)

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        drawer: Any = beam.DoFn.TimerParam(DRAWER),
    ) -> None:
        number = sum(element[1]) % 3
        # Names that are too long for a row's key, and one that is not.
        name = f"drawer {number}" * (1 if not number else 60)
        bag.add(b"%b:%d:%b" % (name.encode(), time.micros, _kept(element[1], side)))
        inside = [int(when) for of, when, _ in _entries(bag) if of == name]
        drawer.set(at(min(inside)), dynamic_timer_tag=name)

    @on_timer(DRAWER)
    def opened(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        bag: Any = beam.DoFn.StateParam(BAG),
    ) -> Iterator[Any]:
        entries = _entries(bag)
        inside = [(when, kept) for of, when, kept in entries if of == tag]
        assert time.micros == min(when for when, _ in inside), f"a drawer is opened at {time.micros}: {inside}"
        bag.clear()
        for of, when, kept in entries:
            if of == tag:
                yield _made(key, kept, when, window)
            else:
                bag.add(b"%b:%d:%b" % (of.encode(), when, kept))


def _entries(bag: Any) -> list[tuple[str, int, bytes]]:
    parts = (entry.split(b":", 2) for entry in bag.read())
    return [(name.decode(), int(when), kept) for name, when, kept in parts]


class InOrder(beam.DoFn):  # type: ignore[misc]
    """Elements arrive in the order of their times, and are output immediately.

    Args:
        kind: what is kept.
    """

    LAST = ReadModifyWriteStateSpec("last", VarIntCoder())
    FIRED = ReadModifyWriteStateSpec("fired", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(self, kind: Keep) -> None:
        self.delay = kind.delay

    def process(
        self,
        element: Pair,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        last: Any = beam.DoFn.StateParam(LAST),
        fired: Any = beam.DoFn.StateParam(FIRED),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[Any]:
        before, timer = last.read(), fired.read()
        assert before is None or before <= time.micros, f"{element} of {time.micros} comes after one of {before}"
        assert timer is None or timer < time.micros, f"{element} of {time.micros} comes after a timer of {timer}"
        last.write(time.micros)
        yield _made(element[0], _kept(element[1], side), time.micros, window)
        end.set(at(min(time.micros + self.delay, last_of(window))))

    @on_timer(END)
    def over(self, time: Any = beam.DoFn.TimestampParam, fired: Any = beam.DoFn.StateParam(FIRED)) -> None:
        fired.write(time.micros)


def keeping(kind: Keep) -> beam.DoFn:
    """Return the user code of a stage that keeps elements."""
    match kind.way:
        case "end":
            return UntilEnd()
        case "clock":
            return ByTheClock(kind)
        case "expiration":
            return UntilExpiration()
        case "clock or expiration":
            return ByTheClockUntilExpiration(kind)
        case "each":
            return Each()
        case "drawers":
            return InDrawers()
        case "order":
            return InOrder(kind)
    raise ValueError(f"the SDK cannot express {kind.way!r}")
