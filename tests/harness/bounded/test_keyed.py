"""Stateful stages: state of every kind, timers of both domains, and that the cutting of bundles does not show."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
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
from apache_beam.transforms.window import FixedWindows, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from arcbeam.harness.bounded.boundedstage import BoundedStage
from arcbeam.harness.bounded.keyed import KeyedInput
from tests.harness.drive import Collect, Driven

CUTS = [(1, 500_000), (1, 1), (2, 3), (7, 1)]
"""Ways of cutting: (shards, elements in a bundle)."""

cuts = pytest.mark.parametrize(("shards", "bundle_elements"), CUTS)

NOW = 1_700_000_000
"""Seconds since 1970 at which the virtual clock starts."""


class VirtualClock:
    """A clock that moves only when somebody waits for it."""

    def __init__(self) -> None:
        self.micros = NOW * 1_000_000
        self.waits: list[float] = []

    def now(self) -> int:
        return self.micros

    def wait_until(self, due: int) -> None:
        assert due > self.micros
        self.micros = due
        self.waits.append(due / 1e6 - NOW)

    def install(self, stage: BoundedStage) -> None:
        if stage.processor.root.how.mode == "keyed":
            stage.input = KeyedInput(stage.processor, self)


def timed(p: Any, elements: Iterable[tuple[Any, Any, float]]) -> Any:
    """(key, value) at a time, in this order."""
    return (
        p
        | beam.Create(list(elements), reshuffle=False)
        | "At its time" >> beam.Map(lambda e: TimestampedValue((e[0], e[1]), e[2])).with_output_types(tuple[str, Any])
    )


def applied(
    do_fn: beam.DoFn,
    elements: Iterable[tuple[Any, Any, float]],
    shards: int = 1,
    bundle_elements: int = 500_000,
    windowing: Any = None,
    **settings: Any,
) -> Driven:
    """A finished pipeline of one stateful DoFn."""
    with Driven(shards=shards, bundle_elements=bundle_elements, **settings) as p:
        keyed = timed(p, elements)
        if windowing is not None:
            keyed = keyed | beam.WindowInto(windowing)
        keyed | beam.ParDo(do_fn) | Collect()
    return p


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
def test_a_value_is_what_was_last_written(shards: int, bundle_elements: int) -> None:
    p = applied(
        Previous(), [("a", 1, 0), ("b", 5, 0), ("a", 2, 0), ("a", None, 0), ("a", 3, 0)], shards, bundle_elements
    )
    assert sorted(p.values(), key=repr) == [("a", 1), ("a", 2), ("a", None), ("a", None), ("b", None)]


class Everything(beam.DoFn):
    """Adds to a bag, a set, a sum; yields all of them on every element."""

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
def test_state_belongs_to_key_and_window(shards: int, bundle_elements: int) -> None:
    elements = [(key, t, t) for t in (1, 2, 11, 12, 13) for key in "ab"]
    p = applied(CountPerWindow(), elements, shards, bundle_elements, windowing=FixedWindows(10))
    counts = [(0, 1), (0, 2), (10, 1), (10, 2), (10, 3)]
    assert sorted(p.values()) == [(key, *count) for key in "ab" for count in counts]


@cuts
def test_an_element_in_several_windows_has_state_in_each(shards: int, bundle_elements: int) -> None:
    p = applied(CountPerWindow(), [("a", 0, 6), ("a", 0, 12)], shards, bundle_elements, windowing=SlidingWindows(10, 5))
    assert sorted(p.values()) == [("a", 0, 1), ("a", 5, 1), ("a", 5, 2), ("a", 10, 1)]


@cuts
def test_equal_keys_of_different_types_are_different_keys(shards: int, bundle_elements: int) -> None:
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


# Event-time timers.


class Script(beam.DoFn):
    """Elements are what to do with timers: ("set", family, tag, at) or ("clear", family, tag). Yields what fires."""

    A = TimerSpec("a", TimeDomain.WATERMARK)
    B = TimerSpec("b", TimeDomain.WATERMARK)
    FIRED = BagStateSpec("fired", StrUtf8Coder())

    def process(
        self, element: Any, a: Any = beam.DoFn.TimerParam(A), b: Any = beam.DoFn.TimerParam(B)
    ) -> Iterator[Any]:
        key, (what, family, tag, *at) = element
        timer = {"a": a, "b": b}[family]
        if what == "set":
            timer.set(Timestamp.of(at[0]), dynamic_timer_tag=tag)
        else:
            timer.clear(dynamic_timer_tag=tag)
        yield key, what

    @on_timer(A)
    def on_a(self, key: Any = beam.DoFn.KeyParam, tag: Any = beam.DoFn.DynamicTimerTagParam) -> Iterator[Any]:
        yield key, f"a{tag}"

    @on_timer(B)
    def on_b(self, key: Any = beam.DoFn.KeyParam, tag: Any = beam.DoFn.DynamicTimerTagParam) -> Iterator[Any]:
        yield key, f"b{tag}"


def fired(p: Driven, key: str = "k") -> list[tuple[Any, float]]:
    """What a key fired, and when, in order."""
    return [(value[1], at) for value, at in p.timestamped() if value[0] == key and value[1] not in ("set", "clear")]


@pytest.mark.contract("ENG-04", "ENG-12")
@cuts
def test_data_first_then_timers_by_timestamp(shards: int, bundle_elements: int) -> None:
    steps = [
        ("set", "a", "1", 30),
        ("set", "b", "1", 10),
        ("set", "a", "2", 20),
        ("set", "b", "2", -5),
        ("set", "a", "", 15),
    ]
    p = applied(Script(), [(key, step, 0) for step in steps for key in ("k", "l", "m")], shards, bundle_elements)
    for key in ("k", "l", "m"):
        assert [what for k, what in p.values() if k == key][:5] == ["set"] * 5
        assert fired(p, key) == [("b2", -5), ("b1", 10), ("a", 15), ("a2", 20), ("a1", 30)]


@pytest.mark.contract("ENG-12")
@cuts
def test_the_last_word_on_a_timer_counts(shards: int, bundle_elements: int) -> None:
    steps = [
        ("set", "a", "x", 30),
        ("set", "a", "x", 10),
        ("set", "a", "y", 20),
        ("clear", "a", "y"),
        ("set", "a", "z", 5),
        ("clear", "a", "z"),
        ("set", "a", "z", 40),
        ("clear", "b", "never set"),
        ("set", "b", "x", 7),
        ("clear", "a", "other"),
    ]
    p = applied(Script(), [("k", step, 0) for step in steps], shards, bundle_elements)
    assert fired(p) == [("bx", 7), ("ax", 10), ("az", 40)]


@cuts
def test_a_timer_belongs_to_a_window(shards: int, bundle_elements: int) -> None:
    elements = [("k", ("set", "a", "x", 100), 1), ("k", ("set", "a", "x", 50), 11), ("k", ("clear", "a", "x"), 21)]
    p = applied(Script(), elements, shards, bundle_elements, windowing=FixedWindows(10))
    starts = [(w.start, at) for (_, what), at, w in p.windowed() if what == "ax"]
    assert starts == [(10, Timestamp(50)), (0, Timestamp(100))]


class Looping(beam.DoFn):
    """Counts down by firing itself; on the way sets a timer that is earlier than the next of the loop."""

    LEFT = ReadModifyWriteStateSpec("left", VarIntCoder())
    LOOP = TimerSpec("loop", TimeDomain.WATERMARK)
    BETWEEN = TimerSpec("between", TimeDomain.WATERMARK)

    def process(
        self, element: Any, left: Any = beam.DoFn.StateParam(LEFT), loop: Any = beam.DoFn.TimerParam(LOOP)
    ) -> None:
        left.write(element[1])
        loop.set(10)

    @on_timer(LOOP)
    def on_loop(
        self,
        at: Any = beam.DoFn.TimestampParam,
        left: Any = beam.DoFn.StateParam(LEFT),
        loop: Any = beam.DoFn.TimerParam(LOOP),
        between: Any = beam.DoFn.TimerParam(BETWEEN),
    ) -> Iterator[Any]:
        yield "k", f"loop {left.read()}"
        left.write(left.read() - 1)
        if left.read():
            loop.set(at + 10)
            between.set(at + 5)

    @on_timer(BETWEEN)
    def on_between(self, left: Any = beam.DoFn.StateParam(LEFT)) -> Iterator[Any]:
        yield "k", f"between {left.read()}"


@pytest.mark.contract("ENG-04", "ENG-12")
@cuts
def test_timers_that_set_timers_until_they_stop(shards: int, bundle_elements: int) -> None:
    p = applied(Looping(), [("k", 3, 0)], shards, bundle_elements)
    assert fired(p) == [("loop 3", 10), ("between 2", 15), ("loop 2", 20), ("between 1", 25), ("loop 1", 30)]


def test_a_timer_at_the_end_of_time_fires() -> None:
    end = MAX_TIMESTAMP.micros / 1e6
    p = applied(Script(), [("k", ("set", "a", "last", MAX_TIMESTAMP), 0)])
    assert fired(p) == [("alast", end)]


class AtWindowEnd(beam.DoFn):
    VALUES = BagStateSpec("values", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        w: Any = beam.DoFn.WindowParam,
        values: Any = beam.DoFn.StateParam(VALUES),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        values.add(element[1])
        end.set(w.end)

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, values: Any = beam.DoFn.StateParam(VALUES)) -> Iterator[Any]:
        yield key, sum(values.read())


@pytest.mark.contract("ENG-08", "ENG-12", "BAT-03")
@cuts
def test_sums_at_the_end_of_each_window_feed_a_grouping(shards: int, bundle_elements: int) -> None:
    chance = random.Random(7)
    elements = [(f"k{chance.randrange(20)}", chance.randrange(100), chance.randrange(60)) for _ in range(150)]
    with Driven(shards=shards, bundle_elements=bundle_elements) as p:
        sums = timed(p, elements) | beam.WindowInto(FixedWindows(10)) | beam.ParDo(AtWindowEnd())
        sums | Collect("sums")
        sums | beam.Map(lambda kv: (kv[0][-1], kv[1])) | beam.CombinePerKey(sum) | Collect("by last digit")
    expected: dict[Any, int] = {}
    digits: dict[Any, int] = {}
    for key, value, at in elements:
        start = at // 10 * 10
        expected[key, start] = expected.get((key, start), 0) + value
        digits[key[-1], start] = digits.get((key[-1], start), 0) + value
    assert {(k, int(w.start)): v for (k, v), _, w in p.windowed("sums")} == expected
    assert {(k, int(w.start)): v for (k, v), _, w in p.windowed("by last digit")} == digits
    assert all(at == w.end for _, at, w in p.windowed("sums"))


# Processing-time timers.


class Later(beam.DoFn):
    """Elements are delays in seconds of a processing-time timer, by tag; None clears it."""

    LATER = TimerSpec("later", TimeDomain.REAL_TIME)
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    SEEN = BagStateSpec("seen", PickleCoder())

    def process(
        self,
        element: Any,
        later: Any = beam.DoFn.TimerParam(LATER),
        event: Any = beam.DoFn.TimerParam(EVENT),
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> None:
        _, (tag, delay) = element
        seen.add(tag)
        if tag == "event":
            event.set(delay)
        elif delay is None:
            later.clear(dynamic_timer_tag=tag)
        else:
            later.set(NOW + delay, dynamic_timer_tag=tag)

    @on_timer(LATER)
    def on_later(
        self,
        key: Any = beam.DoFn.KeyParam,
        tag: Any = beam.DoFn.DynamicTimerTagParam,
        seen: Any = beam.DoFn.StateParam(SEEN),
        later: Any = beam.DoFn.TimerParam(LATER),
        event: Any = beam.DoFn.TimerParam(EVENT),
    ) -> Iterator[Any]:
        yield key, tag, len(list(seen.read()))
        if tag == "again":
            later.set(NOW + 100, dynamic_timer_tag="last")
            event.set(77)

    @on_timer(EVENT)
    def on_event(self, key: Any = beam.DoFn.KeyParam, later: Any = beam.DoFn.TimerParam(LATER)) -> Iterator[Any]:
        yield key, "event", 0
        later.clear(dynamic_timer_tag="cleared by event")


@pytest.mark.contract("ENG-12", "BAT-03")
@pytest.mark.parametrize("bundle_elements", [1, 3, 500_000])
def test_processing_time_timers_fire_by_due_time_over_all_keys(bundle_elements: int) -> None:
    clock = VirtualClock()
    elements = [
        ("a", ("x", 30), 5),
        ("b", ("x", 10), 6),
        ("b", ("again", 20), 7),
        ("c", ("x", 5), 8),
        ("c", ("x", None), 8),
        ("d", ("past", -5), 9),
        ("e", ("cleared by event", 50), 9),
        ("e", ("event", 3), 9),
    ]
    p = applied(Later(), elements, 1, bundle_elements, prepare=clock.install)
    assert clock.waits == [10, 20, 30, 100]
    early = [(value, at) for value, at in p.timestamped() if value[0] in "de"]
    assert sorted(early) == [(("d", "past", 1), 9), (("e", "event", 0), 3)]
    late = [(value, at) for value, at in p.timestamped() if value[0] in "abc"]
    # Timestamps of outputs are event times: those of the elements that set the timers.
    assert late == [
        (("b", "x", 2), 6),
        (("b", "again", 2), 7),
        (("b", "event", 0), 77),
        (("a", "x", 1), 5),
        (("b", "last", 2), 7),
    ]


def test_a_timer_of_the_real_clock_does_not_fire_before_its_time() -> None:
    p = applied(NotBefore(), [(key, 0.05, 0) for key in "abc"])
    assert sorted(p.values()) == [("a", True), ("b", True), ("c", True)]


class NotBefore(beam.DoFn):
    DUE = ReadModifyWriteStateSpec("due", PickleCoder())
    LATER = TimerSpec("later", TimeDomain.REAL_TIME)

    def process(
        self, element: Any, due: Any = beam.DoFn.StateParam(DUE), later: Any = beam.DoFn.TimerParam(LATER)
    ) -> None:
        due.write(Timestamp.now() + element[1])
        later.set(due.read())

    @on_timer(LATER)
    def on_later(self, key: Any = beam.DoFn.KeyParam, due: Any = beam.DoFn.StateParam(DUE)) -> Iterator[Any]:
        yield key, Timestamp.now() >= due.read()


# Time-sorted input.


class InOrder(beam.DoFn):
    LAST = ReadModifyWriteStateSpec("last", PickleCoder())

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, last: Any = beam.DoFn.StateParam(LAST)
    ) -> Iterator[Any]:
        before = last.read()
        last.write(at)
        yield element[0], element[1], before is None or before <= at


def require_time_sorted(proto: Any) -> None:
    """Sets the requirement on every stateful DoFn of a pipeline."""
    for transform in proto.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
            if payload.state_specs:
                payload.requires_time_sorted_input = True
                transform.spec.payload = payload.SerializeToString()
    proto.requirements.append(common_urns.requirements.REQUIRES_TIME_SORTED_INPUT.urn)


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


# What the SDK builds on state and timers.


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
    """Hands out its bag itself, not a copy of it, three at a time or when a timer fires."""

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
def test_a_bag_that_was_handed_out_stays_what_it_was(shards: int, bundle_elements: int, windowing: Any) -> None:
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
