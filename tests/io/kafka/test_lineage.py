"""Jobs that go back to a savepoint, and copies of one: parts with the same numbers, and other records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arcbeam.io.kafka.outgoing import encoded
from arcbeam.io.kafka.publisher import RegisterError
from arcbeam.io.kafka.writing import RecordStorage, StageRecords, StagingSettings
from arcbeam.model.attempts import Attempt, process_state
from tests.io.kafka.test_producing import connection, publisher, record, seen
from tools.kafka.broker import Broker

pytestmark = pytest.mark.contract("KAFKA-06")


class Cell:
    """A state of the shard."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value

    def write(self, value: Any) -> None:
        self.value = value


class Job:
    """A job with one shard.

    Attributes:
        state: the state of the shard. A copy of it is a savepoint.
    """

    def __init__(self, broker: Broker, folder: Path, topic: str, name: str, state: tuple[Any, Any] = (None, None)):
        self._broker, self._folder, self._topic, self._name, self.state = broker, folder, topic, name, state

    def staged(self, attempt: str, *values: int) -> Any:
        """Stage a part, and return its committable."""
        fn = StageRecords(
            StagingSettings("sink", self._topic, RecordStorage(str(self._folder)), connection(self._broker))
        )
        cells = [Cell(value) for value in self.state]
        with process_state.running(Attempt(self._name, 1, (0,), attempt)):
            fn.setup()
            fn.start_bundle()
            for value in values:
                fn.process((0, (encoded([record(self._topic, value)]), 1, {self._topic: (0, 0, 0)})), *cells)
            (committable,) = fn.finish_bundle()
        self.state = (cells[0].value, cells[1].value)
        return committable.value

    def publish(self, committable: Any, *, trusts: bool = False) -> None:
        publishing = publisher(self._broker, self._folder, trusts=trusts)
        try:
            publishing.publish([committable])
        finally:
            publishing.teardown()


def test_job_that_goes_back_is_refused(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("back")
    job = Job(broker, tmp_path, topic, "back-job")
    job.publish(job.staged("t1", 1, 2))
    savepoint = job.state
    job.publish(job.staged("t2", 3))
    job.state = savepoint
    other = job.staged("t3", 3, 4)
    for trusts in (False, True):
        with pytest.raises(RegisterError, match=r"part 2 of shard arcbeam\.back-job\.sink\.0.* is at another part 2"):
            job.publish(other, trusts=trusts)
    assert seen(broker, topic) == [1, 2, 3]
    # As the message says.
    admin = broker.admin()  # its requests end with it
    ((_, deleted),) = admin.delete_consumer_groups(["arcbeam.back-job.sink.0"]).items()
    deleted.result(30)
    job.publish(other, trusts=True)
    for _ in range(2):
        job.publish(other)
    job.publish(job.staged("t4", 5))
    assert seen(broker, topic) == [1, 2, 3, 3, 4, 5]


def test_copy_of_a_savepoint_has_its_own_register(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("copied")
    job = Job(broker, tmp_path, topic, "copied-job")
    last = job.staged("t1", 1)
    job.publish(last)
    copy = Job(broker, tmp_path, topic, "the-copy", job.state)
    # The last committable of the savepoint is the original's.
    copy.publish(last)
    first = copy.staged("t2", 2)
    copy.publish(first)
    job.publish(job.staged("t2", 3))
    copy.publish(first)
    copy.publish(copy.staged("t3", 4))
    assert seen(broker, topic) == [1, 2, 3, 4]


def test_copy_whose_original_continued_is_refused(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("raced")
    job = Job(broker, tmp_path, topic, "raced-job")
    last = job.staged("t1", 1)
    # Copied between the commit of the part and its publishing.
    copy = Job(broker, tmp_path, topic, "raced-copy", job.state)
    job.publish(last)
    job.publish(job.staged("t2", 2))
    for trusts in (False, True):
        with pytest.raises(RegisterError, match=r"is at part 2.*copy of a savepoint.*do not delete it. Copy"):
            copy.publish(last, trusts=trusts)
    job.publish(job.staged("t3", 3))
    assert seen(broker, topic) == [1, 2, 3]


def test_state_of_an_older_version_continues(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic("older")
    job = Job(broker, tmp_path, topic, "older-job")
    first = job.staged("t1", 1)
    for part in first["parts"]:
        del part["token"], part["after"], part["begins"]
    job.publish(first)
    job.state = (job.state[0], None)
    for n in (2, 3):
        job.publish(job.staged(f"t{n}", n))
    assert seen(broker, topic) == [1, 2, 3]
