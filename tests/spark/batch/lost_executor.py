"""A pipeline on a small cluster; one of its executors is killed between two rounds of a splittable DoFn.

`test_rounds` runs it, because a process has only one Spark: `lost_executor.py FOLDER`. Exits with 0 if nothing was lost
or duplicated.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam import RestrictionProvider
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from tests.spark.batch.distributed import DISTRIBUTED

_NUMBERS = 300


class Below(RestrictionProvider):
    """The numbers below the element."""

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> Any:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()


class Slow(beam.DoFn):
    """Notes its executor, once per restriction."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(Below())) -> Iterator[int]:
        at = tracker.current_restriction().start
        Path(self._folder, f"at-{at:05d}-{_executor()}-{os.getpid()}-{time.time_ns()}").touch()
        while tracker.try_claim(at):
            yield at
            time.sleep(0.02)  # the work itself
            at += 1


def _executor() -> int:
    """Return the JVM that is an ancestor of this Python worker."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid


def _kill_one(folder: Path) -> None:
    """Kill the executor that worked first, once another round has begun."""
    while len(notes := sorted(folder.glob("at-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))) < 4:
        time.sleep(0.05)
    os.kill(int(notes[0].name.split("-")[2]), signal.SIGKILL)
    (folder / "killed").touch()


def main(folder: Path) -> None:
    """Run the pipeline."""
    (folder / "notes").mkdir()
    options = [
        "--spark_master=local-cluster[2,1,1024]",
        "--spark_conf=spark.executor.memory=512m",
        "--sdf_round_seconds=0.5",
        "--shards=2",
        f"--arcbeam_temp={folder / 'temp'}",
    ]
    threading.Thread(target=_kill_one, args=(folder / "notes",), daemon=True).start()
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED, *options])) as p:
        numbers = p | beam.Create([_NUMBERS]) | beam.ParDo(Slow(str(folder / "notes")))
        assert_that(numbers, equal_to(list(range(_NUMBERS))))
        keyed = numbers | beam.Map(lambda n: (n % 7, n)) | beam.GroupByKey() | beam.MapTuple(lambda k, v: (k, sum(v)))
        assert_that(keyed, equal_to([(k, sum(range(k, _NUMBERS, 7))) for k in range(7)]), label="grouped")
    assert (folder / "notes" / "killed").exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
