"""Publishing to a real broker, without a runner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.utils.timestamp import Timestamp
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from arcbeam.errors import PublishRefusedError
from arcbeam.io.kafka import ProducerRecord, RecordRefusedError, outgoing, producing
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.outgoing import Outgoing, Plain, RecordChunks, encoded, framed
from arcbeam.io.kafka.producing import Deliveries, LibrdkafkaShard, ProducerFencedError, Register, produce, producer
from arcbeam.io.kafka.publisher import PublishRecords, RegisterError, TransactionPart
from arcbeam.io.kafka.trouble import ClientTrouble
from arcbeam.io.kafka.writing import RecordStorage, StageGrouped, StagingSettings
from arcbeam.model.attempts import Attempt, process_state
from tests.io.kafka.conftest import PASSWORD
from tests.io.kafka.test_librdkafka import partition, read, reader, values
from tests.waiting import until
from tools.kafka.broker import Broker

pytestmark = pytest.mark.contract("KAFKA-06")


def record(topic: str, value: int) -> Plain:
    return topic, -1, 0, b"k", str(value).encode(), (("h", b"1"),)


def connection(broker: Broker, **more: Any) -> ClientConnection:
    return ClientConnection({"bootstrap.servers": broker.address, **more})


def seen(broker: Broker, topic: str) -> list[int]:
    return values(read(reader(broker), partition(broker, topic))[0].outputs)


def test_fenced_producer_changes_nothing(broker: Broker) -> None:
    topic = broker.topic("fenced")
    # Its transaction expires while it is suspended.
    zombie = LibrdkafkaShard(connection(broker, **{"transaction.timeout.ms": 1_000}), "fenced.0", topic)
    assert zombie.begin() is None
    zombie.publish([record(topic, 1)], Register(1, "a"))

    def suspended() -> Iterator[Plain]:
        yield record(topic, 98)
        other = LibrdkafkaShard(connection(broker), "fenced.0", topic)
        assert other.begin() == Register(1, "a")
        other.publish([record(topic, 2)], Register(2))
        other.close()
        yield record(topic, 99)

    with pytest.raises(ProducerFencedError):
        zombie.publish(suspended(), Register(2, "b"))
    zombie.close()
    third = LibrdkafkaShard(connection(broker), "fenced.0", topic)
    assert third.begin() == Register(2)
    third.close()
    assert seen(broker, topic) == [1, 2]


@pytest.mark.parametrize(("left", "records"), [(1, "1 record"), (2, "2 records")])
def test_unconfirmed_records_are_counted(left: int, records: str) -> None:
    deliveries = Deliveries(ClientTrouble("kafka:9092", lambda: 0.0))
    with pytest.raises(RuntimeError, match=f"could not write {records} to a, b: no broker has confirmed them"):
        deliveries.check(left, ["b", "a"])


def test_new_shard_is_sound(broker: Broker) -> None:
    shard = LibrdkafkaShard(connection(broker), "sound", "register")
    assert shard.sound()
    shard.close()


def publisher(broker: Broker, folder: Path, **how: Any) -> PublishRecords:
    made = PublishRecords(connection(broker), RecordStorage(str(folder)), trusts=how.get("trusts", False))
    made.setup()
    return made


def staged(folder: Path, topic: str, sequence: int) -> dict[str, Any]:
    (folder / str(sequence)).write_bytes(framed([encoded([record(topic, sequence)])]))
    return {"parts": [TransactionPart("lost.0", sequence, str(sequence), 1, 1, topic).plain()]}


def test_deleted_register_is_refused(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("lost")
    one = publisher(broker, tmp_path)
    one.publish([staged(tmp_path, topic, 1)])
    one.publish([staged(tmp_path, topic, 1), staged(tmp_path, topic, 2)])
    one.teardown()
    admin = broker.admin()
    ((_, future),) = admin.delete_consumer_groups(["lost.0"]).items()
    future.result()
    with pytest.raises(RegisterError, match=r"part 3 of shard lost\.0"):
        publisher(broker, tmp_path).publish([staged(tmp_path, topic, 3)])
    assert seen(broker, topic) == [1, 2]
    publisher(broker, tmp_path, trusts=True).publish([staged(tmp_path, topic, 3)])
    assert seen(broker, topic) == [1, 2, 3]


def test_offset_of_the_group_is_a_way_out(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("ways")
    admin = broker.admin()
    place = ConsumerGroupTopicPartitions("lost.0", [TopicPartition(topic, 0, 3)])
    ((_, future),) = admin.alter_consumer_group_offsets([place]).items()
    future.result()
    publisher(broker, tmp_path).publish([staged(tmp_path, topic, 3)])
    publisher(broker, tmp_path).publish([staged(tmp_path, topic, 4)])
    assert seen(broker, topic) == [4]


def delete(broker: Broker, topic: str) -> None:
    admin = broker.admin()
    ((_, future),) = admin.delete_topics([topic], operation_timeout=20).items()
    future.result()
    until(lambda: topic not in admin.list_topics(timeout=5).topics, "its end")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a producer that does not wait long for a topic."""
    monkeypatch.setattr(producing, "SECONDS", 10.0)
    monkeypatch.setattr(producing, "_REGISTER_SECONDS", 2.0)
    monkeypatch.setattr(outgoing, "_SURE_SECONDS", 1.0)
    return {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 3_000, "transaction.timeout.ms": 3_000}


@pytest.mark.contract("KAFKA-07")
@pytest.mark.parametrize("is_new", [False, True])
def test_deleted_topic_is_refused(broker: Broker, hasty: dict[str, Any], *, is_new: bool) -> None:
    topic, register = broker.topic(f"deleted-{is_new}"), broker.topic(f"deleted-{is_new}-register")
    shard = LibrdkafkaShard(connection(broker, **hasty), topic, register)
    shard.begin()
    shard.publish([record(topic, 1)], Register(1, "a"))
    delete(broker, topic)
    if is_new:
        shard.close()
        shard = LibrdkafkaShard(connection(broker, **hasty), topic, register)
        assert shard.begin() == Register(1, "a")
    with pytest.raises(
        PublishRefusedError, match=rf"shard {topic}: the topic {topic} does not exist .*many .*Then resume the job: it"
    ):
        shard.publish([record(topic, 2)], Register(2, "b"))
    shard.close()
    # The job is resumed with what the error says.
    broker.topic(topic)
    again = LibrdkafkaShard(connection(broker), topic, register)
    assert again.begin() == Register(1, "a")
    again.publish([record(topic, 2)], Register(2, "b"))
    again.close()
    assert seen(broker, topic) == [2]


@pytest.mark.contract("KAFKA-07")
def test_topic_deleted_with_its_register_is_refused(broker: Broker, hasty: dict[str, Any], tmp_path: Path) -> None:
    topic = broker.topic("deleted-both")
    one = publisher(broker, tmp_path)
    one.publish([staged(tmp_path, topic, 1)])
    delete(broker, topic)
    message = (
        rf"{topic} does not exist .*\(on_lost_register='publish'\), because .*: it publishes what it has committed"
    )
    for each in (one, publisher(broker, tmp_path)):
        with pytest.raises(PublishRefusedError, match=message):
            each.publish([staged(tmp_path, topic, 2)])
    one.teardown()
    broker.topic(topic)
    with pytest.raises(RegisterError):
        publisher(broker, tmp_path).publish([staged(tmp_path, topic, 2)])
    publisher(broker, tmp_path, trusts=True).publish([staged(tmp_path, topic, 2)])
    assert seen(broker, topic) == [2]


@pytest.mark.contract("KAFKA-07")
def test_topic_with_fewer_partitions_is_refused(broker: Broker, hasty: dict[str, Any]) -> None:
    topic, register = broker.topic("fewer", 2), broker.topic("fewer-register")
    delete(broker, topic)
    broker.topic(topic, 1)
    shard = LibrdkafkaShard(connection(broker, **hasty), topic, register)
    shard.begin()
    with pytest.raises(
        PublishRefusedError, match=r"fewer has no partition 1 any more: it has 1\. .*add partitions, .*many"
    ):
        shard.publish([(topic, 1, 0, b"k", b"1", ())], Register(1, "a"))
    shard.close()


@pytest.mark.parametrize("late", ["topic", "partition", "broker"])
def test_topic_that_a_broker_learns_late_is_not_missing(late: str) -> None:
    of = outgoing.Targets("register")
    assert len([*of.noting([record("t", 1), ("t", 3, 0, b"k", b"v", ())])]) == 2
    requested: list[str] = []

    def ask(topic: str, timeout: float) -> Any:
        requested.append(topic)
        is_late = topic == "t" and requested.count(topic) < 3
        if is_late and late == "broker":
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if is_late and late == "topic" else None
        found = SimpleNamespace(error=error, partitions=range(2 if is_late else 4))
        return SimpleNamespace(topics={topic: found})

    assert of.missing(ask) == ""
    assert requested.count("t") == (1 if late == "broker" else 3)


@pytest.mark.contract("KAFKA-07")
@pytest.mark.parametrize(
    ("topic", "key", "size", "count", "more", "message"),
    [
        ("small", b"k", 20_000, 1, {}, r"record for \S+\[0\]: .*too large.*raise max\.message\.bytes"),
        ("small", b"k", 100, 900, {}, r"too large.*message\.max\.bytes of at most that"),
        ("compact", None, 5, 1, {}, r"record for \S+\[0\]: .*set it to delete"),
        ("small", b"k", 5, 1, {"transaction.timeout.ms": 5_000_000}, "its producer: .*Transaction timeout"),
    ],
)
def test_refusal_names_a_way_forward(
    broker: Broker, topic: str, key: bytes | None, size: int, count: int, more: Any, message: str
) -> None:
    settings = {"max_message_bytes": "10000"} if topic == "small" else {"cleanup_policy": "compact"}
    name = broker.topic(f"refuses-{topic}-{size}-{count}", **settings)
    shard = LibrdkafkaShard(connection(broker, **more), name, name)

    def publish() -> None:
        shard.begin()
        shard.publish([(name, -1, 0, key, b"v" * size, ())] * count, Register(1))

    with pytest.raises(PublishRefusedError, match=rf"publish shard {name}: Kafka refuses.*{message}.*resume the job"):
        publish()
    shard.close()
    assert seen(broker, name) == []
    # The job is resumed with what the error says.
    again = LibrdkafkaShard(connection(broker, **{"message.max.bytes": 10_000}), name, name)
    assert again.begin() is None
    again.publish([(name, -1, 0, b"k", b"1" * 100, ())] * 900, Register(1))
    again.close()
    assert len(seen(broker, name)) == 900


@pytest.mark.contract("KAFKA-07")
def test_what_a_topic_refuses_fails_before_the_commit(broker: Broker, tmp_path: Path) -> None:
    small = broker.topic("takes-little", max_message_bytes="10000")
    compact = broker.topic("takes-keys", cleanup_policy="compact,delete")

    stamped = broker.topic("stamps", message_timestamp_type="LogAppendTime")
    near = broker.topic("takes-new", message_timestamp_before_max_ms="60000")

    def stage(topic: str, key: bytes | None, at: float = 0, **config: Any) -> None:
        sink = StagingSettings("sink", small, RecordStorage(str(tmp_path)), connection(broker, **config))
        chunks = RecordChunks(Outgoing(topic, None, None, 1_000_000), 1)
        chunks.start_bundle()
        pairs = [ProducerRecord(b"v", key, time=Timestamp(of) if of else None) for of in (at, 0)]
        made = [*chunks.take(pairs, None), *chunks.finish_bundle()]
        with process_state.running(Attempt("refuses", 1, (0,), "t")):
            list(StageGrouped(sink).process((0, [of.value[1] for of in made])))

    with pytest.raises(RecordRefusedError, match=r"at most 10,000 bytes .*allows 1,000,000: give it '.*': 10000, or"):
        stage(small, b"k")
    with pytest.raises(RecordRefusedError, match=r"without a key for the topic takes-keys, whose cleanup\.p"):
        stage(compact, None)
    now = time.time()
    with pytest.raises(
        RecordRefusedError, match=r"time 1970-01-01T00:00:02Z for .* up to 60,000 ms before the present"
    ):
        stage(near, b"k", 2)
    with pytest.raises(RecordRefusedError, match=r"up to 3,600,000 ms after the present .*timestamp\.after\.max\.ms"):
        stage(compact, b"k", now + 4_000, **{"message.max.bytes": 10_000})
    with pytest.raises(RecordRefusedError, match=r"a transaction\.timeout\.ms of 5,000,000, but .* allow 900,000"):
        stage(compact, b"k", **{"transaction.timeout.ms": 5_000_000})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    stage(small, b"k", **{"message.max.bytes": 10_000})
    stage(small, b"k", **{"compression.type": "lz4"})
    stage(compact, b"k")
    stage(stamped, b"k", 2)
    stage(near, b"k", now - 30)


@pytest.mark.contract("KAFKA-07")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "topic",
            r"(a record for \S+\[0\]|its producer): .*Topic authorization failed.*write to all topics of this sink",
        ),
        ("group", r"its producer: .*Group authorization failed.*allow its user to read the group"),
        ("transactional_id", r"its producer: .*Transactional Id authorization failed.*describe and write the transac"),
    ],
)
def test_missing_permission_is_refused(broker: Broker, kind: str, message: str) -> None:
    name = broker.topic(f"forbidden-{kind.replace('_', '-')}")
    operation = AclOperation.READ if kind == "group" else AclOperation.WRITE
    rule: Any = ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, "User:me", "*", operation
    admin = broker.admin()
    for future in admin.create_acls([AclBinding(*rule, AclPermissionType.DENY)]).values():
        future.result()
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    secured = ClientConnection({"bootstrap.servers": broker.secured, **login}, lambda: {"sasl.password": PASSWORD})

    def publish() -> None:
        shard = LibrdkafkaShard(secured, name, name)
        try:
            assert shard.begin() is None
            shard.publish([record(name, 1)], Register(1))
        finally:
            shard.close()

    with pytest.raises(PublishRefusedError, match=rf"publish shard {name}: Kafka refuses {message}.*resume the job"):
        publish()
    assert seen(broker, name) == []
    for future in admin.delete_acls([AclBindingFilter(*rule, AclPermissionType.DENY)]).values():
        future.result()
    publish()
    assert seen(broker, name) == [1]


@pytest.mark.contract("KAFKA-07")
def test_key_is_where_java_puts_it(broker: Broker) -> None:
    topic = broker.topic("murmur", 3)
    made = producer(connection(broker))
    found: list[int] = []
    keys = [(topic, -1, 5, key, b"v", ()) for key in (b"a", b"bc", b"kafka", b"beam")]
    produce(made, keys, lambda error, sent: found.append(sent.partition()))
    made.flush(30)
    # Java's Utils.toPositive(Utils.murmur2(key)) % 3.
    assert sorted(found) == sorted(_murmur2(key) % 3 for _, _, _, key, _, _ in keys)


def _murmur2(key: bytes) -> int:
    """Kafka's hash of a key, as its protocol guide has it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for n in range(0, whole, 4):
        k = int.from_bytes(key[n : n + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
