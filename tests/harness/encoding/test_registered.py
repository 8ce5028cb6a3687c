"""Types that a program has registered with the SDK are the same types in the workers.

There are no postponed annotations, because the SDK does not make schemas of these.
"""

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import apache_beam as beam
import pytest
from apache_beam.coders import typecoders
from apache_beam.internal import cloudpickle_pickler
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.schema_registry import SCHEMA_REGISTRY
from apache_beam.typehints.schemas import LogicalType, NoArgumentLogicalType

from arcbeam.harness.encoding.registered import Registered
from arcbeam.runner.runner import ArcbeamRunner


@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    floor: int


class Pair(NamedTuple):
    a: str
    b: int


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


class Temperature(NoArgumentLogicalType):
    @classmethod
    def urn(cls) -> str:
        return "arcbeam_tests:temperature"

    @classmethod
    def representation_type(cls) -> type:
        return float

    @classmethod
    def language_type(cls) -> type:
        return Celsius

    def to_language_type(self, value: float) -> Celsius:
        return Celsius(value)

    def to_representation_type(self, value: Celsius) -> float:
        return value.degrees


class Reading(NamedTuple):
    place: str
    value: Celsius


class Odd:
    pass


class OddCoder(beam.coders.Coder):
    pass


@pytest.fixture
def registries() -> Iterator[Any]:
    """The SDK's registries, restored after the test. Calling it replaces them by a worker's."""
    known = typecoders.registry
    kept = dict(known._coders), list(known.custom_types), dict(SCHEMA_REGISTRY.by_id), LogicalType._known_logical_types

    def fresh() -> None:
        known._coders, known.custom_types = dict(kept[0]), list(kept[1])
        SCHEMA_REGISTRY.by_id = dict(kept[2])
        LogicalType._known_logical_types = kept[3].copy()
        for kind in (Place, Pair, Reading):
            if "_beam_schema_id" in vars(kind):
                del kind._beam_schema_id

    fresh()
    yield fresh
    fresh()
    known._coders, known.custom_types, SCHEMA_REGISTRY.by_id, LogicalType._known_logical_types = kept


def test_registrations_reach_worker(registries: Any) -> None:
    class Local(NamedTuple):
        x: int

    for kind in (Place, Local):
        typecoders.registry.register_row(kind)
    typecoders.registry.register_coder(Odd, OddCoder)
    LogicalType.register_logical_type(Temperature)
    schemas = {id: kind for id, (kind, _) in SCHEMA_REGISTRY.by_id.items() if kind in (Place, Local)}
    assert set(schemas.values()) == {Place, Local}
    sent = pickle.dumps(Registered.here())
    registries()
    assert not set(schemas) & set(SCHEMA_REGISTRY.by_id)
    pickle.loads(sent).loaded().install()
    for id, kind in schemas.items():
        assert SCHEMA_REGISTRY.get_typing_by_id(id) is kind
    assert isinstance(typecoders.registry.get_coder(Odd), OddCoder)
    assert isinstance(typecoders.registry.get_coder(Place), beam.coders.RowCoder)
    assert LogicalType._known_logical_types.get_logical_type_by_urn(Temperature.urn()) is Temperature


def test_registered_class_replaces_generated_class(registries: Any) -> None:
    typecoders.registry.register_row(Place)
    ((id, (_, schema)),) = ((i, found) for i, found in SCHEMA_REGISTRY.by_id.items() if found[0] is Place)
    here = Registered.here()
    registries()
    assert beam.coders.RowCoder(schema).to_type_hint() is not Place
    Registered().loaded().install()
    here.loaded().install()
    assert beam.coders.RowCoder(schema).to_type_hint() is Place
    assert SCHEMA_REGISTRY.get_typing_by_id(id) is Place


def test_sdk_classes_are_not_sent(registries: Any) -> None:
    generated = beam.typehints.row_type.RowTypeConstraint.from_fields([("x", int)])
    beam.coders.RowCoder.from_type_hint(generated, None)
    before = Registered.here()
    assert not [urn for urn, _ in before.logical_types if urn.startswith("beam:")]
    assert not [name for name, _ in before.coders if name == "Timestamp"]
    assert not [id for id, _ in before.schemas if id == generated.schema_id]


def test_type_whose_coder_was_removed(registries: Any) -> None:
    typecoders.registry.register_coder(Odd, OddCoder)
    del typecoders.registry._coders[Odd]
    assert "Odd" not in dict(Registered.here().coders)


def test_class_of_missing_module_is_skipped(registries: Any) -> None:
    typecoders.registry.register_coder(Odd, OddCoder)
    good = Registered.here()
    bad = Registered(coders=(("Gone", b"gone"), *good.coders))
    registries()
    bad.loaded().install()
    assert isinstance(typecoders.registry.get_coder(Odd), OddCoder)


@pytest.mark.contract("API-01", "API-05")
@pytest.mark.usefixtures("spark", "registries")
def test_keys_and_values_keep_their_types() -> None:
    typecoders.registry.register_row(Place)
    typecoders.registry.register_coder(Pair, beam.coders.RowCoder)
    LogicalType.register_logical_type(Temperature)
    typecoders.registry.register_coder(Reading, beam.coders.RowCoder)
    for kind, make in {Place: Place, Pair: Pair, Reading: lambda n, i: Reading(n, Celsius(i))}.items():
        with beam.Pipeline(runner=ArcbeamRunner()) as p:
            key = beam.Map(lambda i, m=make: (m("x", i % 2), i)).with_output_types(tuple[kind, int])
            made = p | beam.Create(range(4)) | "key" >> key
            grouped = made | beam.GroupByKey() | beam.Reshuffle()
            types = grouped | beam.MapTuple(lambda k, vs: (type(k).__qualname__, sorted(vs)))
            assert_that(types, equal_to([(kind.__qualname__, [0, 2]), (kind.__qualname__, [1, 3])]))
            values = made | "swap" >> beam.Map(lambda kv: (1, kv[0])).with_output_types(tuple[int, kind])
            values |= "by one" >> beam.GroupByKey()
            found = values | "names" >> beam.MapTuple(lambda k, vs: {type(v).__qualname__ for v in vs})
            assert_that(found, equal_to([{kind.__qualname__}]), label="values")


@pytest.mark.contract("BAT-01")
@pytest.mark.usefixtures("spark", "registries")
def test_workers_encode_class_equally() -> None:
    """A class that cannot be imported changes between two jobs, and some workers have the version of the first."""

    class Point(NamedTuple):
        x: int

    def count(elements: int) -> None:
        with beam.Pipeline(runner=ArcbeamRunner()) as p:
            spread = p | beam.Create(range(elements)) | beam.Reshuffle()
            keyed = spread | beam.Map(lambda i: (Point(7), i)).with_output_types(tuple[Any, int])
            grouped = keyed | beam.GroupByKey() | beam.MapTuple(lambda k, vs: len(list(vs)))
            assert_that(grouped, equal_to([elements]))

    count(1)
    Point.__doc__ = "Another."
    count(40)


def test_type_variables_of_script_are_no_classes() -> None:
    variable = TypeVar("variable")

    class Keyed(Generic[variable]):
        pass

    cloudpickle_pickler.dumps((variable, Keyed))
    sent = [cloudpickle_pickler.loads(data) for _, data in Registered.here().classes]
    assert Keyed in sent
    assert variable not in sent
