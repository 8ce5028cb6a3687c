"""What is run on both servers. Those of `bench.works` are used where they are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import apache_beam as beam

from bench.works import pipelines, work
from bench.works.pipelines import Ordinal, Pipeline, Tally, numbers
from bench.works.work import Answer

KEYS_OF_STATE = 10_000


def keyed(x: int) -> tuple[int, int]:
    return x % KEYS_OF_STATE, x


def _state(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = numbers(p, elements) | beam.Map(keyed) | beam.ParDo(Ordinal()) | beam.ParDo(Tally(folder, work.digest_pair))


def _stated(elements: int) -> Answer:
    total = sum(work.digest_pair((x % KEYS_OF_STATE, x // KEYS_OF_STATE + 1)) for x in range(elements))
    return Answer(elements, total)


def _bundles(p: beam.Pipeline, elements: int, folder: str) -> None:
    _ = (
        p
        | beam.Create([(0, elements)])
        | beam.FlatMap(work.numbers)
        | beam.Reshuffle()
        | beam.Map(pipelines.same)
        | beam.ParDo(Tally(folder, work.digest_number))
    )


@dataclass(frozen=True, slots=True)
class Portable:
    """A pipeline to measure.

    Attributes:
        build: adds it to a pipeline.
        answer: the right answer for a number of elements.
        elements: how many on arcbeam.
        prism: how many on Prism; 0: it is not run there.
        times: how many times as fast as Prism it is wanted to be.
        hops: how often each element goes to a worker or comes from it.
        options: more pipeline options on arcbeam.
        processes: SDK workers are processes that the submitter starts, as many as the runner asks for; else they are
            threads of the submitter, which is LOOPBACK's default, and share its interpreter lock.
    """

    build: Pipeline
    answer: Callable[[int], Answer]
    elements: int
    prism: int
    times: float | None = None
    hops: int = 0
    options: tuple[str, ...] = ()
    processes: bool = False


def _of(name: str, times: float | None = None, hops: int = 0, *, processes: bool = False) -> Portable:
    of = work.WORKS[name]
    return Portable(pipelines.PIPELINES[name], of.answer, of.elements, 4 * work.M, times, hops, processes=processes)


PIPELINES = {
    "map": _of("map", 1.5),
    "count": _of("count", 2.0),
    "group": _of("group", 3.0, hops=2),
    "reshuffle": _of("reshuffle", 2.0, hops=2),
    **{f"{name}, worker processes": _of(name, processes=True) for name in ("map", "count", "reshuffle")},
    "state": Portable(_state, _stated, 1 * work.M, 100_000, 5.0),
    "tiny": Portable(pipelines.PIPELINES["tiny"], work.WORKS["tiny"].answer, 0, 0),
    "bundles": Portable(
        _bundles,
        lambda n: Answer(n, sum(map(work.digest_number, range(n)))),
        1_000,
        0,
        options=("--bundle_elements=1",),
    ),
}
