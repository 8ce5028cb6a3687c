"""Charts: which resolution suits a job, values that lose nothing, and where lines are interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import MIN_TIMESTAMP
from arcbeam.page.app import app_of
from arcbeam.page.sources import Listed
from arcbeam.page.timelines.charts import (
    ROWS_SHOWN,
    backlog_growth,
    columns_of,
    events_of,
    held_shares,
    rows_of,
    span_of,
)
from tests.page import samples
from tests.page.test_app import BASE, EVIL, OURS, Fixed

pytestmark = pytest.mark.contract("PAGE-01")

WIDTHS = (1_000_000, 10_000_000, 300_000_000)


def point(time: int, backlog: float | None = 0.0, **stages: int) -> dict[str, Any]:
    gauge = None if backlog is None else [backlog] * 3
    job = {
        "backlog": gauge,
        "behind": [None] * 3,
        "state_bytes": gauge,
        "micro_batch": [1.0, 2.0, 2.0],
        "micro_batches": 2.0,
        "seconds": 1.0,
        "user": 0.5,
    }
    return {"time": time, "job": job, "stages": {name: {"read": read, "late": 0} for name, read in stages.items()}}


def history(*rings: list[dict[str, Any]], events: Any = ()) -> dict[str, Any]:
    rings = (*rings, *([] for _ in range(3 - len(rings))))
    return {
        "rings": [{"width": width, "points": points} for width, points in zip(WIDTHS, rings, strict=True)],
        "events": list(events),
    }


def chart(record: dict[str, Any], name: str, after: int = 0) -> dict[str, list[float | None]]:
    """Return the columns of a chart by the names of its lines."""
    found = next(each for each in columns_of(record, 0, after)["charts"] if each["name"].startswith(name))
    return dict(zip(found["lines"], found["values"], strict=True))


def breaks(record: dict[str, Any], span: int = 0) -> list[float]:
    """Return the times at which lines are interrupted: all values are unknown there."""
    found = columns_of(record, span)
    values = [column for each in found["charts"] for column in each["values"]]
    return [time for at, time in enumerate(found["times"]) if all(column[at] is None for column in values)]


@pytest.mark.parametrize(
    ("begins", "span"),
    [
        ((), 0),
        ((1_007, 1_000, 900), 0),
        ((1_012, 1_000, 900), 1),
        ((5_000, 1_000, 900), 1),
        ((9_000, 5_000, 900), 2),
    ],
)
def test_finest_resolution_with_whole_life_is_chosen(begins: tuple[int, ...], span: int) -> None:
    assert span_of(history(*([point(begin * 1_000_000)] for begin in begins))) == span


def test_columns_have_every_point_of_a_resolution() -> None:
    points = [point(at * 1_000_000, 7.0 if at == 333 else 0.0) for at in range(600)]
    found = columns_of(history(points), 0)
    assert found["times"] == list(range(600))
    assert {len(column) for each in found["charts"] for column in each["values"]} == {600}
    column = chart(history(points), "backlog")["last"]
    assert [at for at, value in enumerate(column) if value] == [333]
    assert columns_of({"rings": [], "events": []}, 0)["times"] == []


def test_columns_since_a_time_complete_those_before() -> None:
    record = samples.history()
    whole = columns_of(record, 0)
    middle = int(whole["times"][150])
    later = columns_of(record, 0, middle)
    assert later["times"] == [time for time in whole["times"] if time >= middle]
    for all_of, new in zip(whole["charts"], later["charts"], strict=True):
        assert new["values"] == [column[-len(later["times"]) :] for column in all_of["values"]]


def test_gauge_keeps_extremes_of_joined_points() -> None:
    points = [timed(at, behind=[1e6, 9e6, 2e6], state_bytes=[5.0, 5.0, 5.0]) for at in range(2)]
    assert chart(history(points), "watermark gap") == {"last": [2, 2], "least": [1, 1], "greatest": [9, 9]}
    assert chart(history(points), "state")["last"] == [5, 5]


def test_line_is_interrupted_where_no_driver_ran() -> None:
    points = [point(at * 1_000_000) for at in (*range(5), *range(60, 65))]
    assert breaks(history(points)) == [32]
    points[5]["follows"] = True
    assert breaks(history(points)) == []


@pytest.mark.parametrize(("killed", "resumed"), [(105, 138), (105, 152), (105, 109)])
@pytest.mark.parametrize("kind", ["restart", "start", "savepoint"])
def test_nothing_is_drawn_across_a_short_outage(killed: int, resumed: int, kind: str) -> None:
    ran = [at for at in range(0, 300, 10) if at < killed or at + 10 > resumed]
    event = {"time": resumed * 1_000_000, "kind": kind, "text": "at micro-batch 9"}
    record = history([], [point(at * 1_000_000) for at in ran], events=[event])
    assert len(breaks(record, 1)) == (kind != "savepoint")
    assert all(killed // 10 * 10 - 10 < at < resumed // 10 * 10 for at in breaks(record, 1))


@pytest.mark.parametrize("distance", [2, 3, 10, 45])
def test_line_of_long_micro_batches_is_whole(distance: int) -> None:
    assert breaks(history([point(at * distance * 1_000_000, at) for at in range(30)])) == []


def test_unknown_figures_have_no_values() -> None:
    record = history([point(0, None), point(1_000_000, None)])
    assert chart(record, "watermark gap")["last"] == [None, None]
    assert chart(record, "watermark")["watermark"] == [None, None]
    (row, _) = rows_of(record, 0)
    assert (row.gap.text, row.backlog.text) == ("–", "–")


def test_events_are_listed_newest_first() -> None:
    kinds = ("start", "savepoint", "trouble", "restart", "end", "of another version")
    events = [{"time": at * 1_000_000, "kind": kind, "text": EVIL} for at, kind in enumerate(kinds)]
    record = history([point(at * 1_000_000) for at in range(10)], events=events)
    assert [kind for _, kind, _ in events_of(record)] == list(reversed(kinds))
    assert [event["time"] for event in columns_of(record, 0)["events"]] == [0, 1, 2, 3, 4, 5]


def test_resolution_has_the_newest_event() -> None:
    rings = [point(0)], [point(0)], [point(0)]
    for seconds, span in ((5, 0), (700, 1), (9_000, 2), (10_000_000, 2)):
        event = {"time": seconds * 1_000_000, "kind": "restart", "text": "at micro-batch 1"}
        assert span_of(history(*rings, events=[event])) == span


def test_page_serves_values_and_table_and_escapes_events() -> None:
    points = [{**each, "job": {**each["job"], "held": f"timer {EVIL}"}} for each in (point(0), point(1_000_000))]
    record = history(points, events=[{"time": 0, "kind": "trouble", "text": EVIL}])

    class WithHistory(Fixed):
        @override
        def history(self, id: str) -> dict[str, Any] | None:
            return record

    page = TestClient(app_of(WithHistory(Listed("a", "/a", None, "away"))), base_url=BASE)
    assert page.get("/job/a").status_code == 503
    assert page.get("/job/a/charts").status_code == page.get("/job/a/history").status_code == 404
    status = samples.status(1, 0, mode=CommitMode.DONE, micro_batch=1)
    page = TestClient(app_of(WithHistory(Listed("a", "/a", status))), base_url=BASE)
    for query in ("", "?span=0", "?span=x", "?span=7"):
        for address in ("/job/a", "/job/a/history"):
            assert "<script" not in OURS.sub("", page.get(f"{address}{query}").text)
        assert 'data-values="/job/a/charts?span=0"' in page.get(f"/job/a{query}").text
        assert page.get(f"/job/a/history{query}").text.count("<time data-clock") == 2
        assert page.get(f"/job/a/charts{query}").json()["times"] == [0, 1]
    assert page.get("/job/a/charts?after=1").json()["times"] == [1]
    assert page.get("/job/a/charts").json()["written"] == 1
    assert "data-values" not in page.get("/job/a?span=1").text
    assert "No micro-batch with figures" in page.get("/job/a/history?span=1").text


def timed(second: int, **job: Any) -> dict[str, Any]:
    found = point(second * 1_000_000)
    return {**found, "job": {**found["job"], **job}}


def test_watermark_is_beside_the_clock_with_its_holders() -> None:
    minute, stages = 60_000_000, ["Read", "Group", "Group 1"]
    held = ["timer Group 1 a"] * 4 + ["restriction Read x~1", "restriction Read x~2"] + [None] * 2
    points = [timed(at, watermark=[minute] * 3, behind=[at * 1e6] * 3, held=text) for at, text in enumerate(held)]
    record = history(points)
    lines = chart(record, "watermark")
    assert lines["watermark"] == [60] * 8
    assert lines["clock"] == [60 + at for at in range(8)]
    assert columns_of(record, 0, 0, stages)["held"] == ["timer Group 1"] * 4 + ["restriction Read"] * 2 + [""] * 2
    assert held_shares(record, 0, stages) == "timer Group 1, 50%; restriction Read, 25%"
    assert [row.held for row in rows_of(record, 0, stages)][:3] == ["", "", "restriction Read"]
    # Event times of another age do not follow the clock.
    far = chart(history([timed(0, watermark=[minute] * 3, behind=[5e14] * 3)]), "watermark")
    assert far == {"watermark": [60], "clock": [None]}
    beginning = chart(history([timed(at, watermark=[MIN_TIMESTAMP] * 3) for at in range(3)]), "watermark")
    assert beginning["watermark"] == [None] * 3


def test_parts_of_micro_batch_are_means() -> None:
    parts = {"micro_batches": 2.0, "seconds": 2.0, "user": 1.0, "spark": 0.5, "plan": 0.25, "commit": 0.5}
    record = history([timed(at, **parts) for at in range(5)])
    assert {name: column[-1] for name, column in chart(record, "micro-batch by part").items()} == {
        "transforms": 0.5,
        "Spark": 0.25,
        "plan": 0.125,
        "other": 0.125,
        "commit": 0.25,
    }
    row = rows_of(record, 0)[0]
    assert (row.seconds.text, row.micro_batches.text) == ("1.25 s", "1 to 2")


def test_charts_have_gap_and_rates_of_the_samples() -> None:
    points = [timed(at, behind=[2e6] * 3, rate=[15.0, 17.0, 16.0], read_rate=[40.0] * 3) for at in range(3)]
    record = history(points)
    assert chart(record, "elements from sources") == {"last": [16] * 3, "least": [15] * 3, "greatest": [17] * 3}
    assert chart(record, "elements that all stages read")["last"] == [40] * 3
    row = rows_of(record, 0)[0]
    assert (row.gap.text, row.rate.text, row.rate.hint) == ("2.00 s", "16", "from 15 to 17")


def test_rows_have_micro_batches_newest_first_with_failures() -> None:
    troubles = [
        {"time": round(at * 1e6), "kind": kind, "text": f"micro-batch {at} failed: oh"}
        for at, kind in ((98.2, "trouble"), (98.9, "trouble"), (99.0, "trouble"), (97.5, "savepoint"))
    ]
    points = [point(at * 1_000_000, a=at, b=1) for at in range(100)]
    rows = rows_of(history(points, events=sorted(troubles, key=lambda each: each["time"])), 0)
    assert len(rows) == ROWS_SHOWN
    assert [row.time for row in rows[:3]] == [99_000_000, 98_000_000, 97_000_000]
    assert [row.elements.text for row in rows[:3]] == ["100", "99", "98"]
    assert [row.failures.text for row in rows[:3]] == ["1", "2", "0"]
    assert rows[1].failures.hint == "micro-batch 98.2 failed: oh; micro-batch 98.9 failed: oh"


def test_rows_have_the_numbers_of_their_micro_batches() -> None:
    # A sample is taken once a second: the first number that it knows is not the first of the point.
    several = timed(0, micro_batch=[1004, 1006, 1006], micro_batches=5.0)
    rows = rows_of(history([several, timed(1, micro_batch=[1007] * 3, micro_batches=1.0)]), 0)
    assert [row.micro_batches.text for row in rows] == ["1,007", "1,002 to 1,006"]
    assert rows[1].micro_batches.hint == "5 micro-batches; the duration is their mean"


def test_table_says_how_long_a_row_is() -> None:
    status = samples.status(3, samples.now())
    jobs = samples.Jobs(Listed("a", "/a", status), histories={"a": samples.history(samples.now())})
    client = TestClient(app_of(jobs), base_url=BASE)
    for span, width in enumerate(("1 s", "10 s", "5 min")):
        assert f"committed within {width}, and their mean" in client.get(f"/job/a/history?span={span}").text


@pytest.mark.parametrize(("backlogs", "growth"), [([0, 0], 0), ([100, 40], -5), ([10, None, 70], 2.5), ([5], None)])
def test_growth_is_that_of_the_last_minute(backlogs: list[float | None], growth: float | None) -> None:
    points = [point(10**9 + at * 12_000_000, backlog) for at, backlog in enumerate(backlogs)]
    assert backlog_growth(history(points)) == growth
    earlier = [point(at * 1_000_000, 9e9) for at in range(3)]
    assert backlog_growth(history(earlier + points)) == growth
    assert backlog_growth({"rings": [], "events": []}) is None
