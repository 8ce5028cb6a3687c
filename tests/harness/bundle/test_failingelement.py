"""The element that made user code fail: found in the frames of the error, however the transform was run."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.userstate import CombiningValueStateSpec

from arcbeam.harness.bundle.failingelement import failing_element_of
from tests.harness.drive import Driven

POISON = ("bad", 0)


def divide(pair: tuple[str, int]) -> float:
    return 1 / pair[1]


def divided(pair: tuple[str, int]) -> Iterator[float]:
    yield 1 / pair[1]


def divide_with(pair: tuple[str, int], by: int) -> float:
    return by / pair[1]


def divided_by(by: int, pair: tuple[str, int]) -> Iterator[float]:
    yield by / pair[1]


_SCRIPT = "def double(pair):\n    yield 1 / pair[1]\n"
_SCRIPTS = [f"/home/me/{folder}/flights.py" for folder in ("arcbeam", "arcbeam/harness", "apache_beam/runners")]


def of_script(file: str) -> Any:
    """Return a function of a script with this path."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(_SCRIPT, file, "exec"), names)
    return names["double"]


class Divides:
    def at(self, pair: tuple[str, int]) -> float:
        return 1 / pair[1]

    def each(this, pair: tuple[str, int]) -> Iterator[float]:  # parameters may have any names
        yield 1 / pair[1]

    @classmethod
    def of_class(cls, pair: tuple[str, int]) -> Iterator[float]:
        yield 1 / pair[1]

    @staticmethod
    def alone(pair: tuple[str, int]) -> Iterator[float]:
        yield 1 / pair[1]


class CalledByName:
    def __call__(this, pair: tuple[str, int]) -> Iterator[float]:
        yield 1 / pair[1]


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def wrapped_method(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(this: Any, given: Any) -> Any:
        return function(this, given)

    return wrapper


@wrapped
def divided_in_wrapper(pair: tuple[str, int]) -> Iterator[float]:
    yield 1 / pair[1]


class DivideNamingNoSelf(beam.DoFn):
    def process(this, pair: tuple[str, int]) -> list[float]:
        return [1 / pair[1]]


class GenerateNamingNoSelf(beam.DoFn):
    def process(this, pair: tuple[str, int], at: Any = beam.DoFn.TimestampParam) -> Iterator[float]:
        yield 1 / pair[1]


class DivideInWrapper(beam.DoFn):
    @wrapped_method
    def process(this, pair: tuple[str, int]) -> Iterator[float]:
        yield 1 / pair[1]


class Divide(beam.DoFn):
    def process(self, element: tuple[str, int]) -> Iterator[float]:
        helper(element[1])
        yield 1


class DivideByState(beam.DoFn):
    SEEN = CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> list[float]:
        return [1 / pair[1]]


class DivideWithTime(beam.DoFn):
    def process(self, element: tuple[str, int], at: Any = beam.DoFn.TimestampParam) -> list[float]:
        return [1 / element[1]]


def helper(number: int) -> float:
    return 1 / number


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "map": lambda: beam.Map(divide),
    "of a method": lambda: beam.Map(Divides().at),
    "with an argument": lambda: beam.Map(divide_with, 2),
    "tuple": lambda: beam.MapTuple(lambda key, number: 1 / number),
    "filter": lambda: beam.Filter(divide),
    "flat": lambda: beam.FlatMap(lambda pair: [1 / pair[1]]),
    "generator": lambda: beam.FlatMap(divided),
    "DoFn": lambda: beam.ParDo(Divide()),
    "stateful": lambda: beam.ParDo(DivideByState()),
    "with its time": lambda: beam.ParDo(DivideWithTime()),
    "method": lambda: beam.FlatMap(Divides().each),
    "class method": lambda: beam.FlatMap(Divides.of_class),
    "static method": lambda: beam.FlatMap(Divides.alone),
    "callable": lambda: beam.FlatMap(CalledByName()),
    "partial": lambda: beam.FlatMap(partial(divided_by, 2)),
    "wrapped": lambda: beam.FlatMap(divided_in_wrapper),
    "DoFn without self": lambda: beam.ParDo(DivideNamingNoSelf()),
    "generator without self": lambda: beam.ParDo(GenerateNamingNoSelf()),
    "wrapped DoFn": lambda: beam.ParDo(DivideInWrapper()),
    **{f"script {file}": partial(lambda file: beam.FlatMap(of_script(file)), file) for file in _SCRIPTS},
}


def failed(transform: Any, elements: list[Any], *before: Any, **settings: Any) -> BaseException:
    p = Driven(**settings)
    given = p | beam.Create(elements, reshuffle=False)
    for one in before:
        given |= one
    _ = given | transform
    with pytest.raises(Exception, match="while running") as caught:
        p.run()
    return caught.value


@pytest.mark.contract("BAT-04")
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("place", [0, 1_500])
def test_failing_element_is_found(name: str, chained: bool, place: int) -> None:
    elements = [(f"key {n}", n + 1) for n in range(2_000)]
    elements[place] = POISON
    before = [beam.Map(lambda pair: (pair[0], pair[1] * 1)).with_output_types(tuple[str, int])] if chained else []
    found = failing_element_of(failed(TRANSFORMS[name](), elements, *before))
    assert found is not None
    assert found.element == POISON


@pytest.mark.parametrize("before", [1, 5])
def test_chain_reports_input_of_failing_transform(before: int) -> None:
    elements = list(range(1, 2_001))
    more = [f"add {n}" >> beam.Map(lambda x: x + 1) for n in range(before)]
    found = failing_element_of(failed(beam.Map(lambda x: 1 // (x - 1_000)), elements, *more))
    assert found == (1_000,)


def test_element_failing_during_iteration_is_found() -> None:
    elements = list(range(1, 2_001))
    made = beam.FlatMap(lambda x: (by // (x - 1_000) for by in [1]))
    found = failing_element_of(failed(made, elements, beam.Map(lambda x: x)))
    assert found == (1_000,)


class Inverse:
    def __init__(self, number: int) -> None:
        self.number = number

    def of(self, by: int = 7) -> Iterator[float]:
        yield by / self.number


def test_element_is_named_when_its_own_method_fails() -> None:
    elements = [Inverse(n) for n in (2, 1, 0)]
    found = failing_element_of(failed(beam.FlatMap(Inverse.of), elements))
    assert found is not None
    assert found.element.number == 0


@pytest.mark.parametrize("returned", [lambda pair: (1 / n for n in [pair[1]]), lambda pair: divided((pair, 0))])
def test_no_element_is_named_for_a_returned_iterator(returned: Any) -> None:
    # The argument of the function is unavailable by then, and the argument of the iterator is not an element.
    assert failing_element_of(failed(beam.FlatMap(returned), [POISON])) is None


def test_failure_in_c_code_is_found_in_loops() -> None:
    elements = [str(n) for n in range(2_000)]
    elements[1_500] = "many"
    found = failing_element_of(failed(beam.Map(int), elements, beam.Map(str.strip)))
    assert found == ("many",)
    found = failing_element_of(failed(beam.Map(json.loads), elements))
    assert found == ("many",)


@pytest.mark.parametrize("makes", [partial(operator.truediv, 1), divide])
def test_failure_without_element_names_none(makes: Any) -> None:
    class Begins(beam.DoFn):
        def start_bundle(self) -> None:
            makes(0)

        def process(self, element: Any) -> None:
            pass

    assert failing_element_of(failed(beam.ParDo(Begins()), [POISON])) is None


def test_unraised_error_names_no_element() -> None:
    assert failing_element_of(ValueError("no")) is None
