"""The streaming pipeline: hours and weeks of flights, joined with the weather, as the flights leave.

Event time is the scheduled departure; flights come when they have left, minutes to a day later. Owns the graph; the
same one gives the batch answer. Of arcbeam it uses `arcbeam.io`, whose transforms run on any runner.
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
"""Seconds by the clock between what is told of an hour that is not over."""
LATENESS = HOUR / 2
"""Seconds behind its end that an hour still changes, by the watermark."""
HOURS = ("hour", "airport", "pane", "timing", *Delays._fields)
LATE = ("airport", "hour", *Flight._fields, "reason")
WEEKS = ("week", "rain", *Delays._fields)
SOON = Roll(seconds=5)
"""Who reads along need not wait longer."""


def build(
    flights: beam.PCollection[str], weather: beam.PCollection[str], results: str, delay: float, *, weeks: bool = True
) -> None:
    """Adds everything behind the lines of both files.

    Args:
        flights: lines of flights.csv, in any order.
        weather: lines of weather.csv, by hour.
        results: folder; `hours` has part files of all panes, `late` of what was too late, `weeks` of the weeks.
        delay: seconds that a flight may come later than those scheduled with it.
        weeks: whether weeks are wanted, too.
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
        # Who comes before the weather of his day is complete waits for it.
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
        # A pane is written soon, whatever window it is of: so the year is some files, and not ten thousand.
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
    """The flight, by how much it rained when it was to leave."""
    return [(name, pair.flight) for measure, name in weather_classes(pair.weather) if measure == "Rain"]


def date_of(seconds: float) -> str:
    """The day in New York that begins, or is, then."""
    return f"{datetime.fromtimestamp(seconds - MIDNIGHT, UTC):%Y-%m-%d}"


def hour_of(seconds: float) -> str:
    """The hour in New York that begins, or is, then."""
    return f"{datetime.fromtimestamp(seconds - MIDNIGHT, UTC):%Y-%m-%d %H:00}"


def hour_row(
    item: tuple[str, Delays], hour: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
) -> tuple[Any, ...]:
    """What is known of an airport's hour."""
    airport, delays = item
    return (hour_of(int(hour.start)), airport, pane.index, PaneInfoTiming.to_string(pane.timing), *delays)


def late_row(late: LateElement) -> tuple[Any, ...]:
    """What is kept of a flight that came too late."""
    return (late.key, hour_of(int(late.window.start)), *late.value, late.reason)


def week_row(item: tuple[str, Delays], week: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
    """The delays of seven days in one class of rain."""
    return (date_of(int(week.start)), item[0], *item[1])
