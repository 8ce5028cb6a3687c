"""Joins of two streams whose elements belong together if they happen near each other.

Owns how long an element waits for its partners, and that it is forgotten then. Must not know any runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder, VarIntCoder
from apache_beam.transforms.userstate import (
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    TimeDomain,
    TimerSpec,
    on_timer,
)
from apache_beam.utils.timestamp import Duration, Timestamp

_BEGINNING: Final = Timestamp(micros=-(1 << 63))


class JoinWithin(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Joins two streams by key and time: `(left, right) | JoinWithin(after=60)`.

    A left and a right element are partners if they have the same key, and if the right one happens at most `before`
    earlier and at most `after` later. All pairs of partners come out as `(key, (left value, right value))`, each at the
    later time of the two, as soon as both are there. With `how="left"`, a left element that has no partner comes out,
    too, as `(key, (value, None))`, when the watermark says that none can come any more: at the time at which the last
    one could have happened.

    An element waits in the state as long as a partner may come, by the watermark: a left one until `after` behind its
    time, a right one until `before` behind its own. So both inputs need watermarks that move. What comes too late for
    that still finds the partners that wait.

    Both inputs are of keys and values and have the same windows, which do not merge; only elements of the same window
    are partners. Mostly that is the global window; what comes out can be put into others.

    Args:
        before: seconds, or a Duration; at least -`after`. Below zero: a right element must be that much later.
        after: seconds, or a Duration.
        how: "inner", or "left" for left elements without partners, too.

    Raises:
        ValueError: the bounds leave nothing between them; `how` is something else; it is not applied to a pair, or to
            inputs of different windows.
    """

    def __init__(
        self,
        *,
        before: Duration | float = 0,
        after: Duration | float = 0,
        how: Literal["inner", "left"] = "inner",
        label: str | None = None,
    ) -> None:
        super().__init__(label)
        self._before, self._after = (Duration.of(each).micros for each in (before, after))
        if self._after < -self._before:
            raise ValueError(
                f"JoinWithin(before={before}, after={after}): nothing is at most {before} s earlier and at most "
                f"{after} s later than something else; `after` must be at least -`before`"
            )
        if how not in ("inner", "left"):
            raise ValueError(f"JoinWithin(how={how!r}): it is 'inner' or 'left'; for right ones, swap the inputs")
        self._how = how

    def expand(self, inputs: Any) -> Any:
        """See `beam.PTransform`."""
        try:
            left, right = inputs
        except (TypeError, ValueError):
            raise ValueError("JoinWithin takes a pair of collections: (left, right) | JoinWithin(...)") from None
        if left.windowing.windowfn != right.windowing.windowfn:
            raise ValueError(
                f"JoinWithin: the left side has windows of {left.windowing.windowfn}, the right one of "
                f"{right.windowing.windowfn}; apply the same WindowInto to both"
            )
        element = tuple[_common_key(left, right), tuple[bool, Any]]  # type: ignore[valid-type, misc]  # made here
        sides = [
            side | name >> beam.MapTuple(lambda key, value, tag=tag: (key, (tag, value))).with_output_types(element)
            for side, name, tag in ((left, "Left", False), (right, "Right", True))
        ]
        return sides | "Both" >> beam.Flatten() | "Join" >> beam.ParDo(_Join(self._before, self._after, self._how))

    def default_label(self) -> str:
        """See `beam.PTransform`."""
        return "JoinWithin"


def _common_key(*sides: Any) -> Any:
    """The type of the keys, by which their coder is found."""
    kinds = {getattr(side.element_type, "tuple_types", (Any,))[0] for side in sides}
    return kinds.pop() if len(kinds) == 1 else Any


class _Join(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Elements are (key, (whether it is a right one, value)); what waits is known by its time, in microseconds."""

    LEFT = OrderedListStateSpec("left", FastPrimitivesCoder())
    """(Whether it has had a partner, value.)"""
    RIGHT = OrderedListStateSpec("right", FastPrimitivesCoder())
    NEXT = ReadModifyWriteStateSpec("next", VarIntCoder())
    """When the first of all that wait is to be forgotten."""
    FORGET = TimerSpec("forget", TimeDomain.WATERMARK)

    def __init__(self, before: int, after: int, how: str) -> None:
        self._before, self._after, self._outer = before, after, how == "left"
        # How long behind its own time an element waits; its partners may all be earlier.
        self._left_waits, self._right_waits = max(0, after), max(0, before)

    def process(
        self,
        element: tuple[Any, tuple[bool, Any]],
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        left: Any = beam.DoFn.StateParam(LEFT),
        right: Any = beam.DoFn.StateParam(RIGHT),
        next_at: Any = beam.DoFn.StateParam(NEXT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[Any]:
        """An element, and the partners that wait for it."""
        key, (is_right, value) = element
        at = time.micros
        if is_right:
            first, behind = Timestamp(micros=at - self._after), Timestamp(micros=at + self._before + 1)
            partners = list(left.read_range(first, behind))
            for then, (_, other) in partners:
                yield beam.window.TimestampedValue((key, (other, value)), max(then, time))
            if self._outer and not all(had for _, (had, _) in partners):
                left.clear_range(first, behind)
                for then, (_, other) in partners:
                    left.add((then, (True, other)))
            right.add((time, value))
            until = at + self._right_waits
        else:
            found = False
            for then, other in right.read_range(
                Timestamp(micros=at - self._before), Timestamp(micros=at + self._after + 1)
            ):
                found = True
                yield beam.window.TimestampedValue((key, (value, other)), max(then, time))
            left.add((time, (found, value)))
            until = at + self._left_waits
        # Nothing comes behind the end of a window.
        until = min(until, window.max_timestamp().micros)
        known = next_at.read()
        if known is None or until < known:
            next_at.write(until)
            forget.set(Timestamp(micros=until))

    @on_timer(FORGET)  # type: ignore[untyped-decorator]
    def forgotten(
        self,
        key: Any = beam.DoFn.KeyParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        left: Any = beam.DoFn.StateParam(LEFT),
        right: Any = beam.DoFn.StateParam(RIGHT),
        next_at: Any = beam.DoFn.StateParam(NEXT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[Any]:
        """The watermark has passed the time up to which some could have found partners."""
        last = window.max_timestamp().micros
        now = min(time.micros, last)
        lefts_before, rights_before = (
            Timestamp(micros=now + 1 if now == last else now - waits + 1)
            for waits in (self._left_waits, self._right_waits)
        )
        if self._outer:
            for _, (had_one, value) in left.read_range(_BEGINNING, lefts_before):
                if not had_one:
                    yield key, (value, None)
        left.clear_range(_BEGINNING, lefts_before)
        right.clear_range(_BEGINNING, rights_before)
        waits = [
            then.micros + waits
            for side, waits in ((left, self._left_waits), (right, self._right_waits))
            for then, _ in islice(side.read(), 1)
        ]
        if waits:
            until = min(min(waits), last)
            next_at.write(until)
            forget.set(Timestamp(micros=until))
        else:
            next_at.clear()
