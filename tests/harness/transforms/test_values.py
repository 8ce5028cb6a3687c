"""Value chains: a pipeline has equal results with and without them, for all kinds of transforms."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    IntervalWindow,
    Sessions,
    SlidingWindows,
    TimestampedValue,
)
from apache_beam.utils.timestamp import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import exact, same
from tests.harness.transforms.recipes import Counting, LateCounting, Looking, check, numbers, pipelines


@pytest.mark.contract("PLAN-05")
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(pipelines, st.sampled_from([500_000, 3, 1]), st.sampled_from([1, 2, 3]), st.booleans())
def test_value_chains_do_not_change_results(pipeline: Any, bundle_elements: int, shards: int, eager: bool) -> None:
    check(pipeline, bundle_elements, shards, eager=eager)


# All kinds of functions.


class Adder:
    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, x: int) -> int:
        return x + self.n

    def add(self, x: int) -> int:
        return x + self.n

    def both(self, x: int) -> list[int]:
        return [x, x + self.n]

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    @classmethod
    def named(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


@pytest.mark.parametrize(
    "fn",
    [
        str,
        repr,
        bool,
        (40).__sub__,
        {3: "three", 5: None}.get,
        Adder(5),
        Adder(5).add,
        Adder.double,
        Adder.named,
        functools.partial(max, 20),
        lambda x, *more, **others: (x, more, others),
        lambda x, *, more=5: (x, more),
    ],
)
def test_all_kinds_of_functions(fn: Any) -> None:
    def build(p: Any) -> None:
        source = numbers(p)
        source | "map" >> beam.Map(fn).with_output_types(Any) | Collect("map")
        source | "filter" >> beam.Filter(fn).with_output_types(Any) | Collect("filter")

    outcome = same(build, ["map", "filter"])
    assert outcome.error is None
    assert outcome.values("map") == sorted(exact(fn(x)) for x in range(40))
    assert outcome.values("filter") == sorted(exact(x) for x in range(40) if fn(x))


@pytest.mark.parametrize(
    "fn", [lambda x: range(x % 4), Adder(5).both, lambda x: "ab"[: x % 3], {3: [1, 2]}.get, lambda x: iter([x])]
)
def test_all_kinds_of_functions_after_reshuffle(fn: Any) -> None:
    outcome = same(lambda p: numbers(p) | beam.FlatMap(fn).with_output_types(Any) | Collect())
    assert outcome.values() == sorted(exact(each) for x in range(40) for each in fn(x) or ())


def test_methods_of_types() -> None:
    def build(p: Any) -> None:
        words = p | beam.Create(["a b", "c", ""]) | beam.Reshuffle()
        words | "upper" >> beam.Map(str.upper) | Collect("upper")
        words | "len" >> beam.Map(len) | Collect("len")
        words | "split" >> beam.FlatMap(str.split) | Collect("split")
        words | "filter" >> beam.Filter(str.isalpha) | Collect("filter")

    outcome = same(build, ["upper", "len", "split", "filter"])
    assert outcome.values("upper") == sorted(map(exact, ["A B", "C", ""]))
    assert outcome.values("len") == sorted(map(exact, [3, 1, 0]))
    assert outcome.values("split") == sorted(map(exact, ["a", "b", "c"]))
    assert outcome.values("filter") == [exact("c")]


# Order and memory.


def test_elements_are_collected_in_order() -> None:
    with Driven(shards=1) as p:
        source = p | beam.Create(range(1000), reshuffle=False)
        looked = source | beam.ParDo(Looking()) | "first" >> beam.Map(lambda looked: looked[0])
        looked | "spread" >> beam.FlatMap(lambda x: [x, -x]) | "some" >> beam.Filter(lambda x: x % 3) | Collect()
    assert p.values() == [y for x in range(1000) for y in (x, -x) if y % 3]


def test_values_keep_order_among_special_outputs() -> None:
    with Driven(shards=1) as p:
        source = p | beam.Create(range(2000), reshuffle=False)
        timed = source | "timed" >> beam.Map(lambda x: TimestampedValue(x, x) if x // 300 % 2 and x % 40 == 0 else x)
        timed | "next" >> beam.Map(lambda x: x) | Collect()
    assert p.values() == list(range(2000))


@pytest.mark.contract("BAT-03")
def test_large_output_has_time_and_window_of_input() -> None:
    def build(p: Any) -> None:
        # Blocks of several elements come only after the first few elements.
        source = p | beam.Create([*([0] * 40), *range(9)], reshuffle=False)
        timed = source | "timed" >> beam.Map(lambda x: TimestampedValue(x, x))
        more = timed | "more" >> beam.FlatMap(lambda x: [x] * 5) | beam.WindowInto(FixedWindows(2))
        more | "many" >> beam.FlatMap(lambda x: ((x, n) for n in range(40 * x))) | Collect()

    outcome = same(build, shards=1)
    for value, time, window in outcome.seen[""]:
        x = int(value.removeprefix("tuple(int:").split(",")[0])
        assert (time, window) == (x * 1_000_000, repr(IntervalWindow(x // 2 * 2, x // 2 * 2 + 2)))
    assert sum(outcome.seen[""].values()) == 5 * 40 * 36


@pytest.mark.contract("BAT-03")
@pytest.mark.parametrize(
    "windowfn",
    [
        FixedWindows(3),
        FixedWindows(3, 1),
        FixedWindows(2.5, 0.25),
        SlidingWindows(6, 3),
        SlidingWindows(6, 3, 1),
        SlidingWindows(5, 3, 1),
        SlidingWindows(2, 5, 1),
        Sessions(2),
        GlobalWindows(),
    ],
    ids=lambda fn: f"{type(fn).__name__} {getattr(fn, 'size', '')} {getattr(fn, 'offset', '')}",
)
def test_times_have_correct_windows(windowfn: Any) -> None:
    def build(p: Any) -> None:
        source = p | beam.Create(range(-60, 120), reshuffle=False)
        timed = source | "timed" >> beam.Map(lambda x: TimestampedValue(x, x / 4))
        into = timed | "into" >> beam.WindowInto(windowfn)
        into | Collect("into")
        into | "again" >> beam.Map(lambda x: TimestampedValue(x, x / 4 + 1)) | Collect("again")
        into | "twice" >> beam.WindowInto(FixedWindows(7, 2)) | Collect("twice")

    outcome = same(build, ["into", "again", "twice"], shards=1)
    assert outcome.error is None
    for value, micros, window in outcome.seen["into"]:
        at = Timestamp(micros=micros)
        assert exact(int(at.micros / 250_000)) == value
        assert window in map(repr, windowfn.assign(windowfn.AssignContext(at)))


class Flow:
    """Records the maximum number of live elements."""

    def __init__(self) -> None:
        self.on_the_way = self.most = 0

    def made(self, value: Any) -> Any:
        self.on_the_way += 1
        self.most = max(self.most, self.on_the_way)
        return value

    def taken(self, value: Any) -> int:
        self.on_the_way -= 1
        return len(value)


flow = Flow()


def make(count_and_size: tuple[int, int]) -> Iterator[bytes]:
    count, size = count_and_size
    return (flow.made(bytes(size)) for _ in range(count))


def make_one(_: int) -> bytes:
    made: bytes = flow.made(bytes(1 << 20))
    return made


def take(value: bytes) -> int:
    return flow.taken(value)


@pytest.mark.contract("BAT-01")
@pytest.mark.parametrize(("count", "size", "most"), [(20_000, 1, 4_400), (60, 1 << 20, 9), (20, 8 << 20, 3)])
@pytest.mark.parametrize("looking", [False, True])
def test_outputs_of_generator_are_never_held_together(count: int, size: int, most: int, looking: bool) -> None:
    flow.__init__()  # type: ignore[misc]
    with Driven(shards=1) as p:
        made = p | beam.Create([(count, size)], reshuffle=False) | beam.FlatMap(make).with_output_types(bytes)
        if looking:
            made |= "look" >> beam.Map(lambda x, time=beam.DoFn.TimestampParam: x).with_output_types(bytes)
        made |= "same" >> beam.Filter(lambda x: True)
        made | "taken" >> beam.Map(take) | Collect()
    assert p.values() == [size] * count
    assert flow.most <= most


@pytest.mark.contract("BAT-01")
def test_large_elements_do_not_accumulate() -> None:
    flow.__init__()  # type: ignore[misc]
    with Driven(shards=1) as p:
        made = p | beam.Create(range(300), reshuffle=False) | beam.Map(make_one)
        made | "taken" >> beam.Map(take) | Collect()
    assert len(p.values()) == 300
    assert flow.most <= 9


@pytest.mark.parametrize("steps", [70, 120, 200])
def test_many_consecutive_transforms(steps: int) -> None:
    def build(p: Any) -> None:
        pcoll = p | beam.Create(range(20), reshuffle=False)
        for n in range(steps):
            pcoll |= f"step {n}" >> (beam.Map(lambda x: x + 1) if n % 2 else beam.FlatMap(lambda x: [x + 1]))
        pcoll | Collect()

    outcome = same(build)
    assert outcome.error is None
    assert outcome.values() == sorted(exact(x + steps) for x in range(20))


# Metrics.


def test_counts_are_exact_and_sizes_approximate() -> None:
    def build(p: Any) -> None:
        # The SDK samples the first elements more often than others, so sizes must not depend on the place.
        words = p | beam.Create(range(3000), reshuffle=False) | beam.Map(lambda x: "x" * (50 + 37 * x % 101))
        words | beam.FlatMap(lambda x: [x, x]) | "some" >> beam.Filter(lambda x: len(x) % 2) | Collect()

    outcome = same(build, shards=1)
    counts = outcome.counts()
    assert {3000, 6000} <= set(counts.values())
    near = 0
    for labels, count in counts.items():
        samples, total, least, greatest = outcome.sampled[labels]
        if count >= 2900:
            assert samples >= 10
            if greatest > 50:
                near += 1
                assert 70 <= total / samples <= 140
                assert 50 <= least <= greatest <= 170
    assert near == 3


def test_counters_belong_to_their_transform() -> None:
    def build(p: Any) -> None:
        numbers(p) | "one" >> beam.ParDo(Counting()) | "two" >> beam.ParDo(LateCounting()) | Collect()

    outcome = same(build, bundle_elements=7)
    counted = {
        (dict(labels)["PTRANSFORM"].rsplit("_", 1)[0].rsplit("-", 1)[-1], dict(labels)["NAME"])
        for (urn, labels) in outcome.metrics
        if urn.startswith("beam:metric:user:")
    }
    assert {name for _, name in counted} == {"seen", "bundles", "sizes", "late"}
