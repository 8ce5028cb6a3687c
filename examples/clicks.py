"""Views of ads and clicks on them, written for readers who know Spark's `withWatermark`.

    arcbeam run examples/clicks.py [--seconds 8] [--checkpoint_dir …]

Browsers report views and clicks some seconds later, in any order. They often report clicks twice, and a few much later.
Events get their times, and a watermark two seconds behind the latest time. Repeated clicks are dropped. Each view waits
five seconds for its click, and is output with it or alone. Clicks are counted per second; clicks that are too late for
their second are kept in a separate output.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, LateElement, WithLate, WithWatermark

EVERY = 0.1
WAITS = 5


class Event(NamedTuple):
    """An event that a browser reports.

    Attributes:
        kind: "view" or "click".
        ad: the ad; each is viewed once.
        at: the time, in seconds.
    """

    kind: str
    ad: str
    at: float


def reported(at: Timestamp) -> list[Event]:
    """Return what is reported at a moment, about events of earlier moments; the same for each call."""
    return [event for number in _near(at) for event, when in _events(number) if when == _number(at)]


def _number(at: Timestamp) -> int:
    return round(float(at) / EVERY)


def _near(at: Timestamp) -> range:
    return range(_number(at) - 150, _number(at) + 1)


def _events(number: int) -> list[tuple[Event, int]]:
    """Return the view of a moment, perhaps with a click, and when each is reported."""
    chance, seen = random.Random(number), number * EVERY
    events = [(Event("view", f"ad-{number}", seen), number + chance.randrange(10))]
    if chance.random() < 0.4:
        click = Event("click", f"ad-{number}", seen + chance.uniform(0.1, 2))
        late = 100 if chance.random() < 0.1 else 0
        events += [(click, number + 20 + late + chance.randrange(10)) for _ in range(chance.choice((1, 2)))]
    return events


def write(line: str, folder: str, name: str) -> None:
    """Write a result; a retry writes the same file."""
    Path(folder, name).write_text(f"{line}\n", encoding="utf-8")


def write_count(clicks: tuple[str, int], folder: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Write the number of clicks in a second."""
    write(str(clicks[1]), folder, f"second-{int(window.start)}")


def write_late(click: LateElement, folder: str) -> None:
    """Write how late a click was for its second."""
    by = float(click.watermark - click.window.end)
    write(f"{by:.1f} s", folder, f"late-{click.timestamp.micros}")


def main(arguments: list[str] | None = None) -> int:
    """Join and count, and print the results. Return the exit status."""
    parser = argparse.ArgumentParser(description="Views of ads, and their clicks.")
    parser.add_argument("--output", type=Path, default=Path("build/clicks"), help="folder of the results")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long events are reported")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = str(known.output.resolve())
    known.output.mkdir(parents=True, exist_ok=True)
    begin = round(time.time())
    write(str(begin), output, "began")
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        events = (
            pipeline
            | "Moments" >> PeriodicImpulse(begin, begin + known.seconds, EVERY)
            | "Reports" >> beam.FlatMap(reported).with_output_types(Event)
            | WithWatermark("at", delay=2)
        )
        views = events | "Views" >> beam.Filter(lambda event: event.kind == "view")
        clicks = (
            events
            | "Clicks" >> beam.Filter(lambda event: event.kind == "click")
            | DeduplicateWithinWatermark(60, key="ad")
        )
        seen, clicked = (
            each | f"By ad {name}" >> beam.Map(lambda event: (event.ad, event.at)).with_output_types(tuple[str, float])
            for name, each in (("seen", views), ("clicked", clicks))
        )
        (
            (seen, clicked)
            | JoinWithin(after=WAITS, how="left")
            | "Line" >> beam.Map(lambda pair: (pair[0], "alone" if pair[1][1] is None else "clicked"))
            | "Write ads" >> beam.MapTuple(lambda ad, line: write(line, output, ad))
        )
        counts, late = (
            clicks
            | "One" >> beam.Map(lambda event: ("clicks", 1)).with_output_types(tuple[str, int])
            | "Seconds" >> beam.WindowInto(FixedWindows(1))
            | WithLate(beam.CombinePerKey(sum))
        )
        _ = counts | "Write counts" >> beam.Map(write_count, output)
        _ = late | "Write late" >> beam.Map(write_late, output)
    for name in ("ad", "second", "late"):
        print(f"{name}: {len(list(known.output.glob(f'{name}-*')))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
