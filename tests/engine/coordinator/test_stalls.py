"""Progress, and pauses and warnings without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import Patience, Retry
from arcbeam.engine.coordinator.stalls import ProgressMark, moved
from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local, Port
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.timestamps import Duration, Timestamp

_REPORT = StageReport("read", 0, Timestamp(0), Local(), restrictions=Restrictions(2, 8.0))


def _mark(report: StageReport, time: int = 0) -> ProgressMark:
    return ProgressMark.of({("read", 0): report}, WatermarkTimes({"read": Timestamp(time)}))


@pytest.mark.contract("ENG-06")
def test_fired_timers_and_restrictions_are_no_progress() -> None:
    busy = replace(_REPORT, counts=Counts(fired=7, resumed=3), next_due=Timestamp(9), next_event=Timestamp(9))
    assert not moved({("read", 0): busy})
    assert _mark(busy) == _mark(_REPORT)
    for other in (
        replace(_REPORT, restrictions=Restrictions(2, 7.0)),
        replace(_REPORT, restrictions=Restrictions(3, 8.0)),
        replace(_REPORT, awaited=(Awaited(Port("rates", "main"), Timestamp(9)),)),
        replace(_REPORT, leftover=True),
    ):
        assert _mark(other) != _mark(_REPORT)
    assert _mark(_REPORT, 1) != _mark(_REPORT)


@pytest.mark.parametrize("counts", [Counts(read=1), Counts(written=1), Counts(unblocked=1), Counts(late=1)])
def test_elements_read_or_written_are_progress(counts: Counts) -> None:
    assert moved({("read", 0): replace(_REPORT, counts=counts)})


def test_pauses_double_to_bound_and_warnings_become_rare() -> None:
    patience = Patience(3, Duration(5), Duration(60))
    assert [patience.pause(micro_batches) for micro_batches in (0, 1, 2, 3, 4, 5, 1000)] == [0, 5, 10, 20, 40, 60, 60]
    assert [micro_batches for micro_batches in range(1, 50) if patience.warns(micro_batches)] == [3, 6, 12, 24, 48]


def test_contradictory_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="after 0 micro-batches without progress"):
        Patience(0, Duration(5), Duration(60))
    with pytest.raises(ValueError, match="with pauses from 60 to 5 µs"):
        Retry(3, Duration(60), Duration(5))
