"""Which transforms are part of a value chain, and that neighboring transforms are not affected."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.pvalue import AsList
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import (
    FixedWindows,
    SlidingWindows,
    TimestampedValue,
)
from apache_beam.typehints import typecheck

from arcbeam.harness.transforms import vectorization
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import exact, same
from tests.harness.transforms.recipes import Looking, numbers


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


# The SDK needs the types, not their names.
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
def test_dofns_that_read_only_values(fn: Any, expected: bool) -> None:
    assert vectorization.is_value_only(fn) is expected


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
def test_collection_as_its_own_side_input(chains: bool) -> None:
    with Driven(value_chains=chains) as p:
        letters = p | beam.Create(["a", "b"])
        letters | beam.FlatMap(lambda x, of: [x + y for y in of], AsList(letters)) | Collect()
        # The same with the window as an argument, which the SDK's operation processes.
        looking = beam.FlatMap(lambda x, of, window=beam.DoFn.WindowParam: [x + y for y in of], AsList(letters))
        letters | "looking" >> looking | Collect("looking")
    assert sorted(p.values()) == sorted(p.values("looking")) == ["aa", "ab", "ba", "bb"]


def test_dofn_with_runtime_checks_does_not_qualify() -> None:
    fn = Plain()
    fn._runtime_output_constraints = {"step": (None, int)}
    assert not vectorization.is_value_only(fn)


# Neighbors with operations of the SDK.


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
def test_runtime_type_checks(visitor: Any, wrong: bool) -> None:
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


def test_exception_handling() -> None:
    def build(p: Any) -> None:
        good, bad = numbers(p) | beam.Map(lambda x: 10 // (x % 5)).with_exception_handling()
        good | Collect("good")
        bad | beam.MapTuple(lambda x, error: (x, error[1])) | Collect("bad")

    outcome = same(build, ["good", "bad"])
    assert len(outcome.values("good")) == 32
    assert len(outcome.values("bad")) == 8


def test_collection_flattened_with_itself() -> None:
    def build(p: Any) -> None:
        source = numbers(p)
        (source, source, source | beam.Map(lambda x: -x)) | beam.Flatten() | Collect()

    assert same(build).values() == sorted(map(exact, [*range(40), *range(40), *(-x for x in range(40))]))
