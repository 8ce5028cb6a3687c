"""The first record of a time or a later one, by reading.

A broker's own answer may be earlier: it also counts the ends of transactions, whose time is the broker's clock. Where
records have older times than that, as those of a replay, many records may have to be read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from arcbeam.sizes import threshold

_TOGETHER: Final = threshold(1_000)
"""Records that are looked at together."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


def settings(committed: bool) -> dict[str, Any]:
    """Return the settings that a consumer for `first_records` needs.

    Args:
        committed: whether only records of committed transactions count.
    """
    return {
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def first_records(
    consumer: Any, ranges: Mapping[Place, tuple[int, int]], milliseconds: int, patience: float
) -> dict[Place, int]:
    """Return the offsets of the first records of a time or a later one; where there is none, the end.

    Args:
        consumer: librdkafka's, with `settings`.
        ranges: where to search in each partition: the offsets of the first record and of the end.
        milliseconds: the time, since 1970.
        patience: seconds in which something must arrive.

    Raises:
        KafkaException: an error of a partition, or nothing arrived.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    found = {place: end for place, (begin, end) in ranges.items() if begin >= end}
    left = {place: end for place, (begin, end) in ranges.items() if begin < end}
    consumer.assign([TopicPartition(*place, ranges[place][0]) for place in left])
    heard = time.monotonic()
    while left:
        # SUBTLE: `consume` with a timeout waits for all that it was asked for, so `poll` waits for the first.
        messages = consumer.consume(_TOGETHER, 0) or [one for one in [consumer.poll(0.1)] if one is not None]
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > patience:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no records arrive"))
        for message in messages:
            place, error = (message.topic(), message.partition()), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if (end := left.get(place)) is None:
                continue
            offset = message.offset()
            if error is None and offset < end and message.timestamp()[1] >= milliseconds:
                found[place] = offset
            elif error is not None or offset + 1 >= end:
                found[place] = end
            else:
                continue
            del left[place]
            consumer.pause([TopicPartition(*place)])
    return found
