"""Encoded keys: equal for equal keys, in every process and for every order of insertion.

There are no postponed annotations, because the SDK does not make schemas of these.
"""

import base64
import bz2
import datetime
import decimal
import enum
import json
import pickle
import uuid
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional  # noqa: UP035  # what the SDK makes schemas of
from zoneinfo import ZoneInfo

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import coder_impl, coders
from apache_beam.coders.row_coder import RowCoder
from apache_beam.internal import cloudpickle_pickler
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.errors import CoderError
from arcbeam.harness.encoding import keycoders
from tests.harness.drive import Collect, Driven


class Inner(NamedTuple):
    a: Any
    b: int


class Key(NamedTuple):
    anything: Any
    inner: Inner
    array: List[Any]  # noqa: UP006
    mapping: Dict[str, Any]  # noqa: UP006
    optional: Optional[Inner]  # noqa: UP045


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Frozen:
    x: Any


CODER = keycoders.deterministic(RowCoder.from_type_hint(Key, None), "a step")


def test_row_with_fields_of_all_types() -> None:
    kinds = [field.type.WhichOneof("type_info") for field in CODER.schema.fields]
    assert kinds == ["logical_type", "row_type", "array_type", "map_type", "row_type"]


def key(anything: Any = None, array: Any = (), mapping: Any = None, inner: Any = 0, optional: Any = None) -> Key:
    return Key(anything, Inner(inner, 1), array, mapping or {}, optional)


FORWARDS, BACKWARDS = {"a": 1, "b": 2}, {"b": 2, "a": 1}
# With collisions, so that the order of a set depends on the order of insertion.
SET, SAME_SET = {8, 0, 16}, {16, 0, 8}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (key(FORWARDS), key(BACKWARDS)),
        (key([FORWARDS]), key([BACKWARDS])),
        (key(SET), key(SAME_SET)),
        (key(array=SET), key(array=SAME_SET)),
        (key(array=frozenset(SET)), key(array=frozenset(SAME_SET))),
        (key(mapping=FORWARDS), key(mapping=BACKWARDS)),
        (key(mapping={"m": FORWARDS}), key(mapping={"m": BACKWARDS})),
        (key(inner=FORWARDS), key(inner=BACKWARDS)),
        (key(optional=Inner(FORWARDS, 2)), key(optional=Inner(BACKWARDS, 2))),
        (key(array=[FORWARDS, None]), key(array=[BACKWARDS, None])),
    ],
)
def test_equal_rows_have_equal_bytes(one: Key, other: Key) -> None:
    assert one == other
    encoded = CODER.encode(one)
    assert encoded == CODER.encode(other)
    again = CODER.decode(encoded)
    assert CODER.encode(again) == encoded


VALUES = [
    None,
    1,
    1.0,
    True,
    "1",
    b"1",
    (1,),
    [1],
    1 << 70,
    [1 << 70],
    np.int64(1),
    np.int32(1),
    np.float32(1),
    np.float64(1),
    np.bool_(True),
    np.str_("1"),
    np.datetime64("2020-01-01"),
    datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1),
    datetime.datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Zurich")),
    datetime.time(1),
    datetime.timedelta(1),
    decimal.Decimal("1.5"),
    uuid.UUID(int=1),
    complex(1, 2),
    Timestamp(1),
    Duration(1),
    Colour.RED,
    Frozen(1),
    Frozen(1.0),
]


def test_different_rows_have_different_bytes() -> None:
    found = [CODER.encode(key(value)) for value in VALUES]
    assert len(set(found)) == len(VALUES)
    again = [CODER.decode(encoded).anything for encoded in found]
    assert again == VALUES
    assert [type(v) for v in again] == [type(v) for v in VALUES]
    assert found == [CODER.encode(key(value)) for value in again]
    assert all(CODER.get_impl().estimate_size(key(value)) == len(e) for value, e in zip(VALUES, found, strict=True))


class Changing:
    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize("bad", [object(), Changing(), [Changing()], {1: 2, "a": 3}, {1, "a"}, np.zeros(2)])
def test_element_without_deterministic_bytes_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="a step"):
        CODER.encode(key(bad))
    assert CODER.encode(key(1))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda coder: coders.TupleCoder([coder, coders.StrUtf8Coder()]),
        lambda coder: coders.TupleCoder([coders.TupleCoder([coder, coder, coder]), coder]),
    ],
)
def test_rows_in_other_coders(wrap: Any) -> None:
    plain = wrap(RowCoder.from_type_hint(Inner, None))
    made = keycoders.deterministic(plain, "a step")

    def filled(coder: Any, value: Any) -> Any:
        if isinstance(coder, coders.TupleCoder):
            return tuple(filled(part, value) for part in coder.coders())
        return "x" if isinstance(coder, coders.StrUtf8Coder) else Inner(value, 1)

    assert made.encode(filled(plain, FORWARDS)) == made.encode(filled(plain, BACKWARDS))
    assert made.decode(made.encode(filled(plain, FORWARDS))) == filled(plain, FORWARDS)


def _unnamed() -> type:
    class Point(NamedTuple):
        x: int

    return Point


def test_known_class_is_pickled_by_name() -> None:
    known, unknown = _unnamed(), _unnamed()
    cloudpickle_pickler.loads(cloudpickle_pickler.dumps(known))
    keycoders.know([known])
    try:
        before = cloudpickle_pickler.dumps(known)
        known._noted = unknown._noted = "by the SDK"  # type: ignore[attr-defined]
        assert cloudpickle_pickler.dumps(known) == before
        assert cloudpickle_pickler.loads(before) is known
        assert b"_noted" in bz2.decompress(base64.b64decode(cloudpickle_pickler.dumps(unknown)))
        # A container of the class is pickled normally: it may be sent where the class is unknown.
        assert b"_noted" in bz2.decompress(base64.b64decode(cloudpickle_pickler.dumps([known])))
        coder = coders.FastPrimitivesCoder().as_deterministic_coder("a step")
        assert before in coder.encode(known(1))
        assert coder.decode(coder.encode(known(1))) == known(1)
    finally:
        keycoders.know([])


def test_sdk_decodes_pickled_values_of_keys() -> None:
    impl = coders.FastPrimitivesCoder().as_deterministic_coder("a step").get_impl()
    field = keycoders._AnythingImpl(coders.FastPrimitivesCoder(), "a step")
    stream = coder_impl.create_OutputStream()
    field.encode_to_stream(datetime.date(2020, 1, 1), stream, True)
    found = impl.decode_from_stream(coder_impl.create_InputStream(stream.get()), True)
    assert found == pickle.loads(pickle.dumps(found)) == datetime.date(2020, 1, 1)


JSON = ['{"k": "a", "v": 1}', '{"k": "b", "v": 2}', '{"k": "a", "v": 3}', '{"k": null, "v": 4}', '{"k": 1, "v": 5}']


@pytest.mark.contract("BAT-01")
class TestGroupBy:
    def test_fields_of_parsed_json(self) -> None:
        with Driven(shards=3) as p:
            rows = p | beam.Create(JSON) | beam.Map(json.loads) | beam.Map(lambda d: beam.Row(k=d["k"], v=d["v"]))
            sums = rows | beam.GroupBy("k").aggregate_field("v", sum, "s").aggregate_field("v", max, "m")
            _ = sums | beam.Map(tuple) | Collect()
        assert sorted(p.values(), key=str) == sorted([("a", 4, 3), ("b", 2, 2), (None, 4, 4), (1, 5, 5)], key=str)

    def test_typed_named_tuples(self) -> None:
        with Driven(shards=3) as p:
            made = p | beam.Create([Inner("a", 1), Inner("b", 2), Inner("a", 3)]).with_output_types(Inner)
            _ = made | beam.GroupBy("a").aggregate_field("b", sum, "s") | beam.Map(tuple) | Collect()
        assert sorted(p.values()) == [("a", 4), ("b", 2)]

    def test_equal_keys_in_several_forms(self) -> None:
        keys = [FORWARDS, BACKWARDS, SET, SAME_SET, 1, 1.0, True, np.int64(1), datetime.date(2020, 1, 1), None]
        with Driven(shards=3, bundle_elements=1) as p:
            made = p | beam.Create(keys, reshuffle=False) | "spread" >> beam.Reshuffle()
            rows = made | "rows" >> beam.Map(lambda k: Inner(k, 1)).with_output_types(Inner)
            _ = rows | beam.GroupBy("a", "b").aggregate_field("b", sum, "s") | beam.Map(tuple) | Collect()
        assert sorted(s for _, _, s in p.values()) == [1, 1, 1, 1, 1, 1, 2, 2]

    def test_error_names_nondeterministic_key_and_transform(self) -> None:
        p = Driven()
        rows = p | beam.Create([1]) | "rows" >> beam.Map(lambda n: beam.Row(k=Changing() if n else None, v=n))
        _ = rows | beam.GroupBy("k").aggregate_field("v", sum, "s") | Collect()
        with pytest.raises(CoderError, match=r"(?s)cannot encode.*Changing.*while running"):
            p.run()
