"""Values in bulk: decoded as by their coder; values that do not fit are encoded by it."""

import collections
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
import pytest
from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import row_type
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.batch.inputs import ONLY_PANE
from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.encoding.bulk import Bulk, ListBytes
from arcbeam.harness.encoding.untyped import is_named_tuple
from tests.harness.drive import Collect, Driven


class Pair(NamedTuple):
    a: Any
    b: Any = 7


class Item(NamedTuple):
    n: int
    name: Optional[str]  # noqa: UP045  # the SDK does not know the other form
    share: Optional[float]  # noqa: UP045
    inner: Optional["Inner"] = None


class Inner(NamedTuple):
    flag: bool
    data: bytes


Item.__annotations__["inner"] = Optional[Inner]  # noqa: UP045
Point = collections.namedtuple("Point", "x y")


class Named(Pair):
    """Has its own dict."""


class Remade(NamedTuple):
    a: int

    def __reduce__(self) -> Any:
        return Remade, (self.a + 1,)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Plain:
    n: int
    name: Any = None
    share: Any = None
    inner: Any = None


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, including types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        alike = a.dtype == b.dtype and a.shape == b.shape and a.flags.writeable == b.flags.writeable
        return alike and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b)) and getattr(a, "__dict__", 0) == getattr(b, "__dict__", 0)
    if isinstance(a, float):
        return repr(a) == repr(b)
    return bool(a == b)


def through(coder: Any, values: list[Any], *, bulk: bool) -> Any:
    """Return the values after an exchange, or the error."""
    windowed = coders.WindowedValueCoder(coder, coders.coders.GlobalWindowCoder())
    stream = coder_impl.create_OutputStream()
    try:
        BlockCoder(windowed, bulk=bulk).write(Block(values, 0, (GlobalWindow(),), ONLY_PANE), stream)
    except Exception as e:
        return type(e), str(e)
    return [value for block in BlockCoder(windowed).read(stream.get()) for value in block.values]


def grouped(coder: Any, values: list[Any], *, bulk: bool) -> Any:
    """Return the values of a group after an exchange, or the error."""
    try:
        encoded = ListBytes(coder, bulk=bulk).encode(values)
    except Exception as e:
        return type(e), str(e)
    return ListBytes(coder).decode(encoded)


def check(coder: Any, values: list[Any], *, fits: bool | None = None) -> None:
    """Check that a list is decoded equal in bulk; `fits` is whether it is written in bulk."""
    bulk, listed = (through(coder, values, bulk=on) for on in (True, False))
    assert same(bulk, listed), (bulk, listed)
    assert same(grouped(coder, values, bulk=True), grouped(coder, values, bulk=False))
    if fits is not None:
        assert (Bulk(coder).encode(values) is not None) is fits


ANYTHING = coders.FastPrimitivesCoder()
ITEMS = coders.RowCoder.from_type_hint(Item, coders.registry)
NAMED = coders.registry.get_coder(row_type.RowTypeConstraint.from_fields([("n", int), ("name", str)]))
MANY = range(40)

LISTS: dict[str, tuple[Any, list[Any], bool]] = {
    "integers": (ANYTHING, list(MANY), False),
    "numbers of numpy": (ANYTHING, [np.int64(n) for n in MANY], True),
    "short floats": (ANYTHING, [np.float32(n / 7) for n in MANY], True),
    "arrays that are not to be written to": (ANYTHING, [np.frombuffer(b"12345678", np.int64) for n in MANY], False),
    "numbers of another name": (ANYTHING, [np.longlong(n) for n in MANY], False),
    "arrays of these": (ANYTHING, [np.full(3, n, dtype=np.longlong) for n in MANY], False),
    "bits": (ANYTHING, [np.bool_(n % 2) for n in MANY], True),
    "complex numbers": (ANYTHING, [np.complex128(n + 1j) for n in MANY], True),
    "dates": (ANYTHING, [np.datetime64(n, "D") for n in MANY], False),
    "numbers of two types": (ANYTHING, [np.int64(n) if n % 2 else np.int32(n) for n in MANY], False),
    "arrays": (ANYTHING, [np.arange(n, n + 4) for n in MANY], True),
    "matrices": (ANYTHING, [np.full((2, 3), n, dtype=np.float32) for n in MANY], True),
    "matrices by column": (ANYTHING, [np.full((2, 3), n, order="F") for n in MANY], False),
    "empty arrays": (ANYTHING, [np.zeros((0, 3)) for n in MANY], True),
    "arrays without a dimension": (ANYTHING, [np.array(n) for n in MANY], False),
    "big-endian arrays": (ANYTHING, [np.arange(3, dtype=">i4") + n for n in MANY], True),
    "arrays of two lengths": (ANYTHING, [np.arange(1 + n % 2) for n in MANY], False),
    "arrays of objects": (ANYTHING, [np.array([n, "a"], dtype=object) for n in MANY], False),
    "slices of arrays": (ANYTHING, [np.arange(10)[n % 3 :: 3][:2] for n in MANY], False),
    "named tuples": (ANYTHING, [Pair(n, str(n)) for n in MANY], True),
    "named tuples in the old form": (ANYTHING, [Point(n, n / 3) for n in MANY], True),
    "named tuples in named tuples": (ANYTHING, [Pair(Point(n, None), Pair(n)) for n in MANY], True),
    "named tuples of numbers of numpy": (ANYTHING, [Pair(np.int64(n), np.arange(3)) for n in MANY], True),
    "named tuples of all kinds": (ANYTHING, [Pair([n], {n: Colour.RED} if n % 2 else Point(n, n)) for n in MANY], True),
    "named tuples of large integers": (ANYTHING, [Pair(1 << n * 3, -n) for n in MANY], True),
    "named tuples of odd strings": (ANYTHING, [Pair("\ud800", n) for n in MANY], False),
    "named tuples with a dict": (ANYTHING, [Named(n, n) for n in MANY], False),
    "named tuples with a way of their own": (ANYTHING, [Remade(n) for n in MANY], False),
    "pairs of named tuples": (ANYTHING, [(n, Pair(n)) for n in MANY], True),
    "pairs of lists": (ANYTHING, [(n, [n, Pair(n)]) for n in MANY], False),
    "tuples of two lengths": (ANYTHING, [(Pair(n),) * (1 + n % 2) for n in MANY], False),
    "enumerations": (ANYTHING, [Colour.RED for n in MANY], False),
    "few": (ANYTHING, [Pair(1)] * 5, False),
    "strings": (coders.StrUtf8Coder(), ["a" * n for n in MANY], True),
    "no strings": (coders.StrUtf8Coder(), [n or "a" for n in MANY], False),
    "pairs": (coders.TupleCoder([coders.VarIntCoder(), ANYTHING]), [(n, Pair(n)) for n in MANY], True),
    "lists as pairs": (coders.TupleCoder([coders.VarIntCoder(), ANYTHING]), [[n, Pair(n)] for n in MANY], False),
    "triples as pairs": (coders.TupleCoder([coders.VarIntCoder(), ANYTHING]), [(n, n, n) for n in MANY], False),
    "pairs of another type": (coders.TupleCoder([coders.VarIntCoder(), ANYTHING]), [("n", n) for n in MANY], False),
    "nothing": (coders.TupleCoder([]), [() for n in MANY], False),
    "floats as integers": (coders.TupleCoder([coders.VarIntCoder()]), [(n / 2,) for n in MANY], None),
    "numpy's as integers": (coders.TupleCoder([coders.VarIntCoder()]), [(np.int64(n),) for n in MANY], True),
    "rows": (ITEMS, [Item(n, str(n), n / 3, Inner(True, b"x")) for n in MANY], True),
    "rows with nulls": (
        ITEMS,
        [Item(n, None if n % 2 else "a", None, None if n % 3 else Inner(False, b"")) for n in MANY],
        True,
    ),
    "rows of numpy's": (ITEMS, [Item(np.int64(n), None, np.float64(n)) for n in MANY], True),
    "rows of another type": (ITEMS, [Plain(n) for n in MANY], True),
    "rows of several types": (ITEMS, [Plain(n) if n % 2 else Item(n, None, None) for n in MANY], True),
    "rows that lack a field": (ITEMS, [Pair(n) for n in MANY], False),
    "rows with a forbidden null": (ITEMS, [Item(None if n == 30 else n, "a", 1.0) for n in MANY], False),
    "rows with a wrong field": (ITEMS, [Item("a" if n == 30 else n, "a", 1.0) for n in MANY], False),
    "rows without a class": (NAMED, [beam.Row(n=n, name="a") for n in MANY], True),
    "rows in another order": (NAMED, [beam.Row(name="a", n=n) for n in MANY], True),
}


@pytest.mark.parametrize("name", LISTS)
def test_values_are_decoded_equal(name: str) -> None:
    coder, values, fits = LISTS[name]
    check(coder, values, fits=fits)
    check(coder, values[:3])
    check(coder, values[:17] * 9)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.integers(-9, 9).map(np.int64),
    st.floats().map(np.float64),
    st.lists(st.integers(0, 9), min_size=2, max_size=2).map(np.array),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner, inner), st.builds(Pair, inner, inner)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(anything, min_size=1, max_size=4), st.integers(4, 12))
def test_random_values_are_decoded_equal(values: list[Any], times: int) -> None:
    check(ANYTHING, values * times)
    check(ANYTHING, [Pair(value, n) for n in range(times) for value in values])
    check(coders.TupleCoder([ANYTHING, coders.VarIntCoder()]), [(v, n) for n in range(times) for v in values])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.builds(
            Item,
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(),
            st.none() | st.floats(),
            st.none() | st.builds(Inner, st.booleans(), st.binary()),
        ),
        min_size=16,
        max_size=30,
    )
)
def test_random_rows_are_decoded_equal(rows: list[Item]) -> None:
    check(ITEMS, rows)


def test_array_after_exchange_is_independent() -> None:
    arrays = through(ANYTHING, [np.arange(4) for _ in MANY], bulk=True)
    assert all(array.flags.owndata and array.flags.writeable for array in arrays)


def test_unfit_values_are_not_tried_again() -> None:
    calls = []

    class Odd(list[Any]):
        def __iter__(self) -> Any:
            calls.append(self)
            return super().__iter__()

    bulk = Bulk(coders.TupleCoder([coders.VarIntCoder()]))
    for _ in range(10):
        assert bulk.encode(Odd([[1]] * 20)) is None
    assert len(calls) == 3


def test_named_tuples_are_recognized() -> None:
    class Fake(tuple):
        _fields = ("a",)

    assert all(map(is_named_tuple, (Pair, Point, Item)))
    assert not any(map(is_named_tuple, (Fake, Named, tuple, Plain, int)))


# In a pipeline.


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("memory", [64, 1 << 20])
def test_values_of_groups(bulk: bool, memory: int) -> None:
    with Driven(shards=2, bulk_values=bulk, group_memory_bytes=memory) as p:
        pairs = p | beam.Create(range(100)) | beam.Map(lambda n: (n % 2, Pair(n, np.int64(n))))
        pairs | beam.GroupByKey() | beam.MapTuple(lambda key, values: sorted(values)) | Collect()
    found = sorted(p.values())
    assert same(found, [[Pair(n, np.int64(n)) for n in range(first, 100, 2)] for first in (0, 1)])


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("routing", [beam.Reshuffle, lambda: beam.Map(lambda x: x)])
def test_values_cross_an_exchange(bulk: bool, routing: Callable[[], Any]) -> None:
    made = [Pair(n, np.int64(n)) for n in range(100)]
    with Driven(shards=3, fusion=False, bulk_values=bulk) as p:
        p | beam.Create(range(100)) | beam.Map(lambda n: made[n]) | routing() | Collect()
    found = sorted(p.values())
    assert same(found, made)


@pytest.mark.parametrize("bulk", [True, False])
def test_error_names_unencodable_element(bulk: bool) -> None:
    p = Driven(bulk_values=bulk)
    made = beam.Map(lambda n: (n, "oops" if n == 250 else n)).with_output_types(tuple[int, int])
    p | beam.Create(range(300)) | "bad" >> made | beam.Reshuffle() | Collect()
    with pytest.raises(CoderError, match=r"cannot encode \(250, 'oops'\).*while running 'bad'"):
        p.run()
