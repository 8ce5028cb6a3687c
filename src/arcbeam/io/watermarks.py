"""Event times, and a watermark that is observed: what Spark's users know as `withWatermark`.

Owns how an element's time is found, and what is no time. Must not know any runner, nor what a watermark is made of: the
runner that knows this transform observes the times, for others it gives elements their times and no more.
"""

from __future__ import annotations

import logging
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import apache_beam as beam
import numpy as np
from apache_beam.typehints import typehints
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.io.fields import fields_of, type_of_field
from arcbeam.io.spans import micros_of
from arcbeam.io.windowfns import told
from arcbeam.model import texts
from arcbeam.model.observers import ANNOTATION, CONFIRMED_BY, MOST, PART, Observing, Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.io")

_EXACT: Final = 4_000_000_000
"""Seconds from 1970 within which a float has microseconds."""
_FEW: Final = threshold(16)
"""Times fewer than these are quicker one by one than in an array."""
_BEYOND: Final = 1e13
"""Seconds that are no event time."""
_FAR: Final = 253_402_300_800_000_000
"""Microseconds to the year 10000."""
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICRO: Final = timedelta(microseconds=1)
_TIMES: Final = "a Timestamp, a datetime with a time zone, or seconds since 1970 as a number"
_KINDS: Final = (Timestamp, datetime, numbers.Real)
_CONTAINERS: Final = (dict, Mapping)

EventTime = str | Callable[[Any], Any] | None


class WithWatermark(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Elements with event times, and a watermark that follows them: `clicks | WithWatermark("at", delay=600)`.

    The watermark of what comes out is the latest event time that has been seen, by all workers together, less the
    delay. It never goes back, is kept with each commit, and a job that is resumed goes on with it. It moves when a
    micro-batch is committed: all that comes in a micro-batch is judged by what was seen before that micro-batch, in
    whatever order it comes. What comes later than the delay allows is late to groupings behind this, by the allowed
    lateness of their windows; what equals the watermark is not late, also with a delay of zero.

    It goes together with what the input itself says of time (its source, its estimators, another `WithWatermark`): with
    `policy="min"` it is the earlier of the two, and nothing that a source still promises to bring is late; with "max"
    the later one. An input that says nothing, like a source without a watermark, does not count; one that has ended
    ends this, too. Of several collections, flatten those that have their own (the earliest counts, or what
    `WithWatermarkPolicy` says), or flatten first, and observe all together.

    Elements stay in their windows: apply it before `WindowInto`. On a bounded input it gives event times and nothing
    else, and so it does on runners that do not know it.

    Args:
        event_time: the name of a field of the elements (an attribute, or a key of a dict), or a function of an element,
            that gives a Timestamp, a datetime with a time zone, or seconds since 1970; None: elements have their event
            times already.
        delay: seconds, or a Duration; how much later than others an element may come.
        policy: "min" or "max".
        max_skew: seconds, or a Duration: an element whose time is that much ahead of the clock is processed, and not
            believed: the watermark does not follow it. None: all are believed.
        max_jump: seconds, or a Duration: an element whose time is more than that ahead of all others that are believed
            is processed, and not believed until others confirm it. This asks no clock: it is for old data, too, that is
            replayed. None: all are believed.
        confirmed_by: with `max_jump`, how many others it takes: they and it form a chain of times, each at most
            `max_jump` from the next, whenever they come. So a stream that really jumps ahead goes on there; and its
            first elements are not believed before there are as many. Elements of the very same time count once. A
            clock that is wrong for long confirms itself: against that, `quantile`.
        idle_after: seconds, or a Duration: what the input says of time does not hold this back any more when it has not
            moved for so long (a source that stalls, a partition without data); of an input that is read in several
            shards, what it says in those in which it has not moved. It counts again when it moves. None: it always
            counts.
        quantile: what counts as the latest time is not the latest of all, but that which this part of the last ten to
            twenty thousand elements has not passed: with 0.99, one in a hundred may be as far in the future as it
            likes. It takes 1 / (1 - quantile) elements until that says anything.

    Raises:
        ValueError: a span of time is below zero; the policy is something else; the quantile is no part; `max_jump` is
            given with a quantile, or fewer than one is to confirm a time; the input's type has no such field, or one
            that is no time; event times are given to what is in windows already.
    """

    def __init__(
        self,
        event_time: EventTime,
        delay: Duration | float,
        *,
        policy: Literal["min", "max"] = "min",
        max_skew: Duration | float | None = None,
        max_jump: Duration | float | None = None,
        confirmed_by: int = CONFIRMED_BY,
        idle_after: Duration | float | None = None,
        quantile: float | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(label)
        if not (event_time is None or isinstance(event_time, str) or callable(event_time)):
            raise ValueError(f"WithWatermark(event_time={event_time!r}): it is a field's name, a function, or None")
        if policy not in tuple(Policy):
            raise ValueError(f"WithWatermark(policy={policy!r}): it is 'min' or 'max'")
        skew = None if max_skew is None else _span("max_skew", max_skew)
        idle = None if idle_after is None else _span("idle_after", idle_after)
        if quantile is not None and not (isinstance(quantile, numbers.Real) and 0 < quantile < 1):
            raise ValueError(f"WithWatermark(quantile={quantile!r}): it is a part of all elements, between 0 and 1")
        self._event_time = event_time
        jump = None if max_jump is None else _span("max_jump", max_jump)
        if jump is not None and quantile is not None:
            raise ValueError(f"WithWatermark(max_jump={max_jump}, quantile={quantile}): of one of them only")
        if isinstance(confirmed_by, bool) or not isinstance(confirmed_by, int) or not 1 <= confirmed_by < MOST:
            raise ValueError(
                f"WithWatermark(confirmed_by={confirmed_by!r}): it is a number of elements, 1 to {MOST - 1}"
            )
        if confirmed_by != CONFIRMED_BY and jump is None:
            raise ValueError(f"WithWatermark(confirmed_by={confirmed_by}): it goes with max_jump, which is not given")
        self._observing = Observing(_span("delay", delay), Policy(policy), skew, idle, quantile, jump, confirmed_by)

    def expand(self, pcoll: Any) -> Any:
        """See `beam.PTransform`."""
        if isinstance(self._event_time, str):
            _check_field(self.label, self._event_time, pcoll.element_type)
        if self._event_time is not None and pcoll.windowing.windowfn != beam.window.GlobalWindows():
            raise ValueError(
                f"{self.label}: its input is in windows of {told(pcoll.windowing.windowfn)} already, by other "
                "times than it gives; apply WindowInto behind it"
            )
        kind = pcoll.element_type
        observe = _Observe(_EventTimes(self._event_time), self._observing)
        return pcoll | PART >> observe.with_input_types(kind).with_output_types(kind)

    def default_label(self) -> str:
        """See `beam.PTransform`."""
        by = self._event_time if isinstance(self._event_time, str) else ""
        return f"WithWatermark({by})"


class WithWatermarkPolicy(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Several collections that go on with one watermark: `(clicks, buys) | WithWatermarkPolicy("max") | Flatten()`.

    A Flatten, a CoGroupByKey and any other transform of several collections is at the earliest of their watermarks:
    nothing that one of them still promises is late, and the slowest holds back all. Put this before it, and each of
    them is where the policy says that all are together, if it is not later itself. It is as Spark's
    `multipleWatermarkPolicy`, for this one transform.

    With "max" that is the latest: the slower ones hold nothing back, and what they bring may be late to groupings
    behind. With "min" it is the earliest, but of those that do not stand: with `idle_after`, one whose watermark
    has not moved for so long holds the others back no more, also if it has never said anything. It counts again when it
    moves; what it brings then may be late. Without `idle_after`, "min" changes nothing.

    Collections that have ended do not count while others go on. What all are together never goes back, is kept with
    each commit, and counts from the next micro-batch on.

    It takes a tuple, a list or a dict of collections, and gives the same of those that go on. On a bounded input, and
    with runners that do not know it, it passes on what comes, and does nothing.

    Args:
        policy: "min" or "max".
        idle_after: seconds, or a Duration; with "min" only.

    Raises:
        ValueError: the policy is something else; `idle_after` is below zero, or given with "max"; there are no
            collections.
    """

    def __init__(
        self,
        policy: Literal["min", "max"],
        *,
        idle_after: Duration | float | None = None,
        label: str | None = None,
    ) -> None:
        super().__init__(label)
        if policy not in tuple(Policy):
            raise ValueError(f"WithWatermarkPolicy({policy!r}): it is 'min' or 'max'")
        if idle_after is not None and policy == "max":
            raise ValueError("WithWatermarkPolicy('max', idle_after=…): there, who is idle holds nobody back")
        idle = None if idle_after is None else _span("idle_after", idle_after, "WithWatermarkPolicy")
        self._observing: Observing | None = None
        if idle is not None or policy == "max":
            self._observing = Observing(0, Policy.MAX, idle_after=idle, shared=Policy(policy))

    def expand(self, pcolls: Any) -> Any:
        """See `beam.PTransform`."""
        if isinstance(pcolls, Mapping) and pcolls:
            return {tag: self._with(pcoll, f"{PART} {tag}") for tag, pcoll in pcolls.items()}
        if isinstance(pcolls, tuple | list) and pcolls:
            return tuple(self._with(pcoll, f"{PART} {n}") for n, pcoll in enumerate(pcolls))
        raise ValueError(f"{self.label}: it takes a tuple, a list or a dict of collections, not {_shown(pcolls)}")

    def _with(self, pcoll: Any, label: str) -> Any:
        fn, kind = _EventTimes(None), pcoll.element_type
        observe = beam.ParDo(fn) if self._observing is None else _Observe(fn, self._observing)
        return pcoll | label >> observe.with_input_types(kind).with_output_types(kind)


def _span(name: str, span: Duration | float, of: str = "WithWatermark") -> int:
    micros = micros_of(of, name, span)
    if micros < 0:
        raise ValueError(f"{of}({name}={span}): a span of time is not below zero")
    return micros


def _check_field(label: str, field: str, kind: Any) -> None:
    """Checks what the schema says, if there is one.

    Raises:
        ValueError: there is no such field, or it is no time.
    """
    if isinstance(kind, typehints.Dict.DictConstraint):
        if not _may_be_a_time(kind.value_type):
            raise ValueError(
                f"{label}: values of {kind} are of type {kind.value_type}, which is no time; key {field!r} must be "
                f"{_TIMES}"
            )
        return
    fields = fields_of(kind)
    if fields is None:
        return
    of = type_of_field(label, field, fields)
    if not _may_be_a_time(of):
        raise ValueError(f"{label}: field {field!r} is of type {of}, which is no time; it must be {_TIMES}")


def _may_be_a_time(kind: Any) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(map(_may_be_a_time, typing.get_args(kind)))
    return kind in (Any, object) or not isinstance(kind, type) or (kind is not bool and issubclass(kind, _KINDS))


class _Observe(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A ParDo that says that it observes."""

    def __init__(self, fn: _EventTimes, observing: Observing) -> None:
        super().__init__(fn)
        self._observing = observing

    def annotations(self) -> dict[str, str]:
        """See `beam.PTransform`."""
        return {ANNOTATION: self._observing.to_text()}


class _EventTimes(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Gives elements their event times."""

    def __init__(self, event_time: EventTime) -> None:
        self._event_time = event_time
        self._told = False

    def process(self, element: Any) -> Iterator[Any]:
        """See `beam.DoFn`."""
        times = self.times_of([element])
        yield element if times is None else beam.window.TimestampedValue(element, Timestamp(micros=times[0]))

    def times_of(
        self, elements: Sequence[Any], micros_of: Callable[[list[Any]], list[int]] | None = None
    ) -> list[int] | None:
        """The event times of some elements, microseconds; None if they keep those that they have.

        Args:
            elements: at least one.
            micros_of: makes microseconds of the SDK's Timestamps, if there is a quicker way than theirs.

        Raises:
            ValueError: an element has none, or what it has is no time; the field and what it has are named.
        """
        by = self._event_time
        if by is None:
            return None
        found = self._fields(by, elements) if isinstance(by, str) else list(map(by, elements))
        kinds = set(map(type, found))
        kind = kinds.pop() if len(kinds) == 1 else None
        times: list[int] = []
        if kind is float:
            times = _of_floats(found)
        elif kind is int:
            times = [time * 1_000_000 for time in found]
        elif kind is Timestamp:
            times = [time.micros for time in found] if micros_of is None else micros_of(found)
        # Floats that have microseconds are within Beam's time.
        within = kind is float or (times and min(times) >= MIN_TIMESTAMP and max(times) <= _FAR)
        if not times or not within:
            times = [self._micros(time, element) for time, element in zip(found, elements, strict=True)]
        return times

    def _fields(self, field: str, elements: Sequence[Any]) -> list[Any]:
        """The field of each element: an attribute of some, a key of others."""
        try:
            kind = type(elements[0])
            get = operator.itemgetter(field) if issubclass(kind, _CONTAINERS) else operator.attrgetter(field)
            return list(map(get, elements))
        except (AttributeError, KeyError, TypeError):
            return [self._field(field, element) for element in elements]

    def _field(self, field: str, element: Any) -> Any:
        try:
            return element[field] if isinstance(element, _CONTAINERS) else operator.attrgetter(field)(element)
        except (AttributeError, KeyError):
            raise ValueError(
                f"an element of type {type(element).__name__} has no field {field!r}, which is to be its event time: "
                f"{_shown(element)}"
            ) from None

    def _micros(self, time: Any, element: Any) -> int:
        micros: int | None = None
        if isinstance(time, Timestamp):
            micros = time.micros
        elif isinstance(time, datetime) and time.tzinfo is not None:
            micros = (time - _EPOCH) // _MICRO
        elif isinstance(time, numbers.Real) and not isinstance(time, bool) and abs(time) < _BEYOND:  # type: ignore[operator]
            # Not numpy's own arithmetic: that of its smaller types ends too early.
            micros = int(time) * 1_000_000 if isinstance(time, numbers.Integral) else int(float(time) * 1_000_000)
        what = f"field {self._event_time!r}" if isinstance(self._event_time, str) else "the event time"
        if micros is None or not MIN_TIMESTAMP <= micros <= END_OF_GLOBAL_WINDOW:
            lacks = " without a time zone" if isinstance(time, datetime) and time.tzinfo is None else ""
            raise ValueError(
                f"{what} of an element is {_shown(time)}, a {type(time).__name__}{lacks}; it must be {_TIMES}, within "
                f"Beam's event time: {_shown(element)}"
            )
        if micros > _FAR and isinstance(time, numbers.Real) and not self._told:
            # Not an error: one bad element is what `max_skew` and the like are for.
            self._told = True
            _LOG.warning(
                "%s of an element is %s seconds, which is behind the year 9999: is it in milliseconds, or smaller? "
                "Seconds are wanted. The element: %s",
                what,
                _shown(time),
                _shown(element),
            )
        return micros


def _of_floats(seconds: list[float]) -> list[int]:
    """Microseconds; none at all if some of these seconds have none."""
    if len(seconds) < _FEW:
        times = [int(time * 1_000_000) for time in seconds if -_EXACT < time < _EXACT]
        return times if len(times) == len(seconds) else []
    column = np.array(seconds)
    # What is not a number is below nothing.
    if not (np.abs(column) < _EXACT).all():
        return []
    times = (column * 1_000_000).astype(np.int64).tolist()
    return times  # type: ignore[no-any-return]


def _shown(value: Any) -> str:
    return texts.said(repr, value, 200)
