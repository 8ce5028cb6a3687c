"""Charts of a running job: the driver's figures of a minute ago, and the newest statuses that the page has read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arcbeam.engine.protocol.reports import Counts
from arcbeam.page.timelines.charts import columns_of
from arcbeam.page.timelines.newest import Newest
from arcbeam.streaming.status.status import Status
from tests.page import samples

pytestmark = pytest.mark.contract("PAGE-01")

BEGAN = samples.NOW // 300_000_000 * 300_000_000
"""A multiple of the width of all points."""
NOTHING: dict[str, Any] = {"rings": [], "events": []}


def status(second: float, read: int, micro_batch: int, **changes: Any) -> Status:
    """Return a status in which the first of two stages has read 10 more elements in its newest micro-batch."""
    found = samples.status(2, BEGAN + round(second * 1e6), micro_batch=micro_batch, backlog=second, **changes)
    for number, total in enumerate((read, 0)):
        found = samples.with_stage(found, number, total=Counts(total), micro_batch=Counts(min(total, 10)))
    return found


def stored(*seconds: int) -> dict[str, Any]:
    """Return what a driver has written that read 7 elements in each of these seconds."""
    job = {"backlog": [1.0, 2.0, 1.5], "micro_batches": 1.0, "seconds": 0.5, "held": "timer a"}
    rings = []
    for width in (1, 10, 300):
        starts = dict.fromkeys(second - second % width for second in seconds)
        points = [
            {
                "time": BEGAN + start * 1_000_000,
                "job": job,
                "stages": {"": {"read": 7.0 * sum(start <= second < start + width for second in seconds), "late": 0.0}},
            }
            for start in starts
        ]
        rings.append({"width": width * 1_000_000, "points": points})
    return {"rings": rings, "events": []}


def reads(history: dict[str, Any], ring: int) -> list[tuple[float, float]]:
    points = history["rings"][ring]["points"]
    return [((point["time"] - BEGAN) / 1e6, point["stages"][""]["read"]) for point in points]


def test_stage_without_counters_counts_nothing() -> None:
    newest: Any = Newest()
    for second in (20, 21):
        found = samples.with_stage(status(second, 0, 7), 0, total=None, micro_batch=None)
        history = newest.merged("a", found, NOTHING)
    assert all(point["stages"][""]["late"] == 0 for point in history["rings"][0]["points"])


def test_job_without_figures_has_those_that_the_page_sees() -> None:
    newest: Any = Newest()
    newest.merged("a", status(20, 500, 7), NOTHING)
    # No look has seen micro-batch 8.
    history = newest.merged("a", status(21, 530, 9), NOTHING)
    assert reads(history, 0) == [(20, 10), (21, 30)]
    assert reads(history, 1) == [(20, 40)]
    point = history["rings"][0]["points"][-1]["job"]
    assert (point["backlog"], point["micro_batches"], point["seconds"]) == ([21, 21, 21], 2, 1.02)
    assert point["held"].startswith("restriction Read/Poll/Process")


def test_newest_points_follow_those_of_the_driver() -> None:
    newest: Any = Newest()
    history = stored(18, 19)
    newest.merged("a", status(22.5, 500, 7), history)
    found = newest.merged("a", status(23.5, 510, 8), history)
    assert reads(found, 0) == [(18, 7), (19, 7), (22, 10), (23, 10)]
    assert reads(found, 1) == [(10, 14), (20, 20)]
    # Both know a part of these five minutes: elements are not counted twice, but the gauges are of now.
    assert reads(found, 2) == [(0, 14)]
    assert found["rings"][2]["points"][0]["job"]["backlog"] == [1.0, 23.5, 23.5]
    assert found["events"] == []


@pytest.mark.parametrize(("since", "lines"), [(5, 1), (40, 2)])
def test_line_continues_if_the_same_driver_ran_until_now(since: int, lines: int) -> None:
    now = status(70, 500, 7, driver=replace(samples.driver(), since=BEGAN + since * 1_000_000))
    found = columns_of(Newest().merged("a", now, stored(*range(10, 20))), 0)
    backlog = next(each["values"][0] for each in found["charts"] if each["name"].startswith("backlog"))
    assert backlog.count(None) == lines - 1


def test_written_figures_replace_what_the_page_has_seen() -> None:
    newest: Any = Newest()
    newest.merged("a", status(20, 500, 7), stored(18, 19))
    written = stored(18, 19, 20, 21)
    assert newest.merged("a", status(20, 500, 7), written) is written


def test_time_without_look_is_no_peak() -> None:
    newest: Any = Newest()
    newest.merged("a", status(20, 500, 7), NOTHING)
    found = newest.merged("a", status(80, 90_000, 47), NOTHING)
    assert reads(found, 0) == [(80, 10)]
