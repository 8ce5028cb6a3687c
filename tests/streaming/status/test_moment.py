"""Gaps and rates of a moment, and the time of a commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.status import moment, words
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.snapshot import snapshot_of
from arcbeam.streaming.status.status import Status, as_record, at_moment, status_of
from arcbeam.testing.blobs import MemoryBlobs
from tests.page import samples
from tests.streaming.jobs import LAYOUT, READERS, opened, proposal, staged
from tests.streaming.status.test_snapshot import all_of, at, holding

pytestmark = pytest.mark.contract("OPS-04")

_NUMBERS = {"read": 1, "rates": 2, "join": 3}
_SECOND = 1_000_000


def commit(
    log: CommitLog, start: float, end: float, watermark: int = 1, own: tuple[Any, ...] = (), **more: Any
) -> Status:
    """Commit a micro-batch that ran between two times, in seconds; return the status of that moment."""
    times = at(watermark, MAX_TIMESTAMP, watermark)
    mode = more.pop("mode", CommitMode.RUNNING)
    command = replace(
        proposal(log.head.micro_batch + 1, 0, *all_of(*own)),
        times=times,
        time=Timestamp(round(start * _SECOND)),
        mode=mode,
    )
    figures = {"committed": round(end * _SECOND), **more}
    log.propose(draft(log, LAYOUT, READERS, _NUMBERS, command, figures))
    return status_of(log.head)


def read(elements: int) -> tuple[Any, ...]:
    return (
        staged("read", 0, 0, counts=Counts(1, 3 * elements, made=elements)),
        staged("join", 1, 0, counts=Counts(elements, 2)),
    )


@pytest.mark.parametrize(
    ("watermark", "clock", "gap"),
    [
        (70, 100, 30),
        (100, 70, 0),
        (MIN_TIMESTAMP, 100, None),
        (END_OF_GLOBAL_WINDOW, 100, None),
        (MAX_TIMESTAMP, 100, None),
    ],
)
def test_gap_is_never_negative(watermark: int, clock: int, gap: int | None) -> None:
    assert moment.watermark_gap(watermark, clock) == gap


def test_gap_refers_to_the_clock_not_to_the_micro_batch() -> None:
    log = opened(MemoryBlobs(), 100 * _SECOND)
    status = commit(log, 101, 120, 99 * _SECOND)
    assert (status.time, status.committed, status.behind) == (101 * _SECOND, 120 * _SECOND, 21 * _SECOND)
    now = at_moment(status, 130 * _SECOND)
    assert [stage.behind for stage in now.stages] == [31 * _SECOND, None, 31 * _SECOND]
    assert now.behind == 31 * _SECOND
    script = at_moment(commit(opened(MemoryBlobs()), 7, 131, 5 * _SECOND, scripted=True), 140 * _SECOND)
    assert (script.behind, script.committed) == (2 * _SECOND, 131 * _SECOND)


def test_gap_stands_with_the_clock_of_a_stopped_job() -> None:
    log = opened(MemoryBlobs(), 100 * _SECOND)
    done = commit(log, 101, 120, 99 * _SECOND, mode=CommitMode.DONE)
    assert at_moment(done, 999 * _SECOND).behind == 21 * _SECOND
    assert words.clock(done) == 120 * _SECOND
    assert words.gap_of(done, 99 * _SECOND) == 21 * _SECOND


def test_views_agree_on_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(MemoryBlobs(), 100 * _SECOND)
    status = commit(log, 101, 120, 99 * _SECOND)
    monkeypatch.setattr("time.time", lambda: 125.5)
    now = at_moment(status, 125_500_000)
    assert now.behind == words.gap_of(now, now.watermark) == 26_500_000
    assert status_from(as_record(now)) == now


def test_rate_is_a_mean_of_the_last_minute() -> None:
    log = opened(MemoryBlobs(), 0)
    status, ran = status_of(log.head), 0.0
    assert status.rate is None
    # Micro-batches of half a second to eight seconds, 15 elements a second.
    for turn in range(1, 400):
        took = (0.5, 3, 8, 1)[turn % 4]
        status = commit(log, ran, ran + took, own=read(round(15 * took) if ran else 0))
        ran += took
        if ran > 80:
            assert status.rate is not None
            assert status.rate == pytest.approx(15, rel=0.05)
            assert status.stages[0].made_rate == status.rate
            assert status.stages[0].written_rate == pytest.approx(3 * status.rate, rel=0.001)
            assert status.stages[2].read_rate == status.rate
            assert status.window is not None
            assert 60 * _SECOND <= status.window <= 80 * _SECOND
    assert len(snapshot_of(log.head).recent) <= 9
    # Nothing was committed for ten minutes.
    idle = at_moment(status, round((ran + 600) * _SECOND))
    assert status.window is not None
    assert idle.rate == pytest.approx(15 * status.window / _SECOND / 600, rel=0.1)


def test_rate_of_long_micro_batches_is_even() -> None:
    log = opened(MemoryBlobs(), 0)
    for ran in range(0, 900, 90):
        status = commit(log, ran, ran + 90, own=read(9_000))
        assert status.rate == 100.0
        assert at_moment(status, (ran + 90 + 89) * _SECOND).rate == 100.0


def test_rate_begins_again_with_each_driver() -> None:
    blobs = MemoryBlobs()
    log = opened(blobs, 0)
    for ran in range(100):
        commit(log, ran, ran + 1, own=read(5))
    hour = 3_600
    log = opened(blobs, hour * _SECOND)
    assert commit(log, hour, hour + 2, own=read(80)).rate == 40.0


def test_rate_of_a_script_uses_the_clock() -> None:
    log = opened(MemoryBlobs(), 0)
    commit(log, 0, 1_000, own=read(5), scripted=True)
    assert commit(log, 50_000, 1_002, own=read(8), scripted=True).rate == 4.0


def test_stage_that_is_new_has_a_rate() -> None:
    log = opened(MemoryBlobs(), 0)
    commit(log, 0, 1, own=read(5))
    left = snapshot_of(log.head).without({"join"})
    log._head = replace(log.head, snapshot=left.encoded())
    assert commit(log, 1, 2, own=read(8)).stages[-1].read_rate == 4.0


def test_watermark_since_is_the_time_of_the_commit() -> None:
    log = opened(MemoryBlobs(), 100 * _SECOND)
    first = commit(log, 101, 190, 99 * _SECOND)
    assert first.stages[0].input_since is not None
    assert first.stages[0].input_since.time == 190 * _SECOND
    again = commit(log, 191, 250, 99 * _SECOND).stages[0]
    assert again.input_since == first.stages[0].input_since
    script = commit(opened(MemoryBlobs()), 7, 300, 150 * _SECOND, scripted=True).stages[0]
    assert script.input_since is not None
    assert script.input_since.time == 7 * _SECOND


def test_long_micro_batches_do_not_wait_for_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(MemoryBlobs(), 0)
    hold = Hold(
        Timestamp(90 * _SECOND), HolderKind.RESIDUAL, "it", release=Release(Timestamp(150 * _SECOND), by_clock=True)
    )
    status = commit(log, 100, 190, 90 * _SECOND, own=(holding("read", 0, hold),))
    for seconds in (191, 255, 400):
        monkeypatch.setattr("time.time", lambda now=seconds: now)
        now = replace(at_moment(status, seconds * _SECOND), driver=samples.driver(seconds * _SECOND))
        (cause,) = now.causes
        assert cause.released_when == "the next micro-batch ends: it processes what is due"
        assert headline(now).word == "OK"
        assert words.recorded(now, str) == f"committed at {190 * _SECOND} ({words.ago(190 * _SECOND)})"
    later = replace(hold, release=Release(Timestamp(900 * _SECOND), by_clock=True))
    status = commit(log, 401, 402, 90 * _SECOND, own=(holding("read", 0, later),))
    assert "the clock reaches" in status.causes[0].released_when


def test_polled_restriction_does_not_wait_for_the_clock() -> None:
    # It is due repeatedly, but its watermark does not move.
    log = opened(MemoryBlobs(), 0)
    hold = Hold(Timestamp(_SECOND), HolderKind.RESIDUAL, "it", release=Release(Timestamp(6 * _SECOND), by_clock=True))
    cause = at_moment(commit(log, 5, 6, _SECOND, own=(holding("read", 0, hold),)), 400 * _SECOND).causes[0]
    assert cause.by_clock
    assert "a later watermark" in cause.text + cause.released_when
    assert cause.released_when != moment.DUE_NOW


def test_opening_after_a_commit_is_the_newest_manifest() -> None:
    blobs = MemoryBlobs()
    commit(opened(blobs, 0), 5, 9)
    assert status_of(opened(blobs, 50 * _SECOND).head).committed == 50 * _SECOND
