"""Producers: plain ones, and transactional ones with a register.

Owns librdkafka's settings for both, and the meaning of its errors. Must not know what is published when.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from arcbeam.errors import PublishRefusedError
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.outgoing import Plain, Targets
from arcbeam.io.kafka.trouble import AddressError, ClientTrouble, trouble_of, unreachable

SECONDS: Final = 60.0
"""For a request about a transaction, and for the delivery of what was produced."""
_REGISTER_SECONDS: Final = 30.0
"""For setting the register. librdkafka may wait forever: see `LibrdkafkaShard._set`."""
_REPORT_SECONDS: Final = 1.0
"""For the report about a record that has failed."""
_TRY_SECONDS: Final = 5.0
"""For a question about a topic, which is repeated."""
_WRONG_SECONDS: Final = 10.0
"""After which a question fails if no broker can be found, or none takes the credentials."""
_REFUSALS: Final = {
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic, or, if it is the batches that are too large, give "
    "producer_config a message.max.bytes of at most that",
    "RECORD_LIST_TOO_LARGE": "raise segment.bytes of the topic",
    "INVALID_RECORD": "records without a key are refused while cleanup.policy of the topic is compact: set it to "
    "delete until they are published",
    "INVALID_TIMESTAMP": "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    "INVALID_TRANSACTION_TIMEOUT": "give producer_config a lower transaction.timeout.ms, or raise "
    "transaction.max.timeout.ms of the brokers",
    "POLICY_VIOLATION": "change the policy of the brokers",
    "TOPIC_AUTHORIZATION_FAILED": "allow its user to write to all topics of this sink",
    "GROUP_AUTHORIZATION_FAILED": "allow its user to read the group of this name, which has the register",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow its user to describe and write the transactional id of this name",
    "CLUSTER_AUTHORIZATION_FAILED": "allow its user the idempotent write",
}
"""Errors of brokers that would be the same at each try, by name, each with what to do."""
_MOVES: Final = ("_TIMED_OUT", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
"""Errors while the coordinator of a group or of transactions starts, or is moved to another broker, by name."""
_UNLIMITED: Final = 1 << 62
_SETTINGS: Final = {
    "enable.idempotence": True,
    # As Java's producers: so a key is in the same partition, whichever client writes it.
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    # Brokers take a new transaction when they have marked the end of the last one. With librdkafka's 100 ms, parts that
    # follow each other wait three times as long.
    "retry.backoff.ms": 20,
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


class ProducerFencedError(RuntimeError):
    """Another producer of the shard exists."""


class InDoubtError(RuntimeError):
    """Whether a transaction has ended is unknown: a connection has failed. The next producer finds out."""


@dataclass(frozen=True, slots=True)
class Register:
    """What the register of a shard holds: the part that was published last.

    Attributes:
        sequence: its number: the offset.
        token: its identity: the offset's metadata. "": a user has set the register.
    """

    sequence: int
    token: str = ""


def producer(connection: ClientConnection, more: Mapping[str, Any] = MappingProxyType({})) -> Any:
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


@dataclass(frozen=True, slots=True)
class Topic:
    """What a topic takes.

    Attributes:
        partitions: their number; 0 if the topic does not exist.
        most: bytes of its largest batch of records; unlimited if this client must not ask.
        compacted: whether it refuses records without a key; False if this client must not ask.
        before, after: milliseconds by which a record's time may differ from the present; as `most`.
    """

    partitions: int
    most: int = _UNLIMITED
    compacted: bool = False
    before: int = _UNLIMITED
    after: int = _UNLIMITED


def topic_of(connection: ClientConnection, topic: str) -> Topic:
    """Return what a topic takes.

    Raises:
        ConnectionError: no broker answers.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    trouble = trouble_of(connection)
    client = connection.made(AdminClient, {"error_cb": trouble.hear})
    began = time.time()
    while True:
        try:
            found = client.list_topics(topic, timeout=_TRY_SECONDS).topics[topic]
            break
        except KafkaException as e:
            trouble.listen(client.poll)
            error = trouble.error(e)
        took = time.time() - began
        if took > (_WRONG_SECONDS if isinstance(error, AddressError) else SECONDS):
            raise ConnectionError(f"WriteToKafka, topic {topic}: {unreachable(trouble.servers, error, took)}")
        if took > _TRY_SECONDS:
            trouble.failed(f"the request for the partitions of the topic {topic}", error, began)
    trouble.succeeded()
    if found.error is not None:
        return Topic(0)
    settings = _settings_of(client, "TOPIC", topic)

    def number(name: str) -> int:
        return int(settings.get(name) or _UNLIMITED)

    compacted, times = "compact" in settings.get("cleanup.policy", ""), "message.timestamp"
    limits = (number(f"{times}.before.max.ms"), number(f"{times}.after.max.ms"))
    if settings.get(f"{times}.type") == "LogAppendTime":
        limits = (_UNLIMITED, _UNLIMITED)
    return Topic(len(found.partitions), number("max.message.bytes"), compacted, *limits)


def longest_transaction(connection: ClientConnection) -> int:
    """Return the largest `transaction.timeout.ms` that brokers allow; unlimited if they do not tell it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = connection.made(AdminClient)
    try:
        brokers = client.list_topics(timeout=_TRY_SECONDS).brokers
    except KafkaException:
        return _UNLIMITED
    settings = _settings_of(client, "BROKER", str(min(brokers))) if brokers else {}
    return int(settings.get("transaction.max.timeout.ms") or _UNLIMITED)


def check_reachable(connection: ClientConnection) -> None:
    """Raise an error if no broker answers this process."""
    from confluent_kafka.admin import AdminClient

    connection.made(AdminClient).list_topics(timeout=_TRY_SECONDS)


def _settings_of(client: Any, kind: str, name: str) -> Mapping[str, str]:
    """Return the settings of a topic or broker; none if it does not tell them, for example without the right to ask."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource

    (future,) = client.describe_configs(
        [ConfigResource(ConfigResource.Type[kind], name)], request_timeout=_TRY_SECONDS
    ).values()
    try:
        return {name: entry.value or "" for name, entry in future.result().items()}
    except KafkaException:
        return {}


class LibrdkafkaShard:
    """A transactional producer of a shard, and its register.

    Args:
        connection: how to connect.
        name: the name of the shard: its group and `transactional.id`.
        register: the topic at whose partition 0 the group has its offset.
        job: the name of the job.
    """

    def __init__(self, connection: ClientConnection, name: str, register: str, job: str = "") -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._place, self._register, self._name = TopicPartition, register, name
        self._sound = True
        self._trouble = trouble_of(connection, job)
        self._refused: Any = None
        self._where = ""
        # None: no transaction has begun.
        self._targets: Targets | None = None
        more = {"transactional.id": name, "error_cb": self._failed, "delivery.report.only.error": True}
        self._producer = producer(connection, more)
        self._setting: Future[None] = Future()
        self._setting.set_result(None)
        common = {key: value for key, value in connection.config.items() if not key.startswith(_PRODUCERS_ONLY)}
        self._group = ClientConnection(common, connection.credentials).made(
            Consumer, {"group.id": name, "enable.auto.commit": False}
        )

    def begin(self) -> Register | None:
        """Fence other producers, end what they have open, and return the register; None if there is none.

        Raises:
            InDoubtError: the broker does not answer in time.
            PublishRefusedError: it refuses the producer, or the topic of the register does not exist any more.
        """
        from confluent_kafka import KafkaException

        self._targets = None
        with self._fencing():
            # SUBTLE: first. While a transaction is open, the register is not known.
            self._producer.init_transactions(SECONDS)
            found = self._found()
            if found.error is not None:
                raise KafkaException(found.error)
        if found.offset < 0:
            # Deleted with its topic, perhaps.
            self._targets = Targets(self._register)
            self._check_targets()
        self._succeeded()
        return None if found.offset < 0 else Register(int(found.offset), found.metadata or "")

    def _found(self) -> Any:
        """Return the offset of the group, also while its coordinator starts or moves.

        If its user must not read it, librdkafka says so only in a poll.
        """
        from confluent_kafka import KafkaException

        over = time.monotonic() + SECONDS
        while True:
            try:
                (found,) = self._group.committed([self._place(self._register, 0)], timeout=_TRY_SECONDS)
            except KafkaException as e:
                heard = self._group.poll(0.1)
                error = None if heard is None else heard.error()
                if error is not None and error.name() in _REFUSALS:
                    raise KafkaException(error) from None
                if e.args[0].name() not in _MOVES or time.monotonic() > over:
                    raise
            else:
                return found

    def publish(self, records: Iterable[Plain], register: Register) -> None:
        """Produce records and set the register, in one transaction.

        Raises:
            ProducerFencedError: another producer has begun since. Nothing is published.
            InDoubtError: a connection has failed. The records may be published.
            PublishRefusedError: the broker refuses a record, or a topic or partition does not exist any more. Nothing
                is published.
        """
        self._refused = None
        with self._fencing():
            self._producer.begin_transaction()
            self._targets = Targets(self._register)
            produce(self._producer, self._targets.noting(records), self._undelivered)
            self._set(register)
            self._producer.commit_transaction(SECONDS)
        self._succeeded()

    def sound(self) -> bool:
        """Return whether no connection has failed since the last success."""
        self._producer.poll(0)
        return self._sound

    def close(self) -> None:
        """Release the connections. A transaction that is open stays so, until another producer begins or it expires."""
        self._group.close()
        # SUBTLE: a producer with an open transaction waits for its records when it is closed, so they are discarded.
        self._producer.purge()
        threading.Thread(target=_close, args=[self._producer, self._setting], name="kafka-close", daemon=True).start()

    def _set(self, register: Register) -> None:
        """Set the register in the open transaction.

        If the cluster forgets a broker while it restarts, librdkafka waits forever for the connection that it knew,
        and ignores its timeout (its issues 5511 and 5456). So a thread waits, not we.
        """
        places = [self._place(self._register, 0, register.sequence, register.token)]
        setting = self._setting = Future()

        def call() -> None:
            try:
                group = self._group.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(places, group, _REGISTER_SECONDS)
            except BaseException as e:
                setting.set_exception(e)
            else:
                setting.set_result(None)

        threading.Thread(target=call, name="kafka-register", daemon=True).start()
        if not wait([setting], _REGISTER_SECONDS).done:
            self._check_targets()
            raise InDoubtError(f"Kafka, shard {self._name}: the coordinator of its group does not answer")
        setting.result()

    def _failed(self, error: Any) -> None:
        self._sound = False
        self._trouble.hear(error)

    def _undelivered(self, error: Any, record: Any) -> None:
        if self._refused is None and error.name() in _REFUSALS:
            self._refused, self._where = error, f" a record for {record.topic()}[{record.partition()}]"

    def _refusal(self, error: Any) -> PublishRefusedError | None:
        """Return the error for what the broker would refuse again; None if an error has another cause."""
        from confluent_kafka import KafkaError, KafkaException

        # What follows a refused record fails with an error that does not say why. The error of a transaction may
        # also come before the report about the record that it is due to.
        due = error.code() == KafkaError._STATE or (error.name() in _REFUSALS and error.txn_requires_abort())
        over = time.monotonic() + (_REPORT_SECONDS if due else 0.0)
        # A fatal error is raised again.
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
            while self._refused is None and time.monotonic() < over:
                self._producer.poll(0.1)
        if self._refused is None and error.name() in _REFUSALS:
            self._refused, self._where = error, ""
        if self._refused is None:
            return None
        return PublishRefusedError(
            f"WriteToKafka cannot publish shard {self._name}: Kafka refuses{self._where or ' its producer'}: "
            f"{self._refused.str()}. To continue, {_REFUSALS[self._refused.name()]}. Then resume the job: it publishes "
            "what it has committed"
        )

    def _check_targets(self) -> None:
        """Raise an error if a topic of the transaction does not exist any more.

        librdkafka waits for it until a time is over, and then reports this time only.

        Raises:
            PublishRefusedError: it does not exist, or has not enough partitions.
        """
        if self._targets is not None and (why := self._targets.missing(self._producer.list_topics)):
            raise PublishRefusedError(f"WriteToKafka cannot publish shard {self._name}: {why}")

    @contextlib.contextmanager
    def _fencing(self) -> Iterator[None]:
        """Turn librdkafka's errors into ours."""
        from confluent_kafka import KafkaError, KafkaException

        began = time.time()
        try:
            yield
        except KafkaException as e:
            # `_FATAL` is the error of a record that is produced after the others: it names no cause.
            fenced = (
                KafkaError._FENCED,
                KafkaError.INVALID_PRODUCER_EPOCH,
                KafkaError.PRODUCER_FENCED,
                KafkaError._FATAL,
                KafkaError.CONCURRENT_TRANSACTIONS,
            )
            error = e.args[0]
            if error.code() in fenced:
                raise ProducerFencedError(f"another process publishes shard {self._name}: {error.str()}") from None
            lost = (
                KafkaError._TRANSPORT,
                KafkaError._ALL_BROKERS_DOWN,
                KafkaError._TIMED_OUT,
                KafkaError._MSG_TIMED_OUT,
            )
            if (refusal := self._refusal(error)) is not None:
                raise refusal from None
            self._check_targets()
            if not error.retriable() and error.code() not in lost and error.name() not in _MOVES:
                raise RuntimeError(f"Kafka, shard {self._name}: {error.str()}") from None
            self._trouble.listen(self._producer.poll)
            self._trouble.failed(f"publishing shard {self._name}", error, began)
            why = unreachable(self._trouble.servers, self._trouble.reason(error), time.time() - began)
            raise InDoubtError(f"Kafka, shard {self._name}: {why}") from None

    def _succeeded(self) -> None:
        # What has failed until now is reported first: a client also tries addresses where no broker is.
        self._producer.poll(0)
        self._sound = True
        self._trouble.succeeded()


def _close(of: Any, last: Future[None]) -> None:
    """Close a producer when its last call has ended."""
    from confluent_kafka import KafkaException

    wait([last])
    # It aborts its transaction, which is not needed: brokers refuse this to one that was fenced, and abort themselves.
    warnings.filterwarnings("ignore", r"Producer \w+ failed during close", RuntimeWarning)
    # A producer that was fenced reports this again.
    with contextlib.suppress(KafkaException):
        of.close()


class Deliveries:
    """Counts what a producer could not deliver.

    Args:
        trouble: knows why.
    """

    def __init__(self, trouble: ClientTrouble) -> None:
        self._trouble = trouble
        self._failed = 0
        self._first = ""

    def delivered(self, error: Any, record: Any) -> None:
        """Note the fate of a record."""
        if error is not None:
            self._failed += 1
            self._first = self._first or f"{record.topic()}[{record.partition()}]: {error.str()}"

    def check(self, left: int, topics: Iterable[str]) -> None:
        """Raise an error if records were not delivered.

        Args:
            left: how many have not been delivered in time.
            topics: those of all records that were produced since the last check.
        """
        failed, first = self._failed + left, self._first and f", the first to {self._first}"
        first = first or f" to {', '.join(sorted(topics))}: no broker has confirmed them in {SECONDS:.0f} s"
        self._failed, self._first = 0, ""
        if failed:
            why = self._trouble.reason("")
            raise RuntimeError(
                f"WriteToKafka could not write {failed:,} record{'s' if failed > 1 else ''}{first}"
                + (f". {self._trouble.servers}: {why}" if why else "")
            )
        self._trouble.succeeded()
