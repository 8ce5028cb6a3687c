"""Sessions by hand: a stateful DoFn that keeps open visits in state and closes them with an event-time timer.

    arcbeam run examples/sessions_stateful.py [--input 'log/*.csv'] [--output build/sessions]

Does what `beam.WindowInto(Sessions(gap))` does, and shows the use of state and timers. Events of a user arrive in any
order and are merged into the open visits. A visit is output as soon as the watermark shows that nothing can extend it.
The input are lines `user,seconds since 1970,page`; without `--input`, a log of a day is generated, always the same. The
visits are written to `{output}/visits-*.csv`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import PickleCoder
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

GAP = 30 * 60
"""Seconds without an event that end a visit."""


class Visit(NamedTuple):
    """A run of events of a user.

    Attributes:
        first: time of the first event, seconds since 1970.
        last: time of the last one.
        pages: number of events.
    """

    first: int
    last: int
    pages: int


def merge(visits: Iterable[Visit], gap: int) -> list[Visit]:
    """Merge visits less than a gap apart; return as few visits as possible, in order of time."""
    merged: list[Visit] = []
    for visit in sorted(visits):
        if merged and visit.first - merged[-1].last < gap:
            before = merged.pop()
            visit = Visit(before.first, max(before.last, visit.last), before.pages + visit.pages)
        merged.append(visit)
    return merged


class Visits(beam.DoFn):
    """(user, page) at its event time -> (user, Visit) once the visit has ended."""

    OPEN = ReadModifyWriteStateSpec("open", PickleCoder())
    CLOSE = TimerSpec("close", TimeDomain.WATERMARK)

    def __init__(self, gap: int = GAP) -> None:
        self._gap = gap

    def process(
        self,
        element: tuple[str, str],
        timestamp: Timestamp = beam.DoFn.TimestampParam,
        open_visits: Any = beam.DoFn.StateParam(OPEN),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        """Merge the event into the open visits; the timer waits for the one that ends first."""
        second = int(timestamp)
        visits = merge([*(open_visits.read() or ()), Visit(second, second, 1)], self._gap)
        open_visits.write(visits)
        close.set(Timestamp(min(visit.last for visit in visits) + self._gap))

    @on_timer(CLOSE)
    def over(
        self,
        user: str = beam.DoFn.KeyParam,
        fired: Timestamp = beam.DoFn.TimestampParam,
        open_visits: Any = beam.DoFn.StateParam(OPEN),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        """Output the visits that ended, at the time of their last event plus the gap; wait for the others."""
        still_open = []
        for visit in open_visits.read() or ():
            if visit.last + self._gap <= fired:
                yield user, visit
            else:
                still_open.append(visit)
        if still_open:
            open_visits.write(still_open)
            close.set(Timestamp(min(visit.last for visit in still_open) + self._gap))
        else:
            open_visits.clear()


def parse_event(line: str) -> TimestampedValue:
    """Parse a line of the log to (user, page) at its event time."""
    user, second, page = line.split(",")
    return TimestampedValue((user, page), int(second))


def format_visit(item: tuple[str, Visit]) -> str:
    """Format one line of the results."""
    return ",".join(str(cell) for cell in (item[0], *item[1]))


def made_up_log(users: int = 200, seed: int = 7) -> list[str]:
    """Return lines of a day's log, unordered: each user comes a few times and looks at a few pages."""
    chance = random.Random(seed)
    lines = []
    for user in range(users):
        for _ in range(chance.randint(1, 5)):
            second = 1_700_000_000 + chance.randrange(86_400)
            for _ in range(chance.randint(1, 20)):
                lines.append(f"user{user:03d},{second},/page/{chance.randrange(50)}")
                second += chance.randint(1, 600)
    chance.shuffle(lines)
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Find the visits and print the longest. Return the exit status."""
    parser = argparse.ArgumentParser(description="Find visits of a site's users with a stateful Beam pipeline.")
    parser.add_argument("--input", help="file pattern of the log")
    parser.add_argument("--output", type=Path, default=Path("build/sessions"), help="folder of the results")
    known, beam_arguments = parser.parse_known_args(arguments)
    output = known.output.resolve()
    shutil.rmtree(output, ignore_errors=True)  # remove files of an earlier run
    output.mkdir(parents=True)

    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        lines = pipeline | "Log" >> (ReadFromText(known.input) if known.input else beam.Create(made_up_log()))
        (
            lines
            | "Parse" >> beam.Map(parse_event).with_output_types(tuple[str, str])
            | "Visits" >> beam.ParDo(Visits()).with_output_types(tuple[str, Visit])
            | "Format" >> beam.Map(format_visit)
            | "Write" >> WriteToText(str(output / "visits"), file_name_suffix=".csv")
        )

    rows = [line.split(",") for shard in sorted(output.glob("visits-*.csv")) for line in shard.read_text().splitlines()]
    longest = sorted(rows, key=lambda row: (int(row[1]) - int(row[2]), row[0]))[:10]
    print(f"{len(rows):,} visits of {len({row[0] for row in rows}):,} users; the longest:")
    for user, first, last, pages in longest:
        print(f"  {user}  {(int(last) - int(first)) // 60:>4} minutes  {int(pages):>3} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
