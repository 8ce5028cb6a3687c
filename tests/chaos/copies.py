"""The job of `tests.chaos.pipeline` with tasks that take long until Spark runs a copy of them.

python -m tests.chaos.copies FOLDER [options of Beam]
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from pyspark import TaskContext

from arcbeam import ArcbeamRunner
from arcbeam.io import Text, WriteParts
from tests.chaos.pipeline import run

NUMBERS: Final = 8_000
KEYS: Final = 16
_LOOKS_SECONDS: Final = 0.02
_COPY_SECONDS: Final = 20.0
"""Seconds after which a task that has no copy continues."""
_KILLED_SECONDS: Final = 5.0
"""Seconds after which a task whose copy has ended continues, if Spark has not ended it."""


class Dawdle:
    """Delays some tasks, each once. Copies of tasks are not delayed.

    Half of the delayed tasks continue as soon as their copy does, so that both finish; the others wait until Spark ends
    them after the copy has finished.

    Args:
        folder: folder for notes.
        one_of: about one in this many tasks is delayed.
    """

    def __init__(self, folder: Path, one_of: int) -> None:
        self._folder, self._one_of = folder, one_of

    def __call__(self) -> None:
        """Delay the task, in the middle of its work."""
        task = TaskContext.get()
        assert task is not None
        name = f"{task.stageId()}-{task.partitionId()}"
        original, copy = self._folder / f"{name}-0", self._folder / f"{name}-copy"
        if task.attemptNumber() > 0:
            copy.touch()
            return
        chance = zlib.crc32(name.encode())
        if chance // 2 % self._one_of or original.exists():
            return
        original.touch()
        if not self._arrives(copy, _COPY_SECONDS):
            return
        (self._folder / f"{name}-met").touch()
        if chance % 2:
            self._arrives(self._folder / "never", _KILLED_SECONDS)
            (self._folder / f"{name}-left").touch()

    def _arrives(self, file: Path, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not file.exists():
            if time.monotonic() > until:
                return False
            time.sleep(_LOOKS_SECONDS)
        return True


def met(folder: Path) -> int:
    """Return how many tasks ran beside a copy."""
    return len(list((folder / "tasks").glob("*-met")))


def run_bounded(folder: Path, *options: str, held_up: Dawdle) -> None:
    """Run the same three places in a bounded pipeline: after a source, beside a side input, after a grouping."""

    def pair(n: int, total: int) -> tuple[int, tuple[int, int]]:
        if n % 1_000 == 500:
            held_up()
        return n % KEYS, (n, total)

    def lines(key: int, reported: Iterable[tuple[int, int]]) -> Iterator[str]:
        for n, total in reported:
            if n % 1_000 == 500:
                held_up()
            yield f"{n}\t{total}"

    def first(n: int) -> int:
        if n % 1_000 == 500:
            held_up()
        return n

    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([*options])) as p:
        numbers = p | beam.Create(range(NUMBERS)) | beam.Reshuffle() | beam.Map(first)
        total = beam.pvalue.AsSingleton(numbers | beam.CombineGlobally(sum))
        grouped = numbers | beam.Map(pair, total) | beam.GroupByKey()
        _ = grouped | beam.FlatMapTuple(lines) | WriteParts(str(folder / "lines"), Text())


def wrong_bounded(folder: Path) -> list[str]:
    """Return what is wrong with the output of the bounded pipeline."""
    found = Counter(line for file in (folder / "lines").glob("part-*") for line in file.read_text().splitlines())
    wanted = Counter(f"{n}\t{sum(range(NUMBERS))}" for n in range(NUMBERS))
    staged = [str(file) for file in folder.rglob("*") if "/.arcbeam/staged" in str(file)]
    return [f"lost: {line}" for line in wanted - found] + [f"duplicated: {line}" for line in found - wanted] + staged


if __name__ == "__main__":
    tasks = Path(sys.argv[2], "tasks")
    tasks.mkdir()
    if sys.argv[1] == "steps":
        run(Path(sys.argv[2]), *sys.argv[3:], held_up=Dawdle(tasks, 3))
    else:
        run_bounded(Path(sys.argv[2]), *sys.argv[3:], held_up=Dawdle(tasks, 1))
