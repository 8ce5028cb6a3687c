"""A script whose classes are elements, keys, accumulators and side inputs; test_mainmodule runs it as `__main__`.

It has no postponed annotations, because the SDK does not make schemas of these.
"""

import dataclasses
import enum
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to


class Point(NamedTuple):
    x: int
    y: str


class Row(NamedTuple):
    x: int
    y: str


coders.registry.register_coder(Row, coders.RowCoder)


@dataclasses.dataclass(frozen=True)
class Data:
    x: int
    y: str


class Plain:
    class Inner:
        x = 7

    def __init__(self, x: int, y: str = "") -> None:
        self.x, self.inner = x, Plain.Inner()


class Coded(Plain):
    pass


class CodedCoder(coders.Coder):
    def encode(self, value: Coded) -> bytes:
        return str(value.x).encode()

    def decode(self, encoded: bytes) -> Coded:
        return Coded(int(encoded))

    def is_deterministic(self) -> bool:
        return True


coders.registry.register_coder(Coded, CodedCoder)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Sum(beam.CombineFn):
    def create_accumulator(self) -> Plain:
        return Plain(0)

    def add_input(self, accumulator: Plain, element: int) -> Plain:
        return Plain(accumulator.x + element)

    def merge_accumulators(self, accumulators: Any) -> Plain:
        return Plain(sum(a.x for a in accumulators))

    def extract_output(self, accumulator: Plain) -> int:
        return accumulator.x


class Make(beam.DoFn):
    def __init__(self, cls: type) -> None:
        self.cls = cls

    def process(self, element: int) -> Iterator[Any]:
        yield element % 2, self.cls(element, "y")


class MakeAgain(Make):
    def process(self, element: int) -> Iterator[Any]:
        yield from super().process(element)


CLASSES = {cls.__name__: cls for cls in (Point, Row, Data, Plain, Coded)}


def seen(key: Any, values: Any) -> Any:
    found = list(values)
    return key, sorted(v.x for v in found), {CLASSES[type(v).__name__] is type(v) for v in found}


def run(arguments: list[str]) -> None:
    with beam.Pipeline(options=PipelineOptions(arguments)) as p:
        numbers = p | beam.Create([0, 1, 2, 3])
        for name, cls in CLASSES.items():
            made = numbers | f"{name} made" >> beam.ParDo(MakeAgain(cls)).with_output_types(tuple[int, cls])
            found = made | f"{name} grouped" >> beam.GroupByKey() | f"{name} seen" >> beam.MapTuple(seen)
            assert_that(found, equal_to([(0, [0, 2], {True}), (1, [1, 3], {True})]), label=name)
        for cls in (Point, Row, Data, Coded):
            name = f"{cls.__name__} as key"
            keyed = numbers | name >> beam.Map(lambda i, c=cls: (c(i % 2, "y"), i)).with_output_types(tuple[cls, int])
            found = keyed | f"{name} grouped" >> beam.GroupByKey()
            found = found | f"{name} seen" >> beam.MapTuple(lambda k, v: (k.x, sorted(v)))
            assert_that(found, equal_to([(0, [0, 2]), (1, [1, 3])]), label=name)
        assert_that(numbers | beam.CombineGlobally(Sum()), equal_to([6]), label="Accumulators")
        made = p | "Made here" >> beam.Create([Plain(1), Plain(2)]) | beam.Reshuffle()
        inner = made | "Inner" >> beam.Map(lambda v: (v.x, v.inner.x, isinstance(v.inner, Plain.Inner)))
        assert_that(inner, equal_to([(1, 7, True), (2, 7, True)]), label="Created")
        colors = p | "Colors" >> beam.Create([(Color.RED, 1), (Color.BLUE, 2), (Color.RED, 3)]) | beam.GroupByKey()
        counted = colors | "Red" >> beam.MapTuple(lambda k, v: (k is Color.RED, sorted(v)))
        assert_that(counted, equal_to([(True, [1, 3]), (False, [2])]), label="Enums")
        side = beam.pvalue.AsList(made)
        summed = p | "One" >> beam.Create([0]) | "Add" >> beam.Map(lambda x, vs: sum(v.x for v in vs), side)
        assert_that(summed, equal_to([3]), label="Side")


if __name__ == "__main__":
    run(sys.argv[1:])
    sys.stdout.write("all found\n")
