"""One consumer for many partitions, with a real broker and without a runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from apache_beam.io.restriction_trackers import OffsetRange

from arcbeam.io.kafka.fetching import consumer
from arcbeam.io.kafka.fetching.consumer import SharedConsumer
from arcbeam.io.kafka.partitions import ENDLESS
from tests.io.kafka.fakes import read
from tests.io.kafka.test_librdkafka import partition, put, reader, values
from tests.waiting import Deadline, until
from tools.kafka.broker import Broker

pytestmark = pytest.mark.contract("KAFKA-01")


class Counting:
    """A client of librdkafka whose calls are counted."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            self.calls.append((name, args[0] if args else None))
            return getattr(self._of, name)(*args, **how)

        return call

    def of(self, name: str) -> list[Any]:
        """The first arguments of the calls of a method."""
        return [argument for called, argument in self.calls if called == name]


@pytest.mark.contract("KAFKA-02")
def test_many_idle_partitions_cost_one_request_and_no_wait(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 50
    topic = broker.topic("idle", count)
    id = partition(broker, topic).topic_id
    fn = reader(broker)
    partitions = [partition_of(topic, id, number) for number in range(count)]
    for of in partitions:
        read(fn, of)
    shared = fn._readers
    assert isinstance(shared, SharedConsumer)
    shared._consumer, shared._admin = Counting(shared._made()), Counting(shared._administrator())
    # The next micro-batch: one bundle.
    monkeypatch.setattr(consumer, "_FRESH_SECONDS", 0.0)
    began = time.time()
    shared.begin()
    ends = [shared.reader(of).end(time.time(), began) for of in partitions]
    assert [end and (end.offset, end.requested >= began) for end in ends] == [(0, True)] * count
    fetched = [shared.reader(of).fetch(0, 10) for of in partitions]
    assert [each.position for each in fetched] == [0] * count
    assert [len(places) for places in shared._admin.of("list_offsets")] == [count]
    # Neither did it wait, nor begin again.
    assert shared._consumer.of("poll") == shared._consumer.of("incremental_assign") == []
    fn.teardown()


@pytest.mark.contract("KAFKA-02")
def test_end_is_known_before_and_while_a_partition_is_read(broker: Broker) -> None:
    topic = broker.topic("requested")
    put(broker, topic, range(3))
    fn, of = reader(broker), partition(broker, topic)
    shared = fn._readers
    assert isinstance(shared, SharedConsumer)
    one = shared.reader(of)
    shared._consumer = counting = Counting(shared._made())

    def end() -> Any:
        found = one.end(time.time(), time.time())
        return found if isinstance(found, str) else found.offset

    assert end() == 3
    position = 0

    def fetch_to(offset: int) -> None:
        nonlocal position
        deadline = Deadline(f"offset {offset}")
        while position < offset:
            deadline.check()
            position = one.fetch(position, 10).position

    fetch_to(3)
    put(broker, topic, range(3, 5))
    assert end() == 5
    # The partition is fetched from where it was.
    assert counting.of("incremental_unassign") == []
    fetch_to(5)
    assert len(counting.of("incremental_assign")) == 1
    fn.teardown()


@pytest.mark.contract("KAFKA-02")
def test_new_reader_at_the_end_of_a_partition_does_not_wait(broker: Broker) -> None:
    topic = broker.topic("ended")
    put(broker, topic, range(3))
    fn, of, began = reader(broker), partition(broker, topic), time.time()
    shared = fn._readers
    assert isinstance(shared, SharedConsumer)
    shared._consumer = counting = Counting(shared._made())
    processed, _ = read(fn, of, OffsetRange(3, ENDLESS))
    assert processed.watermark is not None
    assert (processed.outputs, processed.watermark >= began, counting.of("poll")) == ([], True, [])
    fn.teardown()


def test_resting_partition_is_not_fetched_until_its_end_moves(broker: Broker) -> None:
    topic = broker.topic("resting")
    fn, of = reader(broker), partition(broker, topic)
    processed, _ = read(fn, of)
    shared = fn._readers
    assert isinstance(shared, SharedConsumer)
    shared._consumer = counting = Counting(shared._made())
    deadline = Deadline("the rest of the partition")
    while not counting.of("incremental_unassign"):
        deadline.check()
        fn.start_bundle()
        assert fn.idle(of, processed.rest) is not None
    put(broker, topic, range(3))
    until(lambda: fn.idle(of, processed.rest) is None, "the new end")
    found: list[int] = []
    rest = processed.rest
    while len(found) < 3:
        deadline.check()
        later, _ = read(fn, of, rest)
        found, rest = found + values(later.outputs), later.rest
    assert (found, len(counting.of("incremental_assign"))) == ([0, 1, 2], 1)
    fn.teardown()


def test_full_partition_waits_while_another_is_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, count = broker.topic("full", 2), 3_000
    for number in (0, 1):
        put(broker, topic, range(count), number)
    monkeypatch.setattr(consumer, "_WAITING_BYTES", 1_000)
    fn = reader(broker)
    shared = fn._readers
    assert isinstance(shared, SharedConsumer)
    shared._consumer = counting = Counting(shared._made())
    seen: dict[int, list[int]] = {0: [], 1: []}
    rest: dict[int, Any] = {0: None, 1: None}
    deadline = Deadline("all records")
    while min(map(len, seen.values())) < count:
        deadline.check()
        for number in (0, 1):
            processed, _ = read(fn, partition(broker, topic, number), rest[number], stop_after=100)
            seen[number] += values(processed.outputs)
            rest[number] = processed.rest
    assert seen == {0: list(range(count)), 1: list(range(count))}
    assert counting.of("incremental_unassign")
    fn.teardown()


def test_repeated_micro_batch_reads_the_same_again(broker: Broker) -> None:
    topic = broker.topic("repeated")
    put(broker, topic, range(30))
    fn, of = reader(broker), partition(broker, topic)
    first, _ = read(fn, of, stop_after=10)
    read(fn, of, first.rest)
    again, _ = read(fn, of, first.rest)
    assert values(first.outputs) + values(again.outputs) == list(range(30))
    fn.teardown()


def test_records_that_another_process_has_read_are_left_out(broker: Broker) -> None:
    topic = broker.topic("moved")
    put(broker, topic, range(10))
    here, there, of = reader(broker), reader(broker), partition(broker, topic)
    processed, _ = read(here, of)
    put(broker, topic, range(10, 20))
    elsewhere, _ = read(there, of, processed.rest)
    put(broker, topic, range(20, 30))
    found: list[int] = []
    deadline, rest = Deadline("10 records"), elsewhere.rest
    while len(found) < 10:
        deadline.check()
        back, _ = read(here, of, rest)
        found, rest = found + values(back.outputs), back.rest
    assert values(processed.outputs) + values(elsewhere.outputs) + found == list(range(30))
    for fn in (here, there):
        fn.teardown()


def partition_of(topic: str, id: str, number: int) -> Any:
    return consumer.Partition(topic, id, number)
