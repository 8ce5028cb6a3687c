"""Combiners give the value and type that Beam's own CombineFn gives, on every path that combines.

The values are those that arithmetic treats in a special way: bools, integers of more than 64 bits, infinities, NaN,
zeros with a sign, and mixtures. The expected result is computed by the CombineFn's own methods, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder
from apache_beam.transforms import combiners, core, trigger, userstate, window

from arcbeam.errors import UserCodeError
from tests.harness.drive import Collect, Driven
from tests.harness.streaming.microbatches import InMicroBatches
from tests.harness.transforms.comparing import exact

INF, NAN = float("inf"), float("nan")
VALUES: dict[str, list[Any]] = {
    "one bool": [True],
    "bools": [True, False, True],
    "bool then int": [True, 1, 1.0],
    "float then bool": [1.0, True, 1],
    "beyond 64 bits": [2**63 - 1, 1, 2**200],
    "below 64 bits": [-(2**63), -1],
    "mixed": [1, 0.5, True, 2],
    "negative zero": [-0.0],
    "zeros": [0.0, -0.0, 0],
    "not a number first": [NAN, 1.0, 2],
    "not a number last": [1, 2.0, NAN],
    "infinities": [INF, 1, -INF],
    "fractions": [Fraction(1, 3), 1],
    "nothing": [None],
    "nothing among numbers": [1, None, 2],
    "texts": ["b", "a"],
}
COMBINERS: dict[str, Callable[[], Any]] = {
    "sum": lambda: core.CombineFn.from_callable(sum),
    "max": lambda: core.CombineFn.from_callable(max),
    "min": lambda: core.CombineFn.from_callable(min),
    "mean": combiners.MeanCombineFn,
    "count": combiners.CountCombineFn,
    "list": combiners.ToListCombineFn,
    "top": lambda: combiners.TopCombineFn(2),
    "several": lambda: combiners.TupleCombineFn(
        core.CombineFn.from_callable(sum), core.CombineFn.from_callable(max), combiners.MeanCombineFn()
    ),
}


def expected(fn: Any, values: Iterable[Any]) -> Any:
    """The result of the CombineFn, or the type of its error."""
    try:
        accumulator = fn.create_accumulator()
        for value in values:
            accumulator = fn.add_input(accumulator, value)
        return exact(fn.extract_output(fn.merge_accumulators([fn.compact(accumulator)])))
    except Exception as e:
        return type(e)


def inputs_of(name: str, values: list[Any]) -> list[Any]:
    return [(value, value, value) for value in values] if name == "several" else values


def keyed(p: Driven, name: str) -> Any:
    """All values that have a result, with their kind as the key; nothing is known of their type."""
    pairs = [
        (kind, value)
        for kind, values in VALUES.items()
        if isinstance(expected(COMBINERS[name](), inputs_of(name, values)), str)
        for value in inputs_of(name, values)
    ]
    made = p | f"make {name}" >> beam.Create(pairs, reshuffle=False)
    return made | f"as they are {name}" >> beam.Map(lambda pair: pair).with_output_types(tuple[str, Any])


def per_key(p: Driven, name: str, windowing: Any = None, **how: Any) -> None:
    pairs = keyed(p, name)
    if windowing is not None:
        pairs |= f"windows {name}" >> beam.WindowInto(windowing, **how)
    pairs | name >> beam.CombinePerKey(COMBINERS[name]()) | Collect(name)


GLOBAL_KINDS = ("one bool", "beyond 64 bits", "mixed", "negative zero", "not a number first")


def globally(p: Driven, name: str) -> None:
    pairs = keyed(p, name)
    for kind in GLOBAL_KINDS:
        chosen = beam.FlatMap(lambda pair, kind=kind: pair[1:] if pair[0] == kind else ()).with_output_types(Any)
        of_kind = pairs | f"{name} {kind}" >> chosen
        total = of_kind | f"all {name} {kind}" >> beam.CombineGlobally(COMBINERS[name]()).without_defaults()
        total | f"named {name} {kind}" >> beam.Map(lambda value, kind=kind: (kind, value)) | Collect(f"{name}, {kind}")


def panes(p: Driven, name: str) -> None:
    """The accumulator is kept between panes."""
    mode = trigger.AccumulationMode.ACCUMULATING
    per_key(
        p,
        name,
        window.GlobalWindows(),
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(100)),
        accumulation_mode=mode,
    )


def in_state(p: Driven, name: str) -> None:
    """A combining state, read after each element; the last result of a key is looked at."""
    spec = userstate.CombiningValueStateSpec("so far", PickleCoder(), COMBINERS[name]())

    class Keeps(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
        def process(self, element: Any, so_far: Any = beam.DoFn.StateParam(spec)) -> Iterator[Any]:
            key, value = element
            so_far.add(value)
            yield key, so_far.read()

    keyed(p, name) | name >> beam.ParDo(Keeps()) | Collect(name)


SDK_STATE_FAILS = {"max", "min", "mean", "top", "several"}
"""The SDK's combining state merges no accumulators at all where nothing was added yet; these cannot."""
EVERY = tuple(COMBINERS)
UNSURE = tuple(name for name in COMBINERS if name not in SDK_STATE_FAILS)
WAYS: dict[str, tuple[Callable[..., Driven], Callable[..., None], Iterable[str]]] = {
    "before the exchange": (lambda: Driven(shards=1), per_key, EVERY),
    "without optimizations": (lambda: Driven(shards=1, value_chains=False), per_key, EVERY),
    "each in a bundle": (lambda: Driven(shards=1, bundle_elements=1), per_key, EVERY),
    "fixed windows": (lambda: Driven(shards=1), lambda *of: per_key(*of, window.FixedWindows(10)), EVERY),
    "sliding windows": (lambda: Driven(shards=1), lambda *of: per_key(*of, window.SlidingWindows(10, 5)), EVERY),
    "global": (lambda: Driven(shards=1), globally, EVERY),
    "global, without optimizations": (lambda: Driven(shards=1, value_chains=False), globally, EVERY),
    "panes": (lambda: Driven(shards=1), panes, EVERY),
    "state": (lambda: Driven(shards=1), in_state, EVERY),
    "state, the SDK's operation": (lambda: Driven(shards=1, value_chains=False), in_state, UNSURE),
    "steps": (lambda: InMicroBatches(None), per_key, EVERY),
    "panes in a streaming job": (lambda: InMicroBatches(None), panes, EVERY),
    "state in a streaming job": (lambda: InMicroBatches(None), in_state, EVERY),
}


@pytest.mark.contract("PLAN-02")
@pytest.mark.parametrize("way", WAYS)
def test_results_have_the_value_and_type_of_the_combine_fn(way: str) -> None:
    made, build, names = WAYS[way]
    wrong, count = {}, 0
    for name in names:
        with made() as p:
            build(p, name)
        last: dict[tuple[str, str], str] = {}
        names_of = [f"{name}, {kind}" for kind in GLOBAL_KINDS] if build is globally else [name]
        for (kind, result), _, in_window in chain.from_iterable(map(p.windowed, names_of)):
            last[kind, repr(in_window)] = exact(result)
        count += len(last)
        for (kind, at), got in last.items():
            wanted = expected(COMBINERS[name](), inputs_of(name, VALUES[kind]))
            if got != wanted:
                wrong[name, kind, at] = got, wanted
    assert not wrong
    assert count >= 5 * len(list(names))


@pytest.mark.contract("PLAN-02", "BAT-04")
@pytest.mark.parametrize("name", ["sum", "max", "mean", "several"])
@pytest.mark.parametrize("optimized", [True, False])
def test_uncombinable_values_raise_users_error(name: str, optimized: bool) -> None:
    values = inputs_of(name, VALUES["nothing among numbers"])
    error = expected(COMBINERS[name](), values)
    p = Driven(shards=1, value_chains=optimized)
    pairs = p | beam.Create([("k", value) for value in values], reshuffle=False)
    pairs |= beam.Map(lambda pair: pair).with_output_types(tuple[str, Any])
    pairs | "totals" >> beam.CombinePerKey(COMBINERS[name]()) | Collect()
    with pytest.raises(UserCodeError) as caught:
        p.run()
    assert "totals" in caught.value.step
    assert error.__name__ in str(caught.value)
