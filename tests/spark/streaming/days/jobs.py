"""Small streaming jobs with known results, for tests of faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam import ArcbeamRunner
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from tests.notes import note, noted
from tests.offsets import UpTo
from tests.waiting import while_running


def pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", "--shards=2", *arguments]))


class Ticks(beam.DoFn):
    """Yields numbers, each at its own second of event time, a few per micro-batch with pauses between.

    Args:
        few: numbers before a pause.
        seconds: length of the pause.
        stalls_at: the number before which it pauses until a file exists.
    """

    def __init__(self, few: int = 2, seconds: float = 0.05, stalls_at: int | None = None, until: str = "") -> None:
        self._few, self._seconds, self._stalls_at, self._until = few, seconds, stalls_at, until

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(UpTo()),
        watermark: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        at = tracker.current_restriction().start
        for n in range(at, at + self._few):
            if n == self._stalls_at and not Path(self._until).is_file():
                break
            if not tracker.try_claim(n):
                return
            yield window.TimestampedValue(n, n)
            watermark.set_watermark(Timestamp(n))
        tracker.defer_remainder(Duration(micros=int(self._seconds * 1e6)))


def ticks(p: beam.Pipeline, count: int, name: str = "Ticks", **more: Any) -> Any:
    return p | f"{name} of" >> beam.Create([count], reshuffle=False) | name >> beam.ParDo(Ticks(**more))


def summing_job(state: Path, out: Path, count: int = 30) -> Any:
    """Submit a job that counts numbers in windows of five."""
    out.mkdir(exist_ok=True)
    p = pipeline(f"--checkpoint_dir={state}")
    timed = ticks(p, count) | beam.WindowInto(window.FixedWindows(5)) | beam.Map(lambda n: (0, n)) | beam.GroupByKey()
    _ = timed | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(out))
    return p.run()


def expected_panes(count: int = 30) -> list[tuple[int, ...]]:
    """Return the job's expected output."""
    return [tuple(range(at, at + 5)) for at in range(0, count, 5)]


def panes(out: Path) -> list[tuple[int, ...]]:
    """Return the output so far. It is a side effect, so values of a retried micro-batch count once."""
    return sorted({tuple(pane) for pane in noted(out)})


def until_output(result: Any, out: Path) -> None:
    while_running(result, lambda: noted(out))


def until_logged(result: Any, caplog: pytest.LogCaptureFixture, what: str) -> None:
    while_running(result, lambda: any(what in message for message in caplog.messages))


def head_of(state: Path) -> Any:
    """Return the newest manifest of a job's folder."""
    return known(read_newest(FolderBlobs(state)))  # type: ignore[arg-type]
