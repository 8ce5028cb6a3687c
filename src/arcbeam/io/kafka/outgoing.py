"""Records on their way to Kafka: their form in a pipeline, in a shard, and in the storage.

Owns what a pipeline may pass, how records are encoded and sharded, which of them Kafka would refuse, and what is said
if it lacks their topics. Must not know when they are published.
"""

from __future__ import annotations

import operator
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.model.dofns import TakesLists
from arcbeam.model.rows import key_hash
from arcbeam.sizes import threshold

_RECORDS: Final = threshold(4_096)
"""Records of a chunk, approximately."""
_BYTES: Final = threshold(1 << 20)
"""Bytes of a chunk, approximately."""
_PARTITIONS: Final = 2**31
"""Numbers of partitions are smaller."""
_OVERHEAD: Final = 512
"""Bytes of a record besides key, value and headers, at most."""
_SURE_SECONDS: Final = 10.0
"""For which a topic or partition must be missing: a broker may learn of a new one later than others."""
_PAUSE_SECONDS: Final = 0.5
"""Between two questions about it."""
_TRY_SECONDS: Final = 5.0
"""For the answer to one."""
_ABSENT: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
"""Errors of a topic that does not exist, by name."""

Serializer = Callable[[Any], bytes | None]
Plain = tuple[str, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""A record in a chunk: topic, partition (-1: by key), milliseconds (0: when it is produced), key, value, headers."""

Extent = tuple[int, int, int]
"""Of records of a topic: the highest number of a partition, and the earliest and latest milliseconds, that a record
names. Without such a record they are 0.
"""

Chunk = tuple[bytes, int, dict[str, Extent]]
"""Encoded records, their number, and their topics."""

_coder = FastPrimitivesCoder()


class ProducerRecord(NamedTuple):
    """A record to write.

    Attributes:
        value: before its serializer; None is a tombstone.
        key: before its serializer.
        topic: "" for the topic of `WriteToKafka`.
        partition: its number; None: the key's hash decides.
        headers: pairs of a name and bytes.
        time: its create time; None: when it is produced.
    """

    value: Any
    key: Any = None
    topic: str = ""
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    time: Timestamp | None = None


class RecordRefusedError(ValueError):
    """Kafka would not take a record."""


class TopicRefusedError(SetupError, RecordRefusedError):
    """A topic, or the brokers, would not take records: their settings and the transform's contradict each other.

    No record is shown: it would be one of many, with its key and value.
    """


@dataclass(frozen=True)
class Outgoing:
    """How elements become records.

    Attributes:
        topic: the topic of records that name none; "" if all name one.
        key: serializes keys; None: they are bytes.
        value: serializes values; None: they are bytes.
        most: bytes of the largest record.
    """

    topic: str
    key: Serializer | None
    value: Serializer | None
    most: int

    def plain(self, element: Any) -> Plain:
        """Return the record for an element.

        Raises:
            RecordRefusedError: it cannot be written.
        """
        if isinstance(element, ProducerRecord):
            value, key, topic, partition, headers, time = element
            at = 0 if time is None else max(1, Timestamp.of(time).micros // 1_000)
            number = -1 if partition is None else _number(partition)
            pairs = _pairs(headers)
        elif isinstance(element, tuple) and len(element) == 2:
            (key, value), topic, number, at, pairs = element, "", -1, 0, ()
        else:
            raise RecordRefusedError(
                f"WriteToKafka got a {type(element).__name__}: expected a pair (key, value) or a ProducerRecord"
            )
        topic = topic or self.topic
        if not topic:
            raise RecordRefusedError("WriteToKafka got a record without a topic, and has none itself: give one of both")
        key = key if self.key is None else self.key(key)
        value = value if self.value is None else self.value(value)
        size = _OVERHEAD + sum(len(name) + len(data or b"") for name, data in pairs)
        for what, data in (("key", key), ("value", value)):
            if data is not None and not isinstance(data, bytes):
                raise RecordRefusedError(
                    f"WriteToKafka got a {what} that is a {type(data).__name__}, not bytes: give a {what}_serializer"
                )
            size += len(data or b"")
        if size > self.most:
            raise RecordRefusedError(
                f"WriteToKafka got a record of about {size:,} bytes for the topic {topic}; message.max.bytes of "
                f"producer_config is {self.most:,}: raise it, and max.message.bytes of the topic; or send such records "
                "elsewhere before this transform, for example to another output of a DoFn"
            )
        return topic, number, at, key, value, pairs


def _number(partition: Any) -> int:
    """Return the number of a partition.

    Raises:
        RecordRefusedError: it is none.
    """
    if not hasattr(partition, "__index__") or not 0 <= operator.index(partition) < _PARTITIONS:
        raise RecordRefusedError(
            f"WriteToKafka got a record for the partition {partition!r}: expected a number from 0 on, or None (the "
            "key's hash decides)"
        )
    return operator.index(partition)


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers as pairs.

    Raises:
        RecordRefusedError: they are none.
    """
    try:
        pairs = tuple((name, data) for name, data in headers)
    except (TypeError, ValueError):
        pairs = ((None, None),)
    for name, data in pairs:
        if not isinstance(name, str) or not isinstance(data, bytes | None):
            raise RecordRefusedError(
                f"WriteToKafka got headers of type {type(headers).__name__} that are not pairs of a name (str) and "
                "bytes (or None)"
            )
    return pairs


def encoded(records: Sequence[Plain]) -> bytes:
    """Return records as bytes."""
    data: bytes = _coder.encode(list(records))
    return data


def decoded(data: bytes) -> list[Plain]:
    """Return the records of bytes."""
    records: list[Plain] = _coder.decode(data)
    return records


def framed(chunks: Iterable[bytes]) -> bytes:
    """Return chunks as one byte string."""
    return b"".join(part for chunk in chunks for part in (len(chunk).to_bytes(4, "little"), chunk))


def unframed(data: bytes) -> Iterator[bytes]:
    """Yield the chunks of a byte string."""
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        yield data[start + 4 : end]
        start = end


def extents(records: Iterable[Plain]) -> dict[str, Extent]:
    """Return the topics of records."""
    found: dict[str, list[int]] = {}
    for topic, number, at, *_ in records:
        of = found.get(topic)
        if of is None:
            found[topic] = [max(0, number), at, at]
            continue
        if number > of[0]:
            of[0] = number
        if at:
            if at < of[1] or not of[1]:
                of[1] = at
            if at > of[2]:
                of[2] = at
    return {topic: (number, first, last) for topic, (number, first, last) in found.items()}


def joined(one: Extent, other: Extent) -> Extent:
    """Return the extent of records of both."""
    first = min(one[1], other[1]) or one[1] or other[1]
    return max(one[0], other[0]), first, max(one[2], other[2])


class RecordChunks(beam.DoFn, TakesLists):  # type: ignore[misc]  # Beam is untyped
    """Elements -> (shard, chunk). Records of a key are in one shard, in their order; so are those of a partition
    that have no key.

    Args:
        outgoing: how elements become records.
        shards: number of shards.
    """

    def __init__(self, outgoing: Outgoing, shards: int) -> None:
        self._outgoing, self._shards = outgoing, shards

    @override
    def start_bundle(self) -> None:
        self._waiting: dict[int, list[Plain]] = {}
        self._sizes: dict[int, int] = {}

    @override
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> Iterable[Any]:
        return self.take([element], window)

    @override
    def take(self, values: list[Any], window: Any) -> Iterable[Any]:
        full: list[Any] = []
        for record in map(self._outgoing.plain, values):
            shard = self._shard(record)
            waiting = self._waiting.setdefault(shard, [])
            waiting.append(record)
            size = self._sizes.get(shard, 0) + len(record[3] or b"") + len(record[4] or b"")
            self._sizes[shard] = size
            if len(waiting) >= _RECORDS or size >= _BYTES:
                full.append(self._chunk(shard))
        return full

    @override
    def finish_bundle(self) -> Iterator[Any]:
        for shard in list(self._waiting):
            yield self._chunk(shard)

    def _shard(self, record: Plain) -> int:
        if self._shards == 1:
            return 0
        topic, number, _, key, value, _ = record
        by = key if key is not None else f"{topic} {number}".encode() if number >= 0 else value or b""
        return key_hash(by) % self._shards

    def _chunk(self, shard: int) -> Any:
        self._sizes.pop(shard)
        records = self._waiting.pop(shard)
        chunk: Chunk = encoded(records), len(records), extents(records)
        window = GlobalWindow()
        return WindowedValue((shard, chunk), window.max_timestamp(), (window,))


class Targets:
    """The topics that a transaction writes to.

    Args:
        register: the topic at whose partition 0 the register is.
    """

    def __init__(self, register: str) -> None:
        self._register = register
        # The highest partition that a record names; -1: none does.
        self._highest = {register: -1}

    def noting(self, records: Iterable[Plain]) -> Iterator[Plain]:
        """Yield records, and note their topics."""
        highest = self._highest
        for record in records:
            if record[1] > highest.get(record[0], -2):
                highest[record[0]] = record[1]
            yield record

    def missing(self, ask: Callable[..., Any]) -> str:
        """Return what the cluster lacks, and what to do; "" if it has all, or does not answer.

        It asks until it is sure, so the answer takes some seconds if something is missing.

        Args:
            ask: a client's `list_topics`.
        """
        until = clock.monotonic() + _SURE_SECONDS
        while (found := self._missing(ask)) and clock.monotonic() < until:
            clock.sleep(_PAUSE_SECONDS)
        return found

    def _missing(self, ask: Callable[..., Any]) -> str:
        from confluent_kafka import KafkaException

        for topic, number in self._highest.items():
            try:
                found = ask(topic, timeout=_TRY_SECONDS).topics[topic]
            except KafkaException:
                return ""
            if found.error is not None and found.error.name() in _ABSENT:
                return f"the topic {topic} does not exist any more. To continue, create it again, {self._then(topic)}"
            if found.error is None and number >= len(found.partitions):
                return (
                    f"the topic {topic} has no partition {number} any more: it has {len(found.partitions)}. "
                    f"To continue, add partitions, {self._then(topic)}"
                )
        return ""

    def _then(self, topic: str) -> str:
        """Return how to continue when a topic is complete again."""
        what, publishes = "with as many partitions as it had. Then resume the job", "it publishes what it has committed"
        if topic != self._register:
            return f"{what}: {publishes}"
        return (
            f"{what} with WriteToKafka(on_lost_register='publish'), because the register of the shard was deleted with "
            f"the topic: {publishes}, records for other topics perhaps a second time"
        )
