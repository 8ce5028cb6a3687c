"""Without Maven or Java, the broker says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tools.kafka import broker


def test_missing_names_maven_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(broker.shutil, "which", lambda program: None if program == "mvn" else program)
    assert "mvn" in broker.missing()


def test_missing_names_java_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.shutil, "which", lambda _: None)
    assert "Java 17" in broker.missing()


def test_program_without_java_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(broker.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="Java 17"):
        broker.main(str(tmp_path / "broker"))


@pytest.mark.long
def test_program_runs_a_broker_until_it_is_terminated(tmp_path: Path) -> None:
    if lacks := broker.missing():
        pytest.skip(lacks)
    from confluent_kafka.admin import AdminClient

    command = [sys.executable, "-m", "tools.kafka.broker", str(tmp_path / "broker"), "clicks"]
    with subprocess.Popen(
        command, cwd=Path(__file__).resolve().parents[3], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name, _, address = process.stdout.readline().strip().partition("=")
        client = AdminClient({name: address, "log_level": 2})
        assert len(client.list_topics(timeout=20).topics["clicks"].partitions) == 4
        process.terminate()
        assert process.wait(60) == 0
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
