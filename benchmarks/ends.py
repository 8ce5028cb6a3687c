"""How long a job with a large state takes to be suspended, to resume, and to be drained.

    python benchmarks/ends.py [--keys 1000000] [--timers 100000] [--master local[2,4]]

Each key has a value; some have an event time timer that is a day away, which a drain fires. Prints seconds, and the
number of outputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.utils.timestamp import Duration

from arcbeam import ArcbeamRunner

_MOST = 1 << 40
_POLL = 0.2


class Keys(beam.DoFn, beam.RestrictionProvider):
    """Yields each key once; then waits for more, which never arrives."""

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, _MOST)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: int, restriction: OffsetRange) -> None:
        return None

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[tuple[int, int]]:
        for n in range(tracker.current_restriction().start, element):
            if not tracker.try_claim(n):
                return
            yield n, n
        tracker.defer_remainder(Duration(_POLL))


class Kept(beam.DoFn):
    """Keeps each key's value; outputs every so-manyth value a day later."""

    VALUE = userstate.ReadModifyWriteStateSpec("value", beam.coders.VarIntCoder())
    LATER = userstate.TimerSpec("later", userstate.TimeDomain.WATERMARK)

    def __init__(self, every: int) -> None:
        self._every = every

    def process(
        self,
        pair: tuple[int, int],
        value: Any = beam.DoFn.StateParam(VALUE),
        later: Any = beam.DoFn.TimerParam(LATER),
    ) -> None:
        value.write(pair[1])
        if pair[0] % self._every == 0:
            later.set(86_400)

    @userstate.on_timer(LATER)
    def over(self, value: Any = beam.DoFn.StateParam(VALUE)) -> Iterator[int]:
        yield value.read()


class Seen(beam.DoFn):
    """Counts its input."""

    def __init__(self) -> None:
        self._out = beam.metrics.Metrics.counter("ends", "out")

    def process(self, n: int) -> None:
        self._out.inc()


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--master", default="local[2,4]")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--streaming", f"--spark_master={requested.master}", f"--checkpoint_dir={Path(folder, 'state')}"]

        def begun() -> Any:
            p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(flags))
            keys = p | beam.Create([requested.keys]) | beam.ParDo(Keys())
            _ = keys | beam.ParDo(Kept(requested.keys // requested.timers)) | beam.ParDo(Seen())
            return p.run()

        def until(result: Any, name: str, count: int) -> float:
            """Return the seconds until a transform has read this many elements."""
            started = time.monotonic()
            while True:
                status = result.status()
                if status is not None and any(
                    name in of.stage and of.total and of.total.read >= count for of in status.stages
                ):
                    return time.monotonic() - started
                result.wait_until_finish(100)

        result = begun()
        reported: list[tuple[str, float]] = [("all keys are in state", until(result, "Kept", requested.keys))]
        for what in ("suspend", "resume", "drain"):
            started = time.monotonic()
            if what == "suspend":
                result.suspend("stopped")
                stopped = result.status().micro_batch
            elif what == "resume":
                result = begun()
                # After its opening there is a micro-batch.
                while (status := result.status()) is None or status.micro_batch < stopped + 2:
                    result.wait_until_finish(50)
            else:
                result.drain()
                result.wait_until_finish()
            reported.append((what, time.monotonic() - started))
        for text, seconds in reported:
            sys.stdout.write(f"{text}: {seconds:.1f} s\n")
        counted = result.metrics().query(beam.metrics.MetricsFilter().with_name("out"))["counters"]
        out = sum(each.committed for each in counted)
        sys.stdout.write(f"{result.state}, {out} outputs of the drain\n")
        assert out == len(range(0, requested.keys, requested.keys // requested.timers))


if __name__ == "__main__":
    main()
