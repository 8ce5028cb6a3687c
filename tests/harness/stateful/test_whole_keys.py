"""Stateful DoFns whose keys have a few uniform elements each: the same results as with the SDK's operation."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, StrUtf8Coder, VarIntCoder
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.combiners import CountCombineFn
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
)
from apache_beam.utils.timestamp import Timestamp

from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import same

DoFn = beam.DoFn


class Kinds(beam.DoFn):
    """Uses several kinds of state of a key, as a generator."""

    LAST = ReadModifyWriteStateSpec("last", PickleCoder())
    BAG = BagStateSpec("bag", VarIntCoder())
    COUNT = CombiningValueStateSpec("count", CountCombineFn())
    SET = SetStateSpec("set", VarIntCoder())

    def __init__(self) -> None:
        self.seen = Metrics.distribution("stateful", "seen")

    def process(
        self,
        element: Any,
        last: Any = DoFn.StateParam(LAST),
        bag: Any = DoFn.StateParam(BAG),
        count: Any = DoFn.StateParam(COUNT),
        distinct: Any = DoFn.StateParam(SET),
        time: Any = DoFn.TimestampParam,
        key: Any = DoFn.KeyParam,
        window: Any = DoFn.WindowParam,
    ) -> Iterator[Any]:
        self.seen.update(element[1])
        before = last.read()
        last.write(element)
        bag.add(element[1])
        count.add(1)
        distinct.add(element[1] % 2)
        if element[1] % 5 == 0:
            bag.clear()
        yield key, before, list(bag.read()), count.read(), sorted(distinct.read()), time.micros, repr(window)
        if element[1] % 3 == 0:
            yield TaggedOutput("other", element)


class KeepsLists(beam.DoFn):
    """Has an ordered list, for which the SDK's handle is used."""

    LIST = OrderedListStateSpec("list", StrUtf8Coder())

    def process(self, element: Any, ordered: Any = DoFn.StateParam(LIST)) -> Iterator[Any]:
        ordered.add((Timestamp(element[1] % 5), str(element[1])))
        yield element[0], len(list(ordered.read_range(Timestamp(0), Timestamp(10))))


def alike(p: Any, elements: int, keys: int) -> Any:
    """Create (key, number), all with the same time."""
    made = p | beam.Create([(f"k{n % keys}", n) for n in range(elements)], reshuffle=False)
    return made | beam.Map(lambda e: e).with_output_types(tuple[str, int])


@pytest.mark.parametrize("bundle_elements", [1, 40, 500_000])
@pytest.mark.parametrize("fn", [Kinds, KeepsLists])
def test_many_uniform_keys_of_few_elements(fn: Any, bundle_elements: int) -> None:
    def build(p: Driven) -> list[str]:
        made = alike(p, 600, 90) | beam.ParDo(fn()).with_outputs("other", main="main")
        made["main"] | Collect("main")
        made["other"] | Collect("other")
        return ["main", "other"]

    assert same(build, shards=2, bundle_elements=bundle_elements).error is None


class Stops(beam.DoFn):
    """Raises a `StopIteration` from a function or a generator."""

    SEEN = CombiningValueStateSpec("seen", CountCombineFn())

    def process(self, element: Any, seen: Any = DoFn.StateParam(SEEN)) -> Any:
        return [next(iter(()))] if element[1] == 55 else [element]


class StopsLate(Stops):
    def process(self, element: Any, seen: Any = DoFn.StateParam(Stops.SEEN)) -> Iterator[Any]:
        yield from Stops.process(self, element, seen)


@pytest.mark.parametrize("fn", [Stops, StopsLate])
def test_stop_iteration_of_user_code_is_error(fn: Any) -> None:
    def build(p: Driven) -> None:
        alike(p, 60, 5) | beam.ParDo(fn()) | Collect()

    on = same(build)
    assert on.error is not None
    assert "StopIteration" in str(on.error)


_alive: list[Any] = []
_most: list[int] = []


class Large:
    """A value whose memory matters."""


class KeepsOne(beam.DoFn):
    """Each key writes a value; records how many exist concurrently."""

    LAST = ReadModifyWriteStateSpec("last", PickleCoder())

    def __init__(self, yields: bool) -> None:
        self._yields = yields

    def process(self, element: Any, last: Any = DoFn.StateParam(LAST)) -> Any:
        value = Large()
        _alive.append(weakref.ref(value))
        last.write(value)
        del value
        _most.append(sum(ref() is not None for ref in _alive))
        return iter([element]) if self._yields else [element]


class KeepsOneAndYields(KeepsOne):
    def process(self, element: Any, last: Any = DoFn.StateParam(KeepsOne.LAST)) -> Iterator[Any]:
        yield from super().process(element, last)


@pytest.mark.parametrize("kind", [KeepsOne, KeepsOneAndYields])
def test_objects_of_key_are_freed_with_it(kind: type[KeepsOne]) -> None:
    _alive.clear()
    _most.clear()
    gc.disable()
    try:
        with Driven(shards=1) as p:
            keyed = p | beam.Create([(f"key {n}", n) for n in range(300)]).with_output_types(tuple[str, int])
            _ = keyed | beam.ParDo(kind(True)) | Collect()
    finally:
        gc.enable()
    assert len(p.values()) == 300
    assert max(_most) <= 3


def test_clock_is_checked_between_keys() -> None:
    with Driven(shards=1, bundle_seconds=0.0) as p:
        keyed = p | beam.Create([(n, n) for n in range(3000)]).with_output_types(tuple[int, int])
        _ = keyed | beam.ParDo(Kinds()) | Collect()
    assert sum(report.bundles for report in p.reports) > 3000 // 256
