"""The snapshot of a job's stages in a manifest: its encoding, and the status and causes that follow from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport, TaskReport
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.engine.watermarks.sketches import sketched, with_more
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.observers import Observer, Policy
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.manifest.manifestfile import decode, encode
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.driverstate import progress_of, times_of
from arcbeam.streaming.restore.stagemapping import renamed
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.snapshot import Since, snapshot_after, snapshot_of
from arcbeam.streaming.status.status import StageStatus, stage_record, status_of, total_state_metrics
from arcbeam.streaming.status.words import in_words, undone
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden.texts import check_message
from tests.page import samples
from tests.streaming.jobs import JOIN, LAYOUT, RATES, READ, READERS, opened, proposal, reported, staged

pytestmark = pytest.mark.contract("WM-06")

_NUMBERS = {"read": 1, "rates": 2, "join": 3}
_HOUR = Timestamp(3_600_000_000)


def at(read: int, rates: int, join: int, out: int | None = None) -> WatermarkTimes:
    """Watermarks of the three stages; `out` is the join's output."""
    r, s, j = map(Timestamp, (read, rates, join))
    out = join if out is None else out
    return WatermarkTimes({"read": r, "rates": s, "join": j}, {READ: r, RATES: s, JOIN: Timestamp(out)})


def committed(log: CommitLog, times: WatermarkTimes, *reports: TaskReport, figures: Any = None) -> Manifest:
    command = replace(proposal(log.head.micro_batch + 1, 0, *reports), times=times)
    log.propose(draft(log, LAYOUT, READERS, _NUMBERS, command, figures or {}))
    return decode(encode(log.head), "a manifest", "memory")


def holding(stage: str, shard: int, pending: Hold | None = None, hold: Hold | None = None, **more: Any) -> StageReport:
    local = Local(pending, {"main": OutputTime(pending, hold)}, more.pop("waits_for", None))
    return replace(staged(stage, shard, 0, **more), local=local)


def all_of(*own: StageReport) -> tuple[TaskReport, TaskReport]:
    """The reports of a micro-batch in which only some stages have holds."""
    known = {(of.stage, of.shard): of for of in own}
    of = [known.get((name, shard)) or staged(name, shard, 0) for name in _NUMBERS for shard in (0, 1)]
    sources, joins = ([each for each in of if (each.stage == "join") is last] for last in (False, True))
    return reported(*sources, level=0), reported(*joins)


def _causes(manifest: Manifest) -> list[Cause]:
    return list(status_of(manifest).causes)


def test_watermark_is_unchanged_since_last_moving_commit() -> None:
    log = opened(MemoryBlobs())
    committed(log, at(1, 1, 1), *all_of())
    committed(log, at(2, 1, 1), *all_of())
    head = committed(log, at(2, 1, 1, 5), *all_of())
    read, rates, join = snapshot_of(head).stages
    assert (read.input, rates.input, join.input) == (Since(2, Timestamp(2)), *[Since(1, Timestamp(1))] * 2)
    assert [of.outputs["main"].micro_batch for of in (read, rates, join)] == [2, 1, 3]
    # An output that holds back while its input advances.
    head = committed(log, at(2, 1, 3, 5), *all_of())
    join = snapshot_of(head).stages[2]
    assert (join.input, join.outputs["main"]) == (Since(4, Timestamp(4)), Since(3, Timestamp(3)))
    # A commit without a micro-batch changes nothing; neither does an opening.
    assert snapshot_of(committed(log, at(2, 1, 3, 5))) == snapshot_of(head)
    assert opened(log._blobs, 9).head.snapshot == head.snapshot


def test_stored_limits_explain_like_all_shards() -> None:
    log = opened(MemoryBlobs())
    late = Hold(Timestamp(7), HolderKind.RESIDUAL, "1.0.0~ab", release=Release(_HOUR, by_clock=True), about="'EWR'")
    later = Hold(Timestamp(9), HolderKind.RESIDUAL, "1.0.0~cd")
    head = committed(
        log,
        at(7, MAX_TIMESTAMP, 7),
        *all_of(holding("read", 0, later), holding("read", 1, late, restrictions=Restrictions(2, 3.0))),
    )
    (cause,) = _causes(head)
    check_message("cause-deferred-restriction", f"{cause.text}\n{cause.released_when}")
    assert (cause.shard, cause.due, cause.by_clock, cause.stages) == (1, _HOUR, True, ("read", "join"))
    assert cause.about == "'EWR'"
    # If it does not run in a micro-batch, its subject is known from the one before.
    again = holding("read", 1, replace(late, about=""), restrictions=Restrictions(2, 3.0))
    (same,) = _causes(committed(log, at(7, MAX_TIMESTAMP, 7), *all_of(holding("read", 0, later), again)))
    assert same.text == cause.text


def test_caught_up_restriction_is_named_once_it_stops() -> None:
    log = opened(MemoryBlobs())
    idle = Hold(Timestamp(7), HolderKind.RESIDUAL, "1.0.0~ab", about="clicks[3]", size=0.0)

    def cause(hold: Hold, now: int) -> Cause:
        reports = all_of(holding("read", 0, replace(hold, time=Timestamp(9))), holding("read", 1, hold))
        of = proposal(log.head.micro_batch + 1, 0, *reports)
        command = replace(of, time=Timestamp(now), times=at(7, MAX_TIMESTAMP, 7))
        log.propose(draft(log, LAYOUT, READERS, _NUMBERS, command, {}))
        (found,) = _causes(decode(encode(log.head), "a manifest", "memory"))
        return found

    found = cause(idle, 10)
    check_message("cause-caught-up", f"{found.text}\n{found.released_when}")
    assert (found.kind, found.name, found.shard) == ("restriction", "", 1)
    # Its DoFn says why it has brought nothing.
    waits = replace(idle, reason="no broker of kafka:9092 has answered for 7 s: Connection refused")
    reported = cause(waits, 10)
    check_message("cause-waiting-restriction", f"{reported.text}\n{reported.released_when}")
    assert "clicks[3]" in cause(replace(idle, size=1.0), 20).text
    # Its watermark does not advance, although nothing is left.
    assert "clicks[3]" in cause(idle, 20_000_000).text
    assert cause(waits, 20_000_001).text == reported.text


def test_blocked_elements_are_explained_with_side_input() -> None:
    log = opened(MemoryBlobs())
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "1.0.0~ab")
    blocked = Hold(Timestamp(7), HolderKind.BLOCKED, "rates@00")
    head = committed(
        log,
        at(MAX_TIMESTAMP, MIN_TIMESTAMP, 7),
        *all_of(
            holding("rates", 0, silent),
            holding("join", 1, blocked, awaited=(Awaited(RATES, Timestamp(99)),), waits_for=RATES),
        ),
    )
    rates, join = _causes(head)
    assert (rates.kind, rates.stage) == ("restriction", "rates")
    check_message("cause-silent-restriction", f"{rates.text}\n{rates.released_when}")
    assert (join.kind, join.stage, join.shard, join.name) == ("side input", "join", 1, "output 'main' of 'rates'")
    check_message("cause-side-input", f"{join.text}\n{join.released_when}")


@pytest.mark.parametrize(
    ("hold", "kind", "message"),
    [
        (
            Hold(Timestamp(5), HolderKind.TIMER, "flush", key="a", release=Release(_HOUR, by_clock=True)),
            "timer",
            "cause-processing-timer",
        ),
        (
            Hold(Timestamp(5), HolderKind.TIMER, "flush", key="a", release=Release(Timestamp(8), by_clock=False)),
            "timer",
            "cause-event-timer",
        ),
        (
            Hold(Timestamp(5), HolderKind.TIMER, "flush", key="a"),
            "timer",
            "cause-timer",
        ),
        (
            Hold(Timestamp(5), HolderKind.STATE, "pane", key="a"),
            "state",
            "cause-state",
        ),
        (
            Hold(Timestamp(5), HolderKind.BUFFERED, ""),
            "elements",
            "cause-elements",
        ),
        (
            Hold(Timestamp(6), HolderKind.BUFFERED, ""),
            "elements",
            "cause-elements-of-open-window",
        ),
        (Hold(Timestamp(5), HolderKind.SCRIPT, ""), "script", "cause-script"),
    ],
)
def test_each_hold_names_what_would_release_it(hold: Hold, kind: str, message: str) -> None:
    log = opened(MemoryBlobs())
    head = committed(log, at(MAX_TIMESTAMP, MAX_TIMESTAMP, 6, 5), *all_of(holding("join", 0, hold=hold)))
    found = {cause.kind: cause for cause in _causes(head)}
    check_message(message, f"{found[kind].text}\n{found[kind].released_when}")


@pytest.mark.contract("WM-04", "WM-06")
def test_unconfirmed_times_of_observer_are_explained() -> None:
    log = opened(MemoryBlobs())
    clicks = Observer("clicks", Duration(0), max_jump=Duration(9_000_000), confirmed_by=5)
    read, *others = LAYOUT.stages
    observing = replace(LAYOUT, stages=(replace(read, flow=replace(read.flow, observed={"main": (clicks,)})), *others))
    unconfirmed = {"clicks": (Timestamp(50_000_000), Timestamp(70_000_000))}
    times = replace(at(MIN_TIMESTAMP, MAX_TIMESTAMP, 5), seen={"clicks": Timestamp(5)}, unconfirmed=unconfirmed)
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    command = replace(proposal(1, 0, *all_of(holding("read", 0, silent), holding("read", 1, silent))), times=times)
    log.propose(draft(log, observing, READERS, _NUMBERS, command, {}))
    head = decode(encode(log.head), "a manifest", "memory")
    assert times_of(head).unconfirmed == unconfirmed
    assert snapshot_of(head).stages[0].observed == {"main": (clicks,)}
    (cause,) = (cause for cause in _causes(head) if cause.kind == "observer")
    check_message("cause-observer-doubts", f"{cause.text}\n{cause.released_when}")
    (cause,) = (
        cause
        for cause in _causes(replace(head, progress=replace(progress_of(head), unconfirmed={}).encoded()))
        if cause.kind == "observer"
    )
    assert "1970-01-01T00:00:50Z" not in cause.text + cause.released_when


@pytest.mark.contract("WM-04", "WM-06")
def test_skew_limit_of_observer_is_explained() -> None:
    log = opened(MemoryBlobs())
    clicks = Observer("clicks", Duration(0), max_skew=Duration(9_000_000))
    read, *others = LAYOUT.stages
    observing = replace(LAYOUT, stages=(replace(read, flow=replace(read.flow, observed={"main": (clicks,)})), *others))
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    times = at(MIN_TIMESTAMP, MAX_TIMESTAMP, 5)
    command = replace(proposal(1, 0, *all_of(holding("read", 0, silent), holding("read", 1, silent))), times=times)
    log.propose(draft(log, observing, READERS, _NUMBERS, command, {}))
    (cause,) = (cause for cause in _causes(log.head) if cause.kind == "observer")
    check_message("cause-observer-skew", f"{cause.text}\n{cause.released_when}")
    arrived = staged("read", 0, 0, counts=Counts(1, 32, resumed=1, made=32))
    command = replace(
        proposal(2, 0, *all_of(replace(arrived, local=Local(silent, {"main": OutputTime(silent)})))), times=times
    )
    log.propose(draft(log, observing, READERS, _NUMBERS, command, {}))
    (cause,) = (cause for cause in _causes(log.head) if cause.kind == "observer")
    check_message("cause-observer-skew-of-all", f"{cause.text}\n{cause.released_when}")


def test_observer_without_later_times_is_explained() -> None:
    log = opened(MemoryBlobs())
    clicks = Observer("clicks", Duration(2_000_000), Policy.MAX, (Observer("below", Duration(0)), None), Duration(7))
    read, *others = LAYOUT.stages
    observing = replace(LAYOUT, stages=(replace(read, flow=replace(read.flow, observed={"main": (clicks,)})), *others))
    times = replace(at(MIN_TIMESTAMP, MAX_TIMESTAMP, 5), seen={"clicks": Timestamp(2_000_005)})
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    command = replace(proposal(1, 0, *all_of(holding("read", 0, silent), holding("read", 1, silent))), times=times)
    log.propose(draft(log, observing, READERS, _NUMBERS, command, {}))
    head = decode(encode(log.head), "a manifest", "memory")
    assert snapshot_of(head).stages[0].observed == {"main": (clicks,)}
    (cause,) = (cause for cause in _causes(head) if cause.kind == "observer")
    assert (cause.stage, cause.shard, cause.name) == ("read", None, "clicks")
    check_message("cause-observer", f"{cause.text}\n{cause.released_when}")


def observing(observer: Observer, at_read: int, **times: Any) -> Manifest:
    """The manifest of a job with an observed source, whose output is at that time."""
    log = opened(MemoryBlobs())
    read, *others = LAYOUT.stages
    layout = replace(LAYOUT, stages=(replace(read, flow=replace(read.flow, observed={"main": (observer,)})), *others))
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    marks = at(MIN_TIMESTAMP, MAX_TIMESTAMP, at_read)
    marks = replace(marks, outputs={**marks.outputs, READ: Timestamp(at_read)}, **times)
    reports = all_of(holding("read", 0, silent, counts=Counts(1, 32, made=32)), holding("read", 1, silent))
    log.propose(draft(log, layout, READERS, _NUMBERS, replace(proposal(1, 0, *reports), times=marks), {}))
    return log.head


def _observed_by(observer: Observer, at_read: int, **times: Any) -> Cause:
    """The cause of that job."""
    (cause,) = (cause for cause in _causes(observing(observer, at_read, **times)) if cause.kind == "observer")
    return cause


def test_quantile_with_too_few_elements_is_explained() -> None:
    observer = Observer("clicks", Duration(0), quantile=0.99)
    recent = {"clicks": with_more(None, [sketched(range(32))])}
    cause = _observed_by(observer, MIN_TIMESTAMP, recent=recent)
    check_message("cause-observer-quantile-too-few", f"{cause.text}\n{cause.released_when}")
    cause = _observed_by(observer, 5_000_000, recent=recent, seen={"clicks": Timestamp(5_000_000)})
    check_message("cause-observer-quantile", f"{cause.text}\n{cause.released_when}")


def test_longer_delay_after_resume_is_explained() -> None:
    cause = _observed_by(Observer("clicks", Duration(60_000_000)), 50_000_000, seen={"clicks": Timestamp(51_000_000)})
    check_message("cause-observer-longer-delay", f"{cause.text}\n{cause.released_when}")


def test_time_far_ahead_of_clock_is_explained() -> None:
    seen = {"clicks": Timestamp(86_400_000_000)}
    cause = _observed_by(Observer("clicks", Duration(0)), 86_400_000_000, seen=seen)
    assert "23:59:59.999999" in cause.text
    assert "max_skew" in cause.text
    cause = _observed_by(Observer("clicks", Duration(0)), 9, seen={"clicks": Timestamp(9)})
    assert "max_skew" not in cause.text


def test_idle_source_is_explained_with_remedy() -> None:
    """An idle source: stages downstream may proceed without it, if they are configured so."""
    log = opened(MemoryBlobs())
    clicks = Observer("clicks", Duration(2))
    read, rates, join = LAYOUT.stages
    flow = replace(join.flow, inputs=(READ, RATES))
    stages = replace(read, flow=replace(read.flow, observed={"main": (clicks,)})), rates, replace(join, flow=flow)
    idle = Hold(Timestamp(7), HolderKind.RESIDUAL, "it")
    marks = at(7, 90, 7)
    marks = replace(marks, seen={"clicks": Timestamp(50)})
    reports = all_of(holding("read", 0, idle), holding("read", 1, idle))
    command = replace(proposal(1, 0, *reports), times=marks)
    log.propose(draft(log, replace(LAYOUT, stages=stages), READERS, _NUMBERS, command, {}))
    (cause,) = (cause for cause in _causes(log.head) if cause.kind == "restriction")
    check_message("cause-idle-source", f"{cause.text}\n{cause.released_when}")


def test_cause_without_effect_downstream_comes_last() -> None:
    log = opened(MemoryBlobs())
    clicks = Observer("clicks", Duration(2))
    read, *others = LAYOUT.stages
    observing = replace(LAYOUT, stages=(replace(read, flow=replace(read.flow, observed={"main": (clicks,)})), *others))
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    held = holding("join", 0, hold=Hold(Timestamp(6), HolderKind.STATE, "pane", key="a"))
    marks = at(MIN_TIMESTAMP, MAX_TIMESTAMP, 10, 6)
    marks = replace(marks, outputs={**marks.outputs, READ: Timestamp(10)}, seen={"clicks": Timestamp(12)})
    reports = all_of(holding("read", 0, silent), holding("read", 1, silent), held)
    log.propose(draft(log, observing, READERS, _NUMBERS, replace(proposal(1, 0, *reports), times=marks), {}))
    status = status_of(log.head)
    assert [(cause.kind, cause.stage, cause.decides) for cause in status.causes] == [
        ("observer", "read", True),
        ("state", "join", True),
        ("restriction", "read", False),
    ]
    assert "state" not in undone(replace(status, causes=status.causes[2:]))


def test_counters_of_micro_batch_total_and_outputs() -> None:
    log = opened(MemoryBlobs())
    own = staged("join", 0, 0, counts=Counts(3, 2, late=1)), staged("join", 1, 0, counts=Counts(1))
    figures = {"user": 0.25, "outputs": {"read": {"main": [4, 900, 1, 9, 5]}}}
    committed(log, at(1, 1, 1), *all_of(*own))
    status = status_of(committed(log, at(2, 2, 2), *all_of(*own), figures=figures))
    join = status.stages[-1]
    assert (join.micro_batch.read, join.total.read, join.total.late, join.bytes_in) == (4, 8, 2, 900)
    (out,) = status.stages[0].outputs
    assert (out.elements, out.bytes, out.least, out.mean, out.most) == (4, 900, 1, 5, 9)
    assert status.seconds == {"user": 0.25}
    assert status.elapsed == 1


def test_progress_line_has_nonzero_figures() -> None:
    late = samples.with_stage(samples.status(1), 0, micro_batch=Counts(late=2), kept=StateMetrics(windows=10))
    status = replace(late, backlog=3.0, rate=1234.0, behind=Duration(1_500_000), stages=late.stages[:1])
    assert in_words(status) == "backlog 3, 1,234 elements/s, 1.5 s behind, 2 late, 10 keys"
    assert "3 h" in in_words(replace(status, behind=Duration(3 * 3_600_000_000)))
    assert "far from the clock" in in_words(replace(status, behind=Duration(1_790_000_000_000_000))), "times of 1970"
    assert in_words(replace(status, rate=None, behind=None, stages=())) == "backlog 3"


def test_state_metrics_add_up_and_survive_drivers() -> None:
    log = opened(MemoryBlobs())
    more = (
        staged("join", 0, 0, kept=StateMetrics(2, {"seen": 1}, 3)),
        staged("join", 1, 0, kept=StateMetrics(1, {"seen": 2}, 0, 1)),
    )
    committed(log, at(1, 1, 1), *all_of(*more))
    again = opened(log._blobs, 1)
    less = staged("join", 1, 0, kept=StateMetrics(-1, {"seen": -1, "last": 1}, 0, 0, 4, 5, 60))
    join = status_of(committed(again, at(2, 2, 2), *all_of(less))).stages[-1]
    assert join.kept == StateMetrics(2, {"seen": 2, "last": 1}, 3, 1, 4, 5, 60)
    assert stage_record(join)["kept"] == {
        "keys": 4,
        "windows": 2,
        "cells": {"seen": 2, "last": 1},
        "event_timers": 3,
        "clock_timers": 1,
        "blocked": 4,
        "ordered": 5,
        "waiting_bytes": 60,
    }
    assert total_state_metrics(status_of(again.head)) == {"keys": 4, "timers": 4, "waiting": 9}


def test_dropped_stage_begins_again_under_same_name() -> None:
    log = opened(MemoryBlobs())
    head = committed(log, at(1, 1, 1), *all_of(staged("join", 0, 0, kept=StateMetrics(2))))
    left = snapshot_of(head).without({"join"})
    assert [of.name for of in left.stages] == ["read", "rates"]
    again = snapshot_after(replace(head, snapshot=left.encoded()), LAYOUT, {}, at(2, 2, 2), Since(2, Timestamp(2)), {})
    assert again.stages[-1].kept == StateMetrics()


def test_renamed_stages_are_explained_under_new_names() -> None:
    log = opened(MemoryBlobs())
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "1.0.0~ab")
    head = committed(log, at(MAX_TIMESTAMP, MIN_TIMESTAMP, 0), *all_of(holding("rates", 0, silent)))
    (cause,) = _causes(renamed(head, {"rates": "prices"}))
    assert cause.stage == "prices"
    assert "'prices'" in cause.text


def test_work_that_the_budget_left_is_due_at_once() -> None:
    log = opened(MemoryBlobs())
    head = committed(log, at(1, 1, 1), *all_of())
    assert status_of(head).due is None
    head = committed(log, at(1, 1, 1), *all_of(staged("join", 1, 0, leftover=True)))
    assert status_of(head).due == head.time


def test_manifest_of_earlier_version_has_no_causes() -> None:
    log = opened(MemoryBlobs())
    head = replace(committed(log, at(1, 1, 1), *all_of()), snapshot=b"")
    status = status_of(head)
    assert [stage.input for stage in status.stages] == [1, 1, 1]
    assert status.causes == ()
    assert status_of(opened(MemoryBlobs()).head).stages == ()


@pytest.mark.contract("END-02")
def test_remaining_work_fits_into_a_line() -> None:
    bare = StageStatus("s", 0, Timestamp(0), Timestamp(0), None, ())
    stages = tuple(replace(bare, stage=f"s{n}", restrictions=1, backlog=0.5) for n in range(6))
    status = replace(samples.status(1), causes=(), stages=stages)
    assert undone(status).endswith("1 restriction(s) of 's3' not done (size 0.5); and 2 more")
    waits = replace(bare, stage="late", next_due=Timestamp(1_000_000), blocked=("rates has something",))
    assert undone(replace(status, stages=(waits,))) == (
        "'late' waits until 1970-01-01T00:00:01Z; elements of 'late' are blocked until rates has something"
    )
    assert undone(replace(status, stages=())) == undone(replace(status, stages=(bare,))) == ""
