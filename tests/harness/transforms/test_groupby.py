"""`GroupBy` with fields, expressions and aggregates: the same results as with the SDK's functions."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.internal import pickler
from apache_beam.transforms import combiners, core
from apache_beam.transforms.combiners import (
    MeanCombineFn,
    ToListCombineFn,
    TopCombineFn,
    ToSetCombineFn,
    TupleCombineFn,
)
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.harness.transforms.groupby import shortened
from arcbeam.harness.transforms.tuplefolds import tuple_fold_of
from arcbeam.harness.transforms.values import unwrapped
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same


class Sale(NamedTuple):
    shop: int
    kind: str
    amount: float


SALES = [Sale(n % 7, "abc"[n % 3], n / 2) for n in range(60)]


def function_of(transform: Any) -> Any:
    """Return the function of a `GroupBy`'s first Map, as a worker gets it."""
    p = beam.Pipeline()
    _ = p | beam.Create(SALES) | transform
    maps: list[Any] = []

    class Visitor(beam.pipeline.PipelineVisitor):  # type: ignore[misc]
        def visit_transform(self, node: Any) -> None:
            if isinstance(node.transform, beam.ParDo) and "/Map(<lambda at core.py" in node.full_label:
                maps.append(node.transform.fn)

    p.visit(Visitor())
    fn = pickler.loads(pickler.dumps(maps[0]))
    found = unwrapped(fn.process)
    assert found is not None
    return found[1]


GROUPINGS = {
    "field": lambda: beam.GroupBy("shop").aggregate_field("amount", sum, "total"),
    "fields": lambda: beam.GroupBy("shop", "kind").aggregate_field("amount", max, "most"),
    "expressions": lambda: beam.GroupBy(lambda x: x.shop % 2, big=lambda x: x.amount > 9).aggregate_field(
        lambda x: x.amount * 2, sum, "twice"
    ),
    "of the same field": lambda: (
        beam.GroupBy("shop")
        .aggregate_field("amount", min, "least")
        .aggregate_field(attrgetter("amount"), MeanCombineFn(), "mean")
    ),
    "no aggregate": lambda: beam.GroupBy("shop", "kind"),
    "no aggregate, one expression by name": lambda: beam.GroupBy(shop=lambda x: x.shop),
}


@pytest.mark.parametrize("name", GROUPINGS)
def test_compiled_function_equals_those_of_sdk(name: str) -> None:
    sdk = function_of(GROUPINGS[name]())
    ours = shortened(sdk)
    assert ours is not None, "the SDK's functions have changed"
    for sale in SALES:
        expected, got = sdk(sale), ours(sale)
        assert got == expected
        assert [type(part) for part in got] == [type(part) for part in expected]
        assert got[0]._fields == expected[0]._fields


def test_other_functions_are_unchanged() -> None:
    key_func, value_func = (lambda x: x), (lambda x: [x])
    for function in (lambda x: (key_func(x), value_func(x)), len, attrgetter("x"), SALES[0].count):
        assert shortened(function) is None
    # A single unnamed expression is not a tuple: the SDK uses a function that is not recognized.
    assert shortened(function_of(beam.GroupBy("shop"))) is None


def test_error_names_missing_field_and_transform() -> None:
    p = Driven()
    rows = p | beam.Create(SALES) | beam.Map(lambda sale: beam.Row(shop=int(sale.shop)))
    rows | "Group" >> beam.GroupBy("shop").aggregate_field("price", sum, "all") | Collect()
    with pytest.raises(AttributeError, match=r"no attribute 'price'.*\[while running 'Group/Map"):
        p.run()


# Folds.

PARTS = {
    "sum": lambda: sum,
    "max": lambda: max,
    "user": lambda: lambda values: sorted(values)[0],
    "count": combiners.CountCombineFn,
    "mean": MeanCombineFn,
    "list": ToListCombineFn,
    "set": ToSetCombineFn,
}


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_tuple_fold_equals_add_input(names: list[str], data: Any) -> None:
    fn = TupleCombineFn(*(PARTS[name]() for name in names))
    for part in fn._combiners:
        if hasattr(part, "_buffer_size"):
            part._buffer_size = 2
    fold = tuple_fold_of(fn)
    assert fold is not None
    values = st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 2), values)))
    expected: dict[int, Any] = {}
    table: dict[int, Any] = {}
    for key, values in pairs:
        expected[key] = fn.add_input(expected.get(key) or fn.create_accumulator(), values)
    fold.add(table, pairs[: len(pairs) // 2])
    fold.add(table, pairs[len(pairs) // 2 :])
    found = {key: fold.accumulator(states) for key, states in table.items()}
    if fold.compacted:
        assert found == {key: fn.compact(accumulator) for key, accumulator in found.items()}
    # A buffer is equivalent to its combined value.
    for accumulators in (found, expected):
        accumulators.update({key: fn.compact(accumulator) for key, accumulator in accumulators.items()})
    assert found == expected


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_tuples_of_other_length_are_added_like_combine_fn(names: list[str], data: Any) -> None:
    fn = TupleCombineFn(*(PARTS[name]() for name in names))
    fold = tuple_fold_of(fn)
    assert fold is not None
    expected, table = fn.create_accumulator(), dict[str, Any]()
    for values in data.draw(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1)):
        expected = fn.add_input(expected, values)
        fold.add(table, [("a", values)])
    assert fn.compact(fold.accumulator(table["a"])) == fn.compact(expected)


def test_unknown_combine_fn_has_no_fold() -> None:
    class Own(MeanCombineFn):  # type: ignore[misc]
        pass

    for fn in (TupleCombineFn(sum, Own()), TupleCombineFn(), TupleCombineFn(sum, TopCombineFn(3)), core.CombineFn()):
        assert tuple_fold_of(fn) is None


# Whole pipelines.


def sums_of_rows(p: Driven, windowed: bool) -> None:
    rows = (
        p
        | beam.Create(range(3000), reshuffle=False)
        | beam.Map(lambda n: TimestampedValue(n, n % 40)).with_output_types(int)
        | beam.Map(lambda n: beam.Row(shop=int(n % 150), kind=str(n % 3), amount=int(n)))
    )
    if windowed:
        rows |= beam.WindowInto(FixedWindows(10))
    (
        rows
        | beam.GroupBy("shop", "kind", odd=lambda x: x.amount % 2 == 1)
        .aggregate_field("amount", sum, "total")
        .aggregate_field("amount", max, "most")
        .aggregate_field(lambda x: x.amount / 2, MeanCombineFn(), "mean")
        | Collect()
    )


@pytest.mark.parametrize("windowed", [False, True])
def test_aggregates_of_rows(windowed: bool) -> None:
    on = same(lambda p: sums_of_rows(p, windowed))
    assert on.error is None
    assert len(on.values()) == (600 if windowed else 150)


def test_aggregates_of_more_keys_than_memory_holds() -> None:
    def sums(**ways: Any) -> list[Any]:
        with Driven(**ways) as p:
            sums_of_rows(p, windowed=True)
        return sorted(tuple(row) for row in p.values())

    assert sums(group_memory_bytes=2_000) == sums() == sums(value_chains=False, folds=False)


def test_iterators_as_values_are_read_once() -> None:
    with Driven() as p:
        values = p | beam.Create([1, 10]) | beam.Map(lambda x: ("k", map(int, [x, 2, 3])))
        _ = values | beam.CombinePerKey(TupleCombineFn(sum, max)) | Collect("three")
        pairs = p | "Pairs" >> beam.Create([1, 10]) | "Map" >> beam.Map(lambda x: ("k", iter([x, 2])))
        _ = pairs | "Combine" >> beam.CombinePerKey(TupleCombineFn(sum, max)) | Collect("two")
    assert p.values("three") == [("k", (11, 2))]
    assert p.values("two") == [("k", (11, 2))]
