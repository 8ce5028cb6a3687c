"""Reading and writing in the harness of a worker, with a real broker and without Spark."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from confluent_kafka import Consumer, TopicPartition

from arcbeam.harness.operations.publishoperation import OpenPublisher
from arcbeam.io.kafka import ReadFromKafka, WriteToKafka
from arcbeam.model.attempts import Attempt, process_state
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.translate.proto import pipeline_proto
from examples import kafka_to_kafka
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.io.kafka.conftest import PASSWORD
from tests.io.kafka.test_librdkafka import put
from tests.privacy import planted
from tools.kafka.broker import Broker

_PAGE = Path(__file__).parents[3] / "docs" / "howto" / "kafka.md"


class Cutting:
    """Runs a stage in micro-batches, each of which is repeated, and drains it.

    Attributes:
        committed: the committables.
    """

    def __init__(self) -> None:
        self.committed: list[Any] = []

    def __call__(self, shard: Shard, arrived: list[Any]) -> None:
        now = int(time.time() * 1e6)
        half = (len(arrived) + 1) // 2
        for n, some in enumerate((arrived[:half], arrived[half:], [], [])):
            at = Timestamp(now + n * 3_000_000)
            shard.run(MicroBatch([(key, [one]) for key, one in some], MIN_TIMESTAMP, at, looks=3, runs=2))
            self.committed.extend(shard.closed[-1].committables)
        shard.run(MicroBatch((), MAX_TIMESTAMP, at, drain=True))


def published(plan: Any, committed: list[Any]) -> None:
    """Publish committables of micro-batches, one after the other."""
    (name,) = {each.stage for each in committed}
    (stage,) = (stage for stage in plan.stages if name in stage.publishers)
    publisher = OpenPublisher(stage, name)
    for each in committed:
        publisher.publish([each.payload], again=True)
    publisher.close()


@pytest.mark.contract("KAFKA-01", "KAFKA-06", "KAFKA-07")
def test_bounded_copy_is_published_once(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("h-in", 3), broker.topic("h-out", 2)
    for number in (0, 1):
        put(broker, source, range(number, 500, 2), number)
    config = {"bootstrap.servers": broker.address}
    with process_state.running(Attempt("h-job", 0, (0,), "token")), Driven(shards=2) as p:
        records = p | ReadFromKafka({**config, "group.id": "h"}, [source], stop="latest")
        _ = records | Collect()
        _ = records | WriteToKafka(config, target, staging=str(tmp_path), shards=2)
    assert sorted(int(value) for _, value in p.values()) == list(range(500))
    (name,) = {name for report in p.reports for name in report.committables}
    encoded = [each for report in p.reports for each in report.committables.get(name, [])]
    (stage,) = (stage for stage in p.plan.stages if name in stage.publishers)
    for _ in range(2):
        publisher = OpenPublisher(stage, name)
        publisher.publish(encoded, again=True)
        publisher.close()
    with Driven(shards=2) as written:
        _ = written | ReadFromKafka(config, [target], stop="latest") | Collect()
    values = [int(value) for _, value in written.values()]
    assert sorted(values) == list(range(500))
    group = Consumer({**config, "group.id": "h"})
    places = [TopicPartition(source, number) for number in range(3)]
    assert [max(0, place.offset) for place in group.committed(places, 10)] == [250, 250, 0]


@pytest.mark.contract("KAFKA-01", "KAFKA-03", "KAFKA-06", "KAFKA-07")
def test_stream_is_published_part_by_part(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("s-in", 2), broker.topic("s-out")
    config = {"bootstrap.servers": broker.address}
    put(broker, source, range(0, 400, 2), 0)
    put(broker, source, range(1, 400, 2), 1)
    cut = Cutting()

    with process_state.running(Attempt("s-job", 1, (0,), "token")), InMicroBatches(cut) as p:
        records = p | ReadFromKafka({**config, "group.id": "s"}, [source], discovery_seconds=1)
        _ = records | Collect()
        pairs = records | beam.Map(lambda pair: (b"k", pair[1]))
        _ = pairs | WriteToKafka(config, target, staging=str(tmp_path))
    assert sorted(int(value) for _, value in p.values()) == list(range(400))
    published(p.plan, cut.committed)
    assert len(cut.committed) == 2
    with Driven(shards=2) as written:
        _ = written | ReadFromKafka(config, [target], stop="latest") | Collect()
    assert [int(value) for _, value in written.values()] == [int(value) for _, value in p.values()]


@pytest.mark.contract("KAFKA-07")
def test_example_numbers_the_records_of_each_key(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("e-in"), broker.topic("e-out")
    put(broker, source, range(20))
    cut = Cutting()
    with process_state.running(Attempt("e-job", 1, (0,), "token")), InMicroBatches(cut) as p:
        kafka_to_kafka.build(p, broker.address, source, target, str(tmp_path))
    published(p.plan, cut.committed)
    with Driven(shards=1) as written:
        _ = written | ReadFromKafka({"bootstrap.servers": broker.address}, [target], stop="latest") | Collect()
    assert [value for _, value in written.values()] == [b"%d\t%d" % (n + 1, n) for n in range(20)]


@pytest.mark.contract("KAFKA-05", "KAFKA-07")
def test_example_of_the_page_copies_a_topic_and_leaves_no_password(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topic("clicks", 1)
    broker.topic("shouted", 1)
    put(broker, "clicks", range(20))
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    (example,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for reported, is_here in (
        ("kafka:9092", broker.secured),
        ("SASL_SSL", "SASL_PLAINTEXT"),
        ("s3://bucket/staging", str(tmp_path)),
        ("with beam.Pipeline() as pipeline:", "if pipeline is not None:"),
    ):
        assert reported in example
        example = example.replace(reported, is_here)
    cut = Cutting()
    with process_state.running(Attempt("d-job", 1, (0,), "token")), InMicroBatches(cut) as p:
        exec(compile(example, str(_PAGE), "exec"), {"pipeline": p})
    published(p.plan, cut.committed)
    found = pipeline_proto(p).SerializeToString()
    left = repr([found, *planted.unpickled(found), *(each.payload for each in cut.committed)])
    assert [reported in left for reported in ("KAFKA_PASSWORD", "d-job", PASSWORD)] == [True, True, False]
    assert list(tmp_path.rglob("*"))
    assert planted.holding(tmp_path, PASSWORD) == []
    with Driven(shards=1) as written:
        _ = written | ReadFromKafka({"bootstrap.servers": broker.address}, ["shouted"], stop="latest") | Collect()
    assert sorted(int(value) for _, value in written.values()) == list(range(20))
