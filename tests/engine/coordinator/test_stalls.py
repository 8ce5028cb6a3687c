"""What counts as progress, and how patient a job is without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.coordinator import Patience, Retry
from arcbeam.engine.coordinator.stalls import ProgressMark, moved
from arcbeam.engine.protocol.reports import Awaited, Counts, Restrictions, StageReport
from arcbeam.engine.watermarks.clocks import Local, Port
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.timestamps import Duration, Timestamp

_REPORT = StageReport("read", 0, Timestamp(0), Local(), restrictions=Restrictions(2, 8.0))


def _footing(report: StageReport, time: int = 0) -> ProgressMark:
    return ProgressMark.of({("read", 0): report}, Times({"read": Timestamp(time)}))


@pytest.mark.contract("ENG-06")
def test_timers_and_restrictions_that_run_are_no_progress_but_what_they_leave_is() -> None:
    busy = replace(_REPORT, counts=Counts(fired=7, resumed=3), next_due=Timestamp(9), next_event=Timestamp(9))
    assert not moved({("read", 0): busy})
    assert _footing(busy) == _footing(_REPORT)
    for other in (
        replace(_REPORT, restrictions=Restrictions(2, 7.0)),
        replace(_REPORT, restrictions=Restrictions(3, 8.0)),
        replace(_REPORT, awaited=(Awaited(Port("rates", "main"), Timestamp(9)),)),
        replace(_REPORT, leftover=True),
    ):
        assert _footing(other) != _footing(_REPORT)
    assert _footing(_REPORT, 1) != _footing(_REPORT)


@pytest.mark.parametrize("counts", [Counts(read=1), Counts(written=1), Counts(unparked=1), Counts(late=1)])
def test_elements_that_come_or_go_are_progress(counts: Counts) -> None:
    assert moved({("read", 0): replace(_REPORT, counts=counts)})


def test_pauses_double_up_to_a_bound_and_somebody_is_told_ever_more_rarely() -> None:
    patience = Patience(3, Duration(5), Duration(60))
    assert [patience.pause(micro_batches) for micro_batches in (0, 1, 2, 3, 4, 5, 1000)] == [0, 5, 10, 20, 40, 60, 60]
    assert [micro_batches for micro_batches in range(1, 50) if patience.warns(micro_batches)] == [3, 6, 12, 24, 48]


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="after 0 micro-batches without progress"):
        Patience(0, Duration(5), Duration(60))
    with pytest.raises(ValueError, match="pauses from 60 to 5 µs"):
        Retry(3, Duration(60), Duration(5))
