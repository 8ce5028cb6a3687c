"""Keys with equal forms have equal encodings, whatever other keys there are."""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import coders
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.encoding.keyforms import KeyForms
from tests.harness.drive import Collect
from tests.harness.transforms.comparing import same


@dataclasses.dataclass(frozen=True)
class Place:
    row: Any
    column: Any


@dataclasses.dataclass(frozen=True)
class Derived:
    row: Any
    column: Any
    both: Any = dataclasses.field(init=False, default=0)


@dataclasses.dataclass(frozen=True)
class Single:
    only: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Unequal:
    row: Any
    column: Any


class Cell(NamedTuple):
    row: Any
    column: Any


class Folded(tuple[Any, ...]):
    """Has its own comparison."""

    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return len(self) == len(other)  # type: ignore[arg-type]


class Colour(enum.Enum):
    RED = 1
    BLUE = True


IMPL = coders.FastPrimitivesCoder().as_deterministic_coder("here").get_impl()
SCALARS = st.one_of(
    st.integers(-1, 2),
    st.booleans(),
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), "", "a", b"", b"a", Colour.RED]),
)
PAIRS = st.one_of(st.tuples(SCALARS, SCALARS), st.tuples(st.integers(0, 1), st.integers(0, 1)))
KEYS = st.one_of(
    SCALARS,
    PAIRS,
    st.tuples(),
    st.tuples(st.tuples(SCALARS)),
    PAIRS.map(lambda pair: Place(*pair)),
    PAIRS.map(lambda pair: Derived(*pair)),
    PAIRS.map(lambda pair: Unequal(*pair)),
    PAIRS.map(lambda pair: Cell(*pair)),
    SCALARS.map(Single),
    st.floats(width=16),
)
BLOCKS = st.one_of(
    st.lists(KEYS, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["a", "b"])), min_size=1),
    st.lists(st.builds(Place, st.integers(0, 1), st.floats(0, 1)), min_size=1),
    st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1),
)


@pytest.mark.contract("PLAN-02")
@given(blocks=st.lists(BLOCKS, max_size=3))
def test_equal_forms_have_equal_encodings(blocks: list[list[Any]]) -> None:
    forms = KeyForms(IMPL)
    encodings: dict[Any, dict[Any, set[bytes]]] = defaultdict(lambda: defaultdict(set))
    for keys in blocks:
        arrived: list[int] = []
        for kind, pairs, objects in forms.of([(key, place) for place, key in enumerate(keys)]):
            for number, (form, place) in enumerate(pairs):
                key = keys[place]
                arrived.append(place)
                encodings[kind][form].add(IMPL.encode(key))
                if kind is None:
                    assert form == IMPL.encode(key)
                elif objects is None:
                    assert form is key
                else:
                    assert objects[number] is key
                # A key's form does not depend on other keys.
                alone_kind, alone = forms.one(key)
                assert alone_kind == kind
                assert alone is form or alone == form
        assert sorted(arrived) == list(range(len(keys)))
    assert all(len(found) == 1 for table in encodings.values() for found in table.values())


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([1, 2], int),
        ([True, False], bool),
        ([1.5, 2.5], float),
        ([(1, "a"), (2, "b")], (tuple, int, str)),
        ([(1.5, None)], (tuple, float, type(None))),
        ([Cell(1, 2), Cell(3, 4)], (Cell, int, int)),
        ([Place(1, 2), Place(1, 3)], (Place, int, int)),
        ([0.0, 1.0, -0.0], None),
        ([Folded((1, 2)), Folded((3, 4))], None),
        ([(1, (2,))], None),
        ([Single(1)], None),
    ],
)
def test_keys_with_forms(keys: list[Any], kind: Any) -> None:
    found = [alike.kind for alike in KeyForms(coders.PickleCoder().get_impl()).of([(key, 0) for key in keys])]
    if any(type(key) is Place for key in keys):
        # The encoding of an object by other coders is unknown.
        assert found == [None]
        found = [alike.kind for alike in KeyForms(IMPL).of([(key, 0) for key in keys])]
    assert kind in found
    assert len(found) <= 2


@given(blocks=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1)))
def test_each_form_in_table_has_key(blocks: list[list[tuple[int, int]]]) -> None:
    forms, table, key_of = KeyForms(IMPL), dict[Any, int](), dict[Any, Any]()
    for parts in blocks:
        (alike,) = forms.of([(Place(*pair), 1) for pair in parts])
        before = len(table)
        for form, value in alike.pairs:
            table[form] = table.get(form, 0) + value
        alike.note_keys(key_of, table, before)
    assert key_of == {form: Place(*form) for form in table}


def made_keys(x: int) -> Any:
    return {
        "tuple": (x % 3, str(x % 2)),
        "mixed": (x % 3, [1, 1.0, True][x % 3]),
        "float": [0.0, -0.0, 1.5, 2.5][x % 4],
        "bool": x % 2 == 0,
        "dataclass": Place(x % 3, x % 2),
        "namedtuple": Cell(x % 3, x % 2),
        "any": [1, 1.0, True, None, "1", (1,), (True,), Place(1, 1), Cell(1, 1), Place(1, True)][x % 10],
    }


@pytest.mark.contract("PLAN-02", "BAT-01")
@pytest.mark.parametrize("name", sorted(made_keys(0)))
@pytest.mark.parametrize("windowed", [False, True])
def test_keys_of_every_type(name: str, windowed: bool) -> None:
    def build(p: Any) -> list[str]:
        made = p | beam.Create([600], reshuffle=False) | beam.FlatMap(lambda n: range(n))
        if windowed:
            made |= beam.Map(lambda x: beam.window.TimestampedValue(x, x % 20))
            made |= beam.WindowInto(beam.window.FixedWindows(10))
        pairs = made | "pairs" >> beam.Map(lambda x: (made_keys(x)[name], x))
        pairs | "sum" >> beam.CombinePerKey(sum) | Collect("sum")
        pairs | beam.GroupByKey() | beam.MapTuple(lambda key, values: (key, sorted(values))) | Collect("group")
        pairs | beam.Keys() | beam.Distinct() | Collect("distinct")
        return ["sum", "group", "distinct"]

    outcome = same(build, shards=2)
    assert outcome.error is None
    expected = len({IMPL.encode(made_keys(x)[name]) for x in range(600)})
    assert len(outcome.seen["distinct"]) >= expected
