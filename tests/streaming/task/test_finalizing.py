"""Callbacks wait in their worker until the commit of their attempt is confirmed."""

from __future__ import annotations

import pytest

from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.streaming.task.finalizing import CONFIRMED_KEPT, Confirmed, WaitingCallbacks


def calling(called: list[str], name: str) -> list[Callbacks]:
    callbacks = Callbacks()
    callbacks._kept.append(lambda: called.append(name))
    return [callbacks]


@pytest.mark.contract("SDF-13")
def test_only_callbacks_of_committed_attempts_run_once() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    waiting.keep("job", 1, b"a", calling(called, "first"))
    waiting.keep("job", 1, b"b", calling(called, "of another attempt"))
    waiting.keep("job", 2, b"c", calling(called, "second"))
    waiting.confirm("job", Confirmed(1, (b"a",)))
    assert called == ["first"]
    waiting.confirm("job", Confirmed(1, (b"a", b"b")))
    waiting.confirm("job", Confirmed(2, (b"b", b"c")))
    waiting.confirm("job", Confirmed(2, (b"b", b"c")))
    assert called == ["first", "second"]


def test_jobs_are_separate_and_old_callbacks_are_dropped() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    waiting.keep("one", 1, b"a", calling(called, "one"))
    waiting.keep("two", 1, b"b", calling(called, "two"))
    waiting.keep("two", 2, b"c", [])
    waiting.confirm("one", Confirmed(1, (b"a",)))
    assert called == ["one"]
    for micro_batch in range(2, CONFIRMED_KEPT + 2):
        waiting.keep("two", micro_batch, b"b", calling(called, f"two at {micro_batch}"))
    waiting.confirm("two", Confirmed(1, (b"b",)))
    waiting.confirm("two", Confirmed(2, (b"b",)))
    assert called == ["one", "two at 2"]


def test_worker_without_task_learns_of_commit_later() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    waiting.keep("job", 1, b"a", calling(called, "first"))
    waiting.keep("job", 2, b"b", calling(called, "second"))
    for confirmed in (Confirmed(2, (b"b",)), Confirmed(1, (b"a",)), Confirmed(1, (b"a",))):
        waiting.confirm("job", confirmed)
    assert called == ["second", "first"]


def test_long_job_keeps_callbacks_beside_many_short_jobs() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    for micro_batch in range(20):
        waiting.keep("long", micro_batch, b"a", calling(called, f"long {micro_batch}"))
        waiting.keep(f"short {micro_batch}", 1, b"b", calling(called, "short"))
    waiting.confirm("long", Confirmed(0, (b"a",)))
    waiting.forget("long")
    waiting.confirm("long", Confirmed(1, (b"a",)))
    assert called == ["long 0"]
