"""Value chains: a pipeline gives the same with them and without, whatever its transforms are."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.io.iobase import BoundedSource, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.metrics import Metrics
from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import metrics_pb2
from apache_beam.pvalue import AsIter, AsList, AsSingleton, TaggedOutput
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    IntervalWindow,
    NonMergingWindowFn,
    Sessions,
    SlidingWindows,
    TimestampCombiner,
    TimestampedValue,
)
from apache_beam.typehints import typecheck
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.bundle.metrics import merge_metrics
from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.harness.transforms import chains, claims
from arcbeam.options import OPTIMIZATIONS
from arcbeam.translate import translate
from arcbeam.translate.proto import pipeline_proto
from tests.harness.drive import Collect, Driven, drive

# What is compared.


def exact(value: Any) -> str:
    """A value as text that tells 1 from True and 1.0."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(exact, value))})"
    return f"{type(value).__name__}:{value!r}"


class Outcome:
    """What a run of a pipeline gave.

    Attributes:
        error: (type, text) of what it raised.
        seen: what each `Collect` saw, with how often.
        metrics: counts of elements, and what user code counted, by metric and labels.
        sampled: sampled sizes, by labels.
    """

    def __init__(self, p: Driven, plan: Any, names: list[str], settings: Settings) -> None:
        self.error: Any = None
        self.seen: dict[str, Counter[Any]] = {}
        self.metrics: dict[Any, Any] = {}
        self.sampled: dict[Any, Any] = {}
        try:
            reports = drive(plan, settings)
        except BaseException as e:
            self.error = type(e), str(e)
            reports = []
        for name in names:
            windowed = p.windowed(name)
            if self.error is None:
                self.seen[name] = Counter((exact(value), time.micros, repr(w)) for value, time, w in windowed)
            windowed.clear()
        for serialized in merge_metrics(data for report in reports for data in report.metrics):
            self._note(metrics_pb2.MonitoringInfo.FromString(serialized))

    def _note(self, info: Any) -> None:
        labels = tuple(sorted(info.labels.items()))
        if info.urn == mi.SAMPLED_BYTE_SIZE_URN:
            self.sampled[labels] = mi.extract_distribution(info)
        elif info.urn == mi.ELEMENT_COUNT_URN:
            self.metrics[info.urn, labels] = mi.extract_counter_value(info)
        elif info.urn.startswith("beam:metric:user:"):
            self.metrics[info.urn, labels] = info.payload

    def counts(self) -> dict[Any, int]:
        """Counts of elements by labels."""
        return {labels: count for (urn, labels), count in self.metrics.items() if urn == mi.ELEMENT_COUNT_URN}

    def values(self, name: str = "") -> list[str]:
        """What a `Collect` saw, as text, in order."""
        return sorted(value for value, _, _ in self.seen[name].elements())


def same(build: Callable[[Driven], Any], names: Iterable[str] = ("",), **settings: Any) -> Outcome:
    """Runs a pipeline with all optimizations and with none: all that can be told of them is the same.

    Args:
        build: makes the pipeline; returns the names of its `Collect`s, if they are not `names`.
    """
    p = Driven()
    made = build(p)
    names = made if isinstance(made, list) else list(names)
    proto = pipeline_proto(p)
    plan = translate(proto, name=p.run_id)
    switched = [Settings(**dict.fromkeys(OPTIMIZATIONS, on), **settings) for on in (False, True)]
    off, on = (Outcome(p, plan, names, each) for each in switched)
    assert on.error == off.error
    assert on.seen == off.seen
    assert on.metrics == off.metrics
    assert on.sampled.keys() == off.sampled.keys()
    for labels, count in on.counts().items():
        # The SDK looks at the first ten for certain.
        if count <= 10:
            assert on.sampled[labels] == off.sampled[labels], labels
    return on


# Random pipelines.

VALUES: list[Any] = [0, 1, True, False, 1.0, 2, -3, "", "a", "bcd", None, (), (1, "a"), (True, 1), b"x", [], [1, True]]
KEYS: list[Any] = [1, "a", True, None, b"b", (1, "a"), 1.0]


def number(value: Any) -> int:
    """A number that a value alone decides."""
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
    """True and false of all kinds."""
    return [0, 1, "", "a", None, (), (0,), 0.0, float("nan"), [], {}, b"", True, False][number(value) % 14]


def spread(value: Any) -> Any:
    """Iterables of all kinds."""
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
    """Cannot be made of one text."""

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
    """Counts what it sees, in all of its methods."""

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
    """Counts while its output is taken."""

    def process(self, element: Any) -> Iterator[Any]:
        yield element
        Metrics.counter("values", "late").inc()
        yield number(element)


class Remembering(beam.DoFn):
    """Its output looks at the instance when it is taken."""

    def setup(self) -> None:
        self.before: Any = "none yet"

    def process(self, element: Any) -> Iterator[Any]:
        self.last = element
        return self._lazily()

    def _lazily(self) -> Iterator[Any]:
        yield self.last
        yield type(self.last).__name__


class Ending(beam.DoFn):
    """Says that a bundle is over."""

    def __init__(self, window: Any) -> None:
        self.window = window

    def process(self, element: Any) -> list[Any]:
        return [element]

    def finish_bundle(self) -> Iterator[Any]:
        yield WindowedValue("end", Timestamp(3), (self.window,))
        yield TaggedOutput("odd", WindowedValue("odd end", Timestamp(3), (self.window,)))


class Looking(beam.DoFn):
    """Looks at more than the value."""

    def process(self, element: Any, window: Any = beam.DoFn.WindowParam, time: Any = beam.DoFn.TimestampParam) -> Any:
        yield element, repr(window), time.micros


class Recipe:
    """A pipeline in the making: PCollections so far, and what is left of steps that multiply or fail."""

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
        """Applies transforms in a row; what they make may be anything."""
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
    """Makes the pipeline; returns the names of its `Collect`s."""
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
    """A random pipeline gives the same with and without value chains.

    Args:
        pipeline: what to make.
        bundle_elements: after which a bundle is cut.
        shards: of every exchange.
        eager: blocks are given to loops whenever that is possible, not only if it is worth it.
    """
    values, times, wanted, looked_at, kind = pipeline
    many_values = [(value, n) if n else value for n in range(times) for value in values]

    def make(p: Driven) -> list[str]:
        return build(Recipe(p, kind), many_values, wanted, looked_at)

    with pytest.MonkeyPatch.context() as patch:
        if eager:
            patch.setattr(chains, "_SHORTEST", 2)
            patch.setattr(chains, "_APART", 1 << 30)
        same(make, bundle_elements=bundle_elements, shards=shards)


@pytest.mark.contract("PLAN-05")
@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(pipelines, st.sampled_from([500_000, 3, 1]), st.sampled_from([1, 2, 3]), st.booleans())
def test_a_pipeline_gives_the_same_with_value_chains_and_without(
    pipeline: Any, bundle_elements: int, shards: int, eager: bool
) -> None:
    check(pipeline, bundle_elements, shards, eager=eager)


# What qualifies.


class Plain(beam.DoFn):
    def process(self, element: Any) -> Any:
        return [element]


class Yields(beam.DoFn):
    def process(self, element: Any) -> Any:
        yield element


class Stateful(beam.DoFn):
    BAG = BagStateSpec("bag", VarIntCoder())

    def process(self, element: Any, bag: Any = beam.DoFn.StateParam(BAG)) -> Any:
        yield element


class Batches(beam.DoFn):
    def process_batch(self, batch: list[int]) -> Iterator[list[int]]:
        yield [x + 1000 for x in batch]

    def infer_output_type(self, input_type: Any) -> Any:
        return int


# The SDK wants the types, not their names.
Batches.process_batch.__annotations__.update({"batch": list[int], "return": Iterator[list[int]]})


class Both(Batches):
    def process(self, element: int) -> Iterator[int]:
        yield element + 1000


class YieldsBatches(beam.DoFn):
    @beam.DoFn.yields_batches
    def process(self, element: int) -> Iterator[list[int]]:
        yield [element, element]


class AnElement(beam.DoFn):
    def process(self, element: Any = beam.DoFn.ElementParam) -> Any:
        yield element


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (Plain(), True),
        (Yields(), True),
        (beam.Map(str).fn, True),
        (beam.Map(lambda x, *, more=1: x).fn, True),
        (beam.Filter(bool).fn, True),
        (beam.FlatMap(str.splitlines).fn, True),
        (beam.MapTuple(lambda a, b: a).fn, True),
        (Looking(), False),
        (AnElement(), False),
        (Stateful(), False),
        (Batches(), False),
        (Both(), False),
        (YieldsBatches(), False),
        (beam.Map(lambda x, more=1: x).fn, True),
        (beam.Map(lambda x, window=beam.DoFn.WindowParam: x).fn, False),
        (beam.MapTuple(lambda a, b=1: a).fn, True),
        (beam.Map(lambda x, when=beam.DoFn.TimestampParam: x).fn, False),
        (beam.Map(lambda x, end=beam.DoFn.BundleFinalizerParam: x).fn, False),
    ],
)
def test_what_looks_at_values_only(fn: Any, expected: bool) -> None:
    assert claims.is_value_only(fn) is expected


class Adds(beam.DoFn):
    def process(self, element: int, more: Iterable[int], factor: int = 2, *, less: int = 0) -> Iterator[int]:
        yield element * factor + sum(more) - less


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize("chains", [True, False])
@pytest.mark.parametrize("bundle_elements", [1, 500_000])
@pytest.mark.parametrize("windowed", ["neither", "main", "both", "sliding"])
def test_side_inputs_and_constants(chains: bool, bundle_elements: int, windowed: str) -> None:
    with Driven(shards=2, bundle_elements=bundle_elements, value_chains=chains) as p:
        main = p | "main" >> beam.Create(range(20)) | "at" >> beam.Map(lambda n: TimestampedValue(n, n))
        side = p | "side" >> beam.Create([1, 11, 12]) | "then" >> beam.Map(lambda n: TimestampedValue(n, n))
        if windowed == "sliding":
            main |= "ws" >> beam.WindowInto(SlidingWindows(10, 5))
            side |= "ss" >> beam.WindowInto(SlidingWindows(10, 5))
        elif windowed != "neither":
            main |= "wm" >> beam.WindowInto(FixedWindows(10))
            if windowed == "both":
                side |= "wf" >> beam.WindowInto(FixedWindows(10))
        every = beam.pvalue.AsList(side)
        if windowed in ("neither", "both"):
            one = beam.pvalue.AsSingleton(side | beam.CombineGlobally(max).without_defaults())
            main | "one" >> beam.Map(lambda n, most, plus=1: (n, most + plus), one) | Collect("one")
        main | "list" >> beam.Map(lambda n, of: (n, sorted(of)), every) | Collect("list")
        main | "filter" >> beam.Filter(lambda n, of: n in of, of=every) | Collect("filter")
        main | "flat" >> beam.FlatMap(lambda n, of, times: [n + x for x in of] * times, every, 2) | Collect("flat")
        main | "dofn" >> beam.ParDo(Adds(), every, less=1) | Collect("dofn")
        pairs = main | "pair" >> beam.Map(lambda n, to: (n, to), 7)
        pairs | "tuple" >> beam.MapTuple(lambda a, b, of=(): (a, b, sorted(of)), of=every) | Collect("tuple")

    def sides(window: Any) -> list[int]:
        return [x for x in (1, 11, 12) if windowed in ("neither", "main") or window.start <= x < window.end]

    def found(name: str) -> list[Any]:
        return sorted(((value, when.micros, repr(w)) for value, when, w in p.windowed(name)), key=repr)

    elements = [(n[0], when.micros, w) for n, when, w in p.windowed("list")]
    assert len(elements) == (40 if windowed == "sliding" else 20)

    def expected(of: Any) -> list[Any]:
        return sorted(((value, at, repr(w)) for n, at, w in elements for value in of(n, sides(w))), key=repr)

    assert found("list") == expected(lambda n, of: [(n, of)])
    assert found("filter") == expected(lambda n, of: [n] if n in of else [])
    assert found("flat") == expected(lambda n, of: [n + x for x in of] * 2)
    assert found("dofn") == expected(lambda n, of: [n * 2 + sum(of) - 1])
    assert found("tuple") == expected(lambda n, of: [(n, 7, of)])
    if windowed in ("neither", "both"):
        assert found("one") == expected(lambda n, of: [(n, max(of) + 1)])


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize("chains", [True, False])
def test_a_collection_that_is_its_own_side_input(chains: bool) -> None:
    with Driven(value_chains=chains) as p:
        letters = p | beam.Create(["a", "b"])
        letters | beam.FlatMap(lambda x, of: [x + y for y in of], AsList(letters)) | Collect()
        # The same where the window is looked at, too, which is the SDK's to run.
        looking = beam.FlatMap(lambda x, of, window=beam.DoFn.WindowParam: [x + y for y in of], AsList(letters))
        letters | "looking" >> looking | Collect("looking")
    assert sorted(p.values()) == sorted(p.values("looking")) == ["aa", "ab", "ba", "bb"]


def test_a_dofn_that_is_to_be_checked_at_run_time_does_not_qualify() -> None:
    fn = Plain()
    fn._runtime_output_constraints = {"step": (None, int)}
    assert not claims.is_value_only(fn)


# Errors.


def numbers(p: Any, count: int = 40) -> Any:
    return p | beam.Create(range(count)) | "spread" >> beam.Reshuffle()


def stops(x: int, *given_args: Any) -> int:
    if x == 25:
        raise StopIteration(*given_args)
    return x


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), (RuntimeError, "StopIteration [while running 'stops']")),
        (("early",), (StopIteration, "early [while running 'stops']")),
    ],
    ids=["bare", "with_text"],
)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: beam.Map(f),
        lambda f: beam.Filter(f),
        lambda f: beam.FlatMap(lambda x: [f(x)]),
        lambda f: beam.MapTuple(f),
    ],
    ids=["map", "filter", "flat_map", "map_tuple"],
)
def test_a_stop_iteration_is_an_error_never_the_end(transform: Any, arguments: Any, expected: Any) -> None:
    def build(p: Any) -> None:
        fn = transform(lambda x: stops(x, *arguments))
        source = numbers(p)
        if "MapTuple" in fn.label:
            source |= "tuples" >> beam.Map(lambda x: (x,))
        source | "stops" >> fn | Collect()

    assert same(build).error == expected


class Failing(beam.DoFn):
    def __init__(self, where: str) -> None:
        self.where = where

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise ValueError(f"in {where}")

    def setup(self) -> None:
        self._fail("setup")

    def start_bundle(self) -> None:
        self._fail("start_bundle")

    def process(self, element: Any) -> Any:
        yield element

    def finish_bundle(self) -> Any:
        self._fail("finish_bundle")
        return ["not windowed"] if self.where == "output" else None

    def teardown(self) -> None:
        self._fail("teardown")


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("where", ["setup", "start_bundle", "finish_bundle", "teardown"])
def test_a_failing_method_is_told_with_its_step(where: str) -> None:
    outcome = same(lambda p: numbers(p) | "fails" >> beam.ParDo(Failing(where)) | Collect())
    assert outcome.error == (ValueError, f"in {where} [while running 'fails']")


def test_what_ends_a_bundle_has_to_be_windowed() -> None:
    outcome = same(lambda p: numbers(p) | "fails" >> beam.ParDo(Failing("output")) | Collect())
    assert outcome.error[0] is RuntimeError
    assert "should only output WindowedValue" in outcome.error[1]


class Picky(NonMergingWindowFn):
    def assign(self, context: Any) -> list[Any]:
        if context.element == 25:
            raise ValueError("no window")
        return [GlobalWindow()]

    def get_window_coder(self) -> Any:
        return GlobalWindows().get_window_coder()


@pytest.mark.contract("BAT-04")
def test_a_failing_window_function_is_told_with_its_step() -> None:
    outcome = same(lambda p: numbers(p) | "picky" >> beam.WindowInto(Picky()) | Collect())
    assert outcome.error == (ValueError, "no window [while running 'picky']")


def test_what_a_coder_refuses_is_noticed_among_the_first_ten() -> None:
    def build(p: Any) -> None:
        wrong = beam.Map(lambda x: "5" if x == 5 else x).with_output_types(int)
        p | beam.Create(range(9), reshuffle=False) | "wrong" >> wrong | beam.Map(str) | Collect()

    error, text = same(build).error
    assert error is CoderError
    assert text.startswith("VarIntCoder cannot encode '5': TypeError: an integer is required [while running 'wrong']")


@pytest.mark.contract("BAT-04")
def test_an_error_behind_names_the_step_that_it_is_of() -> None:
    def build(p: Any) -> None:
        numbers(p) | "a" >> beam.Map(lambda x: x) | "b" >> beam.Map(lambda x: 1 // (x - 25)) | "c" >> Collect()

    assert same(build).error == (ZeroDivisionError, "integer division or modulo by zero [while running 'b']")


@pytest.mark.parametrize("at", [0, 1])
def test_a_text_that_is_returned_is_refused_once_and_for_the_first_element_only(at: int) -> None:
    fn = beam.ParDo(ReturnsText(at))
    outcome = same(lambda p: p | beam.Create([0, 1, 2], reshuffle=False) | "text" >> fn | Collect(), shards=1)
    assert (outcome.error is None) is (at > 0)


class ReturnsText(beam.DoFn):
    def __init__(self, at: int) -> None:
        self.at = at

    def process(self, element: int) -> Any:
        return "text" if element == self.at else [element]


# Functions of all kinds.


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
    ids=repr,
)
def test_functions_of_all_kinds(fn: Any) -> None:
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
def test_functions_of_all_kinds_that_spread(fn: Any) -> None:
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


def test_elements_are_gathered_in_their_order() -> None:
    with Driven(shards=1) as p:
        source = p | beam.Create(range(1000), reshuffle=False)
        looked = source | beam.ParDo(Looking()) | "first" >> beam.Map(lambda looked: looked[0])
        looked | "spread" >> beam.FlatMap(lambda x: [x, -x]) | "some" >> beam.Filter(lambda x: x % 3) | Collect()
    assert p.values() == [y for x in range(1000) for y in (x, -x) if y % 3]


def test_values_keep_their_order_among_outputs_that_are_more() -> None:
    with Driven(shards=1) as p:
        source = p | beam.Create(range(2000), reshuffle=False)
        timed = source | "timed" >> beam.Map(lambda x: TimestampedValue(x, x) if x // 300 % 2 and x % 40 == 0 else x)
        timed | "next" >> beam.Map(lambda x: x) | Collect()
    assert p.values() == list(range(2000))


@pytest.mark.contract("BAT-03")
def test_what_a_large_output_comes_from_gives_its_time_and_window() -> None:
    def build(p: Any) -> None:
        # Blocks of several elements come after the first few only.
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
def test_every_time_is_in_its_windows(windowfn: Any) -> None:
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
    """How many elements are on their way, at most."""

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
def test_what_a_generator_makes_is_never_held_as_a_whole(count: int, size: int, most: int, looking: bool) -> None:
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
def test_large_elements_made_one_by_one_do_not_pile_up() -> None:
    flow.__init__()  # type: ignore[misc]
    with Driven(shards=1) as p:
        made = p | beam.Create(range(300), reshuffle=False) | beam.Map(make_one)
        made | "taken" >> beam.Map(take) | Collect()
    assert len(p.values()) == 300
    assert flow.most <= 9


@pytest.mark.parametrize("steps", [70, 120, 200])
def test_many_transforms_in_a_row(steps: int) -> None:
    def build(p: Any) -> None:
        pcoll = p | beam.Create(range(20), reshuffle=False)
        for n in range(steps):
            pcoll |= f"step {n}" >> (beam.Map(lambda x: x + 1) if n % 2 else beam.FlatMap(lambda x: [x + 1]))
        pcoll | Collect()

    outcome = same(build)
    assert outcome.error is None
    assert outcome.values() == sorted(exact(x + steps) for x in range(20))


# Metrics.


def test_counts_are_exact_and_sampled_sizes_are_near() -> None:
    def build(p: Any) -> None:
        words = p | beam.Create(range(3000), reshuffle=False) | beam.Map(lambda x: "x" * (50 + x % 101))
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


def test_what_user_code_counts_is_of_its_step() -> None:
    def build(p: Any) -> None:
        numbers(p) | "one" >> beam.ParDo(Counting()) | "two" >> beam.ParDo(LateCounting()) | Collect()

    outcome = same(build, bundle_elements=7)
    counted = {
        (dict(labels)["PTRANSFORM"].rsplit("_", 1)[0].rsplit("-", 1)[-1], dict(labels)["NAME"])
        for (urn, labels) in outcome.metrics
        if urn.startswith("beam:metric:user:")
    }
    assert {name for _, name in counted} == {"seen", "bundles", "sizes", "late"}


# Neighbours that are not ours.


@pytest.mark.parametrize("batches", [Batches, Both])
@pytest.mark.parametrize("order", list(itertools.permutations(["map", "batch", "look"])), ids="-".join)
def test_batches_among_elements(order: tuple[str, ...], batches: Any) -> None:
    def build(p: Any) -> None:
        pcoll = p | beam.Create(range(300)).with_output_types(int)
        for kind in order:
            transform = {
                "map": beam.Map(lambda x: x + 1),
                "batch": beam.ParDo(batches()),
                "look": beam.Map(lambda x, time=beam.DoFn.TimestampParam: x + 100),
            }[kind]
            pcoll |= kind >> transform.with_output_types(int)
        pcoll | Collect("main")
        pcoll | "again" >> beam.Map(lambda x: -x) | Collect("again")

    outcome = same(build, ["main", "again"])
    assert outcome.error is None
    assert outcome.values("main") == sorted(exact(x + 1101) for x in range(300))
    assert outcome.values("again") == sorted(exact(-x - 1101) for x in range(300))


@pytest.mark.parametrize("visitor", [typecheck.TypeCheckVisitor, typecheck.PerformanceTypeCheckVisitor])
@pytest.mark.parametrize("wrong", [False, True])
def test_types_that_are_checked_at_run_time(visitor: Any, wrong: bool) -> None:
    def build(p: Any) -> None:
        result = beam.Map(lambda x: str(x) if wrong else x).with_output_types(int)
        numbers(p) | "typed" >> result | "next" >> beam.Map(lambda x: x).with_input_types(int) | Collect()
        p.visit(visitor())

    outcome = same(build)
    if wrong:
        kind, text = outcome.error
        assert issubclass(kind, typecheck.TypeCheckError)
        assert "typed" in text
    else:
        assert outcome.values() == sorted(map(exact, range(40)))


def test_failures_that_are_handled() -> None:
    def build(p: Any) -> None:
        good, bad = numbers(p) | beam.Map(lambda x: 10 // (x % 5)).with_exception_handling()
        good | Collect("good")
        bad | beam.MapTuple(lambda x, error: (x, error[1])) | Collect("bad")

    outcome = same(build, ["good", "bad"])
    assert len(outcome.values("good")) == 32
    assert len(outcome.values("bad")) == 8


def test_one_collection_flattened_with_itself() -> None:
    def build(p: Any) -> None:
        source = numbers(p)
        (source, source, source | beam.Map(lambda x: -x)) | beam.Flatten() | Collect()

    assert same(build).values() == sorted(map(exact, [*range(40), *range(40), *(-x for x in range(40))]))


# Iterators of user code.


class StartsOver:
    """An iterator that begins anew whenever it is asked for one, as in many a textbook."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> StartsOver:
        self.i = 0
        return self

    def __next__(self) -> int:
        self.i += 1
        if self.i > self.n:
            raise StopIteration
        return self.i


class CountsUp(beam.DoFn):
    def process(self, element: int) -> Any:
        return StartsOver(element)


class CountsUpSource(BoundedSource):  # type: ignore[misc]  # Beam is untyped
    def estimate_size(self) -> int:
        return 1

    def split(self, desired_bundle_size: int, start_position: Any = None, stop_position: Any = None) -> Any:
        yield SourceBundle(1, self, None, None)

    def get_range_tracker(self, start_position: Any, stop_position: Any) -> Any:
        return OffsetRangeTracker(0, 1)

    def read(self, range_tracker: Any) -> Any:
        range_tracker.try_claim(0)
        return StartsOver(7)


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("n", [1, 9, 2000])
def test_an_iterator_that_starts_over_is_asked_once(loops: bool, n: int) -> None:
    with Driven(loops=loops) as p:
        p | "one" >> beam.Create([n]) | "few" >> beam.ParDo(CountsUp()) | Collect("one")
        numbers = p | "many" >> beam.Create(range(1000)) | "spread" >> beam.Reshuffle()
        numbers | beam.Map(lambda _: 3) | beam.ParDo(CountsUp()) | Collect("many")
        p | beam.io.Read(CountsUpSource()) | Collect("read")
    assert p.values("one") == list(range(1, n + 1))
    assert sorted(p.values("many")) == sorted([1, 2, 3] * 1000)
    assert p.values("read") == list(range(1, 8))


@pytest.mark.contract("BAT-02")
@pytest.mark.parametrize("loops", [True, False])
def test_a_side_input_that_cannot_be_had_is_not_looked_up_before_an_element_needs_it(loops: bool) -> None:
    def timestamped(_: Any) -> Iterator[Any]:
        for n in range(4000):
            yield TimestampedValue(n, 1 if n < 2000 else 11)

    def windowed(p: Any, least: int) -> Any:
        side = p | "side" >> beam.Create([5, 16, 17]) | "then" >> beam.Map(lambda n: TimestampedValue(n, n))
        side |= "ws" >> beam.WindowInto(FixedWindows(10))
        main = p | beam.Create([0]) | beam.FlatMap(timestamped) | "wm" >> beam.WindowInto(FixedWindows(10))
        some = main | "same" >> beam.ParDo(Looking()) | "plus" >> beam.Map(lambda seen: seen[0])
        some |= beam.Filter(lambda n: n < least)
        return some | "use" >> beam.Map(lambda n, one: n + one, AsSingleton(side)) | Collect()

    with Driven(loops=loops) as p:
        windowed(p, 2000)
    assert sorted(p.values()) == [n + 5 for n in range(2000)]
    with pytest.raises(Exception, match=r"while running 'use'"), Driven(loops=loops) as p:
        windowed(p, 2001)
