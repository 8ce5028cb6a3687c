"""The Python pipelines whose processes are killed or stopped: the same as the Go programs, in workers of the SDK.

python -m tests.sdks.surviving PROGRAM OUTPUT [options of Beam]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import TimeDomain, userstate
from apache_beam.utils.timestamp import Duration, Timestamp

from tests.chaos.points import reached
from tests.offsets import UpTo

NUMBERS: Final = 120
KEYS: Final = 3


class Slow(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Yields the numbers below its element; slower than a micro-batch may be."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UpTo())) -> Iterator[int]:
        at = tracker.current_restriction().start
        for n in range(at, at + 11 + 49 * (at % 2)):
            if not tracker.try_claim(n):
                return
            yield n
            time.sleep(0.015)
        tracker.defer_remainder(Duration(0.001))


class UntilDrained(UpTo):
    """Nothing is left of a restriction that is drained."""

    def truncate(self, element: int, restriction: Any) -> None:
        return None


class Allowed(beam.DoFn):  # type: ignore[misc]
    """Yields the numbers below its element, as far as a file allows it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam(UntilDrained())) -> Iterator[int]:
        for n in range(tracker.current_restriction().start, int(self._file.read_text())):
            if not tracker.try_claim(n):
                return
            yield n
        tracker.defer_remainder(Duration(0.05))


class Confirmed(beam.DoFn):  # type: ignore[misc]
    """Asks for the finalization of each bundle."""

    def process(self, element: int, finalization: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[tuple[int, int]]:
        finalization.register(lambda: None)
        Metrics.counter("surviving", "seen").inc()
        yield element % KEYS, element


class Ordinals(beam.DoFn):  # type: ignore[misc]
    """Counts the elements of a key, and yields the total at the end of the input."""

    COUNT = userstate.ReadModifyWriteStateSpec("count", VarIntCoder())
    END = userstate.TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[int, int],
        count: Any = beam.DoFn.StateParam(COUNT),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> Iterator[str]:
        ordinal = (count.read() or 0) + 1
        reached("in a bundle")
        count.write(ordinal)
        # The watermark stays at the beginning of time until the source has ended.
        end.set(Timestamp(0))
        yield f"{element[0]} {ordinal}"

    @userstate.on_timer(END)
    def ended(self, key: Any = beam.DoFn.KeyParam, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterator[str]:
        yield f"{key} total {count.read()}"


class Collect(beam.DoFn):  # type: ignore[misc]
    """Appends each line to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def process(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")


class Refuse(Collect):
    """Records each call, and fails."""

    def process(self, element: int) -> None:
        super().process(str(element))
        raise ValueError(f"no {element}")


def formatted(key: int, values: Iterable[int]) -> str:
    """Return a group as the Go program writes it."""
    return f"{key} [{' '.join(map(str, sorted(values)))}]"


def submitted(program: str, output: Path, *options: str) -> Any:
    """Start the pipeline; return its result."""
    p: Any = beam.Pipeline(options=PipelineOptions(list(options)))
    source = Allowed(output / "limit") if program == "stopping" else Slow()
    numbers = p | beam.Create([NUMBERS]) | beam.ParDo(source)
    if program == "refusing":
        _ = numbers | "Refuse" >> beam.ParDo(Refuse(output / "calls"))
    else:
        pairs = numbers | beam.ParDo(Confirmed()).with_output_types(tuple[int, int])
        counts = pairs | beam.ParDo(Ordinals()) | beam.Reshuffle()
        _ = counts | "Collect counts" >> beam.ParDo(Collect(output / "counts"))
        groups = pairs | beam.GroupByKey() | beam.MapTuple(formatted)
        _ = groups | "Collect groups" >> beam.ParDo(Collect(output / "groups"))
    return p.run()


if __name__ == "__main__":
    # SUBTLE: from the imported module, because workers cannot import classes of `__main__`.
    from tests.sdks.surviving import submitted as submitted_by_import

    sys.exit(submitted_by_import(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]).wait_until_finish() != "DONE")
