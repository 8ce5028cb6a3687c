"""The tests' broker has what exactly-once publishing requires of a broker."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from tools.kafka.broker import Broker


def test_register_and_records_are_one_transaction(broker: Broker) -> None:
    topic = broker.topic("register", 1)
    client = {"bootstrap.servers": broker.address, "group.id": "register.0"}
    reader = Consumer({**client, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    writer = Producer({"bootstrap.servers": broker.address, "transactional.id": "register.0"})
    writer.init_transactions(30)
    for step in (1, 2):
        writer.begin_transaction()
        writer.produce(topic, str(step).encode())
        register = [TopicPartition(topic, 0, step)]
        writer.send_offsets_to_transaction(register, reader.consumer_group_metadata(), 30)
        writer.commit_transaction(30) if step == 1 else writer.abort_transaction(30)
    (committed,) = reader.committed([TopicPartition(topic, 0)], 30)
    assert committed.offset == 1
    reader.assign([TopicPartition(topic, 0, 0)])
    records = reader.consume(2, 2)
    reader.close()
    assert [record.value() for record in records] == [b"1"]
