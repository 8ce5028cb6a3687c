"""Callbacks wait in their worker until their attempt is known to be committed."""

from __future__ import annotations

import pytest

from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.spark.steps.finalizing import Confirmed, WaitingCallbacks


def calling(called: list[str], name: str) -> list[Callbacks]:
    callbacks = Callbacks()
    callbacks._kept.append(lambda: called.append(name))
    return [callbacks]


@pytest.mark.contract("SDF-13")
def test_those_of_committed_attempts_are_called_once_and_the_others_never() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    waiting.keep("job", 1, b"a", calling(called, "first"))
    waiting.keep("job", 1, b"b", calling(called, "of another attempt"))
    waiting.keep("job", 2, b"c", calling(called, "second"))
    waiting.confirm("job", Confirmed(1, (b"a",)))
    assert called == ["first"]
    waiting.confirm("job", Confirmed(1, (b"a", b"b")))
    waiting.confirm("job", Confirmed(2, (b"b", b"c")))
    assert called == ["first", "second"]


def test_those_of_another_job_are_forgotten() -> None:
    called: list[str] = []
    waiting = WaitingCallbacks()
    waiting.keep("one", 1, b"a", calling(called, "one"))
    waiting.keep("two", 1, b"b", [])
    waiting.confirm("one", Confirmed(1, (b"a",)))
    assert called == []
