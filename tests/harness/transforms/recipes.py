"""Random pipelines of all kinds of transforms, for comparisons with and without value chains."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsIter, AsList, TaggedOutput
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    IntervalWindow,
    Sessions,
    SlidingWindows,
    TimestampCombiner,
    TimestampedValue,
)
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import strategies as st

from arcbeam.harness.transforms import chains
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same

VALUES: list[Any] = [0, 1, True, False, 1.0, 2, -3, "", "a", "bcd", None, (), (1, "a"), (True, 1), b"x", [], [1, True]]
KEYS: list[Any] = [1, "a", True, None, b"b", (1, "a"), 1.0]


def number(value: Any) -> int:
    """Return a number that depends on the value only."""
    return zlib.crc32(repr(value).encode()) % 1009


def keyed(value: Any) -> tuple[Any, int]:
    return KEYS[number(value) % len(KEYS)], number(value)


def at_its_time(value: Any) -> Any:
    return TimestampedValue(value, Timestamp(micros=number(value) * 130_001 - 7_000_000))


def sometimes_at_its_time(value: Any) -> Any:
    return at_its_time(value) if number(value) % 3 else value


def windowed(value: Any) -> Any:
    if number(value) % 4 == 0:
        return value
    return WindowedValue(value, Timestamp(number(value) % 20), (GlobalWindow(),))


def tagged(value: Any) -> Any:
    kind = number(value) % 3
    return value if kind == 0 else TaggedOutput("odd" if kind == 1 else "lost", value)


def of_many_types(value: Any) -> Any:
    return [1, True, 1.0, "1", None, value][number(value) % 6]


def doubtful(value: Any) -> Any:
    """Return various true and false values."""
    return [0, 1, "", "a", None, (), (0,), 0.0, float("nan"), [], {}, b"", True, False][number(value) % 14]


def spread(value: Any) -> Any:
    """Return various iterables."""
    n = number(value) % 9
    return [
        None,
        [],
        [value],
        (value, n, "t"),
        (each for each in (value, None, True)),
        {"k": 1, n: 2},
        "xyz"[: n % 4],
        range(n),
        iter([value, [value]]),
    ][n]


def many(value: Any) -> Iterator[Any]:
    for n in range(300 if number(value) % 31 == 0 else 2):
        yield n, of_many_types((value, n))


class Stop(Exception):
    """An exception that cannot be created from one text."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a}, {b}")


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError("broken"),
    lambda: KeyError(7),
    lambda: Stop(1, 2),
    StopIteration,
    lambda: StopIteration("early"),
]


def fails(value: Any, kind: int, rarely: int = 11) -> Any:
    if number(value) % rarely == 3:
        raise ERRORS[kind]()
    return value


def fails_late(value: Any, kind: int) -> Iterator[Any]:
    for n in range(number(value) % 13):
        if n == 9:
            raise ERRORS[kind]()
        yield n


class Counting(beam.DoFn):
    """Counts its elements, in all of its methods."""

    def __init__(self) -> None:
        self.seen = Metrics.counter("values", "seen")
        self.bundles = Metrics.counter("values", "bundles")
        self.sizes = Metrics.distribution("values", "sizes")

    def start_bundle(self) -> None:
        self.bundles.inc()

    def process(self, element: Any) -> Any:
        self.seen.inc()
        self.sizes.update(number(element))
        return [element] if number(element) % 2 else None

    def finish_bundle(self) -> None:
        self.bundles.inc(100)


class LateCounting(beam.DoFn):
    """Counts while its output is iterated."""

    def process(self, element: Any) -> Iterator[Any]:
        yield element
        Metrics.counter("values", "late").inc()
        yield number(element)


class Remembering(beam.DoFn):
    """Its output reads the instance while it is iterated."""

    def setup(self) -> None:
        self.before: Any = "none yet"

    def process(self, element: Any) -> Iterator[Any]:
        self.last = element
        return self._lazily()

    def _lazily(self) -> Iterator[Any]:
        yield self.last
        yield type(self.last).__name__


class Ending(beam.DoFn):
    """Outputs an element at the end of each bundle."""

    def __init__(self, window: Any) -> None:
        self.window = window

    def process(self, element: Any) -> list[Any]:
        return [element]

    def finish_bundle(self) -> Iterator[Any]:
        yield WindowedValue("end", Timestamp(3), (self.window,))
        yield TaggedOutput("odd", WindowedValue("odd end", Timestamp(3), (self.window,)))


class Looking(beam.DoFn):
    """Reads more than the value."""

    def process(self, element: Any, window: Any = beam.DoFn.WindowParam, time: Any = beam.DoFn.TimestampParam) -> Any:
        yield element, repr(window), time.micros


class Recipe:
    """A pipeline under construction: its PCollections, and how many more transforms may multiply or fail."""

    def __init__(self, p: Driven, kind: int) -> None:
        self.p, self.kind = p, kind
        self.made: list[Any] = []
        self.used: set[int] = set()
        self.left = {"many": 1, "fails": 1, "special": 3, "window": 3}
        self.count = 0

    def named(self, transform: Any) -> Any:
        self.count += 1
        return f"step {self.count}" >> transform

    def add(self, source: int, *transforms: Any) -> None:
        """Apply consecutive transforms; their output may be of any type."""
        pcoll = self.made[source]
        self.used.add(source)
        for transform in transforms:
            pcoll = pcoll | self.named(transform.with_output_types(Any))
        self.made.append(pcoll)

    def spend(self, what: str) -> bool:
        self.left[what] -= 1
        return self.left[what] >= 0


def is_global(pcoll: Any) -> bool:
    return type(pcoll.windowing.windowfn) is GlobalWindows


STEPS: dict[str, Callable[[Recipe, int, int], None]] = {}


def step(build: Callable[[Recipe, int, int], None]) -> Callable[[Recipe, int, int], None]:
    STEPS[build.__name__] = build
    return build


def simple(name: str, *transforms: Callable[[], Any], needs: str = "") -> None:
    def build(recipe: Recipe, source: int, other: int) -> None:
        if not needs or recipe.spend(needs):
            recipe.add(source, *(transform() for transform in transforms))

    STEPS[name] = build


simple("map", lambda: beam.Map(of_many_types))
simple("pair", lambda: beam.Map(keyed))
simple("map builtin", lambda: beam.Map(repr))
simple("map bound", lambda: beam.Map("{}".format))
simple("map partial", lambda: beam.Map(functools.partial(lambda a, b: (a, number(b)), "p")))
simple("map tuple", lambda: beam.Map(lambda x: (x, number(x))), lambda: beam.MapTuple(lambda x, n: (n, x)))
simple("map tuple more", lambda: beam.Map(lambda x: (x, 1)), lambda: beam.MapTuple(lambda x, n=5, m=3: (n, m, x)))
simple("filter", lambda: beam.Filter(doubtful))
simple("filter builtin", lambda: beam.Filter(bool))
simple("spread", lambda: beam.FlatMap(spread))
simple("spread tuple", lambda: beam.Map(lambda x: (x, x)), lambda: beam.FlatMapTuple(lambda a, b: [a, b]))
simple("many", lambda: beam.FlatMap(many), needs="many")
simple("counting", lambda: beam.ParDo(Counting()))
simple("late counting", lambda: beam.ParDo(LateCounting()))
simple("remembering", lambda: beam.ParDo(Remembering()))
simple("looking", lambda: beam.ParDo(Looking()))
simple("timed", lambda: beam.Map(at_its_time), needs="special")
simple("sometimes timed", lambda: beam.Map(sometimes_at_its_time), needs="special")
simple("spread timed", lambda: beam.FlatMap(lambda x: map(at_its_time, [x, 1, True])), needs="special")
simple("nested", lambda: beam.Map(lambda x: TimestampedValue(at_its_time(x), 1)), lambda: beam.Filter(lambda x: True))
simple("undeclared", lambda: beam.Map(tagged))
simple("spread undeclared", lambda: beam.FlatMap(lambda x: map(tagged, (x, 1, "a"))))
simple("reshuffle", lambda: beam.Map(keyed), lambda: beam.Reshuffle())


@step
def windowed_values(recipe: Recipe, source: int, other: int) -> None:
    if is_global(recipe.made[source]):
        recipe.add(source, beam.Map(windowed))


@step
def fails_in_map(recipe: Recipe, source: int, other: int) -> None:
    if recipe.spend("fails"):
        recipe.add(source, beam.Map(functools.partial(fails, kind=recipe.kind)))


@step
def fails_in_filter(recipe: Recipe, source: int, other: int) -> None:
    if recipe.spend("fails"):
        kind = recipe.kind
        recipe.add(source, beam.Filter(lambda x: [fails(x, kind)]))


@step
def fails_in_tuple(recipe: Recipe, source: int, other: int) -> None:
    if recipe.spend("fails"):
        kind = recipe.kind
        recipe.add(source, beam.Map(lambda x: (x, 1)), beam.MapTuple(lambda x, n: fails(x, kind)))


@step
def fails_in_spread(recipe: Recipe, source: int, other: int) -> None:
    if recipe.spend("fails"):
        kind = recipe.kind
        recipe.add(source, beam.FlatMap(lambda x: fails_late(x, kind) if number(x) % 2 else [fails(x, kind)]))


@step
def no_tuple(recipe: Recipe, source: int, other: int) -> None:
    if recipe.spend("fails"):
        recipe.add(source, beam.Map(lambda x: (x, 1) if number(x) % 7 else 7), beam.MapTuple(lambda x, n: x))


@step
def ending(recipe: Recipe, source: int, other: int) -> None:
    window = GlobalWindow() if is_global(recipe.made[source]) else IntervalWindow(0, 10)
    recipe.add(source, beam.ParDo(Ending(window)))


@step
def declared(recipe: Recipe, source: int, other: int) -> None:
    outputs = recipe.made[source] | recipe.named(beam.FlatMap(lambda x: [tagged(x)]).with_outputs("odd", main="main"))
    recipe.used.add(source)
    recipe.made += [outputs.main, outputs.odd]


@step
def window_into(recipe: Recipe, source: int, other: int) -> None:
    kinds = [
        FixedWindows(10),
        FixedWindows(Timestamp(micros=3_000_001).micros / 1e6, 1),
        SlidingWindows(10, 5),
        SlidingWindows(10, 4, 1),
        SlidingWindows(3, 10),
        Sessions(4),
        GlobalWindows(),
    ]
    if recipe.spend("window"):
        recipe.add(source, beam.WindowInto(kinds[other % len(kinds)], timestamp_combiner=combiner(other)))


def combiner(other: int) -> Any:
    kinds = [TimestampCombiner.OUTPUT_AT_EOW, TimestampCombiner.OUTPUT_AT_EARLIEST, TimestampCombiner.OUTPUT_AT_LATEST]
    return kinds[other // 7 % 3]


@step
def flatten(recipe: Recipe, source: int, other: int) -> None:
    windowfn = recipe.made[source].windowing.windowfn
    chosen = [
        index
        for index in (source, other % len(recipe.made), (source + other) % len(recipe.made))
        if recipe.made[index].windowing.windowfn == windowfn
    ]
    recipe.used.update(chosen)
    recipe.made.append(tuple(recipe.made[i] for i in chosen) | recipe.named(beam.Flatten()))


@step
def group(recipe: Recipe, source: int, other: int) -> None:
    recipe.used.add(source)
    grouped = recipe.made[source] | recipe.named(beam.Map(keyed).with_output_types(tuple[Any, int]))
    grouped |= recipe.named(beam.GroupByKey())
    in_order = beam.MapTuple(lambda k, values: (k, sorted(values)))
    recipe.made.append(grouped | recipe.named(in_order.with_output_types(Any)))


@step
def combine(recipe: Recipe, source: int, other: int) -> None:
    kinds = [
        sum,
        beam.combiners.CountCombineFn(),
        beam.combiners.MeanCombineFn(),
        beam.combiners.ToListCombineFn(),
    ]
    recipe.used.add(source)
    pairs = recipe.made[source] | recipe.named(beam.Map(keyed).with_output_types(tuple[Any, int]))
    combined = pairs | recipe.named(beam.CombinePerKey(kinds[other % 4]))
    in_order = beam.MapTuple(lambda k, v: (k, sorted(v) if isinstance(v, list) else v))
    recipe.made.append(combined | recipe.named(in_order.with_output_types(Any)))


@step
def side_input(recipe: Recipe, source: int, other: int) -> None:
    side = other % len(recipe.made)
    if is_global(recipe.made[side]):
        recipe.used.add(side)
        view = AsList if other % 2 else AsIter
        recipe.add(source, beam.Map(lambda x, all: (x, len(list(all))), view(recipe.made[side])))


def build(recipe: Recipe, values: list[Any], wanted: list[tuple[str, int, int]], looked_at: set[int]) -> list[str]:
    """Build the pipeline; return the names of its `Collect`s."""
    source = recipe.p | "create" >> beam.Create(values, reshuffle=bool(recipe.kind % 2)).with_output_types(Any)
    recipe.made.append(source)
    for name, at, other in wanted:
        STEPS[name](recipe, at % len(recipe.made), other)
    names = []
    for index, pcoll in enumerate(recipe.made):
        if index not in recipe.used or index in looked_at:
            names.append(str(index))
            pcoll | Collect(str(index))
    return names


pipelines = st.tuples(
    st.lists(st.sampled_from(VALUES), max_size=12),
    st.sampled_from([1, 1, 1, 30]),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-3, 9).map(abs), st.integers(0, 20)), max_size=8),
    st.sets(st.integers(0, 5), max_size=2),
    st.integers(0, len(ERRORS) - 1),
)


def check(pipeline: Any, bundle_elements: int, shards: int, *, eager: bool = False) -> None:
    """Check that a random pipeline has equal results with and without value chains.

    Args:
        pipeline: describes the pipeline.
        bundle_elements: elements after which a bundle is cut.
        shards: number of shards of every exchange.
        eager: whether blocks go to loops whenever possible, not only if it is worth it.
    """
    values, times, wanted, looked_at, kind = pipeline
    many_values = [(value, n) if n else value for n in range(times) for value in values]

    def make(p: Driven) -> list[str]:
        return build(Recipe(p, kind), many_values, wanted, looked_at)

    with pytest.MonkeyPatch.context() as patch:
        if eager:
            patch.setattr(chains, "_BLOCK_ELEMENTS_MIN", 2)
            patch.setattr(chains, "_SAMPLED_EVERY", 1 << 30)
        same(make, bundle_elements=bundle_elements, shards=shards)


def numbers(p: Any, count: int = 40) -> Any:
    return p | beam.Create(range(count)) | "spread" >> beam.Reshuffle()
