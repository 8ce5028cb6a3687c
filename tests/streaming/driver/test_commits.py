"""The event for each outcome of the store, and the names of savepoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import CommitConflicted, CommitDecided, CommitRefused, CommitUnknown, DriverFailed
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import StoreError
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.testing import Faults, UnreliableBlobs
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import LAYOUT, READERS, opened, plan, proposal, reported, staged

_NOW = Timestamp(77)


class Job:
    """Commits of one driver, over a store that may fail."""

    def __init__(self, blobs: MemoryBlobs | None = None) -> None:
        self.inner = blobs or MemoryBlobs()
        self.blobs = UnreliableBlobs(self.inner, 0)
        self.log = opened(self.blobs)
        self.warnings: list[str] = []
        self.commits = LogCommits(self.log, LAYOUT, READERS, self.warnings.append)

    def propose(self, **changes: object) -> object:
        return self.commits.propose(proposal(self.log.head.micro_batch + 1, 5, **changes), _NOW)

    @property
    def savepoints(self) -> list[str]:
        return [pin.name for pin in self.log.head.pins]


@pytest.mark.contract("STORE-02", "STORE-03")
def test_proposal_is_decided_refused_or_unknown() -> None:
    job = Job()
    assert job.propose() == CommitDecided(_NOW, 1)
    job.blobs.faults = Faults(refused=1.0)
    refused = job.propose()
    assert isinstance(refused, CommitRefused)
    assert "was refused" in refused.why
    job.blobs.faults = Faults(lost=1.0)
    unknown = job.propose()
    assert isinstance(unknown, CommitUnknown)
    assert unknown.micro_batch == 2
    job.blobs.faults = Faults()
    assert job.commits.resolve(2, _NOW) == CommitDecided(_NOW, 2)


@pytest.mark.contract("STORE-03")
def test_overtaken_driver_learns_other_driver_repeatedly() -> None:
    job = Job()
    opened(job.inner, driver="host7")
    for _ in range(2):
        event = job.propose()
        assert isinstance(event, CommitConflicted)
        assert event.other_driver.startswith("another driver (host7, since ")


@pytest.mark.contract("ENG-01", "STORE-02")
def test_proposal_contradicting_head_fails_driver() -> None:
    job = Job()
    job.propose()
    event = job.commits.propose(proposal(2, 4), _NOW)
    assert isinstance(event, DriverFailed)
    assert "falls from 5 to 4" in event.why


@pytest.mark.contract("STORE-05", "END-03")
def test_savepoints_are_made_and_deleted_with_commits() -> None:
    job = Job()
    job.propose(savepoints=("first", "second"))
    assert job.savepoints == ["first", "second"]
    with pytest.raises(StoreError, match="no savepoint 'third'"):
        job.commits.release("third")
    job.commits.release("first")
    job.blobs.faults = Faults(lost=1.0)
    job.propose()
    job.blobs.faults = Faults()
    job.commits.resolve(2, _NOW)
    assert job.savepoints == ["second"]
    # The name is free again, and the request is done.
    job.propose(savepoints=("first",))
    job.propose()
    assert job.savepoints == ["second", "first"]


@pytest.mark.contract("STORE-05")
def test_invalid_savepoint_name_warns_but_commits() -> None:
    job = Job()
    job.propose(savepoints=("taken",))
    assert job.propose(savepoints=("taken", "no/name", "good")) == CommitDecided(_NOW, 2)
    assert job.savepoints == ["taken", "good"]
    assert [line.split(":")[0] for line in job.warnings] == [
        "micro-batch 2 could not be named savepoint 'taken'",
        "micro-batch 2 could not be named savepoint 'no/name'",
    ]


def test_next_driver_receives_committables_of_head() -> None:
    job = Job()
    part = Committable("join", b"part")
    job.commits.propose(proposal(1, 5, reported(staged("join", 0, 5), committables=(part,))), _NOW)
    assert job.commits.unpublished() == (part,)
    assert Job(job.inner).commits.unpublished() == (part,)
    job.commits.propose(replace(proposal(2, 5), mode=CommitMode.SUSPENDED, carries_unpublished=True), _NOW)
    assert Job(job.inner).commits.unpublished() == (part,), "the next driver publishes it"


@pytest.mark.contract("STORE-07")
def test_stages_with_wrong_numbers_are_refused() -> None:
    job = Job()
    job.propose()
    layout = type(LAYOUT)(tuple(reversed(LAYOUT.stages[:2])), 2, (1,))
    assert LogCommits(opened(job.inner), layout, READERS, print).order(plan(2, 2)).epoch == 2
    (read, *others) = LAYOUT.stages
    other = type(read)(read.flow, 9, read.level)
    with pytest.raises(ValueError, match="stage 'read' has number 9"):
        LogCommits(opened(job.inner), type(LAYOUT)((other, *others), 2, (1, 2)), READERS, print)


@pytest.mark.contract("STORE-06")
def test_unneeded_files_are_swept() -> None:
    job = Job()
    commits = LogCommits(job.log, LAYOUT, READERS, print, keep=1)
    for micro_batch in range(1, 5):
        commits.propose(proposal(micro_batch, 5), _NOW)
    assert commits.sweep().manifests
    assert commits.propose(proposal(5, 5, mode=CommitMode.SUSPENDED), _NOW) == CommitDecided(_NOW, 5)
