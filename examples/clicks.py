"""Ads that are seen, and clicks on them, as somebody would write it who comes from Spark's `withWatermark`.

    arcbeam run examples/clicks.py [--seconds 8] [--checkpoint_dir …]

Browsers report what was seen and clicked some seconds later, in any order, clicks often twice, and a few long after.
Events get their times, and a watermark that is two seconds behind the latest; clicks that come again are dropped; each
view waits five seconds for its click, and comes out with it or alone; clicks are counted by the second, and those that
come too late for their second are kept aside.
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
    """What a browser reports.

    Attributes:
        kind: "view" or "click".
        ad: which ad was seen; each is seen once.
        at: when, in seconds.
    """

    kind: str
    ad: str
    at: float


def reported(at: Timestamp) -> list[Event]:
    """What is reported at a moment, of events of some moments before; for one moment always the same."""
    return [event for number in _near(at) for event, when in _events(number) if when == _number(at)]


def _number(at: Timestamp) -> int:
    return round(float(at) / EVERY)


def _near(at: Timestamp) -> range:
    return range(_number(at) - 150, _number(at) + 1)


def _events(number: int) -> list[tuple[Event, int]]:
    """The view of a moment, perhaps with a click, and when each is reported."""
    chance, seen = random.Random(number), number * EVERY
    events = [(Event("view", f"ad-{number}", seen), number + chance.randrange(10))]
    if chance.random() < 0.4:
        click = Event("click", f"ad-{number}", seen + chance.uniform(0.1, 2))
        late = 100 if chance.random() < 0.1 else 0
        events += [(click, number + 20 + late + chance.randrange(10)) for _ in range(chance.choice((1, 2)))]
    return events


def write(line: str, folder: str, name: str) -> None:
    """Writes a result; if it runs again, the same again."""
    Path(folder, name).write_text(f"{line}\n", encoding="utf-8")


def write_count(clicks: tuple[str, int], folder: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Writes how many clicks there were in a second."""
    write(str(clicks[1]), folder, f"second-{int(window.start)}")


def write_late(click: LateElement, folder: str) -> None:
    """Writes by how much a click was too late for its second."""
    by = float(click.watermark - click.window.end)
    write(f"{by:.1f} s", folder, f"late-{click.timestamp.micros}")


def main(arguments: list[str] | None = None) -> int:
    """Joins and counts, and prints what came of it. Returns the exit status."""
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
