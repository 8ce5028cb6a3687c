"""The first record of a time, found by reading: a consumer in memory instead of librdkafka's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from arcbeam.io.kafka.fetching.bytime import first_records

pytestmark = pytest.mark.contract("KAFKA-02")


class Record:
    """A record, or the report of a partition's end."""

    def __init__(self, partition: int, offset: int, milliseconds: int, error: int | None = None) -> None:
        self._at, self._offset, self._time = partition, offset, milliseconds
        self._error = None if error is None else KafkaError(error)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._at

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time

    def error(self) -> KafkaError | None:
        return self._error


class Consumer:
    """Returns records one by one, of the partitions that are assigned and not paused."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._left = list(records)
        self.reads: dict[tuple[str, int], int] = {}

    def assign(self, places: Sequence[Any]) -> None:
        self.reads = {(place.topic, place.partition): place.offset for place in places}

    def pause(self, places: Sequence[Any]) -> None:
        for place in places:
            del self.reads[place.topic, place.partition]

    def consume(self, most: int, seconds: float) -> list[Record]:
        return []

    def poll(self, seconds: float) -> Record | None:
        for record in self._left:
            if record.offset() >= self.reads.get((record.topic(), record.partition()), 1 << 62):
                self._left.remove(record)
                return record
        return None


def log(times: Sequence[int], partition: int = 0) -> list[Record]:
    return [Record(partition, offset, milliseconds) for offset, milliseconds in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "begin", "end", "found"),
    [
        ([10, 20, 30], 0, 3, 1),
        ([10, 19, 30, 20], 0, 4, 2),
        # The last record is the first of that time.
        ([10, 11, 25], 0, 3, 2),
        ([10, 11, 12], 0, 3, 3),
        # Records before the beginning and after the end do not count.
        ([50, 10, 11, 60], 1, 3, 3),
        ([50, 10, 21, 60], 1, 3, 2),
        ([10], 0, 0, 0),
    ],
)
def test_first_record_of_a_time_or_later(times: Sequence[int], begin: int, end: int, found: int) -> None:
    assert first_records(Consumer(log(times)), {("t", 0): (begin, end)}, 20, 5.0) == {("t", 0): found}


def test_partitions_are_searched_together() -> None:
    # An end of a transaction at offset 2 of partition 1 is no record: the report of the end says that nothing follows.
    end = Record(1, 3, -1, KafkaError._PARTITION_EOF)
    consumer = Consumer([*log([10, 20]), *log([1, 2], 1), end, *log([9, 9, 9, 99], 2)])
    ranges = {("t", 0): (0, 2), ("t", 1): (0, 3), ("t", 2): (0, 4)}
    assert first_records(consumer, ranges, 20, 5.0) == {("t", 0): 1, ("t", 1): 3, ("t", 2): 3}
    assert consumer.reads == {}, "no further record is fetched of a partition whose record is found"


def test_error_of_a_partition_and_silence_are_raised() -> None:
    refused = Record(0, 0, -1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        first_records(Consumer([refused]), {("t", 0): (0, 2)}, 20, 5.0)
    with pytest.raises(KafkaException, match="no records arrive"):
        first_records(Consumer([]), {("t", 0): (0, 2)}, 20, 0.0)
