"""Joins of two streams by key and closeness in event time.

Owns how long an element waits for partners, and when it is forgotten. Must not know any runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.transforms.userstate import OrderedListStateSpec, ReadModifyWriteStateSpec, on_timer
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.io.forgetting import BEGINNING, ELEMENTS_MAX, between, fire_at, fired_at, forget_timer, is_over
from arcbeam.io.spans import micros_of
from arcbeam.io.windowfns import describe
from arcbeam.model import texts

_NO_PAIRS: Final = (bool, int, float, complex, str, bytes)
_NEVER_PAIRS: Final = (str, bytes, bytearray, dict, set, frozenset)
"""Types that can be unpacked into two parts but are not a key and a value: a text of two characters, for example."""


class JoinWithin(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Join two streams by key and time: `(left, right) | JoinWithin(after=60)`.

    A left and a right element with the same key are partners if the right one is at most `before` earlier and at most
    `after` later. All pairs of partners are emitted as `(key, (left value, right value))`, as soon
    as both have arrived, with the later time of the two. With `how="left"`, a left element without a partner is emitted
    as `(key, (value, None))`, once the watermark guarantees that no partner can arrive. Its time is the last time at
    which a partner could have happened.

    An element waits in the state as long as a partner may arrive according to the watermark: a left one until `after`
    after its time, a right one until `before` after its time. So both inputs need watermarks that advance. An element
    that arrives later still finds partners that are in the state. Where elements of a key keep arriving, they are
    forgotten in groups, after up to twice as long, or longer if they are out of order.

    Both inputs are keyed and have the same windows, which must not merge. Only elements of the same window are
    partners. Usually this is the global window. The output can be put into other windows.

    Args:
        before: seconds, or a Duration; at least -`after`. If negative, a right element must be at least that much
            later.
        after: seconds, or a Duration.
        how: "inner", or "left" to emit left elements without partners, too.

    Raises:
        ValueError: the range of times is empty, `how` has another value, the input is not a pair of collections, or the
            inputs have different windows, windows that merge, or elements that are not pairs.
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
        self._before = micros_of("JoinWithin", "before", before)
        self._after = micros_of("JoinWithin", "after", after)
        if self._after < -self._before:
            raise ValueError(
                f"JoinWithin(before={before}, after={after}): no element is at most {before} s earlier and at most "
                f"{after} s later than another; after must be at least -before"
            )
        if how not in ("inner", "left"):
            raise ValueError(
                f"JoinWithin(how={how!r}): expected 'inner' or 'left' (outer); for 'right', swap the inputs"
            )
        self._how = how

    @override
    def expand(self, inputs: Any) -> Any:
        try:
            left, right = inputs
            if not all(isinstance(side, beam.PCollection) for side in (left, right)):
                raise TypeError
        except (TypeError, ValueError):
            raise ValueError("JoinWithin takes a pair of collections: (left, right) | JoinWithin(...)") from None
        if left.windowing.windowfn != right.windowing.windowfn:
            raise ValueError(
                f"JoinWithin: the left side has the windows {describe(left.windowing.windowfn)}, the right side "
                f"{describe(right.windowing.windowfn)}; apply the same WindowInto to both"
            )
        if left.windowing.windowfn.is_merging():
            raise ValueError(
                f"JoinWithin does not support merging windows ({describe(left.windowing.windowfn)}): it joins elements "
                "of the same window; join in other windows, and apply this WindowInto to the output"
            )
        for side, name in ((left, "left"), (right, "right")):
            if side.element_type in _NO_PAIRS:
                raise ValueError(
                    f"JoinWithin: elements of the {name} side have type {side.element_type}; expected pairs of a key "
                    "and a value"
                )
        element = tuple[_common_key(left, right), tuple[bool, Any]]  # type: ignore[valid-type, misc]  # made here
        sides = [
            side | name >> beam.Map(_tagged, tag).with_output_types(element)
            for side, name, tag in ((left, "Left", False), (right, "Right", True))
        ]
        return sides | "Both" >> beam.Flatten() | "Join" >> beam.ParDo(_Join(self._before, self._after, self._how))

    @override
    def default_label(self) -> str:
        return "JoinWithin"


def _tagged(element: Any, is_right: bool) -> Any:
    """Return an element of a side in the form that `_Join` expects."""
    try:
        if isinstance(element, _NEVER_PAIRS):
            raise TypeError
        key, value = element
    except (TypeError, ValueError):
        side, shown = "right" if is_right else "left", texts.safe_text(repr, element, 200)
        raise ValueError(
            f"JoinWithin: an element of the {side} side is not a pair of a key and a value: {shown}"
        ) from None
    return key, (is_right, value)


def _common_key(*sides: Any) -> Any:
    """Return the type of the keys, which determines their coder."""
    kinds = {getattr(side.element_type, "tuple_types", (Any,))[0] for side in sides}
    return kinds.pop() if len(kinds) == 1 else Any


class _Join(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Joins elements (key, (whether it is a right one, value)). Times of waiting elements are in microseconds."""

    WAITING = ReadModifyWriteStateSpec("waiting", FastPrimitivesCoder())
    """When the timer fires; when the last element expires, of all elements, and of those in the lists (None: the lists
    are empty); the left elements (time, whether it has had a partner, value); the right elements (time, value)."""
    LEFT = OrderedListStateSpec("left", FastPrimitivesCoder())
    """(Whether it has had a partner, value)."""
    RIGHT = OrderedListStateSpec("right", FastPrimitivesCoder())
    FORGET = forget_timer()

    def __init__(self, before: int, after: int, how: str) -> None:
        self._before, self._after, self._outer = before, after, how == "left"
        # How long after its own time an element waits. If all its partners are earlier, it does not wait.
        self._left_waits, self._right_waits = max(0, after), max(0, before)

    def process(
        self,
        element: tuple[Any, tuple[bool, Any]],
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        left: Any = beam.DoFn.StateParam(LEFT),
        right: Any = beam.DoFn.StateParam(RIGHT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[Any]:
        """Emit an element's pairs with the partners that are waiting, and keep it."""
        key, (is_right, value) = element
        at: int = time.micros
        fires, last, listed, lefts, rights = waiting.read() or (None, at, None, [], [])
        if is_right:
            first, latest = at - self._after, at + self._before
            partners = [(then, other) for then, _, other in lefts if first <= then <= latest]
            if partners and self._outer:
                lefts = [(then, had or first <= then <= latest, other) for then, had, other in lefts]
            if listed is not None:
                partners += self._listed_lefts(left, first, latest)
            rights = [*rights, (at, value)]
            until = at + self._right_waits
        else:
            first, latest = at - self._before, at + self._after
            partners = [(then, other) for then, other in rights if first <= then <= latest]
            if listed is not None:
                partners += [(then.micros, other) for then, other in right.read_range(*between(first, latest))]
            lefts = [*lefts, (at, bool(partners), value)]
            until = at + self._left_waits
        last = max(last, until)
        # A left element without partners is emitted exactly at its time. All others may wait for the last one.
        if fires is None or (self._outer and until < fires and not is_right and not partners):
            fires = fire_at(forget, until, window)
        if len(lefts) + len(rights) > ELEMENTS_MAX:
            for then, had, other in lefts:
                left.add((Timestamp(micros=then), (had, other)))
            for then, other in rights:
                right.add((Timestamp(micros=then), other))
            lefts, rights, listed = [], [], last
        waiting.write((fires, last, listed, lefts, rights))
        for then, other in partners:
            pair = key, ((other, value) if is_right else (value, other))
            yield beam.window.TimestampedValue(pair, time if then <= at else Timestamp(micros=then))

    def _listed_lefts(self, left: Any, first: int, latest: int) -> list[tuple[int, Any]]:
        """Return the left elements in the list between two times, and mark them as having had a partner."""
        there = between(first, latest)
        found = list(left.read_range(*there))
        if self._outer and not all(had for _, (had, _) in found):
            left.clear_range(*there)
            for then, (_, other) in found:
                left.add((then, (True, other)))
        return [(then.micros, other) for then, (_, other) in found]

    @on_timer(FORGET)  # type: ignore[untyped-decorator]
    def forgotten(
        self,
        key: Any = beam.DoFn.KeyParam,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        left: Any = beam.DoFn.StateParam(LEFT),
        right: Any = beam.DoFn.StateParam(RIGHT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[Any]:
        """Forget elements after the watermark has passed the end of the period in which they can have partners."""
        fires, last, listed, lefts, rights = waiting.read()
        now = fired_at(time, fires)
        all_over = is_over(last, now, window)
        left_over, right_over = (last, last) if all_over else (now - self._left_waits, now - self._right_waits)
        alone = [other for then, had, other in lefts if then <= left_over and not had]
        if listed is not None:
            up_to = between(BEGINNING, left_over)
            if self._outer:
                alone += [other for _, (had, other) in left.read_range(*up_to) if not had]
            left.clear_range(*up_to)
            right.clear_range(*between(BEGINNING, right_over))
        if all_over:
            waiting.clear()
        else:
            lefts = [each for each in lefts if each[0] > left_over]
            rights = [each for each in rights if each[0] > right_over]
            listed = None if listed is None or listed <= now else listed
            fires = last
            if self._outer:
                without = [then + self._left_waits for then, had, _ in lefts if not had]
                if listed is not None:
                    without += self._first_without(left, left_over + 1, listed - self._left_waits)
                fires = min(without, default=last)
            waiting.write((fire_at(forget, fires, window), last, listed, lefts, rights))
        if self._outer:
            for value in alone:
                yield key, (value, None)

    def _first_without(self, left: Any, first: int, latest: int) -> list[int]:
        """Return when the first left element in the list without a partner expires; [] if there is none.

        The list may be long. It is searched in parts, each twice as long as the previous one.
        """
        part = max(1, self._left_waits // _PARTS)
        while first <= latest:
            for then, (had, _) in left.read_range(*between(first, first + part - 1)):
                if not had:
                    return [then.micros + self._left_waits]
            first, part = first + part, 2 * part
        return []


_PARTS: Final = 64
"""The first part that is searched is this fraction of the time for which a left element waits."""
