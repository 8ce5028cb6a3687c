"""All kinds of windows in a plan, with and without fusion.

The Python SDK has no calendar windows: days and weeks are fixed windows with an offset, months a custom function.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, VarIntCoder
from apache_beam.portability import common_urns
from apache_beam.pvalue import AsDict, AsIter, AsList, AsMultiMap, AsSingleton
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark, Repeatedly
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import (
    BoundedWindow,
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    NonMergingWindowFn,
    Sessions,
    SlidingWindows,
    TimestampCombiner,
    TimestampedValue,
    WindowFn,
)
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

from arcbeam.model.plan import Routing
from tests.harness.drive import Collect, Driven


@pytest.fixture(params=[True, False], ids=["fused", "no_fusion"])
def fusion(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def timed(p: Any, times: Iterable[Any], name: str = "") -> Any:
    """Create pairs of "k" and a time in seconds, with that time."""
    return (
        p
        | f"create {name}" >> beam.Create([("k", time) for time in times])
        | f"timed {name}" >> beam.Map(lambda kv: TimestampedValue(kv, kv[1]))
    )


def in_order(key: Any, values: Iterable[Any]) -> Any:
    return key, sorted(values)


def windows_of(p: Driven, name: str = "") -> list[Any]:
    """Return (start, end, element) of each, in order; times in seconds."""
    return sorted((float(w.start), float(w.end), value) for value, _, w in p.windowed(name))


# Kinds of windows.

MONDAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()
DAY = 86_400
WEEK = 7 * DAY
WEEKS = FixedWindows(WEEK, 4 * DAY)


@pytest.mark.contract("BAT-03", "ENG-11")
@pytest.mark.parametrize(
    ("windowfn", "times", "expected"),
    [
        (FixedWindows(10), [1, 9, 10], [(0, 10, [1, 9]), (10, 20, [10])]),
        (FixedWindows(10, 3), [1, 9, 13], [(-7, 3, [1]), (3, 13, [9]), (13, 23, [13])]),
        (FixedWindows(10), [-1, -10, -11], [(-20, -10, [-11]), (-10, 0, [-10, -1])]),
        (WEEKS, [MONDAY, MONDAY - 1], [(MONDAY - WEEK, MONDAY, [MONDAY - 1]), (MONDAY, MONDAY + WEEK, [MONDAY])]),
        (SlidingWindows(10, 5), [1, 6], [(-5, 5, [1]), (0, 10, [1, 6]), (5, 15, [6])]),
        (SlidingWindows(10, 5), [-1], [(-10, 0, [-1]), (-5, 5, [-1])]),
        (SlidingWindows(4, 10), [1, 5], [(0, 4, [1])]),
        (Sessions(5), [1, 3, 20, 8, 24], [(1, 8, [1, 3]), (8, 13, [8]), (20, 29, [20, 24])]),
        (Sessions(5), [-3, -7, 1], [(-7, 6, [-7, -3, 1])]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WindowFn) else None,
)  # fmt: skip
def test_windows(fusion: bool, windowfn: WindowFn, times: list[Any], expected: list[Any]) -> None:
    with Driven(shards=3, fusion=fusion) as p:
        windowed = timed(p, times) | beam.WindowInto(windowfn)
        windowed | "group" >> beam.GroupByKey() | beam.MapTuple(in_order) | Collect("grouped")
        windowed | "combine" >> beam.CombinePerKey(sum) | Collect("combined")
    assert windows_of(p, "grouped") == [(start, end, ("k", values)) for start, end, values in expected]
    assert windows_of(p, "combined") == [(start, end, ("k", sum(values))) for start, end, values in expected]


class Month(BoundedWindow):
    """A window that is not an interval, with its own coder."""

    def __init__(self, year: int, month: int) -> None:
        following = datetime.datetime(year + month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC)
        super().__init__(following.timestamp())
        self.year, self.month = year, month

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Month) and (self.year, self.month) == (other.year, other.month)

    def __hash__(self) -> int:
        return hash((self.year, self.month))

    def __repr__(self) -> str:
        return f"{self.year}-{self.month:02}"


class MonthCoder(Coder):
    def encode(self, value: Month) -> bytes:
        return b"%d-%d" % (value.year, value.month)

    def decode(self, encoded: bytes) -> Month:
        return Month(*map(int, encoded.split(b"-")))

    def is_deterministic(self) -> bool:
        return True


class Months(NonMergingWindowFn):
    def assign(self, context: Any) -> list[Month]:
        at = datetime.datetime.fromtimestamp(float(context.timestamp), datetime.UTC)
        return [Month(at.year, at.month)]

    def get_window_coder(self) -> Coder:
        return MonthCoder()


class Quarters(WindowFn):
    """Months that are merged into the last month of their quarter as soon as there are two."""

    def assign(self, context: Any) -> list[Month]:
        return Months().assign(context)

    def merge(self, context: Any) -> None:
        quarters: dict[Any, list[Month]] = {}
        for w in context.windows:
            quarters.setdefault((w.year, (w.month - 1) // 3), []).append(w)
        for (year, quarter), months in quarters.items():
            if len(months) > 1:
                context.merge(months, Month(year, quarter * 3 + 3))

    def get_window_coder(self) -> Coder:
        return MonthCoder()


def day(month: int, number: int = 1) -> float:
    return datetime.datetime(2024, month, number, tzinfo=datetime.UTC).timestamp()


def named(p: Driven, name: str = "") -> list[tuple[str, Any]]:
    return sorted((repr(w), value) for value, _, w in p.windowed(name))


@pytest.mark.contract("BAT-03", "ENG-11")
def test_window_function_with_own_window_and_coder(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        windowed = timed(p, [day(1), day(2, 29), day(1, 31)]) | beam.WindowInto(Months())
        windowed | "group" >> beam.GroupByKey() | beam.MapTuple(in_order) | Collect("grouped")
        windowed | "combine" >> beam.CombinePerKey(min) | beam.Reshuffle() | Collect("combined")
        windowed | beam.ParDo(Running()) | Collect("stateful")
    assert named(p, "grouped") == [("2024-01", ("k", [day(1), day(1, 31)])), ("2024-02", ("k", [day(2, 29)]))]
    assert named(p, "combined") == [("2024-01", ("k", day(1))), ("2024-02", ("k", day(2, 29)))]
    assert named(p, "stateful") == [("2024-01", 1), ("2024-01", 2), ("2024-02", 1)]


class Running(beam.DoFn):
    SEEN = BagStateSpec("seen", VarIntCoder())

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        seen.add(1)
        yield len(list(seen.read()))


@pytest.mark.contract("BAT-03", "ENG-11")
@pytest.mark.parametrize("trigger", [None, AfterWatermark(early=AfterCount(100)), Repeatedly(AfterCount(100))])
def test_window_function_with_own_merging(fusion: bool, trigger: Any) -> None:
    mode = AccumulationMode.DISCARDING
    with Driven(shards=3, fusion=fusion) as p:
        windowed = timed(p, map(day, [1, 2, 5, 7, 8, 9])) | beam.WindowInto(
            Quarters(), trigger=trigger, accumulation_mode=mode
        )
        windowed | "group" >> beam.GroupByKey() | beam.MapTuple(in_order) | Collect("grouped")
        windowed | "combine" >> beam.CombinePerKey(max) | Collect("combined")
    assert named(p, "grouped") == [
        ("2024-03", ("k", [day(1), day(2)])),
        ("2024-05", ("k", [day(5)])),
        ("2024-09", ("k", [day(7), day(8), day(9)])),
    ]
    assert named(p, "combined") == [("2024-03", ("k", day(2))), ("2024-05", ("k", day(5))), ("2024-09", ("k", day(9)))]


# Times at the limits.


@pytest.mark.contract("BAT-03")
@pytest.mark.parametrize(
    "windowfn",
    [GlobalWindows(), FixedWindows(10), SlidingWindows(10, 5), Sessions(10)],
    ids=lambda fn: type(fn).__name__,
)
def test_windows_at_limits_of_time(fusion: bool, windowfn: WindowFn) -> None:
    with Driven(fusion=fusion) as p:
        windowed = (
            p
            | beam.Create([MIN_TIMESTAMP, MAX_TIMESTAMP, GlobalWindow().max_timestamp()])
            | beam.Map(lambda time: TimestampedValue(("k", time.micros), time))
            | beam.WindowInto(windowfn)
            | beam.Reshuffle()
        )
        windowed | Collect("before")
        windowed | beam.GroupByKey() | beam.FlatMapTuple(lambda _, times: times) | Collect("after")
    assert {time for time, _, _ in p.windowed("after")} == {time for (_, time), _, _ in p.windowed("before")}
    assert len(p.values("after")) == len(p.values("before")) == 3 * (1 + isinstance(windowfn, SlidingWindows))


@pytest.mark.contract("BAT-03")
@pytest.mark.parametrize(
    "trigger",
    [None, AfterWatermark(early=AfterCount(1)), Repeatedly(AfterCount(2))],
    ids=["default", "early", "every second"],
)
@pytest.mark.parametrize("time", [MAX_TIMESTAMP, GlobalWindow().max_timestamp()], ids=["after", "at"])
def test_session_at_end_of_time(fusion: bool, trigger: Any, time: Any) -> None:
    mode = AccumulationMode.ACCUMULATING if trigger else None
    with Driven(fusion=fusion) as p:
        windowed = (
            p
            | beam.Create([1, 2])
            | beam.Map(lambda n: TimestampedValue(("k", n), time))
            | beam.WindowInto(Sessions(10), trigger=trigger, accumulation_mode=mode)
        )
        windowed | beam.CombinePerKey(sum) | Collect("combined")
        windowed | beam.GroupByKey() | beam.MapTuple(lambda k, v: (k, sum(v))) | Collect("grouped")
        # Combined and grouped again in the resulting session.
        windowed | "1" >> beam.CombinePerKey(sum) | "2" >> beam.CombinePerKey(max) | Collect("again")
    assert p.values("combined")[-1] == p.values("grouped")[-1] == p.values("again")[-1] == ("k", 3)


MICROS = [0.000001, -0.000001, 1.123456, -1.123456]


@pytest.mark.contract("BAT-03", "PLAN-04")
def test_exchange_keeps_microseconds(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        timed(p, MICROS) | beam.Reshuffle() | Collect()
    assert sorted(time for _, time in p.timestamped()) == sorted(MICROS)


@pytest.mark.contract("BAT-03")
@pytest.mark.parametrize("output", [TimestampCombiner.OUTPUT_AT_EARLIEST, TimestampCombiner.OUTPUT_AT_LATEST])
def test_pane_keeps_microseconds(fusion: bool, output: Any) -> None:
    with Driven(fusion=fusion) as p:
        timed(p, MICROS) | beam.WindowInto(GlobalWindows(), timestamp_combiner=output) | beam.GroupByKey() | Collect()
    ((_, time),) = p.timestamped()
    assert time == (min if output == TimestampCombiner.OUTPUT_AT_EARLIEST else max)(MICROS)


@pytest.mark.contract("BAT-03")
def test_windows_of_microseconds(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        timed(p, [0.0001, -0.0001, 0.0004]) | beam.WindowInto(FixedWindows(0.0003)) | beam.GroupByKey() | Collect()
    assert windows_of(p) == [
        (-0.0003, 0, ("k", [-0.0001])),
        (0, 0.0003, ("k", [0.0001])),
        (0.0003, 0.0006, ("k", [0.0004])),
    ]


@pytest.mark.contract("BAT-03", "PLAN-05")
def test_pane_before_1970_stays_in_its_window() -> None:
    with Driven() as p:
        (
            timed(p, [-1, -13])
            | beam.WindowInto(FixedWindows(10))
            | beam.GroupByKey()
            | beam.Reshuffle()
            | "again" >> beam.WindowInto(FixedWindows(5))
            | beam.MapTuple(in_order)
            | Collect()
        )
    assert windows_of(p) == [(-15, -10, ("k", [-13])), (-5, 0, ("k", [-1]))]


# The timestamps of a grouping's outputs.


@pytest.mark.contract("BAT-03", "ENG-11")
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (TimestampCombiner.OUTPUT_AT_EARLIEST, [-13, 1]),
        (TimestampCombiner.OUTPUT_AT_LATEST, [-11, 9]),
        (TimestampCombiner.OUTPUT_AT_EOW, [-10.000001, 9.999999]),
    ],
)
@pytest.mark.parametrize("windowfn", [FixedWindows(10), SlidingWindows(10, 10)])
def test_timestamps_of_groups(output: Any, expected: list[float], windowfn: WindowFn) -> None:
    with Driven(shards=3) as p:
        windowed = timed(p, [1, 9, -13, 4, -11, -12]) | beam.WindowInto(windowfn, timestamp_combiner=output)
        windowed | "group" >> beam.GroupByKey() | beam.MapTuple(in_order) | Collect("grouped")
        windowed | "combine" >> beam.CombinePerKey(sum) | Collect("combined")
    for name, elements in (("grouped", [[-13, -12, -11], [1, 4, 9]]), ("combined", [-36, 14])):
        assert sorted((time, value) for (_, value), time in p.timestamped(name)) == list(
            zip(expected, elements, strict=True)
        )


@pytest.mark.contract("BAT-03", "ENG-11")
def test_timestamps_of_merged_sessions() -> None:
    with Driven(shards=3) as p:
        windowed = timed(p, [1, 4, 7, 30]) | beam.WindowInto(
            Sessions(5), timestamp_combiner=TimestampCombiner.OUTPUT_AT_LATEST
        )
        windowed | "group" >> beam.GroupByKey() | beam.MapTuple(in_order) | Collect("grouped")
        windowed | "combine" >> beam.CombinePerKey(sum) | Collect("combined")
    assert sorted(p.timestamped("grouped")) == [(("k", [1, 4, 7]), 7), (("k", [30]), 30)]
    assert sorted(p.timestamped("combined")) == [(("k", 12), 7), (("k", 30), 30)]


# Consecutive groupings.


@pytest.mark.contract("BAT-03")
def test_second_grouping_in_same_windows() -> None:
    with Driven(shards=3) as p:
        (
            timed(p, [1, 2, 13])
            | beam.WindowInto(FixedWindows(10))
            | "one" >> beam.GroupByKey()
            | beam.MapTuple(in_order)
            | "again" >> beam.WindowInto(FixedWindows(20))
            | "two" >> beam.GroupByKey()
            | "sorted" >> beam.MapTuple(in_order)
            | Collect()
        )
    assert windows_of(p) == [(0, 20, ("k", [[1, 2], [13]]))]


@pytest.mark.contract("BAT-03")
def test_merged_sessions_stay_unchanged(fusion: bool) -> None:
    with Driven(shards=3, fusion=fusion) as p:
        (
            timed(p, [1, 2, 3, 20])
            | beam.WindowInto(Sessions(5))
            | "one" >> beam.GroupByKey()
            | beam.MapTuple(in_order)
            | "two" >> beam.GroupByKey()
            | "sorted" >> beam.MapTuple(in_order)
            | Collect()
        )
    assert windows_of(p) == [(1, 8, ("k", [[1, 2, 3]])), (20, 25, ("k", [[20]]))]


# Transforms that only move elements.


def flattened(p: Any) -> Any:
    parts = [timed(p, [n], str(n)) | f"window {n}" >> beam.WindowInto(FixedWindows(n)) for n in (5, 10)]
    return (*parts,) | beam.Flatten()


@pytest.mark.contract("BAT-03")
def test_flatten_keeps_windows_of_inputs(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        flattened(p) | Collect()
    assert windows_of(p) == [(5, 10, ("k", 5)), (10, 20, ("k", 10))]


@pytest.mark.contract("BAT-03")
def test_flatten_of_interval_and_global_windows(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        parts = (timed(p, [1], "a"), timed(p, [2], "b"))
        windowed = [part | f"w{n}" >> beam.WindowInto(FixedWindows(10)) for n, part in enumerate(parts)]
        windowed | beam.Flatten() | beam.GroupByKey() | beam.MapTuple(in_order) | Collect()
    assert windows_of(p) == [(0, 10, ("k", [1, 2]))]


MOVES = [
    common_urns.composites.RESHUFFLE.urn,
    common_urns.composites.REDISTRIBUTE_ARBITRARILY.urn,
    common_urns.composites.REDISTRIBUTE_BY_KEY.urn,
]
"""The Python SDK has no transforms for the last two, so they are named in protos."""


def with_pane(element: Any, info: Any = beam.DoFn.PaneInfoParam) -> Any:
    return element, info


@pytest.mark.contract("PLAN-04", "BAT-03")
@pytest.mark.parametrize("urn", MOVES)
def test_moved_elements_keep_window_timestamp_and_pane(fusion: bool, urn: str) -> None:
    def rename(proto: Any) -> None:
        for transform in proto.components.transforms.values():
            if transform.spec.urn == common_urns.composites.RESHUFFLE.urn and transform.unique_name.endswith("move"):
                transform.spec.urn = urn

    with Driven(shards=3, fusion=fusion, edit=rename) as p:
        grouped = (
            timed(p, [1, 2, 13])
            | beam.WindowInto(
                SlidingWindows(10, 5),
                trigger=AfterWatermark(early=AfterCount(1)),
                accumulation_mode=AccumulationMode.ACCUMULATING,
                timestamp_combiner=TimestampCombiner.OUTPUT_AT_LATEST,
            )
            | beam.GroupByKey()
            | beam.MapTuple(in_order)
        )
        grouped | "before" >> beam.Map(with_pane) | Collect("before")
        grouped | "move" >> beam.Reshuffle() | "after" >> beam.Map(with_pane) | Collect("after")
    before, after = (sorted(map(repr, p.windowed(name))) for name in ("before", "after"))
    assert before == after
    assert len(after) > 8
    assert Routing.SPREAD in {channel.routing for channel in p.plan.channels}


# Side inputs.


def side(p: Any, times: Iterable[int], windowfn: WindowFn) -> Any:
    return timed(p, times, "side") | "side values" >> beam.Values() | "side windows" >> beam.WindowInto(windowfn)


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize(
    ("main", "other", "times", "expected"),
    [
        # (main windows, side windows): the side window contains the last moment of the main window.
        (FixedWindows(5), FixedWindows(10), [5, 15, 25], [(5, [1, 2]), (15, [11]), (25, [])]),
        (FixedWindows(10), GlobalWindows(), [5, 15], [(5, [1, 2, 11]), (15, [1, 2, 11])]),
        (FixedWindows(10), SlidingWindows(10, 5), [5, 15], [(5, [1, 2]), (15, [11])]),
        (SlidingWindows(10, 5), FixedWindows(10), [5], [(5, [1, 2]), (5, [11])]),
        (SlidingWindows(10, 5), GlobalWindows(), [5], [(5, [1, 2, 11]), (5, [1, 2, 11])]),
        (GlobalWindows(), GlobalWindows(), [5], [(5, [1, 2, 11])]),
        (FixedWindows(10), FixedWindows(10), [-5], [(-5, [])]),
    ],
)
@pytest.mark.parametrize("view", [AsList, AsIter, AsMultiMap])
def test_side_inputs_by_window(
    fusion: bool, main: WindowFn, other: WindowFn, times: list[int], expected: list[Any], view: Any
) -> None:
    with Driven(shards=3, fusion=fusion) as p:
        values = side(p, [1, 2, 11], other)
        if view is AsMultiMap:
            values = values | "keyed" >> beam.Map(lambda value: ("all", value))

        def join(element: Any, found: Any) -> Any:
            return element[1], sorted(found["all"] if view is AsMultiMap else found)

        timed(p, times) | beam.WindowInto(main) | beam.Map(join, view(values)) | Collect()
    assert sorted(p.values()) == sorted(expected)


@pytest.mark.contract("BAT-02")
def test_side_inputs_of_merged_sessions(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        sizes = p | "sizes" >> beam.Create([("a", 1)])
        grouped = timed(p, [5, 6, 15]) | beam.WindowInto(Sessions(3)) | beam.GroupByKey()
        grouped | beam.Map(lambda kv, d, one: (sorted(kv[1]), d, one), AsDict(sizes), AsSingleton(sizes)) | Collect()
    assert sorted(p.values()) == [([5, 6], {"a": 1}, ("a", 1)), ([15], {"a": 1}, ("a", 1))]


@pytest.mark.contract("BAT-02")
def test_side_input_combined_in_its_window(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        sums = side(p, [1, 2, 11], FixedWindows(10)) | beam.CombineGlobally(sum).without_defaults()
        (
            timed(p, [5, 15])
            | beam.WindowInto(FixedWindows(10))
            | beam.Map(lambda kv, x: (kv[1], x), AsSingleton(sums))
            | Collect()
        )
    assert sorted(p.values()) == [(5, 3), (15, 11)]


@pytest.mark.contract("BAT-02")
def test_side_input_in_months(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        days = timed(p, [day(1), day(2)], "days") | "months" >> beam.WindowInto(Months())
        main = timed(p, [day(1, 20), day(2, 20)]) | beam.WindowInto(FixedWindows(DAY))
        main | beam.Map(lambda kv, x: (kv[1], x[1]), AsSingleton(days)) | Collect()
    assert sorted(p.values()) == [(day(1, 20), day(1)), (day(2, 20), day(2))]
