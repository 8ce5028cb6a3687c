"""Jobs on Spark that read and write Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from confluent_kafka import Consumer, Producer, TopicPartition

from arcbeam import ArcbeamRunner
from arcbeam.io.kafka import KafkaRecord, ProducerRecord, ReadFromKafka, WriteToKafka
from arcbeam.jobs.server import JobServer, ServerSettings
from arcbeam.runner.executor import SparkExecutor
from tests.io.kafka.test_librdkafka import put
from tools.kafka.broker import Broker

pytestmark = pytest.mark.usefixtures("spark")
KEYS = 5


class Ordinals(beam.DoFn):
    """(key, number) -> the same, with how many its key has had."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield pair[0], f"{int(pair[1])} {seen.read()}".encode()


def records(broker: Broker, topic: str, count: int, seconds: float = 60.0) -> list[tuple[int, int, int]]:
    """Return what committed readers see: key, number and ordinal of each record, in order of partitions."""
    client = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "check",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    partitions = client.list_topics(topic, 30).topics[topic].partitions
    client.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, over = [], time.monotonic() + seconds
    while time.monotonic() < over and len(found) < count:
        for message in client.consume(1_000, 0.5):
            assert message.error() is None
            found.append((int(message.key()), *map(int, message.value().split())))
    found += [(int(more.key()), *map(int, more.value().split())) for more in client.consume(100, 1.0)]
    client.close()
    return found


def wrong(found: list[tuple[int, int, int]], count: int) -> list[str]:
    """Return what is wrong: each number once, and for each key in order."""
    numbers = sorted(number for _, number, _ in found)
    problems = [] if numbers == list(range(count)) else [f"{len(numbers)} of {count}, {len(set(numbers))} different"]
    for key in range(KEYS):
        of = [(number, ordinal) for k, number, ordinal in found if k == key]
        if of != sorted(of) or [ordinal for _, ordinal in of] != list(range(1, len(of) + 1)):
            problems.append(f"key {key} is out of order: {of[:10]}")
    return problems


def fill(broker: Broker, topic: str, numbers: range) -> None:
    """Write numbers; those of a key go to one partition, and each of up to `KEYS` partitions has some."""
    producer = Producer({"bootstrap.servers": broker.address})
    count = len(producer.list_topics(topic, 30).topics[topic].partitions)
    for n in numbers:
        producer.produce(topic, str(n).encode(), str(n % KEYS).encode(), n % KEYS % count)
    producer.flush(30)


def job(
    broker: Broker, source: str, target: str, folder: Path, *arguments: str, lost: str = "refuse", **read: Any
) -> beam.Pipeline:
    options = ["--streaming", "--shards=2", *arguments]
    runner = None if any(each.startswith("--runner=") for each in arguments) else ArcbeamRunner()
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(options))
    config = {"bootstrap.servers": broker.address}
    _ = (
        pipeline
        | ReadFromKafka({**config, "group.id": source}, [source], discovery_seconds=1, **read)
        | beam.Map(lambda pair: (pair[0], pair[1])).with_output_types(tuple[bytes, bytes])
        | beam.ParDo(Ordinals())
        | WriteToKafka(config, target, staging=str(folder / "staging"), shards=2, on_lost_register=lost)
    )
    return pipeline


@pytest.mark.long
@pytest.mark.contract("KAFKA-01", "KAFKA-03", "KAFKA-06", "KAFKA-07")
def test_kafka_to_kafka_once_in_order(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("j-in", 2), broker.topic("j-out", 2)
    fill(broker, source, range(1_000))
    result = job(broker, source, target, tmp_path, f"--checkpoint_dir={tmp_path / 'job'}").run()
    assert wrong(records(broker, target, 1_000), 1_000) == []
    result.suspend()
    result.wait_until_finish()
    fill(broker, source, range(1_000, 2_000))
    result = job(broker, source, target, tmp_path, f"--checkpoint_dir={tmp_path / 'job'}").run()
    assert wrong(records(broker, target, 2_000), 2_000) == []
    result.drain()
    result.wait_until_finish()
    group = Consumer({"bootstrap.servers": broker.address, "group.id": source})
    assert [at.offset for at in group.committed([TopicPartition(source, n) for n in (0, 1)], 10)] == [1_200, 800]
    assert not list((tmp_path / "staging").rglob("*-*")), "staged records are left"


@pytest.mark.long
@pytest.mark.contract("API-03", "KAFKA-01", "KAFKA-03")
def test_kafka_to_kafka_through_sdk_workers(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("w-in", 2), broker.topic("w-out", 2)
    fill(broker, source, range(1_000))
    server = JobServer(ServerSettings(folder=tmp_path / "jobs"), SparkExecutor)
    try:
        where = "--runner=PortableRunner", f"--job_endpoint={server.endpoint}", "--environment_type=LOOPBACK"
        result = job(broker, source, target, tmp_path, *where).run()
        assert wrong(records(broker, target, 1_000), 1_000) == []
        fill(broker, source, range(1_000, 2_000))
        assert wrong(records(broker, target, 2_000), 2_000) == []
        result.cancel()
    finally:
        server.stop()


@pytest.mark.contract("KAFKA-01", "KAFKA-04", "KAFKA-07")
def test_bounded_read_and_write(broker: Broker, tmp_path: Path) -> None:
    source, target, other = broker.topic("j-batch", 2), broker.topic("j-batch-out"), broker.topic("j-batch-other")
    fill(broker, source, range(100))
    put(broker, source, [], 1)
    config = {"bootstrap.servers": broker.address}
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=2"])) as pipeline:
        good, bad = pipeline | ReadFromKafka(
            config,
            [source],
            stop="latest",
            value_deserializer=lambda data: 100 // (int(data or b"0") - 7) and int(data or b"0"),
            with_metadata=True,
            with_errors=True,
        )

        def outgoing(record: KafkaRecord) -> ProducerRecord:
            return ProducerRecord(b"%d 1" % record.value, record.key, target)

        _ = (
            good
            | beam.Map(outgoing).with_output_types(ProducerRecord)
            | WriteToKafka(config, staging=str(tmp_path / "staging"), register_topic=target, shards=2)
        )
        _ = bad | beam.Map(lambda each: (b"0", each.error.encode())) | WriteToKafka(config, other, exactly_once=False)
    assert sorted(number for _, number, _ in records(broker, target, 99)) == [n for n in range(100) if n != 7]
    client = Consumer({"bootstrap.servers": broker.address, "group.id": "x", "auto.offset.reset": "earliest"})
    client.assign([TopicPartition(other, 0, 0)])
    (message,) = client.consume(1, 20)
    assert message.value() == b"ZeroDivisionError: integer division or modulo by zero"
