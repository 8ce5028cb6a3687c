"""Reads partitions, each in order, as far as the micro-batch has time.

Owns how records become claims, outputs and watermarks, when a partition is idle, and when its group's
offset is committed. Must not know librdkafka (`.clients`) nor how partitions are found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp
from typing_extensions import override

from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.fetching.protocols import Fetched, PartitionEnd, PartitionReader
from arcbeam.io.kafka.partitions import ENDLESS, Offsets, Partition, know_end
from arcbeam.io.kafka.records import Decoder
from arcbeam.io.kafka.times import EventTimes
from arcbeam.model.attempts import wait_reason
from arcbeam.model.dofns import Idle, KnowsIdle
from arcbeam.model.timestamps import NOT_BEGUN
from arcbeam.sizes import threshold

ERRORS: Final = "errors"
"""Tag of records that cannot be decoded."""
_TOGETHER: Final = threshold(2_000)
"""Records of a claim. Between two claims the runner can stop the reading."""
_ASK_SECONDS: Final = 1.0
"""Between two questions for the backlog of a partition that is behind."""
_NEW_SECONDS, _MORE_SECONDS = 1.0, 0.05
"""How long to wait for the first records of a new reader, and for the next of many records."""
_BACKLOG_RECORDS_MIN: Final = threshold(1_000, 10)
"""Records that are left from which on to wait for the next."""
_BUSY: Final = 0.05
"""Seconds until a partition is read again that has brought records."""
_FRESH_SECONDS: Final = 0.5
"""For which the end of a partition may be used again: to know that it is idle, or in the bundle that has asked."""
_RESTS: Final = 5
"""How often a partition brings nothing until it is not fetched any more: its end tells when there is a record."""
_SOONEST, _LATEST = 0.1, 1.0
"""The same for one that has brought nothing: the first time, and after many times."""


class _Open:
    """The reader of a partition, and what it has brought.

    Attributes:
        reader: the reader.
        idle: how often it has brought nothing since it brought something.
        read: time of the last record, in milliseconds; -1 if there is none.
        behind: since when records are known to wait, in seconds since 1970; None if none do.
        requested: when the end of the partition was last requested.
    """

    __slots__ = ("behind", "idle", "read", "reader", "requested")

    def __init__(self, reader: PartitionReader) -> None:
        self.reader, self.idle, self.read, self.requested = reader, 0, -1, 0.0
        self.behind: float | None = None

    def pause(self) -> float:
        """Return the seconds until it is read again, if it is at the end and brings nothing."""
        return min(_LATEST, _SOONEST * float(2 ** min(self.idle - 1, 10)))


class Read(beam.DoFn, KnowsIdle):  # type: ignore[misc]  # Beam is untyped
    """Partition -> its records, each at its event time.

    Args:
        clients: how to connect.
        decoder: decodes records.
        times: their event times.
        clock: returns seconds since 1970.
    """

    def __init__(
        self, clients: Clients, decoder: Decoder, times: EventTimes, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients, self._decoder, self._times, self._clock = clients, decoder, times, clock

    @override
    def setup(self) -> None:
        self._readers = self._clients.readers()
        self._open: dict[Partition, _Open] = {}
        self._decoder.set_up()

    @override
    def start_bundle(self) -> None:
        self._began = self._clock()
        self._readers.begin()

    @override
    def teardown(self) -> None:
        self._readers.close()

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self,
        element: Partition,
        # SUBTLE: first. The SDK passes it by position, and the others by name.
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(Offsets()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Emit records until there are no more, then defer the rest. The runner may stop it after each claim."""
        restriction = tracker.current_restriction()
        begun = position = restriction.start
        stop, stopped = restriction.stop, False
        if position >= stop:
            return
        if estimator.current_watermark() is None:
            # As before its beginning. Without this, the status would say that this DoFn never reports a watermark.
            estimator.set_watermark(Timestamp(micros=NOT_BEGUN))
        of = self._opened(element)
        while position < stop:
            fetched = of.reader.fetch(position, _TOGETHER)
            if fetched.position <= position and (seconds := self._may_wait(element, of, position, begun, stop)):
                fetched = of.reader.fetch(position, _TOGETHER, seconds)
            if fetched.position <= position:
                break
            last = min(fetched.position, stop)
            if not tracker.try_claim(last - 1):
                of.reader.give_back(fetched)
                stopped = True
                break
            position = last
            yield from self._emitted(of, fetched, last, estimator)
        if position > begun and self._clients.commits:
            finalizer.register(partial(of.reader.commit, position))
        of.idle = 0 if position > begun else of.idle + 1
        if stopped:
            if self._clock() - of.requested > _ASK_SECONDS:
                self._end(element, of, position)
        elif position < stop:
            tracker.defer_remainder(Duration(self._look(element, of, position, estimator)))

    def _may_wait(self, element: Partition, of: _Open, position: int, begun: int, stop: int) -> float:
        """Return how many seconds to wait for records that are known to exist.

        A stream waits only if its reader is new, or if many records are left. Few ones are read with the next
        micro-batch. They may also be ends of transactions, which are not records and come as an empty answer.
        """
        must = stop < ENDLESS or not (of.idle or of.reader.has_answered)
        if not must and position == begun:
            return 0.0
        end = self._end(element, of, position)
        if end is None or end.offset <= position + (0 if must else _BACKLOG_RECORDS_MIN):
            return 0.0
        return _NEW_SECONDS if must else _MORE_SECONDS

    @override
    def idle(self, element: Partition, restriction: Any) -> Idle | None:
        """See `KnowsIdle`: nothing has come, and the position is the end of the partition."""
        of, position = self._open.get(element), restriction.start
        if of is None or not of.idle or position >= restriction.stop or not of.reader.is_quiet(position):
            return None
        now = self._clock()
        end = of.reader.end(now, now - _FRESH_SECONDS)
        if end is None or end.offset != position:
            return None
        of.idle += 1
        if of.idle == _RESTS:
            of.reader.rest()
        return Idle(of.pause(), self._times.while_idle(int(end.requested * 1_000_000)))

    def _emitted(self, of: _Open, fetched: Fetched, stop: int, estimator: Any) -> Iterator[Any]:
        messages = fetched.records
        if fetched.position > stop:
            messages = [message for message in messages if message.offset() < stop]
        if not messages:
            return
        of.read = messages[-1].timestamp()[1]
        now = int(self._clock() * 1_000_000)
        good, outputs, bad = self._decoder.decoded(messages)
        times: list[int] = []
        if good:
            times = self._times.of(good, outputs, now)
            # Many records are of the same millisecond, and making a Timestamp costs more than finding it.
            stamps = {at: Timestamp(micros=at) for at in set(times)}
            for output, at in zip(outputs, times, strict=True):
                yield TimestampedValue(output, stamps[at])
        for message, error in bad:
            _, milliseconds = message.timestamp()
            at = now if milliseconds < 0 else milliseconds * 1_000
            yield beam.pvalue.TaggedOutput(ERRORS, TimestampedValue(error, Timestamp(micros=at)))
        if times:
            _advance(estimator, self._times.after(times))

    def _look(self, element: Partition, of: _Open, position: int, estimator: Any) -> float:
        """Advance the watermark of a partition that is idle: nothing was fetched, and the position is its end.

        Returns:
            The seconds until it is read again.
        """
        end = self._end(element, of, position)
        if end is None:
            return _LATEST
        is_at_end = position >= end.offset
        if is_at_end and (promised := self._times.while_idle(int(end.requested * 1_000_000))) is not None:
            _advance(estimator, promised)
        if not of.idle:
            return _BUSY
        return of.pause() if is_at_end else _SOONEST

    def _end(self, element: Partition, of: _Open, position: int) -> PartitionEnd | None:
        """Return the end of a partition, and report how many records are not read; None if no broker answers."""
        # Before the question: later records are later than this.
        of.requested = self._clock()
        end = of.reader.end(of.requested, max(self._began, of.requested - _FRESH_SECONDS))
        wait_reason.reason = of.reader.unanswered if end is None else ""
        if end is None:
            return None
        know_end(element, end.offset)
        backlog = max(0, end.offset - position)
        of.behind = None if not backlog else of.requested if of.behind is None else of.behind
        # At least 1: 0 means that nothing is left. Before the first record, what is known is how long one has waited.
        since = of.behind if of.read < 0 else of.read / 1_000
        seconds = 0 if since is None or not backlog else max(1, int(of.requested - since))
        for what, value in (("records", backlog), ("seconds", seconds)):
            Metrics.gauge("kafka", f"backlog_{what}.{element.topic}.{element.number}").set(value)
        return end

    def _opened(self, partition: Partition) -> _Open:
        found = self._open.get(partition)
        if found is None:
            found = self._open[partition] = _Open(self._readers.reader(partition))
        return found


def _advance(estimator: Any, micros: int) -> None:
    """Advance a watermark; it never goes back."""
    before = estimator.current_watermark()
    if before is None or before.micros < micros:
        estimator.set_watermark(Timestamp(micros=micros))


class ReadBounded(Read):
    """The same for partitions with an end."""

    @override
    def process(
        self,
        element: Partition,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = beam.DoFn.RestrictionParam(Offsets()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Emit records."""
        yield from super().process(element, finalizer, tracker, estimator)
