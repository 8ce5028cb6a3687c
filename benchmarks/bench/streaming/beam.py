"""The works as Beam pipelines, as users write them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimeDomain, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows, Sessions, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io import JoinWithin, WithWatermark
from bench.streaming import works
from bench.streaming.works import CLAIM, GAP, PARTITIONS, WINDOW
from bench.works import work


class Tally(beam.DoFn):
    """Counts results and sums their digests; a file per bundle in `folder`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def start_bundle(self) -> None:
        self.count = self.total = 0

    def process(self, digest: int) -> None:
        self.count += 1
        self.total += digest

    def finish_bundle(self) -> None:
        if self.count:
            (Path(self.folder) / uuid.uuid4().hex).write_text(f"{self.count} {self.total}")


class _Partition(RestrictionProvider):
    """A partition is read from its first offset to its last."""

    def __init__(self, elements: int) -> None:
        self.elements = elements

    def initial_restriction(self, partition: int) -> OffsetRange:
        return OffsetRange(0, len(works.offsets(partition, self.elements)))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, partition: int, restriction: OffsetRange) -> int:
        return restriction.size()


class Read(beam.DoFn):
    """Reads a partition, some records at once, as a log is polled; reports its watermark."""

    def __init__(self, elements: int) -> None:
        self.elements = elements

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        partition: int,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[TimestampedValue]:
        restriction = tracker.current_restriction()
        records = works.offsets(partition, self.elements)
        for start in range(restriction.start, restriction.stop, CLAIM):
            stop = min(start + CLAIM, restriction.stop)
            if not tracker.try_claim(start) or (stop - 1 > start and not tracker.try_claim(stop - 1)):
                return
            for x in records[start:stop]:
                yield TimestampedValue(x, works.second_of(x))
            estimator.set_watermark(Timestamp.of(works.second_of(records[stop - 1])))


def timed(x: int) -> TimestampedValue:
    return TimestampedValue(x, works.second_of(x))


def created(p: beam.Pipeline, elements: int, side: str = "") -> beam.PCollection[int]:
    seeds = p | f"{side}Create" >> beam.Create(work.seeds(elements))
    return seeds | f"{side}Reshuffle" >> beam.Reshuffle() | f"{side}Numbers" >> beam.FlatMap(work.numbers)


def digest_of_pane(key: int, value: int, window: Any = beam.DoFn.WindowParam) -> int:
    return works.digest(key, float(window.end), value)


def _counted(timed: beam.PCollection[int]) -> beam.PCollection[int]:
    windowed = timed | beam.WindowInto(FixedWindows(WINDOW))
    return windowed | beam.Map(work.key_of) | beam.combiners.Count.PerElement() | beam.MapTuple(digest_of_pane)


def _count(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    read = p | beam.Create(range(PARTITIONS)) | beam.Reshuffle() | beam.ParDo(_reader(elements))
    return _counted(read)


def _reader(elements: int) -> beam.DoFn:
    class ReadSome(Read):
        """A copy of `Read`, because a parameter's default belongs to the class."""

        @beam.DoFn.unbounded_per_element()
        def process(
            self,
            partition: int,
            tracker: Any = beam.DoFn.RestrictionParam(_Partition(elements)),
            estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
        ) -> Iterator[TimestampedValue]:
            return Read.process(self, partition, tracker, estimator)

    return ReadSome(elements)


def _count_create(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    return _counted(created(p, elements) | "Time" >> beam.Map(timed))


def _watermark(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    # Several shards are read concurrently, so elements are unordered: none may be late.
    return _counted(created(p, elements) | WithWatermark(works.second_of, elements / works.PER_SECOND))


class Ordinal(beam.DoFn):
    """Numbers the elements of each key from 1."""

    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterable[int]:
        ordinal = (seen.read() or 0) + 1
        seen.write(ordinal)
        yield works.digest(element[0], 0, ordinal)


def _state(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    return created(p, elements) | beam.Map(work.keyed) | beam.ParDo(Ordinal())


class Later(beam.DoFn):
    """Sets a timer for each element, at its time."""

    DUE = TimerSpec("due", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[int, int],
        due: Any = beam.DoFn.TimerParam(DUE),
        time: Any = beam.DoFn.TimestampParam,
    ) -> None:
        due.set(time, dynamic_timer_tag=str(element[1]))

    @on_timer(DUE)
    def fired(self, key: Any = beam.DoFn.KeyParam, time: Any = beam.DoFn.TimestampParam) -> Iterator[int]:
        yield works.digest(key, float(time), 0)


def _timers(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    return created(p, elements) | "Time" >> beam.Map(timed) | beam.Map(work.keyed) | beam.ParDo(Later())


def _pair(x: int) -> tuple[int, bytes]:
    return work.key_of(x), works.big_value(x)


def _sum(key: int, values: Iterable[bytes]) -> tuple[int, int]:
    return key, works.sum_of_big(values)


def _group(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    windowed = created(p, elements) | "Time" >> beam.Map(timed) | beam.WindowInto(FixedWindows(WINDOW))
    return windowed | beam.Map(_pair) | beam.GroupByKey() | beam.MapTuple(_sum) | beam.MapTuple(digest_of_pane)


def in_session(x: int) -> TimestampedValue:
    return TimestampedValue(works.session_key(x), works.session_second(x))


def _joined(key: int, pair: tuple[int, int]) -> int:
    return works.digest(key, works.second_of(pair[0]), 0)


def _join(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    sides = tuple(
        created(p, elements, side) | f"Time {side}" >> beam.Map(timed) | f"Key {side}" >> beam.Map(work.keyed)
        for side in ("left", "right")
    )
    return sides | JoinWithin(after=2) | beam.MapTuple(_joined)


def _sessions(p: beam.Pipeline, elements: int) -> beam.PCollection[int]:
    windowed = created(p, elements) | "Time" >> beam.Map(in_session) | beam.WindowInto(Sessions(GAP))
    return windowed | beam.combiners.Count.PerElement() | beam.MapTuple(digest_of_pane)


PIPELINES: dict[str, Callable[[beam.Pipeline, int], beam.PCollection[int]]] = {
    "count": _count,
    "count-create": _count_create,
    "state": _state,
    "timers": _timers,
    "group": _group,
    "sessions": _sessions,
    "watermark": _watermark,
    "join": _join,
}


def run(name: str, elements: int, folder: str) -> work.Answer:
    """Run a work in a streaming job in the active session."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from arcbeam import ArcbeamRunner

    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming"])) as p:
        _ = PIPELINES[name](p, elements) | beam.ParDo(Tally(folder))
    parts = [tuple(map(int, file.read_text().split())) for file in Path(folder).iterdir()]
    return work.Answer(sum(count for count, _ in parts), sum(total for _, total in parts))
