"""DoFns whose `process` is a generator, and the SDK's DoFn before each global combine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import FixedWindows, SlidingWindows, TimestampedValue

from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same

SIZE = 3000


def upto(count: int) -> range:
    return range(count)


def numbers(p: Any, timed: bool = False) -> Any:
    made = p | beam.Create([SIZE], reshuffle=False) | "numbers" >> beam.FlatMap(upto).with_output_types(int)
    return made | "timed" >> beam.Map(lambda x: TimestampedValue(x, x % 7)) if timed else made


class Once(beam.DoFn):
    def process(self, x: Any) -> Iterator[Any]:
        Metrics.counter("here", "once").inc()
        yield x + 1


class ZeroOrOnce(beam.DoFn):
    def process(self, x: Any) -> Iterator[Any]:
        if x % 3:
            Metrics.distribution("here", "some").update(x)
            yield x
        Metrics.counter("here", "behind").inc()


class OnceOrTwice(beam.DoFn):
    """Also has start_bundle and finish_bundle."""

    def start_bundle(self) -> None:
        self.seen = 0

    def process(self, x: Any, more: int = 1) -> Iterator[Any]:
        self.seen += 1
        yield x
        if x % 2:
            yield x + more

    def finish_bundle(self) -> None:
        Metrics.counter("here", "seen").inc(self.seen)


class With(beam.DoFn):
    """Outputs the results of a function, and another element after them."""

    def __init__(self, function: Callable[[Any], Any], more: int) -> None:
        self.function = function
        self.more = more

    def process(self, x: Any, side: Any = ()) -> Iterator[Any]:
        yield self.function(x)
        for n in range(self.more):
            yield x + n + sum(side)


@pytest.mark.contract("API-06", "PLAN-02")
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("bundle_elements", [1, 500, 500_000])
def test_consecutive_generators(timed: bool, bundle_elements: int) -> None:
    def build(p: Any) -> None:
        made = numbers(p, timed) | beam.ParDo(Once()) | "map" >> beam.Map(lambda x: x) | beam.ParDo(ZeroOrOnce())
        made | beam.ParDo(OnceOrTwice(), 5) | Collect()

    outcome = same(build, shards=1, bundle_elements=bundle_elements)
    kept = [x for x in range(1, SIZE + 1) if x % 3]
    assert outcome.error is None
    assert sum(outcome.seen[""].values()) == len(kept) + sum(x % 2 for x in kept)


def test_generators_get_side_inputs() -> None:
    def build(p: Any) -> None:
        side = p | "side" >> beam.Create([1, 2, 3], reshuffle=False)
        made = numbers(p) | "a" >> beam.Map(lambda x: x)
        made | "b" >> beam.ParDo(With(lambda x: x, 2), side=beam.pvalue.AsList(side)) | Collect()

    assert len(same(build, shards=1).values()) == 3 * SIZE


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("bad", ["a", "b", "c"])
@pytest.mark.parametrize("error", [ValueError, StopIteration, RuntimeError])
@pytest.mark.parametrize("timed", [False, True])
def test_error_in_generator_names_transform(bad: str, error: type[Exception], timed: bool) -> None:
    class Fails(beam.DoFn):
        def __init__(self, name: str) -> None:
            self.name = name

        def process(self, x: Any) -> Iterator[Any]:
            yield x
            if self.name == bad and x == 2001:
                raise error(f"not {x}")

    def build(p: Any) -> None:
        made = numbers(p, timed) | "map" >> beam.Map(lambda x: x)
        for name in "abc":
            made |= name >> beam.ParDo(Fails(name))
        made | Collect()

    # Python decides what happens to exceptions that leave a generator.
    kind, text = (RuntimeError, "generator raised StopIteration") if error is StopIteration else (error, "not 2001")
    assert same(build, shards=1).error == (kind, f"{text} [while running '{bad}']")


@pytest.mark.parametrize("where", [3, 1000, 2500])
@pytest.mark.parametrize("timed", [False, True])
def test_special_outputs_of_generators(where: int, timed: bool) -> None:
    def special(x: int) -> Any:
        if x == where:
            return TimestampedValue(x, 7)
        return TaggedOutput("lost", x) if x == where + 100 else x

    def build(p: Any) -> None:
        made = numbers(p, timed) | "a" >> beam.ParDo(With(special, 1)) | "b" >> beam.ParDo(With(lambda x: x, 1))
        made | Collect()

    outcome = same(build, shards=1)
    assert outcome.error is None
    assert len(outcome.values()) == 4 * SIZE - 2


def test_outputs_keep_their_order() -> None:
    with Driven(shards=1) as p:
        made = (
            numbers(p) | "a" >> beam.ParDo(With(lambda x: -x, 2)) | "b" >> beam.FlatMap(lambda x: (y for y in [x, 0]))
        )
        made | Collect()
    assert p.values() == [y for x in range(SIZE) for z in (-x, x, x + 1) for y in (z, 0)]


class Flow:
    """Records the maximum number of live elements."""

    def __init__(self) -> None:
        self.on_the_way = self.most = self.through = 0


flow = Flow()


class Millions(beam.DoFn):
    def process(self, count: int) -> Iterator[int]:
        for n in range(count):
            flow.on_the_way += 1
            yield n


class Same(beam.DoFn):
    def process(self, x: int) -> Iterator[int]:
        if flow.on_the_way > flow.most:
            flow.most = flow.on_the_way
        yield x


class Taken(beam.DoFn):
    def process(self, x: int) -> Iterator[int]:
        flow.on_the_way -= 1
        flow.through += 1
        yield from ()


@pytest.mark.contract("BAT-01")
def test_five_million_outputs_are_never_held_together() -> None:
    flow.__init__()  # type: ignore[misc]
    with Driven(shards=1) as p:
        made = p | beam.Create([5_000_000], reshuffle=False) | beam.ParDo(Millions()) | beam.ParDo(Same())
        made | beam.ParDo(Taken()) | Collect()
    assert flow.through == 5_000_000
    assert flow.most <= 2 * BLOCK_ELEMENTS_MAX


# Before a global combine.


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("bundle_elements", [1, 500, 500_000])
def test_global_combines(timed: bool, bundle_elements: int) -> None:
    names = ["count", "sum", "mean", "largest", "list", "any", "own"]

    class Own(beam.CombineFn):
        def create_accumulator(self) -> int:
            return 0

        def add_input(self, accumulator: int, element: int) -> int:
            return accumulator + element % 2

        def merge_accumulators(self, accumulators: Any) -> int:
            return sum(accumulators)

        def extract_output(self, accumulator: int) -> int:
            return accumulator

    def build(p: Any) -> list[str]:
        made = numbers(p, timed)
        for name, combine in zip(
            names,
            (
                beam.combiners.Count.Globally(),
                beam.CombineGlobally(sum),
                beam.combiners.Mean.Globally(),
                beam.combiners.Top.Largest(3),
                beam.CombineGlobally(beam.combiners.ToListCombineFn()) | "sorted" >> beam.Map(sorted),
                beam.CombineGlobally(any),
                beam.CombineGlobally(Own()),
            ),
            strict=True,
        ):
            made | name >> combine | Collect(name)
        return names

    outcome = same(build, shards=1, bundle_elements=bundle_elements)
    assert outcome.values("count") == [f"int:{SIZE}"]
    assert outcome.values("sum") == [f"int:{sum(range(SIZE))}"]
    assert outcome.values("own") == [f"int:{SIZE // 2}"]


@pytest.mark.parametrize("windowfn", [FixedWindows(2), SlidingWindows(4, 2)])
def test_global_combines_in_windows(windowfn: Any) -> None:
    def build(p: Any) -> None:
        made = numbers(p, True) | beam.WindowInto(windowfn)
        made | beam.CombineGlobally(sum).without_defaults() | Collect()

    assert same(build, shards=1).error is None


@pytest.mark.contract("BAT-04")
def test_failing_global_combine_names_transform() -> None:
    def build(p: Any) -> None:
        mixed = p | beam.Create([1, "a", 2], reshuffle=False) | beam.Map(lambda x: x).with_output_types(Any)
        mixed | "totals" >> beam.combiners.Mean.Globally() | Collect()

    p = Driven()
    build(p)
    with pytest.raises(Exception, match="unsupported operand") as caught:
        p.run()
    assert "totals" in str(caught.value)
