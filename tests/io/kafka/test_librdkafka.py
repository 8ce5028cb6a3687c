"""Reading from a real broker, without a runner."""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from arcbeam.io.kafka import trouble
from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.discovery import Discover, Wanted
from arcbeam.io.kafka.fetching import cluster, consumer
from arcbeam.io.kafka.fetching.cluster import LibrdkafkaCluster
from arcbeam.io.kafka.fetching.consumer import SharedConsumer
from arcbeam.io.kafka.fetching.protocols import OffsetsGoneError, TopicGoneError
from arcbeam.io.kafka.partitions import ENDLESS, Offsets, Partition
from arcbeam.io.kafka.reading import Read
from arcbeam.io.kafka.records import Decoder
from arcbeam.io.kafka.times import CREATED, EventTimes
from arcbeam.model.attempts import wait_reason
from arcbeam.model.timestamps import NOT_BEGUN
from tests.io.kafka.conftest import leaders
from tests.io.kafka.fakes import Finalizer, Processed, discover, read
from tests.waiting import Deadline, until
from tools.kafka.broker import Broker


def clients(broker: Any, group: str = "g") -> Clients:
    return Clients(ClientConnection({"bootstrap.servers": broker.address}), True, group, True)


def partition(broker: Any, topic: str, number: int = 0, **more: Any) -> Partition:
    (id, _) = LibrdkafkaCluster(clients(broker)).topics([topic])[topic]
    return Partition(topic, id, number, **more)


def reader(broker: Any, group: str = "g") -> Read:
    fn = Read(clients(broker, group), Decoder(None, None, metadata=False, errors=False), EventTimes(CREATED, 0, True))
    fn.setup()
    return fn


def put(broker: Any, topic: str, values: Sequence[int], number: int = 0, *, ends: str = "") -> Any:
    """Produce values; in a transaction that ends in a way, or stays open."""
    config = {"bootstrap.servers": broker.address}
    producer = Producer({**config, "transactional.id": uuid.uuid4().hex} if ends else config)
    if ends:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, str(value).encode(), b"k", number)
    producer.flush(30)
    if ends == "commit":
        producer.commit_transaction(30)
    elif ends == "abort":
        producer.abort_transaction(30)
    return producer


def remove(broker: Broker, topic: str, before: int) -> None:
    """Remove the records of partition 0 before an offset."""
    admin = broker.admin()  # its requests end with it
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result()


def lag(broker: Broker, topic: str, group: str) -> int:
    """Return how far a group is behind the end of partition 0, after its first commit."""
    client = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    place = TopicPartition(topic, 0)
    until(lambda: client.committed([place], 10)[0].offset >= 0, "the first commit")
    committed = client.committed([place], 10)[0].offset
    end = int(client.get_watermark_offsets(place, 10)[1])
    client.close()
    return end - int(committed)


def values(outputs: Sequence[Any]) -> list[int]:
    return [int(output.value[1]) for output in outputs]


def read_to_end(fn: Read, of: Partition, restriction: Any = None) -> tuple[list[int], Processed, Finalizer]:
    """Return the values of a partition, and the call that has found nothing left."""
    found: list[int] = []

    def step() -> tuple[list[int], Processed, Finalizer] | None:
        nonlocal restriction
        processed, finalizer = read(fn, of, restriction)
        found.extend(values(processed.outputs))
        restriction = processed.rest
        return None if Offsets().restriction_size(of, restriction) else (found, processed, finalizer)

    return until(step, lambda: f"the end; {restriction} is left")


@pytest.mark.contract("KAFKA-01")
def test_aborted_transactions_leave_no_backlog(broker: Broker) -> None:
    topic = broker.topic("aborted")
    put(broker, topic, [1, 2], ends="commit")
    put(broker, topic, [3, 4, 5], ends="abort")
    put(broker, topic, [6], ends="commit")
    put(broker, topic, [7, 8], ends="abort")
    of = partition(broker, topic)
    found, processed, finalizer = read_to_end(reader(broker, "aborted"), of)
    assert found == [1, 2, 6]
    end = SharedConsumer(clients(broker)).reader(of).end(time.time(), time.time())
    assert (processed.rest.start, end and end.offset) == (12, 12)
    assert Offsets().restriction_size(of, processed.rest) == 0
    finalizer.finalize()
    assert lag(broker, topic, "aborted") == 0


@pytest.mark.contract("KAFKA-01")
def test_gaps_of_compaction_leave_no_backlog(broker: Broker) -> None:
    config = {"cleanup_policy": "compact", "segment_ms": "50", "min_cleanable_dirty_ratio": "0.01"}
    topic = broker.topic("compacted", **config, max_compaction_lag_ms="100")
    of, deadline = partition(broker, topic), Deadline("compaction")
    written, kept = 0, 1
    while kept >= written:
        deadline.check()
        # All records have the same key. Segments end when a later record comes.
        put(broker, topic, [written])
        written += 1
        time.sleep(0.2)
        found, processed, finalizer = read_to_end(reader(broker, "compacted"), of)
        kept = len(found)
    assert (found == sorted(set(found)), found[-1]) == (True, written - 1)
    assert 0 not in found, "nothing was compacted"
    assert (processed.rest.start, Offsets().restriction_size(of, processed.rest)) == (written, 0)
    finalizer.finalize()
    assert lag(broker, topic, "compacted") == 0
    # A reader whose position is in the gap continues after it.
    later, *_ = read_to_end(reader(broker, "compacted"), of, OffsetRange(1, ENDLESS))
    assert later[-1] == written - 1


@pytest.mark.contract("KAFKA-02")
def test_open_transaction_counts_as_a_further_record(broker: Broker) -> None:
    topic = broker.topic("open")
    put(broker, topic, [1], ends="commit")
    producer = put(broker, topic, [2], ends="later")
    fn, of = reader(broker), partition(broker, topic)
    before = time.time()
    processed, _ = read(fn, of)
    assert values(processed.outputs) == [1]
    assert processed.watermark is not None
    assert processed.watermark < before
    producer.commit_transaction(30)
    later, _ = read(fn, of, processed.rest)
    deadline = Deadline("the second record")
    while not later.outputs:
        deadline.check()
        later, _ = read(fn, of, later.rest)
    assert values(later.outputs) == [2]


@pytest.mark.contract("KAFKA-03")
def test_recreated_topic_is_noticed_by_a_new_consumer(broker: Broker) -> None:
    topic = broker.topic("recreated")
    put(broker, topic, range(5))
    of = partition(broker, topic)
    admin = broker.admin()
    admin.delete_topics([topic], operation_timeout=30)[topic].result()
    time.sleep(0.5)
    broker.topic(topic)
    put(broker, topic, range(9))
    with pytest.raises(TopicGoneError, match="recreated was deleted and created again"):
        read(reader(broker), of, OffsetRange(5, ENDLESS))


@pytest.mark.contract("KAFKA-03")
def test_topic_recreated_while_it_is_read_is_not_reported_as_retention(broker: Broker) -> None:
    topic = broker.topic("again")
    put(broker, topic, range(5))
    fn, of = reader(broker), partition(broker, topic)
    processed, _ = read(fn, of)
    assert processed.rest.start == 5
    admin = broker.admin()
    admin.delete_topics([topic], operation_timeout=30)[topic].result()
    time.sleep(0.5)
    broker.topic(topic)

    def read_on() -> None:
        rest = processed.rest
        deadline = Deadline("the error")
        while True:
            deadline.check()
            rest = read(fn, of, rest)[0].rest

    # The offset is after the end of the new topic.
    with pytest.raises(TopicGoneError, match="again was deleted and created again"):
        read_on()


@pytest.mark.contract("KAFKA-01")
def test_removed_records_are_named(broker: Broker) -> None:
    topic = broker.topic("removed")
    put(broker, topic, range(5))
    remove(broker, topic, 4)
    wanted = Wanted((topic,), "", (), "earliest", None, True)
    (found,) = discover(Discover(clients(broker), wanted, None, EventTimes(CREATED, 0, True))).outputs
    of = found.value
    assert (of.start, values(read(reader(broker), of)[0].outputs)) == (4, [4])
    assert LibrdkafkaCluster(clients(broker)).offsets([(topic, 0)], "group", committed=True) == [4]
    with pytest.raises(LookupError, match=r"removed\[0\]: the offset 0 is before the first .* offsets are 4 to 5"):
        Wanted((topic,), "", (), {(topic, 0): 0}, None, True).placed(
            LibrdkafkaCluster(clients(broker)), [(topic, of.topic_id, 0)], at_first=True
        )
    with pytest.raises(OffsetsGoneError, match=r"removed\[0\]: the record at offset 2"):
        read(reader(broker), of, OffsetRange(2, ENDLESS))


@pytest.mark.contract("KAFKA-01")
def test_records_removed_unread_are_named_also_at_the_first_offset(broker: Broker) -> None:
    topic = broker.topic("unread")
    of = partition(broker, topic)
    processed, _ = read(reader(broker), of)
    assert (processed.outputs, processed.rest.start) == ([], 0)
    put(broker, topic, range(5))
    remove(broker, topic, 3)
    with pytest.raises(OffsetsGoneError, match=r"unread\[0\]: the record at offset 0"):
        read(reader(broker), of, processed.rest)


@pytest.mark.contract("KAFKA-03")
def test_times_are_those_of_records_not_of_the_ends_of_transactions(broker: Broker) -> None:
    # As a replay writes them: the records are of 2023, the ends of the transactions of now.
    topic, old = broker.topic("replayed", 2), 1_700_000_000_000
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for ends, begin in (("commit", 0), ("commit", 10), ("abort", 20), ("commit", 30)):
        producer.begin_transaction()
        for n in range(begin, begin + 10):
            producer.produce(topic, str(n).encode(), b"k", 0, timestamp=old + n)
        producer.flush(30)
        (producer.commit_transaction if ends == "commit" else producer.abort_transaction)(30)
    cluster, places = LibrdkafkaCluster(clients(broker)), [(topic, 0), (topic, 1)]
    # Each transaction has an offset for its end, which the broker writes after its answer.
    until(lambda: cluster.offsets(places, "latest", committed=True) == [44, 0], "the last offset")
    for after, offset in ((-5, 0), (5, 5), (10, 11), (15, 16), (25, 33), (35, 38), (40, 44)):
        assert cluster.offsets(places, old + after, committed=True) == [offset, 0], after
    assert cluster.offsets(places, old + 25, committed=False) == [27, 0]


@pytest.mark.contract("KAFKA-03")
def test_starts_and_stops_are_found(broker: Broker) -> None:
    topic = broker.topic("starts", 2)
    put(broker, topic, range(3))
    time.sleep(0.05)
    at = int(time.time() * 1_000)
    put(broker, topic, [3], ends="commit")
    put(broker, topic, [4], ends="later")
    cluster = LibrdkafkaCluster(clients(broker, "starts"))
    places = [(topic, 0), (topic, 1)]
    assert cluster.offsets(places, "latest", committed=True) == [5, 0]
    assert cluster.offsets(places, "latest", committed=False) == [6, 0]
    assert cluster.offsets(places, at, committed=True) == [3, 0]
    assert cluster.offsets(places, "group", committed=True) == [0, 0]
    wanted = Wanted((topic,), "", (), "earliest", "latest", True)
    found = discover(Discover(clients(broker), wanted, None, EventTimes(CREATED, 0, True)))
    assert [(of.value.start, of.value.stop) for of in found.outputs] == [(0, 5), (0, 0)]
    (first, second) = (read(reader(broker), of.value)[0] for of in found.outputs)
    assert (values(first.outputs), first.rest, second.outputs) == ([0, 1, 2, 3], None, [])


@pytest.mark.contract("KAFKA-01")
def test_partitions_continue_in_another_number_of_tasks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, offsets = broker.topic("tasks", 4), Offsets()
    for number in range(4):
        put(broker, topic, range(number, 80, 4), number)
    monkeypatch.setattr("arcbeam.io.kafka.reading._TOGETHER", 5)
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    stored = {partition(broker, topic, number): OffsetRange(0, ENDLESS) for number in range(4)}
    for tasks, stop_after in ((2, 7), (3, 3), (1, None)):
        fns = [reader(broker) for _ in range(tasks)]
        for of, restriction in stored.items():
            again = pickle.loads(pickle.dumps(restriction))
            processed, _ = read(fns[of.number % tasks], of, again, stop_after=stop_after)
            seen[of.number] += values(processed.outputs)
            stored[of] = processed.rest
        for fn in fns:
            fn.teardown()
    assert seen == {number: list(range(number, 80, 4)) for number in range(4)}
    assert [offsets.restriction_size(of, restriction) for of, restriction in stored.items()] == [0] * 4


def test_reader_far_from_position_starts_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic("jumps")
    put(broker, topic, range(50))
    of = partition(broker, topic)
    readers = SharedConsumer(clients(broker))
    one = readers.reader(of)
    monkeypatch.setattr(consumer, "_SKIPS", 10)
    monkeypatch.setattr(consumer, "_READ_SECONDS_MAX", 20.0)
    for position in (0, 5, 40, 3):
        readers.begin()
        assert one.fetch(position, 2, 20).records[0].offset() == position
    fetched = one.fetch(5, 3)
    one.give_back(fetched)
    assert [record.offset() for record in one.fetch(6, 3).records] == [6, 7, 8]
    assert one.fetch(9, 1).records[0].offset() == 9
    readers.close()


class Moving:
    """A consumer whose partition changes its leader: three fetches bring an error."""

    def __init__(self, of: Any) -> None:
        self._of, self._errors = of, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def consume(self, count: int, timeout: float) -> Any:
        if self._errors:
            self._errors -= 1
            return [Moved()]
        return self._of.consume(count, timeout)


class Moved:
    """The message of such an error."""

    def topic(self) -> str:
        return "leaders"

    def partition(self) -> int:
        return 0

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)


@pytest.mark.contract("KAFKA-01")
def test_change_of_leader_is_reported_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "_QUIET_SECONDS", 0.0)
    topic = broker.topic("leaders")
    put(broker, topic, range(5))
    readers = SharedConsumer(clients(broker))
    one = readers.reader(partition(broker, topic))
    readers._consumer = Moving(readers._made())
    found, position, deadline = 0, 0, Deadline("5 records")
    with caplog.at_level(logging.WARNING, "arcbeam.kafka"):
        while position < 5:
            deadline.check()
            readers.begin()
            fetched = one.fetch(position, 10, 1)
            found, position = found + len(fetched.records), fetched.position
    readers.close()
    assert (found, position) == (5, 5)
    first, last = (record.getMessage() for record in caplog.records)
    assert f"Kafka, {broker.address}: reading leaders[0] failed: Broker: Not leader for partition" in first
    assert "succeed again, after" in last


class Leaderless:
    """An administrating client that asks the dead leader of a partition."""

    def poll(self, seconds: float) -> None:
        pass

    def list_offsets(self, places: Any, **_: Any) -> Any:
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return dict.fromkeys(places, future)


@pytest.mark.contract("KAFKA-01", "KAFKA-02")
def test_partition_without_leader_is_not_at_its_end(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nowhere = Clients(ClientConnection({"bootstrap.servers": "127.0.0.1:9"}), True, "", False)
    for module in (cluster, consumer):
        monkeypatch.setattr(module, "administrator", lambda *_: Leaderless())
    monkeypatch.setattr(trouble, "_LISTEN", 1)
    readers, known = SharedConsumer(nowhere), LibrdkafkaCluster(nowhere)
    assert readers.reader(Partition("t", "a", 0)).end(time.time(), time.time()) is None
    for where in ("earliest", "latest", 1_000):
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9: "):
            known.offsets([("t", 0)], where, committed=True)
    readers.close()


class WithoutLeaders(Leaderless):
    """An administrating client whose answers are errors."""

    def __init__(self, code: int) -> None:
        self._error = KafkaException(KafkaError(code))

    def list_offsets(self, places: Any, **_: Any) -> Any:
        future: Future[Any] = Future()
        future.set_exception(self._error)
        return dict.fromkeys(places, future)

    def describe_topics(self, topics: Any, **_: Any) -> Any:
        (future,) = self.list_offsets(["t"]).values()
        return {"t": future}


@pytest.mark.contract("KAFKA-03")
def test_search_waits_for_the_leaders_of_new_partitions(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(trouble, "_LISTEN", 1)
    nowhere = Clients(ClientConnection({"bootstrap.servers": "127.0.0.1:9"}), True, "", False)
    known = LibrdkafkaCluster(nowhere)
    codes = KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART
    for code in codes:
        known._admin = WithoutLeaders(code)
        with pytest.raises(ConnectionError):
            known.offsets([("t", 0)], "earliest", committed=True)
    known._admin = WithoutLeaders(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert known.topics(["t"]) == {}
    known._admin = WithoutLeaders(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        known.topics(["t"])


@pytest.mark.long
@pytest.mark.contract("KAFKA-01", "KAFKA-02", "KAFKA-06")
def test_dead_leader_holds_the_watermark(brokers: tuple[Broker, Broker], tmp_path: Path) -> None:
    first, second = brokers
    topic, both = first.topic("dead", 1, (2, 1)), SimpleNamespace(address=f"{first.address},{second.address}")
    put(both, topic, [1], ends="commit")
    fn, of, began = reader(both), partition(both, topic), time.time()
    processed = read(fn, of)[0]
    deadline = Deadline("the watermark")
    while (processed.watermark or 0) < began:
        deadline.check()
        processed = read(fn, of, processed.rest)[0]
    second.kill()
    deadline, reasons = Deadline("a new leader, and its record"), ""
    while (processed := read(fn, of, processed.rest)[0]).watermark == NOT_BEGUN / 1e6:
        deadline.check()
        reasons += wait_reason.take()
    # Only the new leader knows that nothing is left.
    assert leaders(first) == {(1, 1)}
    assert f"Connect to ipv4#{second.address} failed: Connection refused" in reasons
    put(both, topic, [2], ends="commit")
    while values(processed.outputs) != [2]:
        deadline.check()
        processed = read(fn, of, processed.rest)[0]


@pytest.mark.long
@pytest.mark.contract("KAFKA-01")
def test_broker_down_is_reported_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    count = 3
    with Broker(tmp_path / "broker") as broker, caplog.at_level(logging.WARNING, "arcbeam.kafka"):
        topic = broker.topic("down", count)
        partitions = [partition(broker, topic, number) for number in range(count)]
        for number in range(count):
            put(broker, topic, [1], number)
        # As in two processes.
        fns = [reader(broker), reader(broker)]
        search = Discover(
            clients(broker), Wanted((topic,), "", (), "earliest", None, True), 1.0, EventTimes(CREATED, 0, True)
        )
        found = discover(search)
        of = [(fns[number % 2], each, read(fns[number % 2], each)[0]) for number, each in enumerate(partitions)]
        broker.kill()
        began = time.monotonic()
        for _ in range(2):
            of = [(fn, each, read(fn, each, processed.rest)[0]) for fn, each, processed in of]
            assert [(processed.outputs, processed.rest.start) for *_, processed in of] == [([], 1)] * count
            found = discover(search, found.rest)
        broker.start()
        took = time.monotonic() - began
        for number in range(count):
            put(broker, topic, [2], number)
        seen: set[int] = set()
        deadline = Deadline("all records, and two messages")
        while len(seen) < count or len(caplog.records) < 2:
            deadline.check()
            of = [(fn, each, read(fn, each, processed.rest)[0]) for fn, each, processed in of]
            seen |= {each.number for _, each, processed in of if values(processed.outputs) == [2]}
            found = discover(search, found.rest)
        assert seen == set(range(count))
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"Kafka, {broker.address}: ")
    assert f"Connect to ipv4#{broker.address} failed: Connection refused" in first
    assert "It is retried" in first
    assert last.startswith(f"Kafka, {broker.address}: all requests succeed again, after ")
    assert took - 5 < int(last.split()[-2]) < took + 40
