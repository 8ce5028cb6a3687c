"""A job in steps for those that kill it: a slow source, state, windows, a side input that grows, and files as output.

What it writes is the same however often a step runs: a file for each key and window, with all of its numbers.

    python -m tests.chaos.pipeline FOLDER [options of Beam]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Timestamp

from arcbeam import ArcbeamRunner
from tests.offsets import UpTo

RECORDS = 30_000
KEYS = 20
PER_WINDOW = 3_000
"""A number is a second of event time; so it is the length of a window, too."""
_AT_ONCE = 1_000
_PAUSE_SECONDS = 0.2


class Numbers(beam.DoFn):
    """Puts out numbers, some at once; then it defers the rest."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(UpTo()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        position = tracker.current_restriction().start
        for n in range(position, position + _AT_ONCE):
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
        estimator.set_watermark(Timestamp(position + _AT_ONCE))
        tracker.defer_remainder(Timestamp.of(time.time() + _PAUSE_SECONDS))


class Ordinals(beam.DoFn):
    """Gives each number of a key its ordinal, which depends on all that were there before."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        seen.add(1)
        yield pair[0], (pair[1], seen.read())


def write(keyed: tuple[int, Iterable[Any]], total: int, folder: str, of: Any = beam.DoFn.WindowParam) -> None:
    """Writes what came to a key in a window, with what the side input says of the window."""
    lines = [f"{number}\t{ordinal}\t{total}\n" for number, ordinal in sorted(keyed[1])]
    Path(folder, f"{int(of.start)}-{keyed[0]}.tsv").write_text("".join(lines), encoding="utf-8")


def run(folder: Path, *options: str) -> None:
    """Runs it to its end."""
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", *options])) as p:
        numbers = p | beam.Create([RECORDS]) | beam.ParDo(Numbers())
        windowed = numbers | "Windows" >> beam.WindowInto(window.FixedWindows(PER_WINDOW))
        sums = windowed | "Sums" >> beam.CombineGlobally(sum).without_defaults()
        keyed = numbers | "Key" >> beam.Map(lambda n: (n % KEYS, n)) | "Ordinals" >> beam.ParDo(Ordinals())
        grouped = keyed | "Again" >> beam.WindowInto(window.FixedWindows(PER_WINDOW)) | beam.GroupByKey()
        _ = grouped | "Write" >> beam.Map(write, beam.pvalue.AsSingleton(sums), str(folder))


def wrong(folder: Path) -> list[str]:
    """What is not as it must be in what was written; nothing if all is well."""
    found: dict[int, list[tuple[int, int]]] = {key: [] for key in range(KEYS)}
    faults = []
    for file in folder.glob("*.tsv"):
        start, key = map(int, file.stem.split("-"))
        total = sum(range(start, start + PER_WINDOW))
        for line in file.read_text(encoding="utf-8").splitlines():
            number, ordinal, said = map(int, line.split("\t"))
            found[key].append((number, ordinal))
            if said != total:
                faults.append(f"{file.name}: the side input says {said} instead of {total}")
    for key, pairs in found.items():
        numbers = sorted(number for number, _ in pairs)
        ordinals = sorted(ordinal for _, ordinal in pairs)
        if numbers != list(range(key, RECORDS, KEYS)):
            faults.append(f"key {key}: {len(numbers)} numbers, {len(set(numbers))} different ones")
        if ordinals != list(range(1, RECORDS // KEYS + 1)):
            faults.append(f"key {key}: ordinals from {ordinals[:1]} to {ordinals[-1:]}, {len(set(ordinals))} different")
    return faults


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
