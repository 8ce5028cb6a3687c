"""Elements that are there twice, near each other in event time.

Owns who is a duplicate of whom, and that one is forgotten when none can come any more. Must not know any runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import OrderedListStateSpec, ReadModifyWriteStateSpec, on_timer
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.io.fields import fields_of, type_of_field
from arcbeam.io.forgetting import BEGINNING, MOST, between, fire_at, fired_at, forget_timer, is_over
from arcbeam.io.spans import micros_of
from arcbeam.model import texts


class DeduplicateWithinWatermark(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Of equal elements near each other in event time puts out the first that comes.

    `events | DeduplicateWithinWatermark(delay=600, key=lambda event: event["id"])`. An element is a duplicate if one of
    the same key was put out whose time is at most `delay` earlier or later; it comes to nothing. All others are put out
    as they are, at once, with their time and window.

    What was put out is remembered until the watermark is more than `delay` behind its time, at least: where elements of
    a key keep coming, up to twice as long, and some longer if they come out of order. So the input needs a watermark
    that moves. An element that comes later than that still goes out, though its like may have.

    Only elements of the same window are duplicates; mostly that is the global window.

    This is Spark's `dropDuplicatesWithinWatermark`, but that it is always the distance in time that decides: Spark
    drops whatever comes before the watermark has let go of the first one, however far it is from it. Beam's own
    `Deduplicate` does as Spark does, in batch for ever, and can go by the clock instead; take it for duplicates that
    are near each other when they are processed, like those of a queue that delivers again. Take this one where what
    comes out should not depend on how far the watermark is, nor on whether it is run as a stream or in batch.

    Args:
        delay: seconds, or a Duration; not below zero.
        key: of an element, what its likes have in common: a function, or the name of a field (a key of dicts, else an
            attribute); None: the whole element. Keys are encoded as those of a grouping.

    Raises:
        ValueError: the delay is below zero; the key is something else; elements have no such field, as far as their
            type says.
    """

    def __init__(
        self, delay: Duration | float, key: Callable[[Any], Any] | str | None = None, label: str | None = None
    ) -> None:
        super().__init__(label)
        self._delay = micros_of("DeduplicateWithinWatermark", "delay", delay)
        self._field = key if isinstance(key, str) else None
        self._key = partial(_field, key) if isinstance(key, str) else key
        if self._delay < 0:
            raise ValueError(f"DeduplicateWithinWatermark(delay={delay}): nothing is less than 0 s away")
        if not (self._key is None or callable(self._key)):
            raise ValueError(f"DeduplicateWithinWatermark(key={key!r}): it is a function, or the name of a field")

    def expand(self, elements: Any) -> Any:
        """See `beam.PTransform`."""
        if self._field is not None and (fields := fields_of(elements.element_type)) is not None:
            type_of_field(self.label, self._field, fields)
        if self._key is None:
            pairs = elements | "Key" >> beam.Map(_as_key).with_output_types(tuple[elements.element_type, None])
        else:
            pairs = elements | "Key" >> beam.WithKeys(self._key)
        kept = beam.ParDo(_Deduplicate(self._delay, self._key is None))
        return pairs | "Deduplicate" >> kept.with_output_types(elements.element_type)


def _field(name: str, element: Any) -> Any:
    try:
        return element[name] if isinstance(element, Mapping) else getattr(element, name)
    except (AttributeError, KeyError):
        shown = texts.said(repr, element, 200)
        raise ValueError(f"an element has no field {name!r}, which is to tell it from others: {shown}") from None


def _as_key(element: Any) -> tuple[Any, None]:
    return element, None


class _Deduplicate(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Elements are (key, value).

    Args:
        delay: microseconds.
        keys: the key is what is put out, not the value.
    """

    RECENT = ReadModifyWriteStateSpec("recent", FastPrimitivesCoder())
    """Of what was put out, in microseconds: the latest time; the latest of those in the list (None: it is empty); all
    that are not in the list. And when the timer fires; a job from before that was kept lacks it."""
    KEPT = OrderedListStateSpec("kept", BooleanCoder())
    """More times; the values say nothing."""
    FORGET = forget_timer()

    def __init__(self, delay: int, keys: bool) -> None:
        self._delay, self._keys = delay, keys

    def process(
        self,
        element: tuple[Any, Any],
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        recent: Any = beam.DoFn.StateParam(RECENT),
        kept: Any = beam.DoFn.StateParam(KEPT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[Any]:
        """An element: a duplicate, or not."""
        at, delay = time.micros, self._delay
        last, listed, times, *fires = recent.read() or (None, None, [])
        if any(-delay <= at - then <= delay for then in times):
            return
        if listed is not None and any(True for _ in kept.read_range(*between(at - delay, at + delay))):
            return
        if last is None:
            last = at
            fires = [fire_at(forget, at + delay, window)]
        last = max(last, at)
        times = [*times, at]
        if len(times) > MOST:
            for then in times:
                kept.add((Timestamp(micros=then), True))
            listed, times = last, []
        recent.write((last, listed, times, *fires))
        key, value = element
        yield key if self._keys else value

    @on_timer(FORGET)  # type: ignore[untyped-decorator]
    def forgotten(
        self,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        recent: Any = beam.DoFn.StateParam(RECENT),
        kept: Any = beam.DoFn.StateParam(KEPT),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> None:
        """The watermark has passed the time up to which some could have had duplicates."""
        last, listed, times, *fires = recent.read()
        now = fired_at(time, *fires)
        all_over = is_over(last + self._delay, now, window)
        over = last if all_over else now - self._delay
        if listed is not None:
            kept.clear_range(*between(BEGINNING, over))
        if all_over:
            recent.clear()
            return
        times = [then for then in times if then > over]
        fires = fire_at(forget, last + self._delay, window)
        recent.write((last, None if listed is None or listed <= over else listed, times, fires))
