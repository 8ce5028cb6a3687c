"""One consumer for all partitions that a process reads, by librdkafka.

Owns what has come of each partition and was not read yet, which partitions are fetched, and the meaning of librdkafka's
errors there. A partition more costs neither a connection nor a thread, and all ends are found by one request. Must not
know Beam.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from arcbeam.io.kafka.fetching.cluster import UNANSWERED, administrator, request_seconds
from arcbeam.io.kafka.fetching.protocols import (
    Fetched,
    GroupAccount,
    OffsetsGoneError,
    PartitionEnd,
    PartitionReader,
    Readers,
    deleted,
    recreated,
)
from arcbeam.io.kafka.partitions import Partition
from arcbeam.io.kafka.trouble import error_text
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.kafka")

_READ_SECONDS_MAX: Final = 1.0
"""For which the readers of a bundle wait, in all, for what is known to exist. What comes later is read later."""
_FETCH: Final = {"fetch.wait.max.ms": 25, "fetch.min.bytes": 1 << 16}
"""How a broker answers: soon, also if there is no record, but not at once for each. Each request names all partitions,
and between two micro-batches many records come.
"""
_FRESH_SECONDS: Final = 0.5
"""For which the end of a partition is not asked for again with those of others."""
_SAME_SECONDS: Final = 1.0
"""For which a topic is known to be the same, or not to be known: the search for partitions checks it as often."""
_SKIPS: Final = 5_000
"""A partition that is read from a later offset, by at most this many, continues. Any other one starts again."""
_BYTES: Final = threshold(8 << 20)
"""Bytes of records that are taken together, approximately."""
_WAITING_BYTES: Final = threshold(4 << 20, 1_000)
"""Bytes of a partition's records that wait, from which it is not fetched until they are read."""
_UNUSED_SECONDS: Final = 60.0
"""After which a partition is not fetched any more, because another process reads it."""

_Place = tuple[str, int]


class _Assignment:
    """A partition, and its records that have arrived.

    Attributes:
        partition: the partition.
        begin: the first offset that `records` and `next` account for.
        next: the offset after all that has come.
        records: librdkafka's messages that were not taken, in order.
        size: their bytes.
        fetched: whether the consumer fetches it.
        answered: whether anything has come since it was fetched from `begin`, perhaps only that there is nothing.
        gone: whether the offset `next` does not exist.
        refused: why the user must not read it; "" if that is allowed.
        end: its last known end.
        used: when it was used last, in seconds of a monotonic clock.
    """

    def __init__(self, partition: Partition, position: int) -> None:
        self.partition = partition
        self.end: PartitionEnd | None = None
        self.used = 0.0
        self.records: deque[Any] = deque()
        self.begin_at(position)

    @property
    def place(self) -> _Place:
        """Topic and number."""
        return self.partition.topic, self.partition.number

    def begin_at(self, position: int) -> None:
        """Begin again at an offset."""
        self.begin = self.next = position
        self.records.clear()
        self.size = 0
        self.fetched = self.answered = self.gone = False
        self.refused = ""

    def leads_to(self, position: int) -> bool:
        """Return whether what has come, and what comes next, includes an offset."""
        return self.begin <= position <= self.next + _SKIPS and not (self.gone and position != self.next)

    def put(self, message: Any) -> None:
        """Add a record."""
        if (offset := message.offset()) >= self.next:
            self.next = offset + 1
            if offset >= self.begin:
                self.records.append(message)
                self.size += len(message)

    def skip(self, position: int) -> None:
        """Drop what is before an offset."""
        self.begin = position
        while self.records and self.records[0].offset() < position:
            self.size -= len(self.records.popleft())

    def take(self, most: int) -> Fetched:
        """Take records."""
        taken: list[Any] = []
        size = 0
        while self.records and len(taken) < most and size < _BYTES:
            taken.append(self.records.popleft())
            size += len(taken[-1])
        self.size -= size
        position = taken[-1].offset() + 1 if self.records else max(self.begin, self.next)
        self.begin = position
        return Fetched(taken, position)

    def give_back(self, records: Sequence[Any]) -> None:
        """Add what was taken last, and not used."""
        self.records.extendleft(reversed(records))
        self.size += sum(map(len, records))
        self.begin = records[0].offset()


class SharedConsumer(Readers):
    """See `Readers`.

    Args:
        account: who reads.
    """

    def __init__(self, account: GroupAccount) -> None:
        self._account = account
        self._trouble = account.trouble()
        self._consumer: Any = None
        self._admin: Any = None
        self._of: dict[_Place, _Assignment] = {}
        self._patience = _READ_SECONDS_MAX
        # The ids of topics, None if no broker has answered, and until when they are known.
        self._topics: dict[str, tuple[str | None, float]] = {}
        self._record_bytes = 100.0

    @override
    def reader(self, partition: Partition) -> PartitionReader:
        return LibrdkafkaReader(self, partition)

    @override
    def begin(self) -> None:
        self._patience = _READ_SECONDS_MAX

    @override
    def close(self) -> None:
        consumer, self._consumer, self._admin = self._consumer, None, None
        self._of.clear()
        if consumer is not None:
            consumer.close()

    def fetch(self, partition: Partition, position: int, most: int, seconds: float) -> Fetched:
        """Return records of a partition; the arguments are those of `PartitionReader.fetch`."""
        of = self._placed(partition, position)
        of.skip(position)
        if not of.fetched and not of.gone and len(of.records) < most:
            self._assign(of)
        began = time.monotonic()
        self._receive(of, position, most, began + min(seconds, self._patience))
        if seconds:
            self._patience = max(0.0, self._patience - (time.monotonic() - began))
        if of.records or of.next > position:
            return of.take(most)
        self._check(of)
        return Fetched([], position)

    def end(self, partition: Partition, now: float, oldest: float) -> PartitionEnd | str:
        """Return the end of a partition, or why it is unknown; the arguments are those of `PartitionReader.end`."""
        of = self._of.get((partition.topic, partition.number))
        if of is None:
            of = self._placed(partition, partition.start)
        if of.end is not None and oldest <= of.end.requested <= now:
            return of.end
        return self._ask_ends(of, now)

    def is_quiet(self, partition: Partition, position: int) -> bool:
        """Return whether nothing has come of a partition that `fetch` would return or raise."""
        of = self._of.get((partition.topic, partition.number))
        if of is None or of.gone or of.refused or of.records or not of.begin == of.next == position:
            return False
        of.used = time.monotonic()
        return True

    def rest(self, partition: Partition) -> None:
        """Do not fetch a partition until the next call of `fetch`."""
        if (of := self._of.get((partition.topic, partition.number))) is not None:
            self._unassign(of)

    def has_answered(self, partition: Partition) -> bool:
        """Return whether anything has come of a partition, perhaps only that there is nothing."""
        of = self._of.get((partition.topic, partition.number))
        return of is not None and of.answered

    def give_back(self, partition: Partition, fetched: Fetched) -> None:
        """Keep what of a partition was not used."""
        if fetched.records:
            self._of[partition.topic, partition.number].give_back(fetched.records)

    def commit(self, partition: Partition, position: int) -> None:
        """Commit an offset of the group, without waiting for the answer."""
        from confluent_kafka import KafkaException

        if self._consumer is not None:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=[_place(partition, position)], asynchronous=True)

    def _placed(self, partition: Partition, position: int) -> _Assignment:
        """Return what has come of a partition; begin again if that does not lead to the offset."""
        of, now = self._of.get((partition.topic, partition.number)), time.monotonic()
        if of is None or of.partition.topic_id != partition.topic_id:
            self._drop_unused(now)
            of = self._of[partition.topic, partition.number] = _Assignment(partition, position)
        elif not of.leads_to(position):
            self._unassign(of)
            of.begin_at(position)
        of.used = now
        return of

    def _drop_unused(self, now: float) -> None:
        for place, of in list(self._of.items()):
            if now - of.used > _UNUSED_SECONDS:
                self._unassign(of)
                del self._of[place]

    def _assign(self, of: _Assignment) -> None:
        """Fetch a partition, exactly from its next offset on."""
        self._is_same_topic(of.partition)
        # Also at 0: with OFFSET_BEGINNING, records that were removed unread would be skipped.
        self._made().incremental_assign([_place(of.partition, of.next)])
        of.fetched, of.answered = True, bool(of.records)

    def _unassign(self, of: _Assignment) -> None:
        if of.fetched:
            of.fetched = False
            self._made().incremental_unassign([_place(of.partition, of.next)])

    def _receive(self, of: _Assignment, position: int, most: int, over: float) -> None:
        """Receive what has come of all partitions. If this one has no record, wait.

        Args:
            of: the partition.
            position: the offset from which it is read.
            most: number of its records that are enough.
            over: until when to wait, in seconds of a monotonic clock.
        """
        while of.fetched and len(of.records) < most and of.size < _BYTES:
            # SUBTLE: `consume` with a timeout waits for all that it was asked for, so `poll` waits for the first.
            got = self._made().consume(max(1, min(int(_BYTES / self._record_bytes), 1_000)), 0)
            if not got:
                if of.records or of.next > position or (wait := over - time.monotonic()) <= 0:
                    break
                one = self._made().poll(wait)
                if one is None:
                    break
                got = [one]
            for message in got:
                self._put(message)
        for other in self._of.values():
            if other.fetched and other is not of and other.size > _WAITING_BYTES:
                self._unassign(other)

    def _put(self, message: Any) -> None:
        """Take in a message of librdkafka: a record, or an error.

        Raises:
            PermissionError: the user must not use the consumer group.
        """
        from confluent_kafka import KafkaError

        of, error = self._of.get((message.topic(), message.partition())), message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise PermissionError(f"Kafka, group {self._account.group}: {error_text(error)}")
        if of is None or not of.fetched:
            return
        if error is None:
            of.put(message)
            of.answered = True
            self._record_bytes += (len(message) - self._record_bytes) / 100
            self._trouble.succeeded()
            return
        match error.code():
            case KafkaError._PARTITION_EOF:
                of.next, of.answered = max(of.next, int(message.offset())), True
                self._trouble.succeeded()
            case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
                of.gone = True
                self._unassign(of)
            case KafkaError.TOPIC_AUTHORIZATION_FAILED:
                of.refused = error_text(error)
            case _:
                self._trouble.failed(f"reading {of.partition!r}", error, time.time())

    def _check(self, of: _Assignment) -> None:
        """Raise the error of a partition, if there is one.

        Raises:
            OffsetsGoneError: the next offset does not exist.
            PermissionError: the user must not read the topic.
            TopicGoneError: the topic is another one, or was deleted.
        """
        if of.refused:
            raise PermissionError(f"Kafka, {of.partition!r}: {of.refused}")
        if not of.gone:
            return
        of.begin_at(of.next)
        if self._is_same_topic(of.partition, again=True):
            raise OffsetsGoneError(
                f"Kafka, {of.partition!r}: the record at offset {of.next} is to be read next, but does not exist any "
                "more: the topic's retention or a user removed it. The records from that offset are lost. To read "
                "those that exist, start a new job with start='earliest'"
            )

    def _is_same_topic(self, partition: Partition, *, again: bool = False) -> bool:
        """Return whether the topic is the one that was found; False if no broker answers.

        While a topic is read, the search for partitions checks this.

        Args:
            partition: one of the topic.
            again: whether to ask although it was known a moment ago.

        Raises:
            TopicGoneError: it is another one, or was deleted.
        """
        topic, now = partition.topic, time.monotonic()
        id, until = self._topics.get(topic, (None, 0.0))
        if again or now >= until:
            id = self._id_of(topic)
            self._topics[topic] = id, time.monotonic() + _SAME_SECONDS
        if id is not None and id != partition.topic_id:
            raise recreated(topic, partition.topic_id, id)
        return id is not None

    def _id_of(self, topic: str) -> str | None:
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        admin, began = self._administrator(), time.time()
        requested = admin.describe_topics(TopicCollection([topic]), request_timeout=request_seconds(self._trouble))
        try:
            return str(requested[topic].result().topic_id)
        except KafkaException as e:
            if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise deleted(topic) from None
            self._trouble.listen(admin.poll)
            self._trouble.failed(f"the request for the id of the topic {topic}", e, began)
            return None

    def _ask_ends(self, of: _Assignment, now: float) -> PartitionEnd | str:
        """Ask for the ends of a partition, and of all others that are read and whose ends are not known as of now.

        Returns:
            The end, or why it is unknown.
        """
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka.admin import OffsetSpec

        # Also if all partitions are idle: errors come in this way.
        for message in self._made().consume(1_000, 0):
            self._put(message)
        admin, oldest = self._administrator(), time.monotonic() - _UNUSED_SECONDS
        places = {
            _place(each.partition, 0): each
            for each in self._of.values()
            if each is of or (each.used > oldest and not (each.end and 0 <= now - each.end.requested < _FRESH_SECONDS))
        }
        requested = admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=request_seconds(self._trouble),
        )
        error: Any = None
        unknown = of
        for place, future in requested.items():
            each = places[place]
            each.end = None
            try:
                # SUBTLE: if the leader of a partition is down, the answer is a negative number, and not an error.
                if (end := int(future.result().offset)) >= 0:
                    each.end = PartitionEnd(end, now)
                    continue
                failed: Any = UNANSWERED
            except KafkaException as e:
                failed = e
            if error is None or each is of:
                error, unknown = failed, each
        if error is None:
            self._trouble.succeeded()
        else:
            self._trouble.listen(admin.poll)
            self._trouble.failed(f"the request for the end of {unknown.partition!r}", error, now)
            self._admin = None
        return of.end or f"its end is unknown: {self._trouble.reason(error)}"

    def _administrator(self) -> Any:
        if self._admin is None:
            self._admin = administrator(self._account, self._trouble)
        return self._admin

    def _made(self) -> Any:
        """Return the consumer."""
        if self._consumer is None:
            from confluent_kafka import Consumer

            account = self._account
            self._consumer = account.connection.made(
                Consumer,
                {
                    "group.id": account.group or "arcbeam",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    **{name: value for name, value in _FETCH.items() if name not in account.connection.config},
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed" if account.committed else "read_uncommitted",
                    "error_cb": self._trouble.hear,
                    "on_commit": self._committed,
                },
            )
        return self._consumer

    def _committed(self, error: Any, offsets: Any) -> None:
        # The next commit has a later offset. This one is for monitors only.
        if error is not None:
            _LOG.info("Kafka: offsets of group %s: %s", self._account.group, error_text(error))


class LibrdkafkaReader(PartitionReader):
    """See `PartitionReader`.

    Args:
        consumer: of all partitions.
        partition: the partition.
    """

    def __init__(self, consumer: SharedConsumer, partition: Partition) -> None:
        self._consumer, self._partition = consumer, partition
        self.unanswered = ""

    @property
    @override
    def has_answered(self) -> bool:
        return self._consumer.has_answered(self._partition)

    @override
    def fetch(self, position: int, most: int, seconds: float = 0.0) -> Fetched:
        return self._consumer.fetch(self._partition, position, most, seconds)

    @override
    def is_quiet(self, position: int) -> bool:
        return self._consumer.is_quiet(self._partition, position)

    @override
    def rest(self) -> None:
        self._consumer.rest(self._partition)

    @override
    def end(self, now: float, oldest: float) -> PartitionEnd | None:
        end = self._consumer.end(self._partition, now, oldest)
        self.unanswered = end if isinstance(end, str) else ""
        return None if isinstance(end, str) else end

    @override
    def give_back(self, fetched: Fetched) -> None:
        self._consumer.give_back(self._partition, fetched)

    @override
    def commit(self, position: int) -> None:
        self._consumer.commit(self._partition, position)


def _place(partition: Partition, offset: int) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(partition.topic, partition.number, offset)
