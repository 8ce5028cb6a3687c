"""Callbacks of bundle finalization: each runs once, and one that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arcbeam.harness.bundle.finalization import Callbacks


def fails() -> None:
    raise ValueError("no acknowledgement")


def kept(*callbacks: Callable[[], object]) -> Callbacks:
    found = Callbacks()
    for each in callbacks:
        found.add(each)
    return found


def test_failing_callback_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []
    callbacks = kept(lambda: ran.append(1), fails, lambda: ran.append(2))
    callbacks.run()
    callbacks.run()
    assert (ran, len(callbacks)) == ([1, 2], 0)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("arcbeam.finalization", "WARNING")
    assert "in fails" in caplog.text
    assert "ValueError: no acknowledgement" in caplog.text


def test_taken_and_dropped_callbacks_do_not_run_here() -> None:
    ran: list[int] = []
    callbacks = kept(lambda: ran.append(1))
    taken = callbacks.take()
    callbacks.run()
    assert (ran, len(callbacks), len(taken)) == ([], 0, 1)
    taken.run()
    assert ran == [1]
    callbacks.add(lambda: ran.append(2))
    callbacks.drop()
    callbacks.run()
    assert (ran, len(callbacks)) == ([1], 0)
