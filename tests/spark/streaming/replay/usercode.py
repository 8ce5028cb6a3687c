"""What the stages of a replayed job do with their input: user code of the SDK.

Owns the splittable and plain DoFns; stateful ones are in `stateful`. An element is (key, value), and leaves a stage as
`Made`. Must not know how the pipeline is connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW
from simulator.scenario.combining import atoms_of, joined
from simulator.scenario.kinds import MAIN, Expand, Pace, Source, promised
from tests.spark.streaming.replay.windows import at, lasting

Pair = tuple[bytes, bytes]


class Made(NamedTuple):
    """A stage's output.

    Attributes:
        key, value: passed to the next stage.
        joined: whether the side input had anything; None if there is none.
        elements: how many are in it.
    """

    key: bytes
    value: bytes
    joined: bool | None = None
    elements: int = 1


def last_of(window: Any) -> int:
    """Return the last timestamp of a window that exists."""
    return min(int(window.max_timestamp().micros), END_OF_GLOBAL_WINDOW)


class _Splittable(beam.DoFn, RestrictionProvider, WatermarkEstimatorProvider):  # type: ignore[misc]  # Beam is untyped
    """Positions, processed at a pace; those after the last are polls for more.

    Args:
        pace: the pace.
        polls: number of polls.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def span(self, element: Any) -> tuple[int, int]:
        """Return the first position with something, and the last."""
        raise NotImplementedError

    def promise(self, element: Any, lo: int, hi: int) -> int:
        """Return the watermark for the rest."""
        raise NotImplementedError

    def worked_off(self, element: Any, tracker: Any, estimator: Any) -> Iterator[int]:
        """Yield the claimed positions; makes checkpoints."""
        pace, (_, end) = self.pace, self.span(element)
        position = first = tracker.current_restriction().start
        while tracker.try_claim(position):
            if position < end:
                yield position
            position += 1
            stop = tracker.current_restriction().stop
            if position < stop:
                estimator.set_watermark(at(self.promise(element, position, stop)))
            if position == end or position > end:
                tracker.defer_remainder(lasting(pace.pause))
                return
            if position - first >= pace.piece:
                pauses = pace.pause and position % pace.every == 0
                tracker.defer_remainder(*((lasting(pace.pause),) if pauses else ()))
                return

    # The SDK's.

    def initial_restriction(self, element: Any) -> OffsetRange:
        lo, hi = self.span(element)
        return OffsetRange(lo, hi + self.pace.polls)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
        return int(restriction.size())

    def initial_estimator_state(self, element: Any, restriction: OffsetRange) -> Any:
        return None if self.pace.silent else at(self.promise(element, restriction.start, restriction.stop))

    def create_watermark_estimator(self, estimator_state: Any) -> ManualWatermarkEstimator:
        return ManualWatermarkEstimator(estimator_state)

    def estimator_state_coder(self) -> Any:
        return beam.coders.PickleCoder()


class Reading(_Splittable):
    """Reads a part of a source: elements are pairs of its first and last position.

    Args:
        source: the content.
        last: a time after those of all events.
    """

    def __init__(self, source: Source, outputs: tuple[str, ...], last: int) -> None:
        super().__init__(source.pace)
        self.source, self.outputs, self.last = source, outputs, last

    def span(self, element: Any) -> tuple[int, int]:
        """See `_Splittable`."""
        return element

    def promise(self, element: Any, lo: int, hi: int) -> int:
        """See `_Splittable`: one for all outputs.

        Not the end of time, also if only surprises are left, because the output must be collected.
        """
        end = element[1]
        return min(self.last, *(promised(self.source.events, lo, min(hi, end), output) for output in self.outputs))

    def read(self, element: Any, tracker: Any, estimator: Any) -> Iterator[Any]:
        """Yield the content of each position."""
        for position in self.worked_off(element, tracker, estimator):
            event = self.source.events[position]
            made = TimestampedValue(Made(event.key, event.atom), at(event.time))
            yield made if event.output == MAIN else beam.pvalue.TaggedOutput(event.output, made)


class ReadingToTheEnd(Reading):
    """A source with an end."""

    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterator[Any]:
        yield from self.read(element, tracker, estimator)


class ReadingOn(Reading):
    """A source that may have no end."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterator[Any]:
        yield from self.read(element, tracker, estimator)


class Expanding(_Splittable):
    """Makes copies of elements (key, value, time)."""

    def __init__(self, kind: Expand) -> None:
        super().__init__(kind.pace)
        self.copies = kind.copies

    def span(self, element: Any) -> tuple[int, int]:
        """See `_Splittable`."""
        return 0, len(list(atoms_of(element[1]))) * self.copies

    def promise(self, element: Any, lo: int, hi: int) -> int:
        """See `_Splittable`."""
        ahead = min((position % self.copies for position in range(lo, min(hi, self.span(element)[1]))), default=None)
        return self.later(element[2], self.copies - 1 if ahead is None else ahead)

    @staticmethod
    def later(time: int, copy: int) -> int:
        """Return the time of a copy."""
        return min(time + copy, END_OF_GLOBAL_WINDOW)

    def process(
        self,
        element: Any,
        side: Iterable[bytes] | None,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(),
    ) -> Iterator[Any]:
        key, value, when = element
        assert time.micros == when, f"an element of {when} has come at {time.micros}"
        found = None if side is None else any(True for _ in side)
        atoms = list(atoms_of(value))
        for position in self.worked_off(element, tracker, estimator):
            atom, copy = atoms[position // self.copies], position % self.copies
            made = Made(key, b"%b.%d" % (atom, copy), found)
            yield WindowedValue(made, at(self.later(time.micros, copy)), (window,))


class Passing(beam.DoFn):  # type: ignore[misc]
    """Elements are passed on; with several outputs, by the sum of their bytes."""

    def __init__(self, outputs: tuple[str, ...]) -> None:
        self.outputs = outputs

    def process(self, element: Pair) -> Iterator[Any]:
        key, value = element
        output = self.outputs[sum(value) % len(self.outputs)]
        made = Made(key, value)
        yield made if output == MAIN else beam.pvalue.TaggedOutput(output, made)


def joining(element: Pair, side: Iterable[bytes]) -> Made:
    """Pass an element on, with whether the side input has anything in its window."""
    return Made(*element, joined=any(True for _ in side))


def paned(element: tuple[bytes, Iterable[bytes]]) -> Made:
    """Pass a pane on as an element."""
    key, values = element
    each = list(values)
    return Made(key, joined(atom for value in each for atom in atoms_of(value)), elements=len(each))


class Atoms(beam.CombineFn):  # type: ignore[misc]
    """A combiner of values, whose order is free."""

    def create_accumulator(self) -> list[bytes]:
        return []

    def add_input(self, accumulator: list[bytes], value: bytes) -> list[bytes]:
        return [*accumulator, value]

    def merge_accumulators(self, accumulators: Iterable[list[bytes]]) -> list[bytes]:
        return [value for accumulator in accumulators for value in accumulator]

    def extract_output(self, accumulator: list[bytes]) -> list[bytes]:
        return accumulator
