"""The state for the next driver, beside the head's fields."""

from __future__ import annotations

import pytest

from arcbeam.engine.coordinator import ScriptPlace
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.timestamps import Timestamp
from arcbeam.streaming.driver.commits import LogCommits
from arcbeam.streaming.driverstate import Progress, numbered, progress_of, remembered, started
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import LAYOUT, READERS, opened, proposal, reported, staged, times


def test_new_job_starts_fresh() -> None:
    event = started(opened(MemoryBlobs(), 3).head, LAYOUT, Timestamp(9))
    assert (event.at, event.micro_batch, event.time, event.times.inputs) == (9, 0, 3, {})
    assert (event.unbegun, event.draining, event.savepoint) == ({"read", "rates"}, False, "")
    assert (event.unpublished, event.ended) == (False, None)


@pytest.mark.contract("END-01", "END-02", "STORE-02")
def test_next_driver_receives_progress() -> None:
    blobs = MemoryBlobs()
    commits = LogCommits(opened(blobs), LAYOUT, READERS, print)
    report = reported(staged("join", 0, 5), committables=(Committable("join", b"part"),))
    command = proposal(1, 5, report, mode=CommitMode.DRAINING, drains_to="last")
    commits.propose(command, Timestamp(0))
    event = started(opened(blobs).head, LAYOUT, Timestamp(9))
    assert (event.micro_batch, event.unbegun, event.draining, event.savepoint) == (2, set(), True, "last")
    assert event.unpublished
    assert event.times == times(5)


@pytest.mark.contract("END-01")
def test_next_driver_after_last_commit_receives_end() -> None:
    blobs = MemoryBlobs()
    LogCommits(opened(blobs), LAYOUT, READERS, print).propose(proposal(1, 5, mode=CommitMode.DONE), Timestamp(0))
    assert started(opened(blobs, finish=True).head, LAYOUT, Timestamp(9)).ended is CommitMode.DONE


@pytest.mark.contract("ENG-09")
def test_next_driver_receives_script_position() -> None:
    blobs = MemoryBlobs()
    commits = LogCommits(opened(blobs), LAYOUT, READERS, print)
    commits.propose(proposal(1, 5, script=ScriptPlace(7, True)), Timestamp(0))
    assert started(opened(blobs).head, LAYOUT, Timestamp(9)).script == ScriptPlace(7, True)


def test_source_that_returns_begins_again() -> None:
    blobs = MemoryBlobs()
    log = opened(blobs)
    log.propose(log.draft(Timestamp(0), progress=Progress(("read", "gone"), "", {"read": 1, "gone": 9}).encoded()))
    assert started(log.head, LAYOUT, Timestamp(9)).unbegun == {"rates"}
    commits = LogCommits(log, LAYOUT, READERS, print)
    # After a commit without a micro-batch, the next driver begins it.
    commits.propose(proposal(2, 5, unbegun=frozenset({"rates"})), Timestamp(0))
    assert progress_of(opened(blobs).head).begun == ("read",)
    commits = LogCommits(opened(blobs), LAYOUT, READERS, print)
    commits.propose(proposal(4, 5), Timestamp(0))
    assert progress_of(opened(blobs).head).begun == ("rates", "read")


@pytest.mark.contract("STORE-07")
def test_stage_keeps_its_number_exclusively() -> None:
    log = opened(MemoryBlobs())
    head = log.draft(Timestamp(0), progress=Progress((), "", {"sum": 1, "gone": 2}).encoded())
    assert numbered(head, ["new", "sum", "newer"]) == {"new": 3, "sum": 1, "newer": 4}
    assert remembered(head, {"new": 3, "sum": 1}) == {"gone": 2, "new": 3, "sum": 1}
    for wrong in ({"sum": 2}, {"new": 2}, {"new": 1}, {"a": 9, "b": 9}):
        with pytest.raises(ValueError, match="has number"):
            remembered(head, wrong)


def test_more_stages_than_numbers_are_refused_by_name() -> None:
    log = opened(MemoryBlobs())
    numbers = {f"s{number}": number for number in range(1, 1 << 16)}
    head = log.draft(Timestamp(0), progress=Progress((), "", numbers).encoded())
    with pytest.raises(ValueError, match="'one more'"):
        numbered(head, ["s7", "one more"])
