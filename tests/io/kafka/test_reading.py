from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from arcbeam.io.kafka import reading
from arcbeam.io.kafka.fetching.protocols import PartitionEnd
from arcbeam.io.kafka.partitions import ENDLESS, Offsets, Partition, PartitionCoder
from arcbeam.io.kafka.records import Decoder, UndecodableError
from arcbeam.io.kafka.times import CREATED, EventTimes
from arcbeam.model.attempts import wait_reason
from arcbeam.model.timestamps import NOT_BEGUN
from tests.io.kafka.fakes import Log, Message, read

PARTITION = Partition("t", "id", 0)
NOW = 1_000.0
pytestmark = pytest.mark.contract("KAFKA-01")


def reader(log: Log, times: EventTimes = EventTimes(CREATED, 2_000_000, True), **how: Any) -> reading.Read:
    decoder = Decoder(how.get("key"), how.get("value"), metadata=False, errors=how.get("errors", False))
    fn = reading.Read(log, decoder, times, lambda: NOW)  # type: ignore[arg-type]
    fn.setup()
    return fn


def log_of(*offsets: int, last: int | None = None, **more: Any) -> Log:
    end = max(offsets, default=-1) + 1 if last is None else last
    return Log([Message(offset, 500_000 + 1_000 * offset) for offset in offsets], end, **more)


@pytest.mark.contract("KAFKA-02")
def test_caught_up_partition_follows_the_clock() -> None:
    processed, _ = read(reader(log_of(0, 1, 2)), PARTITION)
    assert [output.value for output in processed.outputs] == [(b"k", b"v")] * 3
    assert [output.timestamp for output in processed.outputs] == [500, 501, 502]
    assert (processed.rest.start, processed.watermark, processed.delay) == (3, NOW - 2, pytest.approx(0.05, abs=0.03))


@pytest.mark.contract("KAFKA-02")
def test_partition_without_records_is_idle() -> None:
    processed, finalizer = read(reader(log_of()), PARTITION)
    assert (processed.rest.start, processed.watermark, finalizer.callbacks) == (0, NOW - 2, [])
    assert processed.delay == pytest.approx(0.1, abs=0.03), "it is read less often than one that had records"


@pytest.mark.contract("KAFKA-02")
@pytest.mark.parametrize("before", [True, False], ids=["before the answer", "after the answer"])
def test_record_that_comes_while_its_end_is_requested_is_not_late(before: bool) -> None:
    """The clock advances while a broker answers. A record that is not in the answer is later than the request."""
    clock = [NOW]

    class Appended(Log):
        def end(self, now: float, oldest: float) -> PartitionEnd | None:
            known = self.last
            if self.armed and not self.messages:
                self.messages.append(Message(0, int((now + 2) * 1_000)))
                self.last, clock[0] = 1, now + 5
            end = self.last if before else known
            return None if end is None else PartitionEnd(end, now)

        armed = False

    log = Appended()
    fn = reader(log, EventTimes(CREATED, 0, True))
    fn._clock = lambda: clock[0]
    estimator = ManualWatermarkEstimator(None)
    # The first time it asks whether to wait for records; then it is known to be idle.
    assert read(fn, PARTITION, estimator=estimator)[0].outputs == []
    first = estimator.current_watermark()
    clock[0], log.armed = NOW + 10, True
    assert read(fn, PARTITION, estimator=estimator)[0].outputs == []
    promised = estimator.current_watermark()
    processed, _ = read(fn, PARTITION, estimator=estimator)
    (output,) = processed.outputs
    assert output.timestamp >= promised
    assert (promised == first) == before


@pytest.mark.contract("KAFKA-02")
def test_open_transaction_holds_the_watermark() -> None:
    processed, _ = read(reader(log_of(0, 1, last=5, reaches=2)), PARTITION)
    assert (processed.rest.start, processed.watermark) == (2, 499)


@pytest.mark.contract("KAFKA-02")
@pytest.mark.parametrize("last", [3, None])
def test_partition_whose_records_cannot_be_read_yet_has_not_begun(last: int | None) -> None:
    log = log_of(last=3, reaches=0)
    log.last = last
    estimator = ManualWatermarkEstimator(None)
    assert read(reader(log), PARTITION, estimator=estimator)[0].rest.start == 0
    # It has reported one: None would be a DoFn that never does.
    assert estimator.current_watermark().micros == NOT_BEGUN


@pytest.mark.contract("KAFKA-02")
def test_backlog_is_0_only_when_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges: dict[str, int] = {}

    def gauge(_: str, name: str) -> Any:
        return SimpleNamespace(set=lambda value: gauges.update({name: value}))

    monkeypatch.setattr(reading, "Metrics", SimpleNamespace(gauge=gauge))
    now = [NOW]
    log = log_of(last=2, reaches=0)
    fn = reader(log)
    fn._clock = lambda: now[0]

    def backlog() -> tuple[int, int]:
        read(fn, PARTITION)
        return gauges["backlog_records.t.0"], gauges["backlog_seconds.t.0"]

    assert backlog() == (2, 1)
    now[0] += 30
    assert backlog() == (2, 30)
    # The last record that was read is from just now, and another one waits.
    log.messages, log.reaches = [Message(0, 1_029_900)], 1
    assert backlog() == (1, 1)
    log.reaches = None
    assert backlog() == (0, 0)


def test_unreachable_broker_promises_nothing() -> None:
    log = log_of(0)
    log.last, log.reaches = None, 1
    processed, _ = read(reader(log), PARTITION)
    assert (processed.watermark, processed.delay) == (498, pytest.approx(1.0, abs=0.2))
    assert wait_reason.take() == "its end is unknown: down"
    log.last = 1
    read(reader(log), PARTITION)
    assert wait_reason.take() == ""


@pytest.mark.parametrize(
    ("log", "restriction", "waited"),
    [
        # New, with nothing left; new, with records that have not come; read to an open end.
        (log_of(), None, 0.0),
        (log_of(last=3, reaches=0), None, 1.0),
        (log_of(0, 1, last=3, reaches=2, has_answered=True), None, 0.0),
        (log_of(0, 1, last=5_000, reaches=2, has_answered=True), None, 0.05),
        (log_of(last=5_000, reaches=0, has_answered=True), None, 0.0),
        # A bounded read must reach its stop.
        (log_of(0, 1, last=3, reaches=2, has_answered=True), OffsetRange(0, 3), 1.0),
    ],
)
def test_reading_waits_only_for_what_it_needs(log: Log, restriction: Any, waited: float) -> None:
    read(reader(log), PARTITION, restriction)
    assert max(log.waits) == waited


@pytest.mark.contract("KAFKA-02")
def test_idle_partition_is_known_without_processing() -> None:
    log = log_of(0, 1)
    fn = reader(log)
    first, _ = read(fn, PARTITION)
    # It has brought records, so it is read once more.
    assert fn.idle(PARTITION, first.rest) is None
    read(fn, PARTITION, first.rest)
    waits = [fn.idle(PARTITION, first.rest) for _ in range(6)]
    assert [each and each.watermark for each in waits] == [(NOW - 2) * 1e6] * 6
    assert [each and each.seconds for each in waits] == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert log.resting


@pytest.mark.contract("KAFKA-01", "KAFKA-02")
@pytest.mark.parametrize("last", [3, None, 1])
def test_partition_that_may_have_more_is_not_idle(last: int | None) -> None:
    log = log_of(0, 1)
    fn = reader(log)
    first, _ = read(fn, PARTITION)
    read(fn, PARTITION, first.rest)
    log.last = last
    assert fn.idle(PARTITION, first.rest) is None
    # Neither is one of which this process knows nothing, nor one that was read elsewhere meanwhile.
    assert reader(log).idle(PARTITION, first.rest) is None
    log.last = 2
    assert fn.idle(PARTITION, OffsetRange(1, ENDLESS)) is None


@pytest.mark.contract("KAFKA-02")
def test_idle_partition_without_clock_keeps_its_watermark() -> None:
    processed, _ = read(reader(log_of(0), EventTimes(CREATED, 0, False)), PARTITION)
    assert processed.watermark == 500


def test_gaps_at_the_end_are_claimed() -> None:
    log = log_of(0, 4, last=12)
    processed, finalizer = read(reader(log), PARTITION)
    finalizer.finalize()
    assert (len(processed.outputs), processed.rest.start, log.committed) == (2, 12, 12)
    assert Offsets().restriction_size(PARTITION, processed.rest) == 0


def test_watermark_never_goes_back() -> None:
    estimator = ManualWatermarkEstimator(None)
    log = Log([Message(0, 900_000)], 1, reaches=1)
    log.last = 2
    assert read(reader(log), PARTITION, estimator=estimator)[0].watermark == 898
    log.messages.append(Message(1, 600_000))
    log.last = 3
    processed, _ = read(reader(log), PARTITION, OffsetRange(1, ENDLESS), estimator=estimator)
    assert processed.watermark == 898


def test_stopped_reading_returns_what_was_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_TOGETHER", 2)
    log = log_of(*range(10))
    processed, finalizer = read(reader(log), PARTITION, stop_after=3)
    finalizer.finalize()
    assert (len(processed.outputs), processed.rest.start, log.committed) == (4, 4, 4)
    assert [message.offset() for message in log.returned[0].records] == [4, 5]
    assert Offsets().restriction_size(PARTITION, processed.rest) == 6


def test_stop_within_a_fetch_ends_the_reading() -> None:
    partition = Partition("t", "id", 0, 2, 5)
    processed, _ = read(reader(log_of(*range(10))), partition)
    assert (len(processed.outputs), processed.rest) == (3, None)


def test_stop_in_a_gap_ends_the_reading() -> None:
    processed, _ = read(reader(log_of(0, 8)), Partition("t", "id", 0, 0, 5))
    assert (len(processed.outputs), processed.rest) == (1, None)


def test_partition_is_never_cut_in_two() -> None:
    tracker = Offsets().create_tracker(OffsetRange(0, 100))
    tracker.try_claim(3)
    assert tracker.try_split(0.5) is None
    assert tracker.try_split(0)[1].start == 4


def test_drain_drops_only_endless_rest() -> None:
    assert Offsets().truncate(PARTITION, OffsetRange(3, ENDLESS)) is None
    assert Offsets().truncate(PARTITION, OffsetRange(3, 9)) == OffsetRange(3, 9)


@pytest.mark.contract("KAFKA-04")
def test_undecodable_records_have_their_own_output() -> None:
    log = Log([Message(0, 1_000, data=b"1"), Message(1, 2_000, data=b"x")], 2)
    processed, _ = read(reader(log, value=int, errors=True), PARTITION)
    assert [output.value for output in processed.outputs] == [(b"k", 1)]
    (error,) = processed.errors
    assert (error.timestamp, error.value.record.value, error.value.record.offset) == (2, b"x", 1)
    assert "invalid literal" in error.value.error


@pytest.mark.contract("KAFKA-04")
def test_undecodable_record_fails_without_that_output() -> None:
    with pytest.raises(
        UndecodableError, match=r"t\[0\].*offset 1.*with_errors=True.*corrected script.*--checkpoint_dir"
    ):
        read(reader(Log([Message(1, data=b"x")], 2), value=int), PARTITION)


@pytest.mark.contract("KAFKA-02")
def test_append_time_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"message\.timestamp\.type=LogAppendTime"):
        read(reader(log_of(0), EventTimes("LogAppendTime", 0, True)), PARTITION)


@pytest.mark.contract("KAFKA-02")
def test_function_gives_the_event_time() -> None:
    processed, _ = read(
        reader(log_of(0, last=2, reaches=1), EventTimes(lambda pair: 77 + len(pair), 0, True)), PARTITION
    )
    assert (processed.outputs[0].timestamp, processed.watermark) == (79, 79)


def test_teardown_closes_consumers() -> None:
    log = log_of()
    fn = reader(log)
    read(fn, PARTITION)
    fn.teardown()
    assert log.closed


def test_partition_survives_its_coder() -> None:
    partition = Partition("t", "id", 3, 5, 9)
    assert PartitionCoder().decode(PartitionCoder().encode(partition)) == partition
    assert repr(partition) == "t[3]"
