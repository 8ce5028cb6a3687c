"""An output that has not moved for long is ignored, and counts again when it moves."""

from __future__ import annotations

import pytest

from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.idleness import mark_idle
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.testing.views import MemoryView

_PATIENT, _IMPATIENT = Observer("a", Duration(0)), Observer("b", Duration(0), idle_after=Duration(10))


def _hold(time: int, kind: HolderKind) -> Hold:
    return Hold(Timestamp(time), kind, "it")


def _look(view: MemoryView, now: int, known: OutputTime, upstream: int = MAX_TIMESTAMP) -> tuple[bool, int | None]:
    local = Local(known.pending, {"main": known, "other": known})
    observed = {"main": (_IMPATIENT, _PATIENT), "other": (_PATIENT,)}
    marked, due = mark_idle(view, 7, observed, Timestamp(upstream), local, Timestamp(now))
    assert not marked.outputs["other"].quiet
    return marked.outputs["main"].quiet, due


@pytest.mark.contract("WM-04")
@pytest.mark.parametrize("kind", [HolderKind.RESIDUAL, HolderKind.SCRIPT, None])
def test_idle_source_is_ignored_until_it_moves(kind: HolderKind | None) -> None:
    view = MemoryView()

    def look(now: int, reported: int) -> tuple[bool, int | None]:
        if kind is None:
            return _look(view, now, OutputTime(), reported)
        return _look(view, now, OutputTime(_hold(reported, kind)))

    assert look(100, 5) == (False, 110)
    assert look(109, 5) == (False, 110)
    assert look(110, 5) == (True, None)
    assert look(150, 5) == (True, None)
    assert look(151, 6) == (False, 161)
    assert look(200, MIN_TIMESTAMP) == (False, None), "an output without a watermark holds nothing"
    assert look(250, MAX_TIMESTAMP) == (False, None)


@pytest.mark.contract("WM-04")
@pytest.mark.parametrize(
    "known",
    [
        OutputTime(_hold(5, HolderKind.BLOCKED)),
        OutputTime(None, _hold(5, HolderKind.TIMER)),
        OutputTime(_hold(5, HolderKind.RESIDUAL), _hold(5, HolderKind.STATE)),
    ],
    ids=str,
)
def test_waiting_work_is_not_idle(known: OutputTime) -> None:
    view = MemoryView()
    assert _look(view, 100, known) == (False, None)
    assert _look(view, 200, known) == (False, None)
