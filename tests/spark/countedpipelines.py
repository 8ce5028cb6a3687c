"""Random pipelines with several stages in a task, in which each step counts the elements that it processes.

A counter's value is compared with what user code itself has noted: one note per call, in a file per step.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp

_NAMESPACE = "counted pipelines"
_OUTPUTS_MAX = 400
"""Elements of a step; more are filtered out, so that pipelines stay small."""


def _count(step: str, folder: str) -> None:
    Metrics.counter(_NAMESPACE, step).inc()
    with open(os.path.join(folder, f"{step}-{os.getpid()}"), "ab", buffering=0) as file:
        file.write(b".")


class Counted(beam.DoFn):
    """Counts elements and ends of bundles."""

    def __init__(self, step: str, folder: str) -> None:
        self._step, self._folder = step, folder

    def process(self, element: int) -> Iterator[int]:
        _count(self._step, self._folder)
        yield element

    def finish_bundle(self) -> None:
        _count(f"{self._step} bundles", self._folder)


class Buffered(beam.DoFn):
    """Stores a key's elements until its timer fires, and counts both kinds of calls."""

    ELEMENTS = BagStateSpec("elements", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def __init__(self, step: str, folder: str) -> None:
        self._step, self._folder = step, folder

    def process(
        self,
        element: tuple[int, int],
        elements: Any = beam.DoFn.StateParam(ELEMENTS),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        _count(self._step, self._folder)
        elements.add(element[1])
        end.set(Timestamp(1000))

    @on_timer(END)
    def emit(self, elements: Any = beam.DoFn.StateParam(ELEMENTS)) -> Iterator[int]:
        _count(f"{self._step} timers", self._folder)
        yield from elements.read()


class CountedSum(beam.CombineFn):
    """A sum that counts its inputs and its results."""

    def __init__(self, step: str, folder: str) -> None:
        self._step, self._folder = step, folder

    def create_accumulator(self) -> int:
        return 0

    def add_input(self, accumulator: int, element: int) -> int:
        _count(f"{self._step} inputs", self._folder)
        return accumulator + element

    def merge_accumulators(self, accumulators: Iterable[int]) -> int:
        return sum(accumulators)

    def extract_output(self, accumulator: int) -> int:
        _count(f"{self._step} results", self._folder)
        return accumulator


def _fewer(element: int) -> int:
    return element % _OUTPUTS_MAX


def _join(group: tuple[int, Any]) -> list[int]:
    return [group[0], *group[1]["left"], *group[1]["right"]]


def _keyed(element: int) -> tuple[int, int]:
    return element % 7, element


def _values(group: tuple[int, Iterable[int]]) -> Iterable[int]:
    return group[1]


def _is_new(element: int, others: list[int]) -> bool:
    return element % 3 == 0 or element not in others


class CountedPipeline:
    """A random pipeline.

    Args:
        seed: decides the pipeline.
        folder: an empty folder, for the notes.

    Attributes:
        collections: the collections of the pipeline that is built.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._steps = 0

    def build(self, pipeline: beam.Pipeline) -> None:
        """Add the transforms: some sources, then steps that take one or two of the collections."""
        chance = self._random
        kinds: list[Callable[[str], Any]] = [
            self._joined,
            self._with_side_input,
            self._flattened,
            self._reshuffled,
            self._buffered,
            self._summed,
            self._grouped,
        ]
        self.collections = [
            self._counted(pipeline | f"Source {n}" >> beam.Create(range(chance.randrange(1, 300)))) for n in range(3)
        ]
        for kind in chance.sample(kinds, len(kinds)):
            step = self._name(kind.__name__.strip("_"))
            self.collections.append(self._counted(kind(step) | f"Few of {step}" >> beam.Map(_fewer)))

    def check(self, result: Any) -> None:
        """Assert that each counter stands under its step, and equals the notes."""
        noted: Counter[str] = Counter()
        for file in self._folder.iterdir():
            noted[file.name.rpartition("-")[0]] += file.stat().st_size
        found = result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))["counters"]
        counted: Counter[str] = Counter()
        for each in found:
            # A CombineFn's step lies inside its composite. A counter of several calls has a word after the step's name.
            step, name = each.key.step.partition("/")[0], each.key.metric.name
            assert name.startswith(step), f"{name!r} stands under {each.key.step!r}"
            counted[name] += each.committed
        assert counted == noted
        assert len(noted) >= self._steps, "most steps have two counters"

    def _name(self, kind: str) -> str:
        self._steps += 1
        return f"{kind} {self._steps}"

    def _counted(self, collection: Any) -> Any:
        step = self._name("counted")
        return collection | step >> beam.ParDo(Counted(step, str(self._folder)))

    def _any(self) -> Any:
        return self._random.choice(self.collections)

    def _joined(self, step: str) -> Any:
        left, right = (
            each | f"{step}: key {n}" >> beam.Map(_keyed)
            for n, each in enumerate(self._random.sample(self.collections, 2))
        )
        return {"left": left, "right": right} | step >> beam.CoGroupByKey() | f"{step}: values" >> beam.FlatMap(_join)

    def _with_side_input(self, step: str) -> Any:
        main, side = self._random.sample(self.collections, 2)
        return main | step >> beam.Filter(_is_new, beam.pvalue.AsList(side))

    def _flattened(self, step: str) -> Any:
        return self._random.sample(self.collections, 2) | step >> beam.Flatten()

    def _reshuffled(self, step: str) -> Any:
        return self._any() | step >> beam.Reshuffle()

    def _buffered(self, step: str) -> Any:
        keyed = self._any() | f"{step}: key" >> beam.Map(_keyed)
        return keyed | step >> beam.ParDo(Buffered(step, str(self._folder)))

    def _summed(self, step: str) -> Any:
        keyed = self._any() | f"{step}: key" >> beam.Map(_keyed)
        return keyed | step >> beam.CombinePerKey(CountedSum(step, str(self._folder))) | beam.Values()

    def _grouped(self, step: str) -> Any:
        keyed = self._any() | f"{step}: key" >> beam.Map(_keyed)
        return keyed | step >> beam.GroupByKey() | f"{step}: values" >> beam.FlatMap(_values)
