"""Deduplication with state: an order that arrives twice within a time is output once.

    arcbeam run examples/deduplication.py [--seconds 5] [--checkpoint_dir …]

A sender repeats orders until they are acknowledged, so most arrive several times. A stateful DoFn remembers each id,
and a timer forgets it `KEEP` seconds of event time later. So the state does not grow forever. (Beam has this
ready-made: `apache_beam.transforms.deduplicate`.)
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

KEEP = 60
EVERY = 0.25


class Once(beam.DoFn):
    """(id, order) -> (id, order), the first of its id within `KEEP` seconds."""

    SEEN = ReadModifyWriteStateSpec("seen", BooleanCoder())
    FORGET = TimerSpec("forget", TimeDomain.WATERMARK)

    def process(
        self,
        order: tuple[str, int],
        at: Timestamp = beam.DoFn.TimestampParam,
        seen: Any = beam.DoFn.StateParam(SEEN),
        forget: Any = beam.DoFn.TimerParam(FORGET),
    ) -> Iterator[tuple[str, int]]:
        """Output an order, and remember it."""
        if not seen.read():
            seen.write(True)
            forget.set(at + KEEP)
            yield order

    @on_timer(FORGET)
    def forget_it(self, seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        """Forget the order: it is not repeated any more."""
        seen.clear()


def sent(at: Timestamp) -> list[tuple[str, int]]:
    """Return what arrives at a moment: a new order, and some of the last ones again; the same for each call."""
    number = round(float(at) / EVERY)
    chance = random.Random(number)
    numbers = [number, *(number - chance.randrange(1, 5) for _ in range(3))]
    return [(f"order-{n}", random.Random(n).randrange(100)) for n in numbers]


def write(total: int, output: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Write how many orders a window had; a retry writes the same file."""
    Path(output, f"{int(window.start)}.txt").write_text(f"{total}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Count the orders of each second, and print their sum. Return the exit status."""
    parser = argparse.ArgumentParser(description="Count orders, each once.")
    parser.add_argument("--output", type=Path, default=Path("build/deduplication"), help="folder of the results")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long orders arrive")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    begin = round(time.time())
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Moments" >> PeriodicImpulse(begin, begin + known.seconds, EVERY)
            | "Orders" >> beam.FlatMap(sent).with_output_types(tuple[str, int])
            | "Once" >> beam.ParDo(Once())
            | "Seconds" >> beam.WindowInto(FixedWindows(1))
            | "Count" >> beam.CombineGlobally(beam.combiners.CountCombineFn()).without_defaults()
            | "Write" >> beam.Map(write, str(output))
        )
    print(f"{sum(int(file.read_text()) for file in output.iterdir())} orders, each once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
