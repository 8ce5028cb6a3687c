"""Reads partitions: each one by one consumer, in order, as far as the micro-batch has time.

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

from arcbeam.io.kafka.clients import Clients, Fetched, PartitionReader
from arcbeam.io.kafka.partitions import Offsets, Partition, know_end
from arcbeam.io.kafka.records import Decoder
from arcbeam.io.kafka.times import Times
from arcbeam.model.attempts import waiting
from arcbeam.model.timestamps import NOT_BEGUN
from arcbeam.sizes import threshold

ERRORS: Final = "errors"
"""Tag of records that cannot be decoded."""
_TOGETHER: Final = threshold(2_000)
"""Records of a claim. Between two claims the runner can stop the reading."""
_UNUSED_SECONDS: Final = 60.0
"""After which a consumer is closed, because another process reads its partition."""
_ASK_SECONDS: Final = 1.0
"""Between two questions for the backlog of a partition that is behind."""
_SOONEST, _LATEST = 0.1, 1.0
"""Seconds until an idle partition is read again: the first time, and after many times."""


class _Open:
    """An open reader.

    Attributes:
        reader: the reader.
        used: when it was used last.
        idle: how often it has brought nothing since it brought something.
        read: time of the last record, in milliseconds; -1 if there is none.
        behind: since when records are known to wait, in seconds since 1970; None if none do.
        asked: when the end of the partition was last requested.
    """

    __slots__ = ("asked", "behind", "idle", "read", "reader", "used")

    def __init__(self, reader: PartitionReader) -> None:
        self.reader, self.used, self.idle, self.read, self.asked = reader, 0.0, 0, -1, 0.0
        self.behind: float | None = None


class Read(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Partition -> its records, each at its event time.

    Args:
        clients: how to connect.
        decoder: decodes records.
        times: their event times.
        clock: returns seconds since 1970.
    """

    def __init__(
        self, clients: Clients, decoder: Decoder, times: Times, clock: Callable[[], float] = time.time
    ) -> None:
        self._clients, self._decoder, self._times, self._clock = clients, decoder, times, clock

    @override
    def setup(self) -> None:
        self._open: dict[Partition, _Open] = {}
        self._decoder.set_up()

    @override
    def teardown(self) -> None:
        while self._open:
            self._open.popitem()[1].reader.close()

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
        patient = False
        while position < stop:
            fetched = of.reader.fetch(position, _TOGETHER, patient=patient)
            if fetched.position <= position:
                if patient or of.idle or not self._backlog(element, of, position):
                    break
                patient = True
                continue
            patient = False
            last = min(fetched.position, stop)
            if not tracker.try_claim(last - 1):
                of.reader.give_back(fetched)
                stopped = True
                break
            of.idle, position = 0, last
            yield from self._emitted(of, fetched, last, estimator)
        if position > begun and self._clients.commits:
            finalizer.register(partial(of.reader.commit, position))
        if stopped:
            if self._clock() - of.asked > _ASK_SECONDS:
                self._backlog(element, of, position)
        elif position < stop:
            self._look(element, of, position, tracker, estimator)

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

    def _look(self, element: Partition, of: _Open, position: int, tracker: Any, estimator: Any) -> None:
        """Find out whether the partition is idle: nothing was fetched, and the position is its end."""
        # Before the question: later records are later than this.
        now = int(self._clock() * 1_000_000)
        backlog = self._backlog(element, of, position)
        if backlog == 0 and (promised := self._times.while_idle(now)) is not None:
            _advance(estimator, promised)
        of.idle += 1
        soon = _SOONEST if backlog else min(_LATEST, _SOONEST * 2 ** min(of.idle - 1, 10))
        tracker.defer_remainder(Duration(_LATEST if backlog is None else soon))

    def _backlog(self, element: Partition, of: _Open, position: int) -> int | None:
        """Return how many records are not read, and report it; None if no broker answers."""
        of.asked = self._clock()
        end = of.reader.end()
        waiting.reason = of.reader.unanswered if end is None else ""
        if end is None:
            return None
        know_end(element, end)
        backlog = max(0, end - position)
        of.behind = None if not backlog else of.asked if of.behind is None else of.behind
        # At least 1: 0 means that nothing is left. Before the first record, what is known is how long one has waited.
        since = of.behind if of.read < 0 else of.read / 1_000
        seconds = 0 if since is None or not backlog else max(1, int(of.asked - since))
        for what, value in (("records", backlog), ("seconds", seconds)):
            Metrics.gauge("kafka", f"backlog_{what}.{element.topic}.{element.number}").set(value)
        return backlog

    def _opened(self, partition: Partition) -> _Open:
        now = self._clock()
        found = self._open.get(partition)
        if found is None:
            for other in [each for each, of in self._open.items() if now - of.used > _UNUSED_SECONDS]:
                self._open.pop(other).reader.close()
            found = self._open[partition] = _Open(self._clients.reader(partition))
        found.used = now
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
