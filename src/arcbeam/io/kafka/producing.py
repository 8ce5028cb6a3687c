"""Producers: plain ones, and transactional ones with a register.

Owns librdkafka's settings for both, and the meaning of its errors. Must not know what is published when.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from arcbeam.io.kafka.connection import Connection
from arcbeam.io.kafka.outgoing import Plain

SECONDS: Final = 60.0
"""For a request about a transaction, and for the delivery of what was produced."""
_SETTINGS: Final = {
    "enable.idempotence": True,
    # As Java's producers: so a key is in the same partition, whichever client writes it.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "queue.buffering.max.messages": 100_000,
}
_PRODUCERS_ONLY: Final = (
    "acks",
    "batch.",
    "compression",
    "delivery.",
    "enable.idempotence",
    "linger.ms",
    "max.in.flight",
    "message.timeout",
    "partitioner",
    "queue.buffering",
    "request.required.acks",
    "request.timeout",
    "retries",
    "sticky.partitioning",
    "transaction",
)
"""Beginnings of the names of settings that a consumer would report as unknown."""


class FencedError(RuntimeError):
    """Another producer of the shard exists."""


def producer(connection: Connection, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return a new producer.

    Args:
        connection: how to connect.
        more: further settings.
    """
    from confluent_kafka import Producer

    defaults = {name: value for name, value in _SETTINGS.items() if name not in connection.config}
    return connection.made(Producer, {**defaults, **more})


def produce(of: Any, records: Iterable[Plain], delivered: Any = None) -> None:
    """Pass records to a producer, which sends them in the background.

    Args:
        of: the producer.
        records: in order.
        delivered: called with an error or None, and the record, when it was sent or has failed.
    """
    send, poll = of.produce, of.poll
    for n, (topic, partition, at, key, value, headers) in enumerate(records):
        while True:
            try:
                send(topic, value, key, partition, delivered, delivered, at, list(headers) if headers else None)
                break
            except BufferError:
                poll(0.1)
        if n % 1_000 == 0:
            poll(0)


class LibrdkafkaShard:
    """A transactional producer of a shard, and its register.

    Args:
        connection: how to connect.
        name: the name of the shard: its group and `transactional.id`.
        register: the topic at whose partition 0 the group has its offset.
    """

    def __init__(self, connection: Connection, name: str, register: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._place, self._register, self._name = TopicPartition, register, name
        self._producer = producer(connection, {"transactional.id": name})
        common = {key: value for key, value in connection.config.items() if not key.startswith(_PRODUCERS_ONLY)}
        self._group = Connection(common, connection.credentials).made(
            Consumer, {"group.id": name, "enable.auto.commit": False}
        )

    def begin(self) -> int | None:
        """Fence other producers, end what they have open, and return the register; None if there is none."""
        with _fencing(self._name):
            # SUBTLE: first. While a transaction is open, the register is not known.
            self._producer.init_transactions(SECONDS)
        (found,) = self._group.committed([self._place(self._register, 0)], timeout=SECONDS)
        if found.error is not None:
            raise RuntimeError(f"WriteToKafka cannot read the register of shard {self._name}: {found.error}")
        return None if found.offset < 0 else int(found.offset)

    def publish(self, records: Iterable[Plain], sequence: int) -> None:
        """Produce records and set the register, in one transaction.

        Raises:
            FencedError: another producer has begun since. Nothing is published.
        """
        with _fencing(self._name):
            self._producer.begin_transaction()
            produce(self._producer, records)
            register = [self._place(self._register, 0, sequence)]
            self._producer.send_offsets_to_transaction(register, self._group.consumer_group_metadata(), SECONDS)
            self._producer.commit_transaction(SECONDS)

    def close(self) -> None:
        """Release the connections. A transaction that is open stays so, until another producer begins or it expires."""
        self._group.close()
        # SUBTLE: a producer with an open transaction waits for its records when it is closed, so they are discarded.
        self._producer.purge()
        threading.Thread(target=_close, args=[self._producer], name="kafka-close", daemon=True).start()


def _close(of: Any) -> None:
    from confluent_kafka import KafkaException

    # A producer that was fenced reports this again.
    with contextlib.suppress(KafkaException):
        of.close()


@contextlib.contextmanager
def _fencing(name: str) -> Iterator[None]:
    """Turn librdkafka's errors of a fenced producer into ours.

    Args:
        name: the name of the shard.
    """
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as e:
        fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
        if e.args[0].code() in fenced or e.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS:
            raise FencedError(f"another process publishes shard {name}: {e.args[0].str()}") from None
        raise RuntimeError(f"Kafka, shard {name}: {e.args[0].str()}") from None


class Deliveries:
    """Counts what a producer could not deliver."""

    def __init__(self) -> None:
        self._failed = 0
        self._first = ""

    def delivered(self, error: Any, record: Any) -> None:
        """Note the fate of a record."""
        if error is not None:
            self._failed += 1
            self._first = self._first or f"{record.topic()}[{record.partition()}]: {error.str()}"

    def check(self, left: int) -> None:
        """Raise an error if records were not delivered.

        Args:
            left: how many have not been delivered in time.
        """
        failed, first = self._failed + left, self._first or "no answer in time"
        self._failed, self._first = 0, ""
        if failed:
            raise RuntimeError(f"WriteToKafka could not write {failed:,} records, the first to {first}")
