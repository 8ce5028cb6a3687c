"""Publishing to a real broker, without a runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from arcbeam.io.kafka.connection import Connection
from arcbeam.io.kafka.outgoing import Plain, encoded, framed
from arcbeam.io.kafka.producing import FencedError, LibrdkafkaShard, Register, produce, producer
from arcbeam.io.kafka.publisher import Part, PublishRecords, RegisterError
from arcbeam.io.kafka.writing import Storage
from tests.io.kafka.test_librdkafka import partition, read, reader, values
from tools.kafka.broker import Broker

pytestmark = pytest.mark.contract("KAFKA-06")


def record(topic: str, value: int) -> Plain:
    return topic, -1, 0, b"k", str(value).encode(), (("h", b"1"),)


def connection(broker: Broker, **more: Any) -> Connection:
    return Connection({"bootstrap.servers": broker.address, **more})


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

    with pytest.raises(FencedError):
        zombie.publish(suspended(), Register(2, "b"))
    zombie.close()
    third = LibrdkafkaShard(connection(broker), "fenced.0", topic)
    assert third.begin() == Register(2)
    third.close()
    assert seen(broker, topic) == [1, 2]


def publisher(broker: Broker, folder: Path, **how: Any) -> PublishRecords:
    made = PublishRecords(connection(broker), Storage(str(folder)), trusts=how.get("trusts", False))
    made.setup()
    return made


def staged(folder: Path, topic: str, sequence: int) -> dict[str, Any]:
    (folder / str(sequence)).write_bytes(framed([encoded([record(topic, sequence)])]))
    return {"parts": [Part("lost.0", sequence, str(sequence), 1, topic).plain()]}


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
