"""Charts: which resolution suits a job, and paths that lose no extreme and no gap."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.model.timestamps import MIN_TIMESTAMP
from arcbeam.page.app import app_of
from arcbeam.page.sources import Listed
from arcbeam.page.timelines import charts
from arcbeam.page.timelines.charts import HEIGHT, WIDTH, Chart, charts_of, events_of, span_of
from tests.page.test_app import BASE, EVIL, Fixed

pytestmark = pytest.mark.contract("PAGE-01")

WIDTHS = (1_000_000, 10_000_000, 300_000_000)


def point(time: int, backlog: float | None = 0.0, **stages: int) -> dict[str, Any]:
    gauge = None if backlog is None else [backlog] * 3
    job = {
        "backlog": gauge,
        "behind": [None] * 3,
        "state_bytes": gauge,
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


def chart(record: dict[str, Any], name: str) -> Chart:
    return next(each for each in charts_of(record, 0) if each.name.startswith(name))


def coordinates(path: str) -> list[tuple[str, float, float]]:
    return [(pen, float(x), float(y)) for pen, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path)]


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


def test_path_keeps_extremes_of_joined_points() -> None:
    points = [point(at * 1_000_000, 7.0 if at == 333 else 0.0) for at in range(600)]
    found = coordinates(chart(history(points), "backlog").path)
    assert len(found) <= 300
    assert {pen for pen, _, _ in found[1:]} == {"L"}
    assert (min(y for *_, y in found), max(y for *_, y in found)) == (4, HEIGHT - 4)
    assert all(0 <= x <= WIDTH for _, x, _ in found)


def test_path_is_interrupted_where_no_driver_ran() -> None:
    points = [point(at * 1_000_000) for at in (*range(5), *range(60, 65))]
    assert [pen for pen, *_ in coordinates(chart(history(points), "backlog").path)].count("M") == 2


@pytest.mark.parametrize(("points", "killed", "resumed"), [(30, 105, 138), (30, 105, 152), (700, 3_005, 3_028)])
def test_nothing_is_drawn_across_a_short_outage(points: int, killed: int, resumed: int) -> None:
    second, column = 1_000_000, 10
    ran = [at for at in range(0, points * column, column) if at < killed or at + column > resumed]
    held = [
        {**found, "job": {**found["job"], "watermark": [60 * second] * 3, "held": "timer Group a"}}
        for found in (point(at * second) for at in ran)
    ]
    for kind in ("restart", "start", "savepoint"):
        event = {"time": resumed * second, "kind": kind, "text": "at micro-batch 9"}
        record = history([], held, events=[event])
        drawn = {found.name: found for found in charts_of(record, 1)}
        lines = re.findall("M[^M]*", drawn["backlog (units of the DoFns)"].path)
        assert len(lines) == (1 if kind == "savepoint" else 2)
        clock = next(found for name, found in drawn.items() if name.startswith("watermark ("))
        assert clock.path.count("M") == len(lines)
        lane = [(hold.x, hold.x + hold.width) for hold in clock.holds]
        scale = WIDTH / (points * column)
        if kind != "savepoint":
            dead = (killed + column) // column * column, resumed // column * column
            assert lane[0][1] == pytest.approx(dead[0] * scale, abs=0.1)
            assert lane[1][0] == pytest.approx(dead[1] * scale, abs=0.1)
        if points == 30:
            areas = drawn["micro-batch by part, mean"].parts[0].path
            assert areas.count("M") == len(lines)


@pytest.mark.parametrize("distance", [2, 3, 10, 45])
def test_path_of_long_micro_batches_is_one_line(distance: int) -> None:
    points = [point(at * distance * 1_000_000, at) for at in range(30)]
    found = coordinates(chart(history(points), "backlog").path)
    assert [pen for pen, *_ in found] == ["M", *["L"] * 29]


def test_point_without_neighbours_is_a_dot() -> None:
    points = [point(at * 1_000_000) for at in (*range(5), 60, *range(120, 125))]
    found = chart(history(points), "backlog")
    path = found.path
    lines = re.findall("M[^M]*", path)
    assert ["h0" in line for line in lines] == [False, True, False]
    assert "L" not in lines[1]
    assert found.dots == lines[1].strip()
    assert chart(history(points[:5]), "backlog").dots == ""
    assert "stroke-linecap: round" in (Path(charts.__file__).parent.parent / "static" / "page.css").read_text()


def test_unknown_figures_have_no_path() -> None:
    record = history([point(0, None), point(1_000_000, None)])
    assert [(each.path, each.last) for each in charts_of(record, 0) if each.name == "watermark gap"] == [
        ("", "unknown")
    ]


def test_events_are_marked_by_kind_and_listed_newest_first() -> None:
    kinds = ("start", "savepoint", "trouble", "restart", "end", "of another version")
    events = [{"time": at * 1_000_000, "kind": kind, "text": EVIL} for at, kind in enumerate(kinds)]
    record = history([point(at * 1_000_000) for at in range(10)], events=events)
    assert [mark.kind for mark in chart(record, "backlog").marks] == [*kinds[:-1], ""]
    assert [kind for _, kind, _ in events_of(record)] == list(reversed(kinds))


@pytest.mark.parametrize(
    ("before", "after", "marked", "axis"),
    [
        # A job that failed: its error and its end come after its last figure.
        (95.5, 112.5, ["start", "end"], (95, 113)),
        (100.0, 110.0, ["start", "end"], (100, 110)),
        # By how long the events may be away from the points.
        (-501.0, 710.0, ["end"], (100, 710)),
        (-500.0, 711.0, ["start"], (-500, 110)),
    ],
)
def test_axis_reaches_to_events_outside_of_the_points(
    before: float, after: float, marked: list[str], axis: tuple[int, int]
) -> None:
    times = {"start": before, "end": after}
    events = [{"time": round(at * 1e6), "kind": kind, "text": "oh"} for kind, at in times.items()]
    record = history([point(at * 1_000_000) for at in range(100, 110)], events=events)
    for drawn in charts_of(record, 0):
        assert [mark.kind for mark in drawn.marks] == marked
        assert all(0 <= mark.x <= WIDTH for mark in drawn.marks)
        assert all(0 <= x <= WIDTH for _, x, _ in coordinates(drawn.path))
        assert (drawn.start, drawn.end) == tuple(charts._clock(at * 1_000_000) for at in axis)


def test_axis_does_not_reach_to_events_before_lost_points() -> None:
    event = {"time": 0, "kind": "start", "text": "at micro-batch 0"}
    record = history([point(1_000_000_000)], [point(0), point(1_000_000_000)], events=[event])
    (mark,) = next(charts_of(record, 1)).marks
    assert mark.x == 0
    assert all(not drawn.marks for drawn in charts_of(record, 0))


def test_resolution_has_the_newest_event() -> None:
    rings = [point(0)], [point(0)], [point(0)]
    for seconds, span in ((5, 0), (700, 1), (9_000, 2), (10_000_000, 2)):
        event = {"time": seconds * 1_000_000, "kind": "restart", "text": "at micro-batch 1"}
        record = history(*rings, events=[event])
        assert span_of(record) == span
        assert all(drawn.marks for drawn in charts_of(record, span))


def test_page_shows_charts_and_escapes_events() -> None:
    record = history([point(0), point(1_000_000)], events=[{"time": 0, "kind": "trouble", "text": EVIL}])

    class WithHistory(Fixed):
        @override
        def history(self, id: str) -> dict[str, Any] | None:
            return record

    page = TestClient(app_of(WithHistory(Listed("a", "/a", None, "away"))), base_url=BASE)
    assert page.get("/job/a").status_code == 503
    status = {"mode": "done", "micro_batch": 1, "time": 0, "watermark": 0, "causes": [], "stages": [], "name": "a"}
    more = {"restrictions": 0, "backlog": 0.0, "state_bytes": {}, "state_entries": {}, "rate": None}
    page = TestClient(app_of(WithHistory(Listed("a", "/a", {**status, **more}))), base_url=BASE)
    for address in ("/job/a", "/job/a?span=0", "/job/a?span=x", "/job/a?span=7"):
        text = page.get(address).text
        # Three lines, and five parts of a micro-batch.
        assert text.count("<path") == 8
        assert "<script" not in text
    assert "<path" not in page.get("/job/a?span=1").text


def timed(second: int, **job: Any) -> dict[str, Any]:
    found = point(second * 1_000_000)
    return {**found, "job": {**found["job"], **job}}


def test_watermark_is_drawn_against_the_clock_with_its_holders() -> None:
    minute = 60_000_000
    held = ["timer Group 1 a"] * 4 + ["restriction Read x~1", "restriction Read x~2"] + [None] * 2
    points = [timed(100 + at, watermark=[minute + at] * 3, held=text) for at, text in enumerate(held)]
    (found, *_) = charts_of(history(points), 0, ["Read", "Group", "Group 1"])
    assert (found.least, found.greatest) == ("1970-01-01 00:01:00Z", "1970-01-01 00:01:48Z")
    # The clock ends at the top, and the watermark is 40 s below its beginning.
    assert found.clock == f"M0 {HEIGHT - 4 - 82 * 40 / 48:.1f} L{WIDTH} 4"
    assert found.holders == ((1, "timer Group 1, 50%"), (2, "restriction Read, 25%"))
    assert [(hold.number, hold.x, hold.width) for hold in found.holds] == [(1, 0, 180), (2, 180, 90)]
    # Micro-batches of three seconds, and a minute without a driver.
    points = [timed(at, watermark=[minute] * 3, held="timer a") for at in (0, 3, 6, 9)]
    points.append(timed(100, watermark=[minute] * 3, held="timer a"))
    (found, *_) = charts_of(history(points), 0)
    assert [(hold.x, hold.width) for hold in found.holds] == [(0, 36), (354, 6)]
    # The driver ran meanwhile, and committed nothing.
    (found, *_) = charts_of(history([*points[:-1], {**points[-1], "follows": True}]), 0)
    assert [(hold.x, hold.width) for hold in found.holds] == [(0, 360)]
    # A micro-batch after which nothing holds the watermark ends the hold.
    points = [timed(at, watermark=[minute] * 3, held=None if at == 3 else "timer a") for at in (0, 3, 6, 9)]
    (found, *_) = charts_of(history(points), 0)
    assert [(hold.x, hold.width) for hold in found.holds] == [(0, 108), (216, 144)]
    beginning = [timed(at, watermark=[MIN_TIMESTAMP] * 3) for at in range(3)]
    assert next(charts_of(history(beginning), 0)).last == "at the beginning or the end"


def test_parts_of_micro_batch_are_stacked() -> None:
    parts = {"micro_batches": 2.0, "seconds": 2.0, "user": 1.0, "spark": 0.5, "plan": 0.25, "commit": 0.5}
    found = chart(history([timed(at, **parts) for at in (*range(5), *range(60, 65))]), "micro-batch by part")
    assert [(part.name, part.last) for part in found.parts] == [
        ("commit", "0.25 s"),
        ("other", "0.12 s"),
        ("plan", "0.12 s"),
        ("Spark", "0.25 s"),
        ("transforms", "0.50 s"),
    ]
    assert found.last == "1.25 s"
    # No driver ran between.
    assert [part.path.count("M") for part in found.parts] == [2] * 5
    assert f"M0 {HEIGHT} L0 4 " in found.parts[0].path


def test_charts_have_gap_and_rates_of_the_samples() -> None:
    points = [timed(at, behind=[2e6] * 3, rate=[15.0, 17.0, 16.0], read_rate=[40.0] * 3) for at in range(3)]
    found = {each.name: each for each in charts_of(history(points), 0)}
    assert found["watermark gap"].last == "2.00 s"
    source = found["elements per second from sources, mean of a minute"]
    assert (source.least, source.greatest, source.last) == ("15", "17", "16")
    assert found["elements per second that all stages read, mean of a minute"].last == "40"
    assert found["micro-batch by part, mean"].last == "0.50 s"
