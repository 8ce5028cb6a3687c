"""Jobs on Spark whose topics change: silent and added partitions, transactions, a broker that is down, other shards."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from arcbeam import ArcbeamRunner
from arcbeam.cli import main
from arcbeam.errors import JobFailedError
from arcbeam.io.kafka import ReadFromKafka
from arcbeam.streaming.status.status import as_record
from tests.io.kafka.jobs.test_jobs import fill, job, records, wrong
from tests.io.kafka.test_librdkafka import put
from tests.jobs.test_sigterm import Driver
from tests.notes import note, noted
from tests.waiting import until
from tools.kafka.broker import Broker

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.long]
_SECONDS = 120.0


class Windows:
    """A job that notes the numbers of each window of a second, and what its status says."""

    def __init__(self, broker: Broker, topic: str, folder: Path) -> None:
        self._out, self._topic = folder / "out", topic
        self._out.mkdir()
        options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={folder / 'job'}"])
        pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        config = {"bootstrap.servers": broker.address, "group.id": topic}
        _ = (
            pipeline
            | ReadFromKafka(config, [topic], discovery_seconds=3, max_delay=0.5)
            | beam.Map(lambda pair: (0, int(pair[1])))
            | beam.WindowInto(FixedWindows(1))
            | beam.GroupByKey()
            | beam.Map(lambda group, to: note(sorted(group[1]), to), str(self._out))
        )
        self.result = pipeline.run()

    def seen(self) -> Counter[int]:
        """Return how often each number was in a window."""
        return Counter(number for group in noted(self._out) for number in group)

    def has(self, *numbers: int) -> bool:
        """Return whether exactly these numbers were seen, each once."""
        return self.seen() == Counter(numbers)

    def behind(self, number: int) -> bool:
        """Return whether the status names a partition as what holds watermarks for seconds."""
        status = self.result.status()
        late = int((time.time() - 5) * 1e6)
        name = f"{self._topic}[{number}]"
        return status is not None and any(name in cause.text and cause.time < late for cause in status.causes)

    def named(self) -> list[int]:
        """Return the partitions that the status names."""
        status = self.result.status()
        text = "" if status is None else json.dumps(as_record(status), default=str)
        return [number for number in range(3) if f"{self._topic}[{number}]" in text]

    def backlog(self, number: int) -> int | None:
        """Return the gauge of a partition."""
        wanted = beam.metrics.MetricsFilter().with_name(f"backlog_records.{self._topic}.{number}")
        found = self.result.metrics().query(wanted)["gauges"]
        return found[0].committed.value if found else None


@pytest.mark.contract("KAFKA-01", "KAFKA-02", "KAFKA-03")
def test_silent_added_and_waiting_partitions(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("changes", 2)
    put(broker, topic, range(3))
    windows = Windows(broker, topic, tmp_path)
    # Partition 1 has never had a record.
    until(lambda: windows.has(0, 1, 2))
    assert not windows.behind(1)
    # Aborted records at the end are no backlog; records of an open transaction are.
    put(broker, topic, [90, 91], 1, ends="abort")
    opened = put(broker, topic, [3], 1, ends="later")
    put(broker, topic, [4], 0)
    until(lambda: windows.behind(1))
    assert not windows.behind(0)
    assert windows.has(0, 1, 2), "the window of an open transaction was closed"
    opened.commit_transaction(30)
    until(lambda: windows.has(0, 1, 2, 3, 4))
    until(lambda: not windows.behind(1))
    # Partition 2 has a record before the job knows it.
    admin = broker.admin()  # its requests end with it
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    until(lambda: admin.list_topics(topic, 10).topics[topic].partitions.keys() == {0, 1, 2})
    put(broker, topic, [5], 2)
    until(lambda: windows.has(0, 1, 2, 3, 4, 5))
    put(broker, topic, [6], 2)
    until(lambda: windows.has(0, 1, 2, 3, 4, 5, 6))
    client = Consumer({"bootstrap.servers": broker.address, "group.id": topic})
    places = [TopicPartition(topic, number) for number in range(3)]
    ends = [client.get_watermark_offsets(place, 10)[1] for place in places]
    until(lambda: [of.offset for of in client.committed(places, 10)] == ends)
    assert {windows.backlog(number) for number in (0, 1, 2)} <= {0, None}
    until(lambda: not windows.named())
    for _ in range(10):
        # Their watermarks hold what is downstream, but no partition is behind.
        assert windows.named() == []
        time.sleep(0.3)
    status = windows.result.status()
    # Two partitions may hold it at the same time.
    assert (status.backlog, {cause.kind for cause in status.causes if cause.decides}) == (0, {"restriction"})
    # Created again under the same name: a reader or the search notices it, before that or after.
    admin.delete_topics([topic], operation_timeout=30)[topic].result()
    time.sleep(1)
    broker.topic(topic, 3)
    with pytest.raises(Exception, match=rf"topic {topic} (was|is read by this job, but was) deleted"):
        windows.result.wait_until_finish()


@pytest.mark.contract("KAFKA-01", "KAFKA-06")
def test_savepoint_continues_with_other_shards(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("shards-in", 4), broker.topic("shards-out", 2)
    state = f"--checkpoint_dir={tmp_path / 'job'}"
    written = 0
    for shards in (2, 6, 1):
        fill(broker, source, range(written, written + 500))
        written += 500
        result = job(broker, source, target, tmp_path, state, f"--shards={shards}").run()
        assert wrong(records(broker, target, written), written) == []
        result.suspend(f"after-{shards}")
        result.wait_until_finish()


_JOB = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.io.kafka.jobs.test_jobs import job

address, source, target, folder, *options = sys.argv[1:]
job(SimpleNamespace(address=address), source, target, Path(folder), *options).run().wait_until_finish()
"""


@pytest.mark.contract("KAFKA-01", "KAFKA-06")
def test_minute_without_broker_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    state, options = tmp_path / "job", ("--spark_master=local[4]", "--shards=4")
    with Broker(tmp_path / "broker") as broker:
        source, target = broker.topic("down-in", 8), broker.topic("down-out", 2)
        fill(broker, source, range(300))
        arguments = (broker.address, source, target, str(tmp_path), f"--checkpoint_dir={state}", *options)
        with Driver(tmp_path, *arguments, code=_JOB) as driver:
            assert wrong(records(broker, target, 300, _SECONDS), 300) == []
            broker.kill()
            time.sleep(60)
            broker.start()
            fill(broker, source, range(300, 600))
            assert wrong(records(broker, target, 600, _SECONDS), 600) == []
            driver.until(lambda: "succeed again" in driver.output)
            drained = CliRunner().invoke(main.main, ["drain", str(state)])
            assert drained.exit_code == 0, drained.output
            assert driver.process.wait(_SECONDS) == 0, driver.output
        reported = [line for line in driver.output.splitlines() if f"Kafka, {broker.address}" in line]
        assert [("failed: " in line, "succeed again" in line) for line in reported] == [(True, False), (False, True)]
        assert 40 < int(reported[1].split()[-2]) < 120
        assert not list(tmp_path.glob("arcbeam-*/kafka-*"))


@pytest.mark.contract("KAFKA-06")
def test_job_that_goes_back_to_a_savepoint_fails_at_once(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("back-in", 2), broker.topic("back-out", 2)
    state = f"--checkpoint_dir={tmp_path / 'job'}"
    fill(broker, source, range(100))
    result = job(broker, source, target, tmp_path, state).run()
    assert wrong(records(broker, target, 100), 100) == []
    result.savepoint("sp")
    fill(broker, source, range(100, 130))
    assert wrong(records(broker, target, 130), 130) == []
    result.suspend()
    result.wait_until_finish()
    fill(broker, source, range(130, 150))
    began = time.monotonic()
    result = job(broker, source, target, tmp_path, state, "--from_savepoint=sp", "--discard_later_micro_batches").run()
    with pytest.raises(JobFailedError, match=r"delete the consumer group, and resume"):
        result.wait_until_finish()
    assert time.monotonic() - began < 40, "it was retried"
    assert wrong(records(broker, target, 130, 3), 130) == []


@pytest.mark.contract("KAFKA-06")
def test_deleted_registers_fail_the_job_until_it_may_publish(broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic("register-in", 2), broker.topic("register-out", 2)
    state, admin = f"--checkpoint_dir={tmp_path / 'job'}", broker.admin()
    others = groups(admin)
    fill(broker, source, range(100))
    result = job(broker, source, target, tmp_path, state).run()
    assert wrong(records(broker, target, 100), 100) == []
    result.suspend()
    result.wait_until_finish()
    registers = groups(admin) - others
    assert len(registers) == 2
    for future in admin.delete_consumer_groups(list(registers)).values():
        future.result()
    fill(broker, source, range(100, 130))
    result = job(broker, source, target, tmp_path, state).run()
    with pytest.raises(JobFailedError, match=r"its register .* does not exist.*on_lost_register='publish'"):
        result.wait_until_finish()
    assert wrong(records(broker, target, 100, 3), 100) == []
    # None of the parts was published: nothing is written a second time.
    result = job(broker, source, target, tmp_path, state, lost="publish").run()
    assert wrong(records(broker, target, 130), 130) == []
    result.drain()
    result.wait_until_finish()


def groups(admin: Any) -> set[str]:
    """Return the groups that are registers."""
    return {of.group_id for of in admin.list_consumer_groups().result().valid if of.group_id.startswith("arcbeam.")}
