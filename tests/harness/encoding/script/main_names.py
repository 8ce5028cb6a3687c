"""A script whose functions, sentinels and classes are pickled by their names; test_mainmodule runs it as `__main__`.

It has no postponed annotations, because the SDK does not make schemas of these.
"""

import dataclasses
import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

T = TypeVar("T")
P = ParamSpec("P")

JOURNAL = (line for line in ["one", "two"])
FACTOR = 2
TABLE = {"one": 1, "two": 2}


class Nothing:
    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()


class Broken:
    def __init__(self) -> None:
        self.numbers = (n for n in range(3))

    def __reduce__(self) -> str:
        return "BROKEN"


BROKEN = Broken()


def doubled(x: int) -> int:
    return 2 * x


def quadrupled(x: int) -> int:
    return doubled(doubled(x))


def number_of(word: str) -> int:
    return TABLE[word]


def journaled(x: int) -> int:
    return x + len(next(JOURNAL))


@functools.lru_cache
def squared(x: int) -> int:
    return x * x


def checked(fn: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return fn(*args, **kwargs)

    return call


@checked
def tripled(x: int) -> int:
    return 3 * x


@dataclasses.dataclass
class Step:
    name: str
    fn: Callable[[int], int]


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    @functools.cache  # noqa: B019
    def size(self) -> int:
        return len(str(self.value))

    def __call__(self, x: int) -> int:
        return x + len(str(self.value))


class Scale(beam.DoFn):
    def process(self, x: int) -> Iterator[Step]:
        yield Step(str(FACTOR * x), quadrupled)


def in_pool(fns: Iterable[Callable[[int], int]], x: int, method: str = "fork") -> list[int]:
    with multiprocessing.get_context(method).Pool(1) as pool:
        return [pool.apply(fn, (x,)) for fn in fns]


def check(values: Any, expected: list[Any], label: str) -> None:
    assert_that(values, equal_to(expected), label=label)


def add_elements(p: Any) -> None:
    given = p | "Given" >> beam.Create([doubled, quadrupled, squared, tripled, number_of, Box("ab"), Box("abc").size])
    check(given | "Named" >> beam.Filter(lambda f: f in (doubled, squared)), [doubled, squared], "Found")
    called = given | "Exchange functions" >> beam.Reshuffle() | "Call" >> beam.Map(called_with_three)
    check(called, [6, 12, 9, 9, 2, 5, 3], "Called")
    steps = p | "Steps" >> beam.Create([Step("d", doubled), Step("q", quadrupled)])
    check(steps | "Apply" >> beam.Map(lambda step: (step.name, step.fn(3))), [("d", 6), ("q", 12)], "Applied")
    sentinels = p | "Sentinels" >> beam.Create([NOTHING, 1]) | "Exchange sentinels" >> beam.Reshuffle()
    check(sentinels | "Is nothing" >> beam.Map(lambda x: x is NOTHING), [True, False], "Same sentinel")


def called_with_three(fn: Callable[..., int]) -> int:
    arguments: dict[str, list[Any]] = {"number_of": ["two"], "size": []}
    return fn(*arguments.get(getattr(fn, "__name__", ""), [3]))


def add_made_by_workers(p: Any) -> None:
    numbers = p | "Numbers" >> beam.Create([1, 2])
    made = numbers | "Make" >> beam.Map(lambda i: (Step(str(i), [doubled, squared][i % 2]), NOTHING))
    check(made | "Apply made" >> beam.MapTuple(lambda step, _: step.fn(3)), [9, 6], "Made")
    moved = made | "Exchange made" >> beam.Reshuffle()
    same = moved | "Compare" >> beam.MapTuple(lambda step, nothing: (step.fn in (doubled, squared), nothing is NOTHING))
    check(same, [(True, True), (True, True)], "Same objects")
    pooled = numbers | "In pools" >> beam.Map(lambda i: in_pool((doubled, squared, Box("ab")), i))
    check(pooled, [[2, 1, 3], [4, 4, 4]], "Pooled")
    spawned = p | "One" >> beam.Create([3]) | "Spawn" >> beam.Map(lambda i: in_pool((doubled, squared), i, "spawn"))
    check(spawned, [[6, 9]], "Spawned")
    scaled = numbers | "Scale" >> beam.ParDo(Scale()) | "Exchange scaled" >> beam.Reshuffle()
    check(scaled | "Apply scaled" >> beam.Map(lambda step: (step.name, step.fn(3))), [("2", 12), ("4", 12)], "Scaled")


def error_of(arguments: list[str], function: Any, element: Any) -> str:
    try:
        with beam.Pipeline(options=PipelineOptions(arguments)) as p:
            p | beam.Create([element]) | beam.Map(function) | beam.Reshuffle()
    except Exception as e:
        return f"{type(e).__name__}: {e}".replace("\n", " ")
    return ""


def run(arguments: list[str]) -> None:
    for streaming in ([], ["--streaming"]):
        with beam.Pipeline(options=PipelineOptions(arguments + streaming)) as p:
            add_elements(p)
            add_made_by_workers(p)
    sys.stdout.write(f"held: {error_of(arguments, lambda _: None, BROKEN)}\n")
    sys.stdout.write(f"used: {error_of(arguments, lambda f: f(1), journaled)}\n")
    sys.stdout.write(f"copied: {error_of(arguments, lambda _: number_of, 1)}\n")
    sys.stdout.write(f"decorated: {error_of(arguments, lambda _: tripled, 1)}\n")
    sys.stdout.write("all found\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # As a task queue does: with "spawn" and "forkserver", the child imports this script as `__mp_main__`.
    method, *others = sys.argv[1:]
    if method == "main":
        run(others)
    else:
        child = multiprocessing.get_context(method).Process(target=run, args=(others,))
        child.start()
        child.join()
        sys.exit(child.exitcode)
