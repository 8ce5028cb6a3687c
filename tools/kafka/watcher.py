"""Watches a topic as its readers see it: a committed reader that checks each record when it arrives.

It is for copies made by `examples/kafka_to_kafka.py`: the value of a record is the ordinal of the record among those of
its key, a tab, and what was copied. So a record that is lost, repeated or out of order shows at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any


class Watcher:
    """A `read_committed` consumer of a copy.

    Args:
        servers: brokers.
        topic: the topic with the copy.
        partitions: how many it has.
        wanted: what was copied, in order, by key. It may still grow.

    Attributes:
        seen: number of records so far.
        wrong: what was wrong with records, in words.
    """

    def __init__(self, servers: str, topic: str, partitions: int, wanted: dict[bytes, list[bytes]]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._wanted = wanted
        self._ordinals: defaultdict[bytes, int] = defaultdict(int)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"watcher-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # Of brokers that are killed.
                "log_level": 2,
                "error_cb": lambda error: None,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self.seen = 0
        self.wrong: list[str] = []

    def look(self, seconds: float) -> int:
        """Wait a time for records, check them, and return their number."""
        found = 0
        for message in self._consumer.consume(10_000, seconds):
            # Errors pass: a broker that is down returns.
            if message.error() is None:
                self._check(message)
                found += 1
        self.seen += found
        return found

    def wait(self, count: int, seconds: float, quiet: float = 2.0) -> None:
        """Wait until a number of records was seen, then for further ones, of which there should be none.

        Args:
            count: the number.
            seconds: how long at most.
            quiet: seconds to wait for further ones.
        """
        over = time.monotonic() + seconds
        while self.seen < count and time.monotonic() < over:
            self.look(0.5)
        over = time.monotonic() + quiet
        while time.monotonic() < over:
            self.look(0.2)

    def verdict(self) -> list[str]:
        """Return what is wrong; nothing if each record was seen once, in the order of its key."""
        missing = sum(len(values) - self._ordinals[key] for key, values in self._wanted.items())
        return [*self.wrong[:5], *([f"{missing:,} records are missing"] if missing else [])]

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()

    def _check(self, message: Any) -> None:
        key, (ordinal, _, value) = message.key(), message.value().partition(b"\t")
        due = self._ordinals[key] + 1
        of = self._wanted.get(key, [])
        if int(ordinal) != due:
            self.wrong.append(f"record {int(ordinal)} of key {key!r} came where {due} is due")
        elif due > len(of) or of[due - 1] != value:
            self.wrong.append(f"record {due} of key {key!r} differs from what was copied")
        self._ordinals[key] = max(due, int(ordinal)) if int(ordinal) >= due else due - 1
