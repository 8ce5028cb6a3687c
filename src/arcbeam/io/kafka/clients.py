"""What reading needs of a cluster, and its implementation by librdkafka.

Owns the two protocols, which tests implement without a broker, and the meaning of librdkafka's errors: what is retried,
what is reported (`.trouble`), what ends a job. Must not know Beam.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from typing_extensions import override

from arcbeam.io.kafka.bytime import first_records, settings
from arcbeam.io.kafka.connection import Connection
from arcbeam.io.kafka.partitions import Partition
from arcbeam.io.kafka.trouble import Trouble, said, trouble_of
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.kafka")

_SECONDS: Final = 10.0
"""For a request to a broker."""
_DOWN_SECONDS: Final = 2.0
"""The same, while brokers are known to be down: the micro-batch waits."""
_FIRST_SECONDS: Final = 5.0
"""For the first request of a search. If it fails, the status of a new job soon says why."""
_SHORT: Final = 6
"""In trouble, one of this many requests has the long timeout."""
_NEW_SECONDS: Final = 3.0
"""For the first records of a new consumer: it has to connect."""
_SECONDS_WITHOUT: Final = 0.005
"""For the next records of a consumer that has no more: it fetches by itself, so they are there if they exist."""
_PATIENT_SECONDS: Final = 0.3
"""For what is known to exist: the offsets after the last record of a transaction arrive as an empty answer."""
_WAIT_MS: Final = 100
"""After which a broker answers although there is no record."""
_SKIPS: Final = 5_000
"""A consumer whose position is earlier by at most this many offsets reads on. Any other one starts again."""
_NO_RECORD: Final = -1
"""The offset of a time after all records. SUBTLE: if the leader of a partition is down, librdkafka's answer is a lower
number, and not an error.
"""
_UNANSWERED: Final = "the leader of the partition does not answer"
_BYTES: Final = threshold(8 << 20)
"""Bytes of records that are taken together, approximately."""


class OffsetsGoneError(RuntimeError):
    """Records that were not read yet do not exist any more."""


class TopicGoneError(RuntimeError):
    """A topic was deleted, or created again under the same name."""


def recreated(topic: str, before: str, now: str) -> TopicGoneError:
    """Return the error for a topic that was created again.

    Args:
        topic: its name.
        before: the id of the topic that the job has read.
        now: the id of the new one.
    """
    return TopicGoneError(
        f"Kafka: the topic {topic} was deleted and created again while this job reads it (its id was {before} and is "
        f"{now}): the offsets that the job has stored belong to the old topic. Start a new job to read the new one"
    )


def deleted(topic: str) -> TopicGoneError:
    """Return the error for a topic that was deleted."""
    return TopicGoneError(f"Kafka: the topic {topic} is read by this job, but was deleted")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch has brought.

    Attributes:
        records: librdkafka's messages, in order.
        position: the offset after them, and after offsets without readable records that follow them.
    """

    records: Sequence[Any]
    position: int


class PartitionReader(Protocol):
    """Reads a partition.

    Attributes:
        unanswered: why the last question for its end was not answered.
    """

    unanswered: str

    def fetch(self, position: int, most: int, *, patient: bool = False) -> Fetched:
        """Return records from an offset on. It waits a moment if there are none.

        Args:
            position: the offset.
            most: number of records.
            patient: whether it is known that there is something.

        Raises:
            OffsetsGoneError: they do not exist any more.
        """

    def end(self) -> int | None:
        """Return the offset after the last record, also if it is in an open transaction; None if no broker answers."""

    def give_back(self, fetched: Fetched) -> None:
        """Keep what was not used, for the next fetch."""

    def commit(self, position: int) -> None:
        """Commit an offset of the consumer group. Errors are reported, not raised."""

    def close(self) -> None:
        """Release the connection."""


class Cluster(Protocol):
    """Answers questions about topics."""

    def topics(self, names: Sequence[str] | None) -> Mapping[str, tuple[str, int]]:
        """Return ids and numbers of partitions of topics.

        Args:
            names: of topics, which perhaps do not exist; None: all but internal ones.

        Raises:
            ConnectionError: no broker answers.
        """

    def offsets(self, partitions: Sequence[tuple[str, int]], where: str | int, *, committed: bool) -> list[int]:
        """Return an offset of each partition.

        Args:
            partitions: topics and numbers.
            where: "earliest": the first record that exists; "latest"; "group": else as "earliest"; or milliseconds
                since 1970: the first record of this time or a later one.
            committed: whether "latest" leaves out open transactions.

        Raises:
            ConnectionError: no broker answers.
        """

    def close(self) -> None:
        """Release the connection."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Makes the clients of a reading transform.

    Attributes:
        connection: how they connect.
        committed: whether to read only records of committed transactions.
        group: the consumer group; "" if there is none.
        commits: whether offsets of the group are committed.
    """

    connection: Connection
    committed: bool
    group: str
    commits: bool

    def reader(self, partition: Partition) -> PartitionReader:
        """Return a new reader of a partition."""
        return LibrdkafkaReader(self, partition)

    def cluster(self) -> Cluster:
        """Return a new client for questions."""
        return LibrdkafkaCluster(self)

    def trouble(self) -> Trouble:
        """Return what reports the trouble of a new client."""
        return trouble_of(self.connection)


def _seconds(trouble: Trouble) -> float:
    """Return the timeout of a request. In trouble it is sometimes the long one, too: a broker may be slow, not down."""
    return _DOWN_SECONDS if trouble.now and trouble.failures % _SHORT != _SHORT - 1 else _SECONDS


def _administrator(clients: Clients, trouble: Trouble) -> Any:
    """Return a new client for questions.

    SUBTLE: after a failure, too. The old one asks the leader of a partition that it knew, until that is up again.
    """
    from confluent_kafka.admin import AdminClient

    return clients.connection.made(AdminClient, {"error_cb": trouble.hear})


class LibrdkafkaReader(PartitionReader):
    """See `PartitionReader`.

    Args:
        clients: how to connect.
        partition: the partition.
    """

    def __init__(self, clients: Clients, partition: Partition) -> None:
        from confluent_kafka import Consumer

        self._clients, self._partition = clients, partition
        self._trouble = clients.trouble()
        self._consumer = clients.connection.made(
            Consumer,
            {
                "group.id": clients.group or "arcbeam",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                **({} if "fetch.wait.max.ms" in clients.connection.config else {"fetch.wait.max.ms": _WAIT_MS}),
                "auto.offset.reset": "error",
                "isolation.level": "read_committed" if clients.committed else "read_uncommitted",
                "error_cb": self._trouble.hear,
                "on_commit": self._committed,
            },
        )
        self._admin = _administrator(clients, self._trouble)
        self.unanswered = ""
        self._next: int | None = None
        self._is_new = False
        self._kept: Fetched | None = None
        self._size = 100.0

    def _place(self, offset: int) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._partition.topic, self._partition.number, offset)

    def _seek(self, position: int) -> None:
        # After trouble it starts again: then the broker confirms the position also if there are no records.
        if self._next is not None and 0 <= position - self._next <= _SKIPS and not self._trouble.now:
            return
        self._kept = None
        self._is_same_topic()
        # Exactly there, also at 0: with OFFSET_BEGINNING, records that were removed unread would be skipped.
        self._consumer.assign([self._place(position)])
        self._next, self._is_new = position, True

    @override
    def fetch(self, position: int, most: int, *, patient: bool = False) -> Fetched:
        self._seek(position)
        kept, self._kept = self._kept, None
        if kept is not None and kept.position > position:
            return Fetched([record for record in kept.records if record.offset() >= position], kept.position)
        records: list[Any] = []
        waits = _NEW_SECONDS if self._is_new else _PATIENT_SECONDS if patient else _SECONDS_WITHOUT
        size, over, found = 0, time.monotonic() + waits, position
        while len(records) < most and size < _BYTES:
            # SUBTLE: `consume` with a timeout waits for all that it was asked for, so `poll` waits for the first.
            got = self._consumer.consume(max(1, min(most - len(records), int(_BYTES / self._size), 1_000)), 0)
            if not got and not records and found == position and (wait := over - time.monotonic()) > 0:
                one = self._consumer.poll(wait)
                got = [] if one is None else [one]
                if not got and self._trouble.now:
                    break
            if not got:
                break
            for message in got:
                if (error := message.error()) is not None:
                    found = max(found, self._failed(error, message, position))
                elif (offset := message.offset()) >= position:
                    records.append(message)
                    size += len(message)
                    found = offset + 1
        if records:
            self._size = max(1.0, size / len(records))
        if found > position or records:
            self._is_new = False
            self._trouble.succeeded()
        self._next = max(found, self._next or 0)
        return Fetched(records, found)

    def _failed(self, error: Any, message: Any, position: int) -> int:
        """Return the position after a message that is not a record.

        Raises:
            OffsetsGoneError: the offset does not exist.
            TopicGoneError: neither does the topic.
        """
        from confluent_kafka import KafkaError

        match error.code():
            case KafkaError._PARTITION_EOF:
                self._is_new = False
                self._trouble.succeeded()
                return int(message.offset())
            case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
                if not self._is_same_topic():
                    return position
                raise OffsetsGoneError(
                    f"Kafka, {self._partition!r}: the record at offset {position} is to be read next, but does not "
                    "exist any more: the topic's retention or a user removed it. The records from that offset are "
                    "lost. To read those that exist, start a new job with start='earliest'"
                )
            case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise PermissionError(f"Kafka, {self._partition!r}: {said(error)}")
        self._trouble.failed(f"reading {self._partition!r}", error, time.time())
        return position

    def _is_same_topic(self) -> bool:
        """Return whether the topic is the one that was found; False if no broker answers.

        While a topic is read, the search for partitions checks this.

        Raises:
            TopicGoneError: it is another one, or was deleted.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        topic, began = self._partition.topic, time.time()
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_seconds(self._trouble))
        try:
            id = str(asked[topic].result().topic_id)
        except KafkaException as e:
            if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise deleted(topic) from None
            self._trouble.listen(self._admin.poll)
            self._trouble.failed(f"the request for the id of the topic {topic}", e, began)
            return False
        if id != self._partition.topic_id:
            raise recreated(topic, self._partition.topic_id, id)
        return True

    @override
    def end(self) -> int | None:
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka.admin import OffsetSpec

        began = time.time()
        asked = self._admin.list_offsets(
            {self._place(0): OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_seconds(self._trouble),
        )
        (future,) = asked.values()
        error: Any = _UNANSWERED
        try:
            if (end := int(future.result().offset)) >= 0:
                return end
        except KafkaException as e:
            error = e
        self._trouble.listen(self._admin.poll)
        self._trouble.failed(f"the request for the end of {self._partition!r}", error, began)
        self.unanswered = f"its end is unknown: {self._trouble.reason(error)}"
        self._admin = _administrator(self._clients, self._trouble)
        return None

    @override
    def give_back(self, fetched: Fetched) -> None:
        self._kept = fetched
        if fetched.records:
            self._next = fetched.records[0].offset()

    @override
    def commit(self, position: int) -> None:
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=[self._place(position)], asynchronous=True)

    def _committed(self, error: Any, offsets: Any) -> None:
        # The next commit has a later offset. This one is for monitors only.
        if error is not None:
            _LOG.info("Kafka, %r: the offset of group %s: %s", self._partition, self._clients.group, said(error))

    @override
    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaCluster(Cluster):
    """See `Cluster`.

    Args:
        clients: how to connect.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._trouble = clients.trouble()
        self._admin = _administrator(clients, self._trouble)
        self._is_new = True

    def _timeout(self) -> float:
        is_first, self._is_new = self._is_new, False
        return _FIRST_SECONDS if is_first else _seconds(self._trouble)

    @override
    def topics(self, names: Sequence[str] | None) -> Mapping[str, tuple[str, int]]:
        from confluent_kafka import KafkaError, TopicCollection

        if names is None:
            listed = self._asked(lambda: self._admin.list_topics(timeout=self._timeout()))
            names = [name for name in listed.topics if not name.startswith("__")]
        if not names:
            return {}
        found = {}
        asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout())
        for name, future in asked.items():
            with _without(KafkaError.UNKNOWN_TOPIC_OR_PART):
                described = self._asked(future.result)
                found[name] = (str(described.topic_id), len(described.partitions))
        return found

    @override
    def offsets(self, partitions: Sequence[tuple[str, int]], where: str | int, *, committed: bool) -> list[int]:
        from confluent_kafka import Consumer, IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        places = [TopicPartition(*place) for place in partitions]
        if where == "group":
            consumer = self._clients.connection.made(Consumer, {"group.id": self._clients.group})
            try:
                found = [place.offset for place in self._asked(lambda: consumer.committed(places, timeout=_SECONDS))]
            finally:
                consumer.close()
            without = [place for place, offset in zip(partitions, found, strict=True) if offset < 0]
            begins = iter(self.offsets(without, "earliest", committed=committed) if without else [])
            return [offset if offset >= 0 else next(begins) for offset in found]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def asked(which: Any) -> list[int]:
            futures = self._admin.list_offsets(
                dict.fromkeys(places, which), isolation_level=level, request_timeout=_SECONDS
            )
            found = [int(self._asked(futures[place].result).offset) for place in places]
            if min(found) < _NO_RECORD:
                self._admin = _administrator(self._clients, self._trouble)
                raise ConnectionError(f"{self._trouble.servers}: {self._trouble.reason(_UNANSWERED)}")
            return found

        if where == "earliest":
            return asked(OffsetSpec.earliest())
        ends = asked(OffsetSpec.latest())
        if where == "latest":
            return ends
        # There is none if all records are earlier.
        at = asked(OffsetSpec.for_timestamp(int(where)))
        firsts = [offset if offset >= 0 else end for offset, end in zip(at, ends, strict=True)]
        ranges = {place: (begin, end) for place, begin, end in zip(partitions, firsts, ends, strict=True)}
        consumer = self._clients.connection.made(
            Consumer,
            {**settings(committed), "group.id": self._clients.group or "arcbeam", "error_cb": self._trouble.hear},
        )
        try:
            records = self._asked(lambda: first_records(consumer, ranges, int(where), _SECONDS))
        finally:
            consumer.close()
        return [records[place] for place in partitions]

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Return the answer; raise a ConnectionError if there is none for now."""
        from confluent_kafka import KafkaException

        began = time.time()
        try:
            answer = ask()
        except KafkaException as e:
            error = e.args[0]
            if error.retriable() or error.code() < 0:
                self._trouble.listen(self._admin.poll)
                self._trouble.failed("the search for topics and offsets", error, began)
                self._admin = _administrator(self._clients, self._trouble)
                raise self._trouble.error(error) from None
            raise
        self._trouble.succeeded()
        return answer

    @override
    def close(self) -> None:
        pass


@contextlib.contextmanager
def _without(code: int) -> Any:
    """Ignore an error of librdkafka."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as e:
        if e.args[0].code() != code:
            raise
