"""The reference assigns the same windows as the engine and the users' functions."""

from __future__ import annotations

import random

import pytest

from arcbeam.engine.grouping.merging import MergingFn
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import CustomWindow, IntervalWindow, Window
from simulator.judging.assigning import assigned, merged
from simulator.scenario.windowings import CALENDAR, MERGING, WINDOWINGS, Windowing

DAY = 86_400_000_000
ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "America/Toronto"]


def interval(start: int, end: int) -> IntervalWindow:
    return IntervalWindow(Timestamp(start), Timestamp(end))


@pytest.mark.parametrize(
    ("windowing", "time", "expected"),
    [
        (Windowing("fixed", 10), 2, [(-7, 3)]),
        (Windowing("fixed", 10), 3, [(3, 13)]),
        (Windowing("sliding", 10), 7, [(5, 15), (0, 10)]),
        (Windowing("sliding", 1), -1, [(-1, 0)]),
        (Windowing("sessions", 4), 5, [(5, 9)]),
        (Windowing("gaps", 4), 5, [(5, 13)]),
        (Windowing("days", 1), -1, [(-DAY, 0)]),
        (Windowing("months", 1, day=31), 0, [(-DAY, 30 * DAY)]),
        (Windowing("years", 1, day=29), 0, [(-307 * DAY, 58 * DAY)]),
    ],
    ids=str,
)
def test_timestamp_gets_its_windows(windowing: Windowing, time: int, expected: list[tuple[int, int]]) -> None:
    assert list(assigned(windowing, Timestamp(time))) == [interval(*bounds) for bounds in expected]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("name", WINDOWINGS)
def test_engine_assigns_the_same_windows(name: str, zone: str) -> None:
    chance = random.Random(f"{name} {zone}")
    for _ in range(40 if name in CALENDAR or zone == "UTC" else 0):
        near = chance.choice((MIN_TIMESTAMP, -1_600_000_000_000_000, 0, 1_540_000_000_000_000, END_OF_GLOBAL_WINDOW))
        time = near + chance.choice((1, 1, -1)) * chance.randrange(chance.choice((40, 400 * DAY, 20_000 * DAY)))
        moment = Timestamp(min(max(time, MIN_TIMESTAMP), END_OF_GLOBAL_WINDOW))
        windowing = Windowing(name, chance.randint(1, 5), zone, chance.choice((1, 15, 29, 31)))
        assert set(assigned(windowing, moment)) == set(windowing.fn.assign(moment)), (windowing, moment)


@pytest.mark.parametrize("name", sorted(MERGING))
def test_merging_one_by_one_equals_merging_at_once(name: str) -> None:
    chance = random.Random(name)
    for _ in range(20):
        windowing = Windowing(name, chance.randint(1, 12))
        times = [Timestamp(chance.randint(-50, 50)) for _ in range(chance.randint(1, 12))]
        merging = windowing.merging
        assert merging is not None
        open, became = merging.open([]), {}
        for time in times:
            (window,) = windowing.fn.assign(time)
            became[time] = window
            for merge in open.insert(window):
                became = {each: merge.result if of in merge.windows else of for each, of in became.items()}
        assert became == {time: merged(windowing, time, times)[0] for time in times}


def test_windows_with_equal_ends_are_distinct() -> None:
    left, right = Windowing("lanes", 10).fn.assign(Timestamp(7))
    assert left != right
    assert left.max_timestamp == right.max_timestamp == 9


@pytest.mark.parametrize("name", WINDOWINGS)
def test_windows_with_equal_bytes_are_equal(name: str) -> None:
    windowing = Windowing(name, 3)
    for window in windowing.fn.assign(Timestamp(5)):
        assert windowing.decode(window.ordered()) == window


def test_cluster_depends_on_first_and_last_timestamp() -> None:
    fn: MergingFn = Windowing("clusters", 10).fn  # type: ignore[assignment]
    (first,), (last,), (other,) = (Windowing("clusters", 10).fn.assign(Timestamp(time)) for time in (2, 8, 12))
    (merge,) = fn.merge([first, last, other])
    whole: Window = CustomWindow(b"2 to 8", Timestamp(9))
    assert (set(merge.windows), merge.result) == ({first, last}, whole)
