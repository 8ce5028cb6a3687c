"""Growing sessions: an early pane after every third click, one when the session ends, more for late clicks.

    arcbeam run examples/session_panes.py [--output build/session_panes]

Clicks of two users arrive in the order in which their phones had a network, not in the order of their times. Each pane
has all clicks of the session so far, so the last pane of a session is complete. A click that arrives after its session
ended makes another pane if it is less than a minute late, and may join two sessions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import Sessions
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfoTiming

GAP = 10
NOON = 1_700_000_000
CLICKS = [
    (0, "ann", "home"),
    (2, "ben", "home"),
    (4, "ann", "search"),
    (9, "ann", "shoes"),
    (14, "ann", "cart"),
    (8, "ben", "search"),
    (31, "ben", "home"),
    (22, "ann", "paid"),
    (45, "ann", "home"),
    (13, "ben", "shoes"),
    (90, "ben", "home"),
    (60, "ben", "lost"),
]
"""Seconds after noon, user, page; in the order of arrival."""
EVERY = 0.3


def line(
    clicks: tuple[str, Iterable[tuple[int, str]]],
    window: Any = beam.DoFn.WindowParam,
    pane: Any = beam.DoFn.PaneInfoParam,
) -> Iterator[tuple[str, int, str]]:
    """Yield a pane as (user, its number, text)."""
    user, pages = clicks
    begin, end = int(window.start) - NOON, int(window.end) - NOON
    timing = PaneInfoTiming.to_string(pane.timing).lower()
    yield user, pane.index, f"{begin:>3}..{end:<3} {timing:<8} {' '.join(page for _, page in sorted(pages))}"


def write(pane: tuple[str, int, str], output: str, window: Any = beam.DoFn.WindowParam) -> None:
    """Write a pane to a file; a retry writes the same file."""
    user, number, text = pane
    Path(output, f"{user}-{int(window.start)}-{int(window.end)}-{number}.txt").write_text(f"{text}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Compute the panes, and print them. Return the exit status."""
    parser = argparse.ArgumentParser(description="Compute panes of sessions.")
    parser.add_argument("--output", type=Path, default=Path("build/session_panes"), help="folder of the results")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    data = [(Timestamp(NOON + at), (user, (at, page))) for at, user, page in CLICKS]
    begin = Timestamp.of(round(time.time(), 3))
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Clicks" >> PeriodicImpulse(begin, begin + EVERY * len(data), EVERY, data=data)
            | "Typed" >> beam.Map(lambda click: click).with_output_types(tuple[str, tuple[int, str]])
            | "Sessions"
            >> beam.WindowInto(
                Sessions(GAP),
                trigger=AfterWatermark(early=AfterCount(3), late=AfterCount(1)),
                accumulation_mode=AccumulationMode.ACCUMULATING,
                allowed_lateness=60,
            )
            | "Users" >> beam.GroupByKey()
            | "Line" >> beam.ParDo(line)
            | "Write" >> beam.Map(write, str(output))
        )
    for file in sorted(output.iterdir(), key=lambda file: file.name):
        print(f"{file.name.partition('-')[0]}: {file.read_text().rstrip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
