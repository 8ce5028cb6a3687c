"""Folds have the results of `add_input`, and the parts of a combine those of the SDK's."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import chain
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import combiners, core, cy_combiners
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import UserCodeError
from arcbeam.harness.transforms.folds import fold_of, same_key_fold_of
from tests.harness.drive import Collect, Driven

KNOWN = [
    combiners.CountCombineFn(),
    combiners.MeanCombineFn(),
    combiners.ToListCombineFn(),
    cy_combiners.SumInt64Fn(),
    cy_combiners.MinInt64Fn(),
    cy_combiners.MaxInt64Fn(),
    cy_combiners.MeanInt64Fn(),
    cy_combiners.SumFloatFn(),
    cy_combiners.MeanFloatFn(),
    cy_combiners.AnyCombineFn(),
    cy_combiners.AllCombineFn(),
    combiners.ToSetCombineFn(),
    combiners.TopCombineFn(2),
    combiners.Largest(1),
    combiners.TopCombineFn(0),
    combiners.SampleCombineFn(2),
    combiners.SampleCombineFn(0),
    core.CombineFn.from_callable(sum),
    core.CombineFn.from_callable(max),
    core.CallableWrapperCombineFn(min, buffer_size=2),
]


VALUES = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.sampled_from([-0.0, 0.0, 0.1, 1e300, float("inf"), float("-inf"), float("nan")]),
    st.sampled_from([2**63 - 1, 2**63, -(2**63) - 1, 2**200, None, Fraction(1, 3), "1"]),
)
"""Numbers of all types, and equal values of other types: a sum of bools is a number. Others cannot be added."""


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, distinguishing 1, 1.0 and True, and 0.0 and -0.0; or the type of its error."""
    try:
        return repr(call())
    except Exception as e:
        return type(e)


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("fn", KNOWN, ids=lambda fn: type(fn).__name__)
@settings(max_examples=60)
@given(blocks=st.lists(st.lists(st.tuples(st.integers(0, 3), VALUES), min_size=1), max_size=4))
def test_fold_equals_add_input(fn: Any, blocks: list[list[tuple[int, Any]]]) -> None:
    fold = fold_of(fn)
    assert fold is not None

    def folded() -> dict[int, Any]:
        random.seed(7)
        table: dict[int, Any] = {}
        for pairs in blocks:
            fold.add(table, pairs)
        if fold.accumulator is not None:
            table = {key: fold.accumulator(found) for key, found in table.items()}
        return {key: fn.extract_output(accumulator) for key, accumulator in sorted(table.items())}

    def added() -> dict[int, Any]:
        random.seed(7)
        expected: dict[int, Any] = {}
        for pairs in blocks:
            for key, value in pairs:
                expected[key] = fn.add_input(expected[key] if key in expected else fn.create_accumulator(), value)
        return {key: fn.extract_output(accumulator) for key, accumulator in sorted(expected.items())}

    assert outcome(folded) == outcome(added)


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("fn", [fn for fn in KNOWN if same_key_fold_of(fn)], ids=lambda fn: type(fn).__name__)
@settings(max_examples=60)
@given(blocks=st.lists(st.lists(VALUES, min_size=1), min_size=1, max_size=4))
def test_same_key_fold_equals_add_input(fn: Any, blocks: list[list[Any]]) -> None:
    fold = same_key_fold_of(fn)
    assert fold is not None

    def folded() -> Any:
        accumulator = fn.create_accumulator()
        for values in blocks:
            given_values = list(values)
            accumulator = fold(accumulator, given_values)
            assert repr(given_values) == repr(values)
        return fn.extract_output(accumulator)

    def added() -> Any:
        accumulator = fn.create_accumulator()
        for value in chain.from_iterable(blocks):
            accumulator = fn.add_input(accumulator, value)
        return fn.extract_output(accumulator)

    assert outcome(folded) == outcome(added)


def test_known_combine_fns_have_same_key_fold() -> None:
    assert {type(fn) for fn in KNOWN if same_key_fold_of(fn) is None} == {combiners.SampleCombineFn}


def test_function_is_called_with_same_lists() -> None:
    def summed(values: Any) -> int:
        calls.append(list(values))
        return sum(values)

    calls: list[list[int]] = []
    fn = core.CallableWrapperCombineFn(summed, buffer_size=3)
    accumulator = fn.create_accumulator()
    for value in range(20):
        accumulator = fn.add_input(accumulator, value)
    expected, calls[:] = list(calls), []
    fold = same_key_fold_of(fn)
    assert fold is not None
    assert fold(fold(fn.create_accumulator(), list(range(7))), list(range(7, 20))) == accumulator
    assert calls == expected


@given(blocks=st.lists(st.lists(st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 2), st.integers())), max_size=9)))
def test_fold_to_dict_keeps_last_value(blocks: list[list[tuple[int, tuple[int, int]]]]) -> None:
    fold = fold_of(combiners.ToDictCombineFn())
    assert fold is not None
    table: dict[int, dict[int, int]] = {}
    expected: dict[int, dict[int, int]] = {}
    for pairs in blocks:
        fold.add(table, pairs)
        for key, (name, value) in pairs:
            expected.setdefault(key, {})[name] = value
    assert table == expected


class Doubled(combiners.CountCombineFn):
    def add_input(self, accumulator: int, element: Any) -> int:
        return accumulator + 2


class Twice(cy_combiners.SumInt64Fn):
    @staticmethod
    def add_input(accumulator: Any, element: int) -> Any:
        accumulator.add_input(2 * element)
        return accumulator


@pytest.mark.parametrize("fn", [Doubled(), Twice(), combiners.TopCombineFn(1, key=abs), combiners.Smallest(1)])
def test_unknown_combine_fn_has_no_fold(fn: Any) -> None:
    assert fold_of(fn) is None
    assert same_key_fold_of(fn) is None


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("chains", [True, False])
def test_equal_keys_of_different_types_are_separate(chains: bool) -> None:
    with Driven(value_chains=chains) as p:
        keys = p | beam.Create([1, True, 1.0, "1", b"1", 1, None, (1,), (True,)])
        keys | beam.combiners.Count.PerElement() | Collect()
    found = sorted(((type(k).__name__, repr(k)), n) for k, n in p.values())
    assert [n for key, n in found if key == ("int", "1")] == [2]
    assert sum(n for _, n in found) == 9
    assert len(found) == 8


@pytest.mark.contract("BAT-01", "PLAN-02")
@pytest.mark.parametrize("chains", [True, False])
@pytest.mark.parametrize("bundle_elements", [1, 7, 500_000])
def test_all_kinds_of_combines(chains: bool, bundle_elements: int) -> None:
    with Driven(shards=3, bundle_elements=bundle_elements, value_chains=chains) as p:
        pairs = p | beam.Create([(n % 5, n) for n in range(100)])
        for name, fn in (
            ("sum", sum),
            ("max", max),
            ("count", combiners.CountCombineFn()),
            ("mean", combiners.MeanCombineFn()),
            ("list", combiners.ToListCombineFn()),
            ("top", combiners.TopCombineFn(2)),
        ):
            pairs | name >> beam.CombinePerKey(fn) | Collect(name)
        pairs | beam.Values() | "all" >> beam.CombineGlobally(sum) | Collect("all")

    def found(name: str) -> dict[int, Any]:
        assert len(p.values(name)) == 5
        return dict(p.values(name))

    parts = {k: list(range(k, 100, 5)) for k in range(5)}
    assert found("sum") == {k: sum(v) for k, v in parts.items()}
    assert found("max") == {k: max(v) for k, v in parts.items()}
    assert found("count") == {k: len(v) for k, v in parts.items()}
    assert found("mean") == {k: sum(v) / len(v) for k, v in parts.items()}
    assert {k: sorted(v) for k, v in found("list").items()} == parts
    assert found("top") == {k: sorted(v, reverse=True)[:2] for k, v in parts.items()}
    assert p.values("all") == [sum(range(100))]


class Broken(beam.CombineFn):
    """Fails in one of its methods."""

    def __init__(self, method: str) -> None:
        self._method = method

    def _reach(self, method: str) -> None:
        if method == self._method:
            raise ValueError(f"broken in {method}")

    def create_accumulator(self) -> int:
        self._reach("create_accumulator")
        return 0

    def add_input(self, accumulator: int, element: int) -> int:
        self._reach("add_input")
        return accumulator + element

    def merge_accumulators(self, accumulators: Any) -> int:
        self._reach("merge_accumulators")
        return sum(accumulators)

    def compact(self, accumulator: int) -> int:
        self._reach("compact")
        return accumulator

    def extract_output(self, accumulator: int) -> int:
        self._reach("extract_output")
        return accumulator


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize(
    "method", ["create_accumulator", "add_input", "merge_accumulators", "compact", "extract_output"]
)
@pytest.mark.parametrize("windowed", [False, True])
def test_error_of_combine_fn_names_transform(method: str, windowed: bool) -> None:
    p = Driven()
    pairs = p | beam.Create([("k", 1), ("k", 2)])
    if windowed:
        pairs |= beam.WindowInto(beam.window.FixedWindows(10))
    pairs | "totals" >> beam.CombinePerKey(Broken(method)) | Collect()
    with pytest.raises(UserCodeError, match=f"broken in {method}") as caught:
        p.run()
    assert "totals" in caught.value.step


@pytest.mark.contract("PLAN-05")
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "each on its own"])
def test_accumulators_are_compacted_before_exchange(fusion: bool) -> None:
    with Driven(fusion=fusion) as p:
        words = p | beam.Create([("k", word) for word in ("aa", "bbb", "c", "dddd")])
        words | combiners.Top.PerKey(2, key=len) | Collect()
    assert p.values() == [("k", ["dddd", "bbb"])]
