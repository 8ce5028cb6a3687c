"""Value chains: errors name their transform, and iterables of user code are treated as by the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.iobase import BoundedSource, SourceBundle
from apache_beam.io.range_trackers import OffsetRangeTracker
from apache_beam.pvalue import AsSingleton
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    NonMergingWindowFn,
    TimestampedValue,
)

from arcbeam.errors import CoderError
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same
from tests.harness.transforms.recipes import Looking, numbers


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
def test_stop_iteration_is_error(transform: Any, arguments: Any, expected: Any) -> None:
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
@pytest.mark.parametrize("where", ["setup", "start_bundle", "finish_bundle"])
def test_failing_method_names_transform(where: str) -> None:
    outcome = same(lambda p: numbers(p) | "fails" >> beam.ParDo(Failing(where)) | Collect())
    assert outcome.error == (ValueError, f"in {where} [while running 'fails']")


@pytest.mark.contract("END-05")
def test_failing_teardown_names_transform() -> None:
    outcome = same(lambda p: numbers(p) | "fails" >> beam.ParDo(Failing("teardown")) | Collect())
    assert outcome.error == (RuntimeError, "'fails' has raised ValueError: in teardown")


def test_outputs_of_finish_bundle_must_be_windowed() -> None:
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
def test_failing_window_function_names_transform() -> None:
    outcome = same(lambda p: numbers(p) | "picky" >> beam.WindowInto(Picky()) | Collect())
    assert outcome.error == (ValueError, "no window [while running 'picky']")


def test_unencodable_output_is_found_among_first_ten() -> None:
    def build(p: Any) -> None:
        wrong = beam.Map(lambda x: "5" if x == 5 else x).with_output_types(int)
        p | beam.Create(range(9), reshuffle=False) | "wrong" >> wrong | beam.Map(str) | Collect()

    error, text = same(build).error
    assert error is CoderError
    assert text.startswith("VarIntCoder cannot encode '5': TypeError: an integer is required [while running 'wrong']")


@pytest.mark.contract("BAT-04")
def test_error_of_consumer_names_consumer() -> None:
    def build(p: Any) -> None:
        numbers(p) | "a" >> beam.Map(lambda x: x) | "b" >> beam.Map(lambda x: 1 // (x - 25)) | "c" >> Collect()

    assert same(build).error == (ZeroDivisionError, "integer division or modulo by zero [while running 'b']")


@pytest.mark.parametrize("at", [0, 1])
def test_returned_text_is_refused_for_first_element(at: int) -> None:
    fn = beam.ParDo(ReturnsText(at))
    outcome = same(lambda p: p | beam.Create([0, 1, 2], reshuffle=False) | "text" >> fn | Collect(), shards=1)
    assert (outcome.error is None) is (at > 0)


class ReturnsText(beam.DoFn):
    def __init__(self, at: int) -> None:
        self.at = at

    def process(self, element: int) -> Any:
        return "text" if element == self.at else [element]


# Iterators of user code.


class StartsOver:
    """An iterable that restarts at each `iter`, as in many textbooks."""

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
def test_restarting_iterable_is_iterated_once(loops: bool, n: int) -> None:
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
def test_side_input_is_looked_up_when_needed(loops: bool) -> None:
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
