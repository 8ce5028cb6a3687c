"""Event times, and an observed watermark: what Spark users know as `withWatermark`.

Owns how an element's event time is found, and which values are not event times. Must not know any runner, nor how a
watermark is computed. A runner that knows this transform observes the times. On others it only sets event times.
"""

from __future__ import annotations

import importlib.util
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
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.io.fields import fields_of, type_of_field
from arcbeam.io.spans import micros_of
from arcbeam.io.windowfns import describe
from arcbeam.model import texts
from arcbeam.model.observers import ANNOTATION, CONFIRMED_BY, PART, UNCONFIRMED_MAX, Observing, Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.io")

_EXACT: Final = 4_000_000_000
"""Seconds from 1970 within which a float has a precision of microseconds."""
_TIMES_MIN: Final = threshold(16)
"""Fewer times than this are converted faster one by one than in an array."""
_BEYOND: Final = 1e13
"""Seconds at and beyond which a number cannot be an event time."""
_MICROS_MAX: Final = 253_402_300_800_000_000
"""Microseconds to the year 10000."""
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICRO: Final = timedelta(microseconds=1)
_TIMES: Final = "a Timestamp, a datetime with a time zone, or seconds since 1970 as a number"
_KINDS: Final = (Timestamp, datetime, numbers.Real)
_CONTAINERS: Final = (dict, Mapping)

EventTime = str | Callable[[Any], Any] | None


class WithWatermark(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Set event times, and derive a watermark from them: `clicks | WithWatermark("at", delay=600)`.

    The output's watermark is the latest event time that any worker has seen, less the delay. It never goes back. Each
    commit stores it, and a job that is resumed continues with it. It advances when a micro-batch is committed. So all
    elements of a micro-batch are compared with the watermark of earlier micro-batches, whatever their order. An element
    that is later than the delay allows is late for groupings after this transform, subject to the allowed lateness of
    their windows. An element whose time equals the watermark is not late, also with a delay of zero.

    The watermark is combined with the input's own watermark (from its source, its estimators, or another
    `WithWatermark`). With `policy="min"` the earlier of the two counts: no element that a source still promises is
    late. With "max" the later one counts. An input without a watermark does not count, like a source that has none. An
    input that has ended ends this watermark, too. Several collections can be observed separately and then flattened:
    the earliest watermark counts, or the one that `WithWatermarkPolicy` selects. They can also be flattened first, and
    observed together.

    Elements stay in their windows, so apply this before `WindowInto`. On a bounded input, and on runners that do not
    know it, the transform only sets event times.

    Args:
        event_time: the name of a field (an attribute, or a key of a dict), or a function of an element. Its value is a
            Timestamp, a datetime with a time zone, or seconds since 1970. None: elements already have event times.
        delay: seconds, or a Duration; how much later than others an element may arrive.
        policy: "min" or "max".
        max_skew: seconds, or a Duration. The watermark ignores an element whose time is further ahead of the clock; the
            element is still processed. None: no limit.
        max_jump: seconds, or a Duration. The watermark ignores an element whose time is further ahead of all accepted
            times, until others confirm it; the element is still processed. This does not use the clock, so it also
            works for old data that is replayed. None: no limit.
        confirmed_by: with `max_jump`, the number of other elements that confirm a time. Together they form a chain of
            times, each at most `max_jump` from the next, in any order of arrival. So a stream that really jumps ahead
            continues there, after this many elements. Elements with the same time count once. A clock that stays wrong
            confirms itself; use `quantile` against that.
        idle_after: seconds, or a Duration. The input's own watermark no longer holds this one back when it has not
            advanced for this long (a stalled source, a partition without data). For an input that is read in several
            shards this applies to each shard. The input counts again when it advances. None: it always counts.
        quantile: use this quantile of the last ten to twenty thousand event times instead of their maximum. With 0.99,
            one in a hundred may be arbitrarily far in the future. It takes effect after 1 / (1 - quantile) elements.

    Raises:
        ValueError: a duration is negative; the policy or the quantile is invalid; `max_jump` is combined with a
            quantile; `confirmed_by` is below one; the input's type has no such field, or one that is not a time; or
            event times are set for elements that are already in windows.
        SetupError: `quantile` is given, and the package datasketches is not installed.
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
            raise ValueError(
                f"WithWatermark(event_time={event_time!r}): expected the name of a field, a function, or None"
            )
        if policy not in tuple(Policy):
            raise ValueError(f"WithWatermark(policy={policy!r}): expected 'min' or 'max'")
        skew = None if max_skew is None else _span("max_skew", max_skew)
        idle = None if idle_after is None else _span("idle_after", idle_after)
        if quantile is not None and not (isinstance(quantile, numbers.Real) and 0 < quantile < 1):
            raise ValueError(f"WithWatermark(quantile={quantile!r}): expected a number between 0 and 1, both excluded")
        self._event_time = event_time
        jump = None if max_jump is None else _span("max_jump", max_jump)
        if jump is not None and quantile is not None:
            raise ValueError(f"WithWatermark(max_jump={max_jump}, quantile={quantile}): use only one of the two")
        if (
            isinstance(confirmed_by, bool)
            or not isinstance(confirmed_by, int)
            or not 1 <= confirmed_by < UNCONFIRMED_MAX
        ):
            raise ValueError(
                f"WithWatermark(confirmed_by={confirmed_by!r}): expected a number from 1 to {UNCONFIRMED_MAX - 1}"
            )
        if confirmed_by != CONFIRMED_BY and jump is None:
            raise ValueError(f"WithWatermark(confirmed_by={confirmed_by}): requires max_jump, which is missing")
        if quantile is not None and importlib.util.find_spec("datasketches") is None:
            raise SetupError(
                f"WithWatermark(quantile={quantile!r}): the package datasketches is not installed",
                "use max_jump instead, or install it for the driver and the workers (for Python 3.14 it has no wheel: "
                "pip builds it, with CMake, a C++ compiler and sources from GitHub): pip install datasketches",
            )
        self._observing = Observing(_span("delay", delay), Policy(policy), skew, idle, quantile, jump, confirmed_by)

    @override
    def expand(self, pcoll: Any) -> Any:
        if isinstance(self._event_time, str):
            _check_field(self.label, self._event_time, pcoll.element_type)
        if self._event_time is not None and pcoll.windowing.windowfn != beam.window.GlobalWindows():
            raise ValueError(
                f"{self.label}: its input is already in windows of {describe(pcoll.windowing.windowfn)}, assigned by "
                "other times than those it sets; apply WindowInto after it"
            )
        kind = pcoll.element_type
        observe = _Observe(_EventTimes(self._event_time), self._observing)
        return pcoll | PART >> observe.with_input_types(kind).with_output_types(kind)

    @override
    def default_label(self) -> str:
        by = self._event_time if isinstance(self._event_time, str) else ""
        return f"WithWatermark({by})"


class WithWatermarkPolicy(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Several collections with one watermark: `(clicks, buys) | WithWatermarkPolicy("max") | Flatten()`.

    The watermark of a Flatten, a CoGroupByKey or any other transform of several collections is the earliest watermark
    of these. So no promised element is late, and the slowest collection holds back all. Apply this transform before it.
    Each output collection then has the common watermark that the policy selects, or its own if that is later. This is
    Spark's `multipleWatermarkPolicy`, for one transform.

    With "max" the latest watermark counts: slower collections hold nothing back, and their elements may be late for
    groupings after it. With "min" the earliest counts, without idle collections. A collection is idle if its watermark
    has not advanced for `idle_after`, also if it never had one. It counts again when its watermark advances. Elements
    that it brings then may be late. Without `idle_after`, "min" changes nothing.

    Collections that have ended do not count while others continue. The common watermark never goes back. Each commit
    stores it, and it takes effect in the next micro-batch.

    The transform takes a tuple, a list or a dict of collections, and returns the outputs as a tuple or a dict. On a
    bounded input, and on runners that do not know it, it changes nothing.

    Args:
        policy: "min" or "max".
        idle_after: seconds, or a Duration; with "min" only.

    Raises:
        ValueError: the policy is invalid, `idle_after` is negative or combined with "max", or there are no collections.
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
            raise ValueError(f"WithWatermarkPolicy({policy!r}): expected 'min' or 'max'")
        if idle_after is not None and policy == "max":
            raise ValueError("WithWatermarkPolicy('max', idle_after=…): idle_after requires 'min'")
        idle = None if idle_after is None else _span("idle_after", idle_after, "WithWatermarkPolicy")
        self._observing: Observing | None = None
        if idle is not None or policy == "max":
            self._observing = Observing(0, Policy.MAX, idle_after=idle, shared=Policy(policy))

    @override
    def expand(self, pcolls: Any) -> Any:
        if isinstance(pcolls, Mapping) and pcolls:
            return {tag: self._with(pcoll, f"{PART} {tag}") for tag, pcoll in pcolls.items()}
        if isinstance(pcolls, tuple | list) and pcolls:
            return tuple(self._with(pcoll, f"{PART} {n}") for n, pcoll in enumerate(pcolls))
        raise ValueError(f"{self.label}: expected a tuple, a list or a dict of collections, not {_shown(pcolls)}")

    def _with(self, pcoll: Any, label: str) -> Any:
        fn, kind = _EventTimes(None), pcoll.element_type
        observe = beam.ParDo(fn) if self._observing is None else _Observe(fn, self._observing)
        return pcoll | label >> observe.with_input_types(kind).with_output_types(kind)


def _span(name: str, span: Duration | float, of: str = "WithWatermark") -> int:
    micros = micros_of(of, name, span)
    if micros < 0:
        raise ValueError(f"{of}({name}={span}): a duration must not be negative")
    return micros


def _check_field(label: str, field: str, kind: Any) -> None:
    """Check the field against the input's type, if that declares fields.

    Raises:
        ValueError: the type has no such field, or its type is not a time.
    """
    if isinstance(kind, typehints.Dict.DictConstraint):
        if not _may_be_a_time(kind.value_type):
            raise ValueError(
                f"{label}: values of {kind} have type {kind.value_type}, which is not a time; key {field!r} must be "
                f"{_TIMES}"
            )
        return
    fields = fields_of(kind)
    if fields is None:
        return
    of = type_of_field(label, field, fields)
    if not _may_be_a_time(of):
        raise ValueError(f"{label}: field {field!r} has type {of}, which is not a time; it must be {_TIMES}")


def _may_be_a_time(kind: Any) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(map(_may_be_a_time, typing.get_args(kind)))
    return kind in (Any, object) or not isinstance(kind, type) or (kind is not bool and issubclass(kind, _KINDS))


class _Observe(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A ParDo with the annotation that makes a runner observe event times."""

    def __init__(self, fn: _EventTimes, observing: Observing) -> None:
        super().__init__(fn)
        self._observing = observing

    @override
    def annotations(self) -> dict[str, str]:
        return {ANNOTATION: self._observing.to_text()}


class _EventTimes(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Sets the event times of elements."""

    def __init__(self, event_time: EventTime) -> None:
        self._event_time = event_time
        self._reported = False

    @override
    def process(self, element: Any) -> Iterator[Any]:
        times = self.times_of([element])
        yield element if times is None else beam.window.TimestampedValue(element, Timestamp(micros=times[0]))

    def times_of(
        self, elements: Sequence[Any], micros_of: Callable[[list[Any]], list[int]] | None = None
    ) -> list[int] | None:
        """Return the event times of elements in microseconds; None if the elements keep their times.

        Args:
            elements: at least one.
            micros_of: converts the SDK's Timestamps to microseconds, if there is a faster way than their attribute.

        Raises:
            ValueError: an element has no event time, or a value that is not a time. The message names field and value.
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
        # Floats with a precision of microseconds are within Beam's event time.
        within = kind is float or (times and min(times) >= MIN_TIMESTAMP and max(times) <= _MICROS_MAX)
        if not times or not within:
            times = [self._micros(time, element) for time, element in zip(found, elements, strict=True)]
        return times

    def _fields(self, field: str, elements: Sequence[Any]) -> list[Any]:
        """Return the field of each element: a key of mappings, an attribute of others."""
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
                f"an element of type {type(element).__name__} has no field {field!r}, which is its event time: "
                f"{_shown(element)}"
            ) from None

    def _micros(self, time: Any, element: Any) -> int:
        micros: int | None = None
        if isinstance(time, Timestamp):
            micros = time.micros
        elif isinstance(time, datetime) and time.tzinfo is not None:
            micros = (time - _EPOCH) // _MICRO
        elif isinstance(time, numbers.Real) and not isinstance(time, bool) and abs(time) < _BEYOND:  # type: ignore[operator]
            # numpy's own arithmetic is avoided: its smaller types overflow.
            micros = int(time) * 1_000_000 if isinstance(time, numbers.Integral) else int(float(time) * 1_000_000)
        what = f"field {self._event_time!r}" if isinstance(self._event_time, str) else "the event time"
        if micros is None or not MIN_TIMESTAMP <= micros <= END_OF_GLOBAL_WINDOW:
            lacks = " without a time zone" if isinstance(time, datetime) and time.tzinfo is None else ""
            raise ValueError(
                f"{what} of an element is {_shown(time)}, a {type(time).__name__}{lacks}; it must be {_TIMES}, within "
                f"Beam's event time: {_shown(element)}"
            )
        if micros > _MICROS_MAX and isinstance(time, numbers.Real) and not self._reported:
            # Not an error: one bad element is what `max_skew` and the like are for.
            self._reported = True
            _LOG.warning(
                "%s of an element is %s seconds, which is after the year 9999. Is it in milliseconds or a smaller "
                "unit? "
                "It must be in seconds. The element: %s",
                what,
                _shown(time),
                _shown(element),
            )
        return micros


def _of_floats(seconds: list[float]) -> list[int]:
    """Convert to microseconds; return [] if one of the values lacks that precision or is not a number."""
    if len(seconds) < _TIMES_MIN:
        times = [int(time * 1_000_000) for time in seconds if -_EXACT < time < _EXACT]
        return times if len(times) == len(seconds) else []
    column = np.array(seconds)
    # NaN fails every comparison.
    if not (np.abs(column) < _EXACT).all():
        return []
    times = (column * 1_000_000).astype(np.int64).tolist()
    return times  # type: ignore[no-any-return]


def _shown(value: Any) -> str:
    return texts.safe_text(repr, value, 200)
