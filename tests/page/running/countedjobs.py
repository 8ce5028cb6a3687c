"""Random jobs that count their own elements, and whose workers and drivers die."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.errors import WorkerLostError
from arcbeam.streaming.assignment import TaskAssignment
from tests.offsets import WholeUpTo

Row = tuple[str, int, int]
"""Key, number, and event time in seconds."""
Batch = tuple[list[Row], int]
"""Rows that are emitted together, and the watermark after them in seconds."""
_DEATHS_MAX: Final = 3


class DriverDeath(BaseException):
    """Ends a driver at once."""


class Counted:
    """What the job's own code has counted, of attempts that count.

    Attributes:
        emitted: numbers from the source.
        passed: those that are no longer blocked by a side input.
        results: counts of elements, by branch.
        kills: how many workers died since the driver began.
        deaths: how many drivers died.
        end: what happens at the end of the micro-batch that runs.
        during: called once by user code of the micro-batch that runs, which waits for it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count another job."""
        self.emitted: list[int] = []
        self.passed: list[int] = []
        self.results: list[tuple[str, int]] = []
        self.kills = self.deaths = 0
        self.end: BaseException | None = None
        self.during: Callable[[], None] | None = None
        self._begun, self._committed = 0, (0, 0, 0)

    def begin(self, micro_batch: int) -> bool:
        """Discard what is not committed; return whether there was an attempt of this micro-batch before."""
        again, self._begun = micro_batch == self._begun, micro_batch
        emitted, passed, results = self._committed
        del self.emitted[emitted:], self.passed[passed:], self.results[results:]
        return again

    def commit(self) -> None:
        """All that is counted is committed."""
        self._committed = len(self.emitted), len(self.passed), len(self.results)

    def committed(self) -> tuple[int, int, list[tuple[str, int]]]:
        """Return the numbers of `emitted` and `passed`, and the results, at the newest commit."""
        emitted, passed, results = self._committed
        return emitted, passed, self.results[:results]


COUNTED = Counted()


class Batches(beam.DoFn):
    """Emits a batch in each call, and then its watermark."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(WholeUpTo()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        n = tracker.current_restriction().start
        if not tracker.try_claim(n):
            return
        rows, after = self._batches[n]
        for row in rows:
            yield window.TimestampedValue(row, row[2])
        watermark.set_watermark(Timestamp(after))
        tracker.defer_remainder(Duration(micros=1_000))


def emitted(row: Row) -> Row:
    COUNTED.emitted.append(row[1])
    during, COUNTED.during = COUNTED.during, None
    if during is not None:
        during()
    return row


def keyed(row: Row, one: int) -> tuple[str, int]:
    COUNTED.passed.append(row[1])
    return row[0], one


def result(branch: str, count: int) -> None:
    COUNTED.results.append((branch, count))


class Ones(beam.CombineFn):
    """A sum that is not known as one."""

    def create_accumulator(self) -> list[int]:
        return []

    def add_input(self, accumulator: list[int], value: int) -> list[int]:
        return [*accumulator, value]

    def merge_accumulators(self, accumulators: Iterable[list[int]]) -> list[int]:
        return [value for each in accumulators for value in each]

    def extract_output(self, accumulator: list[int]) -> int:
        return sum(accumulator)


class Passing(beam.DoFn):
    """Counts each element, and keeps a state of its window."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield pair[0], 1


WINDOWS: Final[dict[str, tuple[Any, int]]] = {
    "Fixed": (window.FixedWindows(10), 1),
    "Sliding": (window.SlidingWindows(10, 5), 2),
    "Sessions": (window.Sessions(3), 1),
}
"""Each with the number of windows of an element."""
GROUPS: Final = {
    "Sum": beam.CombinePerKey(sum),
    "Own": beam.CombinePerKey(Ones()),
    "Grouped": beam.GroupByKey() | beam.MapTuple(lambda key, values: (key, len(list(values)))),
    "All": beam.Values() | beam.CombineGlobally(sum).without_defaults() | beam.Map(lambda count: ("", count)),
    "Kept": beam.ParDo(Passing()),
}


class Random:
    """A random job.

    Attributes:
        batches: of its source.
        branches: names of windows and groupings.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.chance = chance
        self.batches: list[Batch] = []
        watermark, number = 0, 0
        for _ in range(chance.choice([4, 8])):
            rows = []
            for _ in range(chance.choice([1, 12, 90])):
                # Some are far behind the watermark.
                rows.append((chance.choice("abcd"), number, max(0, watermark + chance.randrange(-25, 20))))
                number += 1
            watermark += chance.randrange(0, 15)
            self.batches.append((rows, watermark))
        pairs = [(windows, group) for windows in WINDOWS for group in GROUPS]
        self.branches = chance.sample(pairs, 4)
        self.lateness = chance.choice([0, 6])

    def build(self, p: beam.Pipeline) -> None:
        """Build the pipeline."""
        source = p | "Where" >> beam.Create([len(self.batches)], reshuffle=False)
        rows = source | "Read" >> beam.ParDo(Batches(self.batches)) | "Emitted" >> beam.Map(emitted)
        one = p | "One" >> beam.Create([1], reshuffle=False)
        one_each = beam.Map(keyed, beam.pvalue.AsSingleton(one))
        ones = rows | "Ones" >> one_each.with_output_types(tuple[str, int])
        for windows, group in self.branches:
            name = f"{windows}{group}"
            windowed = ones | f"In{name}" >> beam.WindowInto(WINDOWS[windows][0], allowed_lateness=self.lateness)
            found = windowed | name >> GROUPS[group]
            _ = found | f"Out{name}" >> beam.MapTuple(lambda key, count, name=name: result(name, count))

    def fault(self, order: TaskAssignment, during: Callable[[], None]) -> BaseException | None:
        """Kill a worker or the driver at the begin or the end of some micro-batches; others last long.

        Args:
            order: the micro-batch.
            during: called while a long one runs.
        """
        again = COUNTED.begin(order.plan.micro_batch)
        COUNTED.end = COUNTED.during = None
        if self.chance.random() < 0.7:
            COUNTED.during = during
        # Each job has a driver that dies.
        is_first_death = order.plan.micro_batch > 1 and COUNTED.deaths == 0
        if again or (not is_first_death and self.chance.random() < 0.4):
            return None
        death: BaseException = WorkerLostError("a worker died", died=True, step="Read")
        if is_first_death or (self.chance.random() < 0.3 and COUNTED.deaths < _DEATHS_MAX):
            death = DriverDeath()
        if self.chance.random() < 0.5:
            return died(death)
        COUNTED.end = death
        return None


def died(death: BaseException) -> BaseException:
    """Count a death, and return it."""
    if isinstance(death, DriverDeath):
        COUNTED.deaths += 1
        # The next driver has lost no worker.
        COUNTED.kills = 0
        raise death
    COUNTED.kills += 1
    return death
