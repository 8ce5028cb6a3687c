"""A job on Spark whose topics change their leaders, in a cluster of two brokers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from confluent_kafka import ElectionType, TopicPartition

from arcbeam.cli import main
from tests.io.kafka.conftest import COORDINATORS, leaders
from tests.io.kafka.jobs.test_changes import _JOB
from tests.io.kafka.jobs.test_jobs import fill, records, wrong
from tests.jobs.test_sigterm import Driver
from tests.waiting import until
from tools.kafka.broker import Broker

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.long]

_SECONDS = 120.0


@pytest.mark.contract("KAFKA-01", "KAFKA-06")
def test_change_of_leaders_is_retried_and_reported_once(
    brokers: tuple[Broker, Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first, second = brokers
    source, target = (first.topic(name, 2, (2, 1)) for name in ("leaders-in", "leaders-out"))
    servers, state = f"{first.address},{second.address}", tmp_path / "job"
    both = SimpleNamespace(address=servers)
    until(lambda: leaders(first) == {(2, 2)})
    options = (f"--checkpoint_dir={state}", "--spark_master=local[2]")
    with Driver(tmp_path, servers, source, target, str(tmp_path), *options, code=_JOB) as driver:
        fill(both, source, range(300))
        assert wrong(records(both, target, 300, _SECONDS), 300) == []
        # The leader of all is killed, with what it coordinates.
        second.kill()
        until(lambda: leaders(first) == {(1, 1)})
        fill(both, source, range(300, 600))
        assert wrong(records(both, target, 600, _SECONDS), 600) == []
        driver.until(lambda: "succeed again" in driver.output)
        # It takes over again, while the other one runs.
        second.start()
        until(lambda: leaders(first) == {(1, 2)})
        places = [TopicPartition(topic, number) for topic in (source, target) for number in (0, 1)]
        places += [TopicPartition(topic, 0) for topic in COORDINATORS]
        fill(both, source, range(600, 900))
        admin = first.admin()  # its requests end with it
        moved = admin.elect_leaders(ElectionType.PREFERRED, places).result()
        assert [error for error in moved.values() if error is not None] == []
        assert leaders(first) == {(2, 2)}
        fill(both, source, range(900, 1_200))
        assert wrong(records(both, target, 1_200, _SECONDS), 1_200) == []
        driver.until(lambda: driver.output.count("succeed again") == driver.output.count("It is retried"))
        drained = CliRunner().invoke(main.main, ["drain", str(state)])
        assert drained.exit_code == 0, drained.output
        assert driver.process.wait(_SECONDS) == 0, driver.output
    reported = [line for line in driver.output.splitlines() if f"Kafka, {servers}" in line]
    # Each of the two changes is reported once. Perhaps the second one fails no request.
    assert len(reported) in (2, 4), reported
    assert ["failed: " in line for line in reported] == [True, False] * (len(reported) // 2), reported
