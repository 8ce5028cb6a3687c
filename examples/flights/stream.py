"""The streaming pipeline: hours and weeks of flights, joined with the weather, as the flights leave.

Event time is the scheduled departure. Flights arrive when they have left, minutes to a day later. Owns the graph, which
also gives the batch answer. Of arcbeam it uses only `arcbeam.io`, whose transforms run on any runner.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsDict
from apache_beam.transforms import trigger, window
from apache_beam.utils.windowed_value import PaneInfoTiming

from arcbeam.io import Csv, LateElement, OutputMode, Roll, WithLate, WithWatermark, WriteParts

from .pipeline import UNREADABLE, Joined, ParseFlights, join_weather
from .records import Flight, parse_weather, weather_classes
from .summaries import Delays, SummarizeFlights

HOUR = 3600
DAY = 24 * HOUR
MIDNIGHT = 5 * HOUR
"""In New York, in winter."""
EARLY = 2
"""Seconds of processing time between two panes of an hour that has not ended."""
LATENESS = HOUR / 2
"""Seconds of watermark after its end during which an hour still changes."""
HOURS = ("hour", "airport", "pane", "timing", *Delays._fields)
LATE = ("airport", "hour", *Flight._fields, "reason")
WEEKS = ("week", "rain", *Delays._fields)
SOON = Roll(seconds=5)
"""Readers of the files need not wait longer."""


def build(
    flights: beam.PCollection[str], weather: beam.PCollection[str], results: str, delay: float, *, weeks: bool = True
) -> None:
    """Add everything after the lines of both files.

    Args:
        flights: lines of flights.csv, in any order.
        weather: lines of weather.csv, by hour.
        results: folder. `hours` has part files of all panes, `late` of late flights, `weeks` of the weeks.
        delay: seconds by which a flight may arrive later than those scheduled with it.
        weeks: whether to compute weeks, too.
    """
    readings = (
        weather
        | "Parse weather" >> beam.Map(parse_weather)
        | "At" >> beam.Map(lambda reading: window.TimestampedValue(reading, reading[0][1]))
        | "Weather of a day" >> beam.WindowInto(window.FixedWindows(DAY, MIDNIGHT))
    )
    parsed = flights | "Parse flights" >> beam.ParDo(ParseFlights()).with_outputs(UNREADABLE, main="flights")
    timed = parsed.flights | "Scheduled" >> WithWatermark("scheduled", delay)
    joined = (
        timed
        | "Hour"
        >> beam.WindowInto(
            window.FixedWindows(HOUR),
            trigger=trigger.AfterWatermark(
                early=trigger.AfterProcessingTime(EARLY), late=trigger.AfterProcessingTime(EARLY)
            ),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
            allowed_lateness=LATENESS,
        )
        # A flight waits until the weather of its day is complete.
        | "Join weather" >> beam.Map(join_weather, AsDict(readings))
    )
    hours, late = (
        joined
        | "Airport" >> beam.Map(lambda pair: (pair.flight.origin, pair.flight))
        | "Hours" >> WithLate(beam.CombinePerKey(SummarizeFlights()))
    )
    (
        hours
        | "Hour rows" >> beam.Map(hour_row)
        # Panes are written soon, independent of their windows. So the year is a few files, not ten thousand.
        | "Any hour" >> beam.WindowInto(window.GlobalWindows())
        | "Write hours" >> WriteParts(f"{results}/hours", Csv(HOURS), roll=SOON)
    )
    (late | "Late rows" >> beam.Map(late_row) | "Write late" >> WriteParts(f"{results}/late", Csv(LATE), roll=SOON))
    if weeks:
        (
            joined
            | "Rain" >> beam.FlatMap(by_rain)
            | "Weeks" >> OutputMode.append(window.SlidingWindows(7 * DAY, DAY, MIDNIGHT))
            | "Add up weeks" >> beam.CombinePerKey(SummarizeFlights())
            | "Week rows" >> beam.Map(week_row)
            | "Months" >> beam.WindowInto(window.FixedWindows(28 * DAY, MIDNIGHT))
            | "Write weeks"
            >> WriteParts(f"{results}/weeks", Csv(WEEKS), name="{start:%Y-%m-%d}-{shard}-{part}{suffix}")
        )


def by_rain(pair: Joined) -> Iterable[tuple[str, Any]]:
    """Yield the flight, by the rain at its scheduled departure."""
    return [(name, pair.flight) for measure, name in weather_classes(pair.weather) if measure == "Rain"]


def date_of(seconds: float) -> str:
    """Return the day in New York that begins, or is, at this time."""
    return f"{datetime.fromtimestamp(seconds - MIDNIGHT, UTC):%Y-%m-%d}"


def hour_of(seconds: float) -> str:
    """Return the hour in New York that begins, or is, at this time."""
    return f"{datetime.fromtimestamp(seconds - MIDNIGHT, UTC):%Y-%m-%d %H:00}"


def hour_row(
    item: tuple[str, Delays], hour: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
) -> tuple[Any, ...]:
    """Return the row of an airport's hour."""
    airport, delays = item
    return (hour_of(int(hour.start)), airport, pane.index, PaneInfoTiming.to_string(pane.timing), *delays)


def late_row(late: LateElement) -> tuple[Any, ...]:
    """Return the row of a late flight."""
    return (late.key, hour_of(int(late.window.start)), *late.value, late.reason)


def week_row(item: tuple[str, Delays], week: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
    """Return the delays of seven days in one class of rain."""
    return (date_of(int(week.start)), item[0], *item[1])
