"""A job that ends in each possible way: a source, state, end hooks, and part files as its output.

It outputs numbers, each with its ordinal among those of its key, which depends on all earlier ones.

    python -m tests.chaos.ends FOLDER OUT [options of Beam]
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate, window
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam import ArcbeamRunner, GracefulShutdown
from arcbeam.io import Roll, Text, WriteParts
from tests.chaos.hosts import serve
from tests.chaos.points import reached
from tests.offsets import NO_END, Endless

KEYS = 5
TRAILER = "the end"
_AT_ONCE = 100
_PAUSE_SECONDS = 0.1


class Numbers(beam.DoFn):
    """Yields a hundred numbers together, then defers the rest. Ends when a file exists."""

    def __init__(self, folder: Path) -> None:
        self._until = folder / "until"

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(Endless()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        position = tracker.current_restriction().start
        until = int(self._until.read_text()) if self._until.exists() else NO_END
        for n in range(position, min(until, position + _AT_ONCE)):
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
        if position + _AT_ONCE >= until:
            tracker.try_claim(NO_END)
            return
        estimator.set_watermark(Timestamp(position + _AT_ONCE))
        tracker.defer_remainder(Timestamp.of(time.time() + _PAUSE_SECONDS))


class Ordinals(beam.DoFn):
    """Gives each number of a key its ordinal. Fails when a file exists."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self, folder: Path) -> None:
        self._poison = folder / "poison"

    def process(self, pair: tuple[int, int], seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[str]:
        seen.add(1)
        ordinal = seen.read()
        if ordinal % 7 == 0:
            reached("in a bundle")
            if self._poison.exists():
                raise ValueError("poison")
        yield f"{pair[1]} {ordinal}"


class Marked(beam.DoFn, GracefulShutdown):
    """Records its calls at the end, and then outputs a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(self, line: str) -> Iterator[str]:
        yield line

    def finish_bundle(self) -> None:
        reached("before the marker")

    def prepare_to_shutdown(self) -> Iterable[Any]:
        time = window.GlobalWindow().max_timestamp()
        return [WindowedValue(f"{TRAILER} {uuid.uuid4().hex}", time, (window.GlobalWindow(),))]

    def shutdown(self) -> None:
        (self._folder / "shutdown").write_text("called")


def run(folder: Path, out: str, *options: str) -> Any:
    """Run the job to its end; return its state."""
    (folder / "driver").write_text(str(os.getpid()))
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", *options]))
    numbers = p | beam.Create([0]) | beam.ParDo(Numbers(folder))
    keyed = numbers | "Key" >> beam.Map(lambda n: (n % KEYS, n))
    lines = keyed | "Ordinals" >> beam.ParDo(Ordinals(folder)) | "Mark" >> beam.ParDo(Marked(folder))
    _ = lines | WriteParts(out, Text(), shards=2, roll=Roll(elements=60))
    return p.run().wait_until_finish()


if __name__ == "__main__":
    serve(run)
