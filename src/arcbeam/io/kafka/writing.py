"""Stages records of a shard, or writes them at once, and the transform `WriteToKafka`.

Owns the arguments that users pass, and how parts of a shard are numbered: the number is in the shard's state, so each
commit and savepoint has it.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.io.kafka.connection import ClientConnection, Credentials, check_installed, naming_secrets
from arcbeam.io.kafka.outgoing import (
    Chunk,
    Extent,
    Outgoing,
    RecordChunks,
    Serializer,
    TopicRefusedError,
    decoded,
    framed,
    joined,
)
from arcbeam.io.kafka.producing import SECONDS, Deliveries, Topic, longest_transaction, produce, producer, topic_of
from arcbeam.io.kafka.publisher import PublishRecords, TransactionPart, name_of, sink_of
from arcbeam.io.kafka.settings import check_arguments, check_flags, check_function, check_settings
from arcbeam.io.kafka.trouble import trouble_of
from arcbeam.io.parts.places import opened, options_of
from arcbeam.io.publishing import Publish, attempt
from arcbeam.model.urns import EMBEDDED_ANNOTATION, FEW_KEYS_ANNOTATION
from arcbeam.secrets import install, parted, without_credentials
from arcbeam.sizes import threshold

_NAME: Final = "WriteToKafka"
_PART: Final = threshold(32 << 20)
"""Bytes of a part of a bounded input, approximately: a transaction must end in time."""
_OWNED: Final = {
    "transactional.id": "the transform makes one for each shard",
    "enable.idempotence": "it is on",
    "acks": "it is all",
    "request.required.acks": "it is all",
    "group.id": "a writer needs none",
}
_TIMEOUT: Final = "transaction.timeout.ms"
LOST: Final = ("refuse", "publish")

Committable = dict[str, Any]


@dataclass(frozen=True)
class RecordStorage:
    """Where records are staged.

    Attributes:
        path: a folder or URL.
        options: see `arcbeam.io.parts.places.opened`.
        secrets: likewise.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()

    def __call__(self) -> Any:
        """Open it, in a process that has the job's secrets."""
        return opened(self.path, self.options, self.secrets)


@dataclass(frozen=True)
class StagingSettings:
    """What staging needs.

    Attributes:
        name: the name of the sink in the job.
        register: see `TransactionPart`.
        storage: where records are staged.
        connection: how to ask for topics.
    """

    name: str
    register: str
    storage: RecordStorage
    connection: ClientConnection


@dataclass(frozen=True)
class PartLink:
    """The place of a part among those of its shard. See `TransactionPart`."""

    sequence: int
    token: str
    after: str
    begins: bool

    @classmethod
    def first(cls) -> PartLink:
        """Return that of a job's first part."""
        return cls(1, _token(1), "", True)

    def next(self) -> PartLink:
        """Return that of the part after this one."""
        return PartLink(self.sequence + 1, _token(self.sequence + 1), self.token, False)


def _token(sequence: int) -> str:
    """Return the token of a part that the current attempt stages."""
    by = attempt()
    return hashlib.sha256(f"{by.job}/{by.token}/{sequence}".encode()).hexdigest()[:32]


class _Stager:
    """Stages parts, in a process.

    Args:
        sink: what to stage.

    Raises:
        TopicRefusedError: the topic of the register does not exist.
        SetupError: the runner does not know commits.
    """

    def __init__(self, sink: StagingSettings) -> None:
        if not attempt().job:
            raise SetupError(
                f"{_NAME} writes exactly once with ArcbeamRunner only: this runner does not know commits",
                f"run the pipeline with ArcbeamRunner, or use {_NAME}(exactly_once=False)",
            )
        self._sink, self._staging = sink, sink.storage()
        self._topics: dict[str, Topic] = {}
        self._check(sink.register, 0)
        self._check_timeout()

    def part(
        self, shard: int, link: PartLink, chunks: Sequence[bytes], topics: Mapping[str, Extent], records: int
    ) -> TransactionPart:
        """Stage chunks as a part.

        Args:
            shard: the shard.
            link: the place of the part.
            chunks: its records.
            topics: their topics.
            records: their number.

        Raises:
            TopicRefusedError: a topic or partition does not exist, or the topic would refuse records. Once committed,
                they would block the job.
        """
        by = attempt()
        for topic, (most, first, last) in topics.items():
            self._check(topic, most)
            self._check_size(topic)
            self._check_times(topic, first, last)
        self._check_keys({topic for topic in topics if self._topics[topic].compacted}, chunks)
        writing = self._staging.begin(by)
        try:
            writing.write(framed(chunks))
            staged = writing.finish()
        except BaseException:
            writing.abandon()
            raise
        name = name_of(by.job, self._sink.name, shard)
        token, after = link.token, link.after
        size = sum(map(len, chunks))
        return TransactionPart(
            name, link.sequence, staged.staged, records, size, self._sink.register, token, after, link.begins
        )

    def _check(self, topic: str, number: int) -> None:
        if topic not in self._topics or number >= self._topics[topic].partitions:
            found = self._topics[topic] = topic_of(self._sink.connection, topic)
            if number >= found.partitions:
                what = (
                    f"has no partition {number}"
                    if found.partitions
                    else "does not exist, or this user is not allowed to describe it"
                )
                raise TopicRefusedError(f"{_NAME}: the topic {topic} {what}")

    def _check_timeout(self) -> None:
        ours, most = int(self._sink.connection.config.get(_TIMEOUT, 60_000)), longest_transaction(self._sink.connection)
        if ours > most:
            raise TopicRefusedError(
                f"{_NAME}: producer_config has a {_TIMEOUT} of {ours:,}, but the brokers allow {most:,} (their "
                "transaction.max.timeout.ms): lower it, or raise that of the brokers"
            )

    def _check_size(self, topic: str) -> None:
        config, most = self._sink.connection.config, self._topics[topic].most
        if any(config.get(name, "none") != "none" for name in ("compression.type", "compression.codec")):
            return  # The topic limits what is compressed, and its size is not known yet.
        if (ours := _most(config)) > most:
            raise TopicRefusedError(
                f"{_NAME}: the topic {topic} takes batches of at most {most:,} bytes (its max.message.bytes), but "
                f"producer_config allows {ours:,}: give it 'message.max.bytes': {most}, or raise that of the topic"
            )

    def _check_times(self, topic: str, first: int, last: int) -> None:
        """Refuse records with times that the topic refuses; 0: none has a time."""
        of, now = self._topics[topic], int(time.time() * 1_000)
        for at, distance, limit, name in (
            (first, now - first, of.before, "before"),
            (last, last - now, of.after, "after"),
        ):
            if at and distance > limit:
                raise TopicRefusedError(
                    f"{_NAME} got a record of the time {Timestamp(micros=at * 1_000).to_rfc3339()} for the topic "
                    f"{topic}, which takes those of up to {limit:,} ms {name} the present (its "
                    f"message.timestamp.{name}.max.ms): raise that, or leave out the record's time"
                )

    def _check_keys(self, compacted: Collection[str], chunks: Iterable[bytes]) -> None:
        for topic, _, _, key, *_ in (record for chunk in chunks if compacted for record in decoded(chunk)):
            if key is None and topic in compacted:
                raise TopicRefusedError(
                    f"{_NAME} got a record without a key for the topic {topic}, whose cleanup.policy is compact: such "
                    "topics take only records with a key"
                )


def _most(config: Mapping[str, Any]) -> int:
    """Return the bytes of the largest batch or record of a producer."""
    return int(config.get("message.max.bytes", 1_000_000))


def _add(topics: dict[str, Extent], more: Mapping[str, Extent]) -> None:
    """Add the topics of a chunk."""
    for topic, extent in more.items():
        topics[topic] = joined(topics.get(topic, extent), extent)


class StageRecords(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """(shard, chunk) -> committables, one for each shard and bundle.

    Args:
        sink: what to stage.
    """

    PARTS = ReadModifyWriteStateSpec("parts", VarIntCoder())
    """The number of parts of the shard so far."""
    LAST = ReadModifyWriteStateSpec("last", StrUtf8Coder())
    """The job and the token of the last part. A copy of a savepoint is another job, with registers of its own."""

    def __init__(self, sink: StagingSettings) -> None:
        self._sink = sink

    @override
    def setup(self) -> None:
        self._stager: _Stager | None = None

    @override
    def start_bundle(self) -> None:
        self._chunks: dict[int, tuple[PartLink, list[bytes], dict[str, Extent], int]] = {}

    @override
    def process(
        self,
        element: tuple[int, Chunk],
        parts: Any = beam.DoFn.StateParam(PARTS),
        last: Any = beam.DoFn.StateParam(LAST),
    ) -> None:
        shard, (chunk, number, more) = element
        if shard in self._chunks:
            link, chunks, topics, count = self._chunks[shard]
        else:
            job, sequence, before = attempt().job, (parts.read() or 0) + 1, last.read() or ""
            of, _, after = before.partition(" ")
            begins = sequence == 1 or of not in ("", job)
            link = PartLink(sequence, _token(sequence), "" if begins else after, begins)
            chunks, topics, count = [], {}, 0
            parts.write(sequence)
            last.write(f"{job} {link.token}")
        chunks.append(chunk)
        _add(topics, more)
        self._chunks[shard] = link, chunks, topics, count + number

    @override
    def finish_bundle(self) -> Iterator[Any]:
        waiting, self._chunks = self._chunks, {}
        if waiting and self._stager is None:
            self._stager = _Stager(self._sink)
        for shard, (link, chunks, topics, count) in waiting.items():
            assert self._stager is not None
            part = self._stager.part(shard, link, chunks, topics, count)
            yield GlobalWindows.windowed_value({"parts": [part.plain()]})


class _PerShard(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A ParDo whose keys are the shards."""

    @override
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), FEW_KEYS_ANNOTATION: b""}


class StageGrouped(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """(shard, chunks) of a bounded input -> one committable, with parts of limited size.

    Args:
        sink: what to stage.
    """

    def __init__(self, sink: StagingSettings) -> None:
        self._sink = sink

    @override
    def process(self, element: tuple[int, Iterable[Chunk]]) -> Iterator[Committable]:
        shard, all = element
        stager = _Stager(self._sink)
        parts: list[dict[str, Any]] = []
        chunks: list[bytes] = []
        topics: dict[str, Extent] = {}
        count = size = 0
        link = PartLink.first()
        for chunk, number, more in all:
            chunks.append(chunk)
            _add(topics, more)
            count, size = count + number, size + len(chunk)
            if size >= _PART:
                parts.append(stager.part(shard, link, chunks, topics, count).plain())
                link, chunks, topics, count, size = link.next(), [], {}, 0, 0
        if chunks:
            parts.append(stager.part(shard, link, chunks, topics, count).plain())
        yield {"parts": parts}


class WriteNow(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Writes elements at once, and waits for their delivery at the end of the bundle.

    Args:
        outgoing: how elements become records.
        connection: how to connect.
    """

    def __init__(self, outgoing: Outgoing, connection: ClientConnection) -> None:
        self._outgoing, self._connection = outgoing, connection

    @override
    def setup(self) -> None:
        trouble = trouble_of(self._connection)
        self._producer = producer(self._connection, {"error_cb": trouble.hear})
        self._deliveries = Deliveries(trouble)
        self._topics: set[str] = set()

    @override
    def process(self, element: Any) -> None:
        plain = self._outgoing.plain(element)
        self._topics.add(plain[0])
        produce(self._producer, [plain], self._deliveries.delivered)

    @override
    def finish_bundle(self) -> None:
        left = self._producer.flush(SECONDS)
        topics, self._topics = self._topics, set()
        self._deliveries.check(left, topics)

    @override
    def teardown(self) -> None:
        self._producer.close()


class WriteToKafka(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Write records to topics, exactly once.

    Elements are pairs (key, value) or `ProducerRecord`s. Records are staged while the pipeline runs, as files below
    `staging`. After the commit of their micro-batch they are produced, in one transaction for each shard. A bounded
    pipeline produces at its end. Readers with `read_committed` see each record once, and those of a key in the order in
    which the stage before this emitted them. A shard remembers in the offset of a consumer group
    (`arcbeam.<job>.<sink>.<shard>`) which of its transactions was the last, so a repeated publishing finds it.

    If that offset is gone although the job has published, the job fails by name, see `on_lost_register`. So does a job
    that went back to a savepoint, if the offset is that of a transaction it does not know: its text says what to do.
    A copy of a savepoint is another job, with offsets of its own. The broker
    removes offsets that have not changed for offsets.retention.minutes (7 days by default).

    Args:
        producer_config: settings of librdkafka without secrets, at least "bootstrap.servers".
        topic: for elements that name none. None: all do; then `register_topic` is required.
        staging: a folder or URL that all hosts share, for records between their commit and their publishing. Required
            for exactly once.
        exactly_once: False: records are produced while the pipeline runs, and may be repeated.
        key_serializer: a function that returns a key's bytes. None: keys are bytes.
        value_serializer: the same for values. None is a tombstone.
        shards: how many transactions a micro-batch has. More are faster, and each needs a producer.
        name: the name of the sink, part of the names of its groups. None: a hash of the transform's label.
        register_topic: the topic at whose partition 0 groups have their offsets. None: `topic`.
        on_lost_register: "refuse", or "publish": what was committed last is then produced, perhaps a second time.
        credentials: see `ReadFromKafka`.

    Raises:
        ImportError: the package confluent-kafka is missing.
        TypeError: an argument has the wrong type.
        ValueError: an argument is invalid, or `producer_config` has a secret.
    """

    def __init__(
        self,
        producer_config: Mapping[str, Any],
        topic: str | None = None,
        *,
        staging: str | None = None,
        exactly_once: bool = True,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        shards: int = 1,
        name: str | None = None,
        register_topic: str | None = None,
        on_lost_register: str = "refuse",
        credentials: Credentials = None,
        label: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(label)
        check_arguments(_NAME, others, [*inspect.signature(WriteToKafka).parameters][:-1])
        check_installed(_NAME)
        check_flags(_NAME, exactly_once=exactly_once)
        self._connection = ClientConnection.checked(f"{_NAME}(producer_config)", producer_config, credentials, _OWNED)
        check_settings(f"{_NAME}(producer_config)", "Producer", producer_config, credentials)
        for argument, function in (("key_serializer", key_serializer), ("value_serializer", value_serializer)):
            check_function(_NAME, argument, function, "a function that returns bytes")
        for argument, of in (("topic", topic), ("register_topic", register_topic)):
            if of is not None and not isinstance(of, str):
                raise TypeError(f"{_NAME}({argument}={of!r}): expected the name of a topic")
        self._outgoing = Outgoing(topic or "", key_serializer, value_serializer, _most(producer_config))
        if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= 256:
            raise ValueError(f"{_NAME}(shards={shards!r}): expected a number from 1 to 256")
        if on_lost_register not in LOST:
            raise ValueError(f"{_NAME}(on_lost_register={on_lost_register!r}): expected one of {LOST}")
        self._register = register_topic or topic or ""
        if exactly_once:
            if not staging:
                raise ValueError(
                    f"{_NAME} requires staging, a folder or URL that all hosts share, or exactly_once=False"
                )
            if without_credentials(staging) != staging:
                raise ValueError(
                    f"{_NAME}(staging={without_credentials(staging)!r}): pass credentials as options "
                    "(--s3_access_key_id, --s3_secret_access_key) or in the workers' environment"
                )
            if not self._register:
                raise ValueError(f"{_NAME} without a topic requires register_topic, or exactly_once=False")
        elif staging or name or register_topic or on_lost_register != "refuse" or shards != 1:
            raise ValueError(f"{_NAME}(exactly_once=False): staging, shards, name and registers belong to exactly_once")
        if name is not None and not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{_NAME}(name={name!r}): expected letters, digits, '-' and '_'")
        self._staging, self._exactly, self._shards, self._name = staging or "", exactly_once, shards, name
        self._trusts = on_lost_register == "publish"

    @override
    def expand(self, records: Any) -> Any:
        if not self._exactly:
            _ = records | "Write" >> beam.ParDo(WriteNow(self._outgoing, self._connection))
            return beam.pvalue.PDone(records.pipeline)
        options = parted(options_of(records.pipeline))
        install(options.secrets)
        storage = RecordStorage(self._staging, options.options, tuple(sorted(options.secrets)))
        name = self._name or sink_of(records.pipeline.transforms_stack[-1].full_label)
        sink = StagingSettings(name, self._register, storage, self._connection)
        chunks = (
            records
            | "Chunk" >> beam.ParDo(RecordChunks(self._outgoing, self._shards)).with_output_types(tuple[int, Chunk])
            | "Windows" >> beam.WindowInto(GlobalWindows())
        )
        if records.is_bounded:
            stage = "StageRecords" >> beam.ParDo(StageGrouped(sink)).with_output_types(Committable)
            committables = chunks | "Group" >> beam.GroupByKey() | stage
        else:
            committables = chunks | "StageRecords" >> _PerShard(StageRecords(sink)).with_output_types(Committable)
        _ = committables | Publish(PublishRecords(self._connection, storage, trusts=self._trusts))
        return beam.pvalue.PDone(records.pipeline)

    @override
    def annotations(self) -> dict[str, Any]:
        embedded = {EMBEDDED_ANNOTATION: b""} if self._exactly else {}
        return {**super().annotations(), **naming_secrets(), **embedded}

    @override
    def default_label(self) -> str:
        return f"{_NAME}({self._outgoing.topic or self._register or 'several topics'})"

    @override
    def display_data(self) -> dict[str, Any]:
        return {"topic": self._outgoing.topic, "servers": str(self._connection.config.get("bootstrap.servers"))}
