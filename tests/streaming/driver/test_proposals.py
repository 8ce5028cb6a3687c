"""The parts of reports that a manifest contains, and what is removed from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.protocol.reports import Restrictions, StageReport, TaskReport
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.model.files import FileKind, Shard, ShardFile, SideFile, TaskFiles
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import HoldSummary, Manifest, ResidualSummary
from arcbeam.streaming.driver.proposals import draft
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.jobs import LAYOUT, READERS, opened, proposal, reported, staged


def _side(log: CommitLog, micro_batch: int, until: int | None, channel: int = 7) -> SideFile:
    name = written_name(Written(channel, 0, micro_batch, log.epoch, f"a{until}", "side"))
    return SideFile(channel, 0, name, 1, 0, None if until is None else Timestamp(until))


def _committed(log: CommitLog, at: int, *reports: TaskReport) -> Manifest:
    command = proposal(log.head.micro_batch + 1, at, *reports)
    log.propose(draft(log, LAYOUT, READERS, {}, command))
    return log.head


@pytest.mark.contract("STORE-02", "ENG-01")
def test_manifest_has_watermarks_and_changed_shards() -> None:
    log = opened(MemoryBlobs())

    def shard(level: int, number: int, micro_batch: int) -> Shard:
        name = written_name(Written(level, number, micro_batch, log.epoch, "a", "delta"))
        return Shard(
            level, number, (ShardFile(name, FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", micro_batch, micro_batch),)
        )

    first = reported(staged("join", 0, 5), files=TaskFiles((shard(1, 1, 1), shard(1, 0, 1))))
    head = _committed(log, 5, first)
    assert [(of.level, of.shard) for of in head.shards] == [(1, 0), (1, 1)]
    assert [(of.stage, of.upstream, of.input) for of in head.watermarks] == [
        ("read", MAX_TIMESTAMP, 5),
        ("rates", MAX_TIMESTAMP, 5),
        ("join", 5, 5),
    ]
    head = _committed(log, 6, reported(staged("join", 0, 6), files=TaskFiles((shard(1, 1, 2), shard(0, 0, 2)))))
    assert [(of.level, of.shard, of.files[0].last_micro_batch) for of in head.shards] == [
        (0, 0, 2),
        (1, 0, 1),
        (1, 1, 2),
    ]


@pytest.mark.contract("ENG-06")
def test_manifest_has_holds_and_unfinished_restrictions() -> None:
    blocked = Hold(Timestamp(7), HolderKind.BLOCKED, "rates", key="EWR")
    pane = Hold(Timestamp(5), HolderKind.STATE, "pane", key="LGA")
    reports = [
        reported(
            staged("read", 0, 5, restrictions=Restrictions(2, 3.0), next_due=Timestamp(80)),
            staged("read", 1, 5, restrictions=Restrictions(1, 0.5), next_due=Timestamp(60)),
            staged("rates", 0, 5, next_due=Timestamp(1)),
            level=0,
        ),
        reported(
            replace(staged("join", 0, 5), local=Local(blocked, {"main": OutputTime(blocked)})),
            replace(staged("join", 1, 5), local=Local(None, {"main": OutputTime(None, pane)})),
        ),
    ]
    log = opened(MemoryBlobs())
    head = _committed(log, 5, *reports)
    assert head.residuals == (ResidualSummary("read", 3, 3.5, Timestamp(60)),)
    assert head.holds == (HoldSummary("join", 2, Timestamp(5), "state 'pane' of key 'LGA' in shard 1"),)
    # A commit without a micro-batch does not change this; a micro-batch with other reports does.
    head = _committed(log, 5)
    assert len(head.holds) == len(head.residuals) == 1
    head = _committed(log, 5, reported(staged("join", 0, 5), staged("join", 1, 5)))
    assert head.holds == head.residuals == ()


@pytest.mark.contract("STORE-02", "ENG-05")
def test_unread_side_file_leaves_manifest() -> None:
    log = opened(MemoryBlobs())
    files = (*(_side(log, 1, until) for until in (9, 10, None)), _side(log, 1, 1, channel=8))
    _committed(log, 5, reported(staged("join", 0, 5), files=TaskFiles((), files)))

    def left(*stages: StageReport) -> list[int | None]:
        return [file.until for file in _committed(log, 10, reported(*stages)).side_files]

    everything = [9, 10, None, 1]
    assert [file.until for file in log.head.side_files] == everything
    assert [file.until for file in _committed(log, 10).side_files] == everything
    busy = Restrictions(1, 1.0)
    assert left(staged("join", 0, 10), staged("join", 1, 9)) == everything
    assert left(staged("join", 0, 10), staged("join", 1, 10, next_event=Timestamp(9))) == everything
    assert left(staged("join", 0, 10), staged("join", 1, 10, restrictions=busy)) == everything
    assert left(staged("join", 0, 10), staged("join", 1, 10)) == [10, None, 1]
    assert left(staged("join", 0, MAX_TIMESTAMP), staged("join", 1, MAX_TIMESTAMP)) == [None, 1]


@pytest.mark.contract("STORE-02", "STORE-04")
def test_merged_side_files_leave_manifest() -> None:
    log = opened(MemoryBlobs())
    _committed(
        log, 5, reported(staged("join", 0, 5), files=TaskFiles((), tuple(_side(log, 1, n) for n in (9, 10, 11))))
    )
    old, joined = log.head.side_files, replace(_side(log, 2, 12), micro_batch=1)
    names = tuple(file.name for file in old[:2])
    head = _committed(log, 6, reported(staged("join", 0, 6), files=TaskFiles((), (joined,), names)))
    assert head.side_files == (old[2], joined)
