"""Stateful DoFns, key by key: the same results as with the SDK's operation, for all parameters and bundles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsList, TaggedOutput
from apache_beam.transforms.combiners import CountCombineFn, ToListCombineFn
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    StateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, GlobalWindows, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.harness.state.handles import CellHandles, HandleMaker, KeyPlace
from arcbeam.harness.stateful import statefuloperation as stateful
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import Outcome, same

DoFn = beam.DoFn


def numbered(p: Any, elements: int, keys: int, windowing: Any = None) -> Any:
    """Create (key, number), each with its own time, in windows."""
    timed = (
        p
        | beam.Create(range(elements), reshuffle=False)
        | beam.Map(lambda n: TimestampedValue((f"k{n % keys}", n), n % 50)).with_output_types(tuple[str, int])
    )
    return timed if windowing is None else timed | beam.WindowInto(windowing)


# All parameters.


class Everything(beam.DoFn):
    """Uses each kind of state, timers of one domain, and all parameters of `process`, as the elements say."""

    LAST = ReadModifyWriteStateSpec("last", PickleCoder())
    BAG = BagStateSpec("bag", VarIntCoder())
    SET = SetStateSpec("set", VarIntCoder())
    SUM = CombiningValueStateSpec("sum", sum)
    LIST = OrderedListStateSpec("list", StrUtf8Coder())
    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def __init__(self) -> None:
        self.seen = Metrics.counter("stateful", "seen")
        self.fired = Metrics.counter("stateful", "fired")
        self.bundles = Metrics.counter("stateful", "bundles")

    def start_bundle(self) -> None:
        self.bundles.inc(0)

    def process(
        self,
        element: Any,
        extra: int,
        time: Any = DoFn.TimestampParam,
        last: Any = DoFn.StateParam(LAST),
        bag: Any = DoFn.StateParam(BAG),
        distinct: Any = DoFn.StateParam(SET),
        total: Any = DoFn.StateParam(SUM),
        ordered: Any = DoFn.StateParam(LIST),
        timer: Any = DoFn.TimerParam(TIMER),
        window: Any = DoFn.WindowParam,
        key: Any = DoFn.KeyParam,
        pane: Any = DoFn.PaneInfoParam,
        whole: Any = DoFn.WindowedValueParam,
    ) -> Any:
        self.seen.inc()
        value = element[1] + extra
        before = last.read()
        seen = list(bag.read())
        last.write([value])
        bag.add(value)
        distinct.add(value % 3)
        total.add(value)
        ordered.add((Timestamp(value % 5), str(value)))
        if value % 7 == 0:
            for state in (last, bag, distinct, total, ordered):
                state.clear()
            timer.clear("once")
        elif value % 3 == 0:
            timer.set(time + 3, dynamic_timer_tag=["once", "again"][value % 2])
        yield (
            *(element, before, seen, last.read(), sorted(distinct.read()), total.read()),
            # The SDK orders elements of equal times by value within a bundle, by arrival across bundles.
            *(sorted(text for _, text in ordered.read_range(Timestamp(1), Timestamp(4))), repr(window), key),
            *(time.micros, pane.timing, whole.timestamp.micros, repr(whole.windows[0]), whole.value),
        )
        if value % 5 == 0:
            yield TimestampedValue("later", time + 1)
        if value % 11 == 0:
            yield TaggedOutput("other", value)

    @on_timer(TIMER)
    def on_time(
        self,
        key: Any = DoFn.KeyParam,
        tag: Any = DoFn.DynamicTimerTagParam,
        at: Any = DoFn.TimestampParam,
        window: Any = DoFn.WindowParam,
        bag: Any = DoFn.StateParam(BAG),
        timer: Any = DoFn.TimerParam(TIMER),
    ) -> Iterator[Any]:
        self.fired.inc()
        yield "fired", key, tag, at.micros, repr(window), list(bag.read())
        if tag == "once":
            bag.add(-1)
            timer.set(at + 100, dynamic_timer_tag="again")


WINDOWINGS = [GlobalWindows(), FixedWindows(10), SlidingWindows(10, 5)]


@pytest.mark.parametrize("bundle_elements", [1, 3, 500_000])
@pytest.mark.parametrize("windowing", WINDOWINGS, ids=lambda fn: type(fn).__name__)
def test_all_parameters_have_same_values(windowing: Any, bundle_elements: int) -> None:
    def build(p: Driven) -> list[str]:
        made = numbered(p, 120, 7, windowing) | beam.ParDo(Everything(), 1000).with_outputs("other", main="main")
        made["main"] | Collect("main")
        made["other"] | "taken" >> beam.Map(lambda x: x + 1).with_output_types(int) | Collect("other")
        return ["main", "other"]

    on = same(build, bundle_elements=bundle_elements)
    assert on.error is None
    assert len(on.values("other")) > 5
    assert any("fired" in value for value in on.values("main"))


def test_operation_is_ours() -> None:
    kinds: list[Any] = []

    def look(stage: Any) -> None:
        processor = getattr(stage, "processor", stage)
        kinds.extend(type(op) for op in processor.sdk.ops.values())

    with Driven(prepare=look) as p:
        numbered(p, 10, 2) | beam.ParDo(Everything(), 0) | Collect()
    assert StatefulOperation in kinds


class Finalizing(beam.DoFn):
    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(
        self, element: Any, seen: Any = DoFn.StateParam(SEEN), end: Any = DoFn.BundleFinalizerParam
    ) -> Iterator[Any]:
        yield element, seen.read()


def test_sdk_features_use_its_operation() -> None:
    def build(p: Driven) -> None:
        numbered(p, 10, 2) | beam.ParDo(Finalizing()) | Collect()

    assert same(build).error is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 400), st.integers(0, 40)), max_size=60),
    st.sampled_from(WINDOWINGS),
    st.sampled_from([1, 2, 7, 500_000]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_elements(elements: list[tuple[int, int, int]], windowing: Any, bundle_elements: int) -> None:
    def build(p: Driven) -> list[str]:
        made = (
            p
            | beam.Create(elements, reshuffle=False)
            | beam.Map(lambda e: TimestampedValue((e[0], e[1]), e[2])).with_output_types(tuple[int, int])
            | beam.WindowInto(windowing)
            | beam.ParDo(Everything(), 0).with_outputs("other", main="main")
        )
        made["main"] | Collect("main")
        made["other"] | Collect("other")
        return ["main", "other"]

    assert same(build, bundle_elements=bundle_elements).error is None


def test_key_larger_than_memory_among_many_keys() -> None:
    def build(p: Driven) -> None:
        elements = [("hot", n) for n in range(6000)] + [(f"k{n % 700}", n) for n in range(2000)]
        (
            p
            | beam.Create(elements, reshuffle=False)
            | beam.Map(lambda e: e).with_output_types(tuple[str, int])
            | beam.ParDo(Ordinal())
            | Collect()
        )

    on = same(build, group_memory_bytes=20_000)
    assert on.error is None
    assert "tuple(str:'hot', int:6000)" in on.values()


class Ordinal(beam.DoFn):
    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: Any, seen: Any = DoFn.StateParam(SEEN)) -> Iterator[Any]:
        ordinal = (seen.read() or 0) + 1
        seen.write(ordinal)
        yield element[0], ordinal


class Many(beam.DoFn):
    """Yields more than a block, of various sizes; returns lists, tuples, None."""

    SEEN = CombiningValueStateSpec("seen", CountCombineFn())

    def process(self, element: Any, seen: Any = DoFn.StateParam(SEEN)) -> Any:
        seen.add(1)
        n = element[1]
        match n % 5:
            case 0:
                return None
            case 1:
                return [n] * (n % 400)
            case 2:
                return (str(n), None)
            case 3:
                return iter(range(10_000)) if n == 3 else {n: 1}.keys()
        return (("x" * (n % 300), seen.read()) for _ in range(n % 700))


@pytest.mark.parametrize("windowing", [None, FixedWindows(10)], ids=["global", "fixed"])
def test_outputs_of_any_number_and_kind(windowing: Any) -> None:
    def build(p: Driven) -> None:
        numbered(p, 300, 5, windowing) | beam.ParDo(Many()).with_output_types(Any) | Collect()

    assert same(build).error is None


class Adds(beam.DoFn):
    SUM = CombiningValueStateSpec("sum", sum)

    def process(self, element: Any, more: Any, total: Any = DoFn.StateParam(SUM), *, times: int = 1) -> Iterator[Any]:
        total.add(element[1] * times + sum(more))
        yield element[0], total.read()


def test_side_inputs_and_arguments_by_name() -> None:
    def build(p: Driven) -> None:
        # SUBTLE: the SDK takes any of the inputs for the main one, which must contain pairs or any type.
        more = p | "more" >> beam.Create([1, 2, 3]).with_output_types(Any)
        numbered(p, 60, 4) | beam.ParDo(Adds(), AsList(more), times=3) | Collect()

    assert same(build).error is None


# Lifecycle, errors.


class CountingFn(CountCombineFn):
    """A CombineFn that records its setup and teardown."""

    calls: list[str]

    def setup(self) -> None:
        CALLS.append("setup")

    def teardown(self) -> None:
        CALLS.append("teardown")


CALLS: list[str] = []


class CountsWithLife(beam.DoFn):
    COUNT = CombiningValueStateSpec("count", CountingFn())

    def setup(self) -> None:
        CALLS.append("setup of the DoFn")

    def process(self, element: Any, count: Any = DoFn.StateParam(COUNT)) -> Iterator[Any]:
        count.add(1)
        yield element[0], count.read()

    def teardown(self) -> None:
        CALLS.append("teardown of the DoFn")


def test_combine_fns_are_set_up_and_torn_down() -> None:
    CALLS.clear()
    with Driven(shards=1) as p:
        numbered(p, 20, 3) | beam.ParDo(CountsWithLife()) | Collect()
    assert CALLS == ["setup of the DoFn", "setup", "teardown", "teardown of the DoFn"]
    assert max(count for _, count in p.values()) == 7


class WritesText(beam.DoFn):
    SEEN = ReadModifyWriteStateSpec("seen", VarIntCoder())

    def process(self, element: Any, seen: Any = DoFn.StateParam(SEEN)) -> None:
        seen.write("text" if element[1] == 17 else element[1])


@pytest.mark.parametrize("bundle_elements", [1, 500_000])
@pytest.mark.parametrize("ours", [True, False])
def test_error_names_value_state_and_transform(ours: bool, bundle_elements: int) -> None:
    with pytest.raises(CoderError) as caught, Driven(value_chains=ours, bundle_elements=bundle_elements) as p:
        numbered(p, 20, 20) | "Writes" >> beam.ParDo(WritesText()) | Collect()
    text, _, _ = str(caught.value).partition("\n")
    assert text == (
        "VarIntCoderImpl cannot encode 'text' for state 'seen': TypeError: an integer is required "
        "[while running 'Writes']"
    )


class Fails(beam.DoFn):
    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def __init__(self, where: str) -> None:
        self.where = where

    def process(self, element: Any, timer: Any = DoFn.TimerParam(TIMER)) -> Any:
        timer.set(5)
        if element[1] == 7:
            if self.where == "process":
                raise ValueError("no")
            if self.where == "text":
                return "text"
            if self.where == "lazily":
                return (1 // n for n in range(3, -1, -1))
        return None

    @on_timer(TIMER)
    def on_timer(self) -> None:
        if self.where == "timer":
            raise KeyError("no")


@pytest.mark.parametrize("where", ["process", "text", "lazily", "timer"])
def test_errors_name_transform(where: str) -> None:
    def build(p: Driven) -> None:
        elements = [("k", 7)] if where == "text" else [("k", 1), ("k", 7)]
        keyed = p | beam.Create(elements) | beam.Map(lambda e: e).with_output_types(tuple[str, int])
        keyed | "Fails" >> beam.ParDo(Fails(where)).with_output_types(Any) | Collect()

    assert "[while running 'Fails']" in same(build).error[1]


def test_elements_in_any_order_are_processed() -> None:
    """As an SDK operation would pass them: not key by key."""
    put: list[Any] = []

    def shuffle(stage: Any) -> None:
        processor = getattr(stage, "processor", stage)
        if processor.root.how.mode != "keyed":
            return
        driver = stage.input
        keys, emit = driver._keys, processor.bundles.emit_block
        keys.enter = lambda key, encoded, again: None
        keys.put = lambda key, block: put.append(block.with_values([(key, value) for value in block.values]))
        keys.leave = lambda key, encoded, done: None

        def settle() -> None:
            for place in range(5):
                for block in put:
                    if place < len(block):
                        emit(block.slice(place, place + 1))
            processor.bundles.close()

        keys.settle = settle

    with Driven(shards=1, prepare=shuffle) as p:
        numbered(p, 20, 4) | beam.ParDo(Ordinal()) | Collect()
    assert sorted(p.values()) == sorted((f"k{key}", n) for key in range(4) for n in range(1, 6))


# Handles compared with the SDK's.

_SPECS: list[tuple[StateSpec, tuple[str, ...]]] = [
    (ReadModifyWriteStateSpec("value", PickleCoder()), ("read", "write", "clear")),
    (BagStateSpec("bag", VarIntCoder()), ("read", "add", "clear")),
    (SetStateSpec("set", PickleCoder()), ("read", "add", "clear")),
    (CombiningValueStateSpec("sum", sum), ("read", "add", "clear")),
    (CombiningValueStateSpec("list", ToListCombineFn()), ("read", "add", "clear")),
]


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else list(value) if hasattr(value, "__iter__") else value


@pytest.mark.parametrize("spec", range(len(_SPECS)), ids=[spec.name for spec, _ in _SPECS])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_handle_behaves_like_sdk(spec: int, data: Any) -> None:
    state_spec, calls = _SPECS[spec]
    ours, theirs = InProcessStateHandler({}, None), InProcessStateHandler({}, None)
    context: Any = stateful.bundle_processor.FnApiUserStateContext(
        theirs, "t", StrUtf8Coder(), GlobalWindows().get_window_coder()
    )
    cells = CellHandles(ours, "t", StrUtf8Coder().get_impl().encode_nested, GlobalWindows().get_window_coder().encode)
    maker, fresh, given_out = HandleMaker(), True, list[Any]()
    place = KeyPlace(cells, "key", None, fresh=fresh)
    handle: Any = maker.make(state_spec, place)
    for call in data.draw(st.lists(st.sampled_from([*calls, *calls[:2], "commit"]), max_size=25)):
        sdk = context.get_state(state_spec, "key", None)
        if call == "commit":
            context.commit()
            context.reset()
            handle.commit(keep=True)
            handle = maker.make(state_spec, KeyPlace(cells, "key", None, fresh=False))
        elif call == "read":
            read = handle.read()
            assert _plain(read) == _plain(sdk.read())
            given_out.append((read, _plain(read)))
        elif call == "clear":
            handle.clear()
            sdk.clear()
        else:
            value = data.draw(st.integers(0, 3))
            getattr(handle, call)(value)
            getattr(sdk, call)(value)
    # Values that were read do not change.
    assert all(_plain(read) == then for read, then in given_out)


def test_dropped_state_is_checked_but_not_stored() -> None:
    handler = InProcessStateHandler({}, None)
    cells = CellHandles(
        handler, "t", StrUtf8Coder().get_impl().encode_nested, GlobalWindows().get_window_coder().encode
    )
    bag: Any = HandleMaker().make(BagStateSpec("bag", VarIntCoder()), KeyPlace(cells, "k", None, fresh=True))
    bag.add(1)
    bag.commit(keep=False)
    assert handler.keys() == []
    bag.add("two")
    with pytest.raises(CoderError, match="'two' for state 'bag'"):
        bag.commit(keep=False)


def test_all_ways_of_running_have_same_outcome() -> None:
    """All divisions of the same input."""

    def outcome(**ways: Any) -> list[str]:
        def build(p: Driven) -> None:
            made = numbered(p, 400, 11, FixedWindows(10)) | beam.ParDo(Everything(), 0).with_outputs("other", main="m")
            made["m"] | Collect()

        seen: Outcome = same(build, **ways)
        return seen.values()

    ways: list[dict[str, Any]] = [{"shards": 1}, {"shards": 7}, {"group_memory_bytes": 2_000}, {"bundle_elements": 5}]
    first, *others = [outcome(**way) for way in ways]
    assert all(other == first for other in others)
