"""Stateful stages: all kinds of state, sorted input, and independence of bundles."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.transforms import window
from apache_beam.transforms.combiners import CountCombineFn
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, SlidingWindows
from apache_beam.utils.timestamp import Timestamp

from arcbeam.harness.batch.batchstage import BoundedStage
from tests.harness.batch.statefulplans import applied, cuts, require_time_sorted, timed
from tests.harness.drive import Collect, Driven

# State.


class Previous(beam.DoFn):
    LAST = ReadModifyWriteStateSpec("last", PickleCoder())

    def process(self, element: Any, last: Any = beam.DoFn.StateParam(LAST)) -> Iterator[Any]:
        key, value = element
        before = last.read()
        if value is None:
            last.clear()
        else:
            last.write(value)
        yield key, before


@pytest.mark.contract("ENG-12")
@cuts
def test_value_is_last_written(shards: int, bundle_elements: int) -> None:
    p = applied(
        Previous(), [("a", 1, 0), ("b", 5, 0), ("a", 2, 0), ("a", None, 0), ("a", 3, 0)], shards, bundle_elements
    )
    assert sorted(p.values(), key=repr) == [("a", 1), ("a", 2), ("a", None), ("a", None), ("b", None)]


class Everything(beam.DoFn):
    """Adds to a bag, a set and a sum; yields all of them for every element."""

    BAG = BagStateSpec("bag", VarIntCoder())
    SET = SetStateSpec("set", VarIntCoder())
    SUM = CombiningValueStateSpec("sum", PickleCoder(), sum)

    def process(
        self,
        element: Any,
        bag: Any = beam.DoFn.StateParam(BAG),
        distinct: Any = beam.DoFn.StateParam(SET),
        total: Any = beam.DoFn.StateParam(SUM),
    ) -> Iterator[Any]:
        key, value = element
        if value < 0:
            for state in (bag, distinct, total):
                state.clear()
        else:
            for state in (bag, distinct, total):
                state.add(value)
        yield key, tuple(bag.read()), tuple(sorted(distinct.read())), total.read()


@pytest.mark.contract("ENG-12")
@cuts
def test_bags_sets_and_combining_state(shards: int, bundle_elements: int) -> None:
    values = [1, 2, 2, -1, 7, 7]
    p = applied(
        Everything(),
        [(key, value, 0) for value in values for key in "ab"],
        shards,
        bundle_elements,
        windowing=FixedWindows(10),
    )
    for key in "ab":
        seen = [row[1:] for row in p.values() if row[0] == key]
        assert seen[:3] == [((1,), (1,), 1), ((1, 2), (1, 2), 3), ((1, 2, 2), (1, 2), 5)]
        assert seen[3:] == [((), (), 0), ((7,), (7,), 7), ((7, 7), (7,), 14)]


class Ordered(beam.DoFn):
    LIST = OrderedListStateSpec("list", StrUtf8Coder())

    def process(self, element: Any, ordered: Any = beam.DoFn.StateParam(LIST)) -> Iterator[Any]:
        key, (what, *arguments) = element
        if what == "add":
            ordered.add((Timestamp(arguments[0]), arguments[1]))
        elif what == "clear":
            ordered.clear()
        elif what == "clear range":
            ordered.clear_range(Timestamp(arguments[0]), Timestamp(arguments[1]))
        elif what == "range":
            found = ordered.read_range(Timestamp(arguments[0]), Timestamp(arguments[1]))
            yield key, [(t.micros // 1_000_000, v) for t, v in found]
        else:
            yield key, [(t.micros // 1_000_000, v) for t, v in ordered.read()]


@pytest.mark.contract("ENG-12")
@cuts
def test_an_ordered_list_by_ranges(shards: int, bundle_elements: int) -> None:
    steps: list[tuple[Any, ...]] = [
        *[("add", t, f"v{t}") for t in (50, 10, 40, -20, 30)],
        ("add", 30, "again"),
        ("read",),
        ("range", 10, 40),
        ("clear range", 10, 31),
        ("read",),
        ("add", 20, "new"),
        ("range", -100, 41),
        ("clear",),
        ("read",),
        ("add", 1, "last"),
        ("read",),
    ]
    p = applied(Ordered(), [("k", step, 0) for step in steps], shards, bundle_elements)
    assert [row for _, row in p.values()] == [
        [(-20, "v-20"), (10, "v10"), (30, "v30"), (30, "again"), (40, "v40"), (50, "v50")],
        [(10, "v10"), (30, "v30"), (30, "again")],
        [(-20, "v-20"), (40, "v40"), (50, "v50")],
        [(-20, "v-20"), (20, "new"), (40, "v40")],
        [],
        [(1, "last")],
    ]


class CountPerWindow(beam.DoFn):
    COUNT = CombiningValueStateSpec("count", CountCombineFn())

    def process(self, element: Any, count: Any = beam.DoFn.StateParam(COUNT), w: Any = beam.DoFn.WindowParam) -> Any:
        count.add(1)
        yield element[0], w.start.micros // 1_000_000, count.read()


@pytest.mark.contract("ENG-12", "BAT-03")
@cuts
def test_state_is_separate_per_key_and_window(shards: int, bundle_elements: int) -> None:
    elements = [(key, t, t) for t in (1, 2, 11, 12, 13) for key in "ab"]
    p = applied(CountPerWindow(), elements, shards, bundle_elements, windowing=FixedWindows(10))
    counts = [(0, 1), (0, 2), (10, 1), (10, 2), (10, 3)]
    assert sorted(p.values()) == [(key, *count) for key in "ab" for count in counts]


@cuts
def test_element_in_several_windows_has_state_in_each(shards: int, bundle_elements: int) -> None:
    p = applied(CountPerWindow(), [("a", 0, 6), ("a", 0, 12)], shards, bundle_elements, windowing=SlidingWindows(10, 5))
    assert sorted(p.values()) == [("a", 0, 1), ("a", 5, 1), ("a", 5, 2), ("a", 10, 1)]


@cuts
def test_equal_keys_of_different_types_differ(shards: int, bundle_elements: int) -> None:
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        (
            p
            | beam.Create([(1, "x"), (True, "x"), (1.0, "x"), (1, "x")])
            | beam.Map(lambda kv: kv).with_output_types(tuple[Any, str])
            | beam.ParDo(CountPerKey())
            | Collect()
        )
    assert sorted(p.values(), key=repr) == [("1", 1), ("1", 2), ("1.0", 1), ("True", 1)]


class CountPerKey(beam.DoFn):
    COUNT = CombiningValueStateSpec("count", CountCombineFn())

    def process(self, element: Any, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterator[Any]:
        count.add(1)
        yield repr(element[0]), count.read()


@cuts
def test_state_of_finished_keys_is_freed(shards: int, bundle_elements: int) -> None:
    handlers: list[Any] = []
    most = [0]

    def watch(stage: BoundedStage) -> None:
        processor: Any = stage.processor
        if processor.root.how.mode == "keyed":
            handlers.append(processor.state)
            extend = processor.state.extend

            def counted(*arguments: Any) -> Any:
                done = extend(*arguments)
                most[0] = max(most[0], len(processor.state.keys()))
                return done

            processor.state.extend = counted

    applied(CountPerWindow(), [(str(n), 0, 0) for n in range(50)], shards, bundle_elements, prepare=watch)
    assert [handler.keys() for handler in handlers] == [[]]
    assert bundle_elements > 1 or most[0] <= 2


# Time-sorted input.


class InOrder(beam.DoFn):
    LAST = ReadModifyWriteStateSpec("last", PickleCoder())

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, last: Any = beam.DoFn.StateParam(LAST)
    ) -> Iterator[Any]:
        before = last.read()
        last.write(at)
        yield element[0], element[1], before is None or before <= at


@pytest.mark.contract("ENG-13")
@cuts
@pytest.mark.parametrize("memory", [128 << 20, 4_000])
def test_time_sorted_input(shards: int, bundle_elements: int, memory: int) -> None:
    chance = random.Random(3)
    elements = [("ab"[n % 2], n, chance.randrange(-50, 50)) for n in range(200)]
    settings = {"edit": require_time_sorted, "group_memory_bytes": memory}
    p = applied(InOrder(), elements, shards, bundle_elements, **settings)
    assert len(p.values()) == 200
    assert all(ordered for _, _, ordered in p.values())
    if shards == 1:
        in_time_then_arrival = [n for key, n, at in sorted(elements, key=lambda e: (e[0], e[2]))]
        assert [n for _, n, _ in sorted(p.values(), key=lambda e: e[0])] == in_time_then_arrival


# Transforms of the SDK with state and timers.


@pytest.mark.contract("ENG-08", "BAT-03")
@cuts
@pytest.mark.parametrize("buffering_seconds", [None, 1_000])
def test_group_into_batches(shards: int, bundle_elements: int, buffering_seconds: float | None) -> None:
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        keyed = p | beam.Create([("ab"[n % 2], n) for n in range(25)])
        keyed | beam.GroupIntoBatches(5, buffering_seconds) | Collect()
    assert sorted((key, len(batch)) for key, batch in p.values()) == [
        *[("a", 3), ("a", 5), ("a", 5)],
        *[("b", 2), ("b", 5), ("b", 5)],
    ]
    assert sorted(n for _, batch in p.values() for n in batch) == list(range(25))


class Buffered(beam.DoFn):
    """Outputs its bag itself, not a copy, after three elements or when a timer fires."""

    BUFFER = BagStateSpec("buffer", StrUtf8Coder())
    FLUSH = TimerSpec("flush", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        at: Any = beam.DoFn.TimestampParam,
        flush: Any = beam.DoFn.TimerParam(FLUSH),
        buffer: Any = beam.DoFn.StateParam(BUFFER),
    ) -> Iterator[Any]:
        buffer.add(element[1])
        held = buffer.read()
        if len(list(held)) >= 3:
            buffer.clear()
            yield held
        else:
            flush.set(at + 0.999)

    @on_timer(FLUSH)
    def on_flush(self, buffer: Any = beam.DoFn.StateParam(BUFFER)) -> Iterator[Any]:
        held = buffer.read()
        buffer.clear()
        yield held


@pytest.mark.contract("ENG-12")
@cuts
@pytest.mark.parametrize("windowing", [window.GlobalWindows(), FixedWindows(1)])
def test_returned_bag_does_not_change(shards: int, bundle_elements: int, windowing: Any) -> None:
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        held = (
            timed(p, [("key", letter, ord(letter) % 2) for letter in "abcdefgh"])
            | beam.WindowInto(windowing)
            | beam.ParDo(Buffered())
        )
        # Through an exchange and a grouping: the bag is encoded long after its state was cleared.
        held | beam.Map(lambda bag: (None, bag)) | beam.GroupByKey() | Collect("grouped")
        held | beam.Reshuffle() | beam.Map(list) | Collect("moved")
    grouped = [list(bag) for _, bags in p.values("grouped") for bag in bags]
    for bags in (grouped, p.values("moved")):
        assert sorted(letter for bag in bags for letter in bag) == list("abcdefgh")
        assert max(map(len, bags)) == 3
