"""Removal of duplicates that are close to each other in event time.

Owns which elements are duplicates, and when a key's elements are forgotten: as soon as no duplicate can be on time.
Must not know any runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import OrderedListStateSpec, ReadModifyWriteStateSpec, on_timer
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.io.fields import fields_of, type_of_field
from arcbeam.io.forgetting import BEGINNING, ELEMENTS_MAX, between, fire_at, fired_at, forget_timer, is_over
from arcbeam.io.spans import micros_of
from arcbeam.model import texts


class DeduplicateWithinWatermark(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Emit the first of equal elements that are close to each other in event time.

    `events | DeduplicateWithinWatermark(delay=600, key=lambda event: event["id"])`. An element is a duplicate if an
    element with the same key was emitted whose time is at most `delay` earlier or later. Duplicates are dropped. All
    other elements are emitted at once and unchanged, with their time and window.

    The times of emitted elements are kept at least until the watermark is more than `delay` after them. Where elements
    of a key keep arriving, they are kept up to twice as long, or longer if elements are out of order. So the input
    needs a watermark that advances. An element that arrives later than this is emitted, even if it is a duplicate.

    Only elements of the same window are duplicates. Usually this is the global window.

    This is Spark's `dropDuplicatesWithinWatermark`, except that only the distance in time decides. Spark drops every
    equal element that arrives before the watermark has released the first one, however far apart they are. Beam's
    `Deduplicate` does the same; in batch it drops all duplicates; and it can use processing time instead. Use Beam's
    transform for duplicates that are processed soon after each other, like those of a queue that delivers again. Use
    this one if the output should depend neither on the watermark nor on running in batch or streaming.

    Args:
        delay: seconds, or a Duration; not negative.
        key: what equal elements have in common: a function of an element, or the name of a field (a key of a dict, else
            an attribute). None: the whole element. Keys are encoded like those of a grouping.

    Raises:
        ValueError: the delay is negative, the key has another type, or the elements' type declares no such field.
    """

    def __init__(
        self, delay: Duration | float, key: Callable[[Any], Any] | str | None = None, label: str | None = None
    ) -> None:
        super().__init__(label)
        self._delay = micros_of("DeduplicateWithinWatermark", "delay", delay)
        self._field = key if isinstance(key, str) else None
        self._key = partial(_field, key) if isinstance(key, str) else key
        if self._delay < 0:
            raise ValueError(f"DeduplicateWithinWatermark(delay={delay}): a duration must not be negative")
        if not (self._key is None or callable(self._key)):
            raise ValueError(f"DeduplicateWithinWatermark(key={key!r}): expected a function, or the name of a field")

    @override
    def expand(self, elements: Any) -> Any:
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
        shown = texts.safe_text(repr, element, 200)
        raise ValueError(f"an element has no field {name!r}, which is its key for deduplication: {shown}") from None


def _as_key(element: Any) -> tuple[Any, None]:
    return element, None


class _Deduplicate(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Deduplicates pairs (key, value).

    Args:
        delay: microseconds.
        keys: whether to emit the key instead of the value.
    """

    RECENT = ReadModifyWriteStateSpec("recent", FastPrimitivesCoder())
    """Times of emitted elements, in microseconds: the latest of all; the latest in the list (None: the list is empty);
    all that are not in the list. The last item is when the timer fires."""
    KEPT = OrderedListStateSpec("kept", BooleanCoder())
    """More times; the values have no meaning."""
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
        """Emit an element unless it is a duplicate."""
        at, delay = time.micros, self._delay
        last, listed, times, fires = recent.read() or (None, None, [], None)
        if any(-delay <= at - then <= delay for then in times):
            return
        if listed is not None and any(True for _ in kept.read_range(*between(at - delay, at + delay))):
            return
        if last is None:
            last = at
            fires = fire_at(forget, at + delay, window)
        last = max(last, at)
        times = [*times, at]
        if len(times) > ELEMENTS_MAX:
            for then in times:
                kept.add((Timestamp(micros=then), True))
            listed, times = last, []
        recent.write((last, listed, times, fires))
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
        """Forget times after the watermark has passed the end of the period in which they can have duplicates."""
        last, listed, times, fires = recent.read()
        now = fired_at(time, fires)
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
