"""A streaming job to be killed: a slow source, state, windows, growing side inputs, late data, part files.

Its output is known beforehand, except for what depends on chance in any run: the order of the numbers, which of the
early ones are late, and how much of the table a number finds. `wrong` checks what must hold of these.

    python -m tests.chaos.pipeline FOLDER [options of Beam]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsMultiMap, AsSingleton
from apache_beam.transforms import trigger, userstate, window
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.io import LateElement, Roll, Text, WithLate, WriteParts
from tests.offsets import UpTo

RECORDS: Final = 30_000
KEYS: Final = 20
PER_WINDOW: Final = 3_000
"""A number is a second of event time, so this is also the length of a window."""
_AT_ONCE: Final = 2_000
PACE: Final = "ARCBEAM_TRIAL_AT_ONCE"
"""A variable of the environment: the numbers that the source yields together. With fewer, the job takes longer."""
_PAUSE_SECONDS: Final = 0.2
_EVERY: Final = 250
"""Numbers per entry of the table."""
_EARLY: Final = 4_000
"""Seconds by which every tenth number is earlier, when late data is tested."""
_SUCCESS: Final = "_SUCCESS"


def at_once() -> None:
    """Do not delay."""


class Numbers(beam.DoFn):
    """Yields some numbers together, then defers the rest. Notes in a file that it runs.

    Args:
        folder: the job's folder.
        held_up: called in the middle of its work.
        pace: how many numbers it yields together.
    """

    def __init__(self, folder: Path, held_up: Callable[[], None] = at_once, pace: int = _AT_ONCE) -> None:
        self._reading, self._held_up, self._pace = reading(folder), held_up, pace

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(UpTo()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        self._reading.touch()
        position = tracker.current_restriction().start
        for n in range(position, position + self._pace):
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
            if n % 1_000 == 500:
                self._held_up()
        estimator.set_watermark(Timestamp(position + self._pace))
        tracker.defer_remainder(Timestamp.of(time.time() + _PAUSE_SECONDS))


class Line(NamedTuple):
    """The output for a number.

    Attributes:
        number: the number.
        ordinal: its place among those of its key, which depends on all earlier ones.
        found: how many entries it found in the table.
        different: how many of these differ.
        marks: their sum: two numbers that find as many entries find the same ones.
        counted: the number of entries, from the side input that counts them.
        start: start of its window.
        total: the sum of its window's numbers, from a side input.
        complete: the sum of the table's entries of its window, from a side input after the window's end.
    """

    number: int
    ordinal: int
    found: int
    different: int
    marks: int
    counted: int
    start: int
    total: int
    complete: int


class Ordinals(beam.DoFn):
    """Gives each number of a key its ordinal, and reads the table at that moment.

    Args:
        held_up: called in the middle of its work.
    """

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self, held_up: Callable[[], None] = at_once) -> None:
        self._held_up = held_up

    def process(
        self,
        pair: tuple[int, int],
        table: Mapping[int, Iterable[int]],
        counted: int,
        seen: Any = beam.DoFn.StateParam(SEEN),
    ) -> Iterator[Any]:
        seen.add(1)
        if pair[1] % 1_000 == 500:
            self._held_up()
        entries = [entry for start in range(0, RECORDS, PER_WINDOW) for entry in table[start]]
        yield pair[0], (pair[1], seen.read(), len(entries), len(set(entries)), sum(entries), counted)


def lines(
    keyed: tuple[int, Iterable[Any]],
    total: int,
    table: Mapping[int, Iterable[int]],
    held_up: Callable[[], None],
    of: Any = beam.DoFn.WindowParam,
) -> Iterator[str]:
    """Yield the output for the numbers of a key and window."""
    start = int(of.start)
    held_up()
    complete = sum(table[start])
    for reported in keyed[1]:
        yield "\t".join(map(str, Line(*reported, start, total, complete)))


def always(mode: Any) -> beam.WindowInto:
    """The window without an end, which fires whenever elements arrive."""
    return beam.WindowInto(
        window.GlobalWindows(), trigger=trigger.Repeatedly(trigger.AfterCount(1)), accumulation_mode=mode
    )


def time_of(n: int) -> int:
    """Return a number's time; when late data is tested, some numbers have an earlier time."""
    return n - _EARLY if n % 10 == 7 else n


def late_line(late: LateElement) -> str:
    """Return the output for a late number."""
    return f"{late.value}\t{late.reason}\t{int(late.window.end)}\t{int(late.watermark)}"


def reading(folder: Path) -> Path:
    """Return the file that exists once the source has been called."""
    return folder / "reading"


def run(folder: Path, *options: str, held_up: Callable[[], None] = at_once) -> None:
    """Run the job to its end.

    Args:
        folder: the folder for its output.
        options: Beam's options.
        held_up: called in a source, in a DoFn with state, and after a grouping, in the middle of their work.
    """
    pace = int(os.environ.get(PACE, _AT_ONCE))
    fixed = window.FixedWindows(PER_WINDOW)
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", *options])) as p:
        numbers = p | beam.Create([RECORDS]) | beam.ParDo(Numbers(folder, held_up, pace))
        sums = numbers | "Windows" >> beam.WindowInto(fixed) | "Sums" >> beam.CombineGlobally(sum).without_defaults()
        entries = numbers | beam.Filter(lambda n: n % _EVERY == 0)
        table = entries | beam.Map(lambda n: (n - n % PER_WINDOW, n)) | always(trigger.AccumulationMode.DISCARDING)
        counted = entries | "Counted" >> always(trigger.AccumulationMode.ACCUMULATING)
        counted |= beam.combiners.Count.Globally().without_defaults()

        keyed = numbers | "Key" >> beam.Map(lambda n: (n % KEYS, n)).with_output_types(tuple[int, int])
        ordinals = keyed | beam.ParDo(Ordinals(held_up), AsMultiMap(table), AsSingleton(counted))
        grouped = ordinals | "Again" >> beam.WindowInto(fixed) | beam.GroupByKey()
        reported = grouped | beam.FlatMap(lines, AsSingleton(sums), AsMultiMap(table), held_up)
        _ = reported | WriteParts(str(folder / "lines"), Text(), success=_SUCCESS, roll=Roll(elements=1_000))

        some = keyed | "Early" >> beam.MapTuple(lambda key, n: window.TimestampedValue((key, n), time_of(n)))
        in_time, late = some | "Fixed" >> beam.WindowInto(fixed) | WithLate(beam.GroupByKey())
        in_time |= beam.FlatMapTuple(lambda _, group: map(str, group)) | "One" >> beam.WindowInto(
            window.GlobalWindows()
        )
        both = (in_time, late | beam.Map(late_line)) | beam.Flatten()
        _ = both | "Late" >> WriteParts(str(folder / "late"), Text(), roll=Roll(elements=2_500))


def essence(folder: Path) -> Counter[tuple[str, ...]]:
    """Return the output without what depends on chance in any run."""
    found = Counter((str(of.number), str(of.start), str(of.total), str(of.complete)) for of in _written(folder))
    found.update((number,) for number, *_ in _of_late(folder))
    return found


def wrong(folder: Path) -> list[str]:
    """Return what is wrong with the output; nothing if it is correct."""
    written = list(_written(folder))
    staged = [str(path) for path in folder.rglob("*") if path.is_file() and "/." in str(path)]
    return [
        *(f"left over: {name}" for name in staged if "/.arcbeam/owner-" not in name),
        *_wrong_numbers(written),
        *_wrong_sides(written),
        *_wrong_windows(folder),
        *_wrong_late(folder),
    ]


def _files(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text(encoding="utf-8").splitlines() for path in folder.glob("part-*")}


def _written(folder: Path) -> Iterator[Line]:
    for file in _files(folder / "lines").values():
        for line in file:
            yield Line(*map(int, line.split("\t")))


def _of_late(folder: Path) -> Iterator[list[str]]:
    for file in _files(folder / "late").values():
        for line in file:
            yield line.split("\t")


def _not_once(what: str, numbers: Iterable[int]) -> Iterator[str]:
    times = Counter(numbers)
    lost, doubled = sorted(set(range(RECORDS)) - times.keys()), sorted(n for n, some in times.items() if some > 1)
    if lost or doubled:
        yield f"{what}: {len(lost)} lost, from {lost[:3]} on; {len(doubled)} duplicated, from {doubled[:3]} on"


def _wrong_numbers(written: list[Line]) -> Iterator[str]:
    """Each number occurs once, and so does each ordinal of a key."""
    yield from _not_once("lines", (of.number for of in written))
    by_key: dict[int, list[int]] = {key: [] for key in range(KEYS)}
    for of in written:
        by_key[of.number % KEYS].append(of.ordinal)
    for key, ordinals in by_key.items():
        ordinals.sort()
        if ordinals != list(range(1, RECORDS // KEYS + 1)):
            yield f"key {key}: ordinals from {ordinals[:1]} to {ordinals[-1:]}, {len(set(ordinals))} different"


def _wrong_sides(written: list[Line]) -> Iterator[str]:
    """A window's side input is complete; the growing table is the same for all at any moment, and only grows."""
    marks: dict[int, int] = {}
    last = dict.fromkeys(range(KEYS), 1)
    whole = {
        start: (start, sum(range(start, start + PER_WINDOW)), sum(range(start, start + PER_WINDOW, _EVERY)))
        for start in range(0, RECORDS, PER_WINDOW)
    }
    for of in sorted(written, key=lambda of: of.ordinal):
        wanted = whole[of.number - of.number % PER_WINDOW]
        if (of.start, of.total, of.complete) != wanted:
            yield f"the window of {of} is not {wanted}"
        if of.different != of.found or of.counted != of.found:
            yield f"duplicate entries, or the table and its count are from different moments: {of}"
        if marks.setdefault(of.found, of.marks) != of.marks:
            yield f"{of} has found a state that the table never had: others have found as many with {marks[of.found]}"
        if of.found < last[of.number % KEYS]:
            yield f"one before {of} has found {last[of.number % KEYS]}"
        last[of.number % KEYS] = of.found
    if len(marks) < 5:
        yield f"the table has not changed: {sorted(marks)}"


def _wrong_windows(folder: Path) -> Iterator[str]:
    """The success record of each window agrees with its files."""
    files = _files(folder / "lines")
    successes = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "lines").glob(f"{_SUCCESS}*")]
    names = sorted(file["name"] for of in successes for file in of["files"])
    if len(successes) != RECORDS // PER_WINDOW or names != sorted(files):
        yield f"{len(successes)} windows with {len(names)} files are complete, but there are {len(files)} files"


def _wrong_late(folder: Path) -> Iterator[str]:
    """Each number is in a group or late, never both; only late numbers are reported as late."""
    found = list(_of_late(folder))
    yield from _not_once("late and in time", (int(number) for number, *_ in found))
    late = [(int(of[0]), of[1], int(of[2]), int(of[3])) for of in found if len(of) > 1]
    for number, reason, end, watermark in late:
        if reason != "expired" or watermark < end or time_of(number) == number:
            yield f"{number} is late ({reason}): its window ends at {end}, the watermark is {watermark}"
    if not late:
        yield "nothing is late"


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
