"""The streaming pipeline: days and weeks of flights, joined with the weather, as the flights leave.

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

DAY = 24 * 3600
MIDNIGHT = 5 * 3600
"""In New York, in winter."""
EARLY = 2
"""Seconds by the clock between what is told of a day that is not over."""
LATENESS = 3600
"""Seconds behind its end that a day still changes, by the watermark."""
DAYS = ("day", "airport", "pane", "timing", *Delays._fields)
LATE = ("airport", "day", *Flight._fields, "reason")
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
        results: folder; `days` has part files of all panes, `late` of what was too late, `weeks` of the weeks.
        delay: seconds that a flight may come later than those scheduled with it.
        weeks: whether weeks are wanted, too.
    """
    readings = (
        weather
        | "Parse weather" >> beam.Map(parse_weather)
        | "Hours" >> beam.Map(lambda reading: window.TimestampedValue(reading, reading[0][1]))
        | "Weather of a day" >> beam.WindowInto(window.FixedWindows(DAY, MIDNIGHT))
    )
    parsed = flights | "Parse flights" >> beam.ParDo(ParseFlights()).with_outputs(UNREADABLE, main="flights")
    timed = parsed.flights | "Scheduled" >> WithWatermark("scheduled", delay)
    joined = (
        timed
        | "Day"
        >> beam.WindowInto(
            window.FixedWindows(DAY, MIDNIGHT),
            trigger=trigger.AfterWatermark(
                early=trigger.AfterProcessingTime(EARLY), late=trigger.AfterProcessingTime(EARLY)
            ),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
            allowed_lateness=LATENESS,
        )
        # Who comes before the weather of his day is complete waits for it.
        | "Join weather" >> beam.Map(join_weather, AsDict(readings))
    )
    days, late = (
        joined
        | "Airport" >> beam.Map(lambda pair: (pair.flight.origin, pair.flight))
        | "Days" >> WithLate(beam.CombinePerKey(SummarizeFlights()))
    )
    (
        days
        | "Day rows" >> beam.Map(day_row)
        # A pane is written soon, whatever window it is of: so the year is twelve files, and not a thousand.
        | "Any day" >> beam.WindowInto(window.GlobalWindows())
        | "Write days" >> WriteParts(f"{results}/days", Csv(DAYS), roll=SOON)
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


def day_row(
    item: tuple[str, Delays], day: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
) -> tuple[Any, ...]:
    """What is known of an airport's day."""
    airport, delays = item
    return (date_of(int(day.start)), airport, pane.index, PaneInfoTiming.to_string(pane.timing), *delays)


def late_row(late: LateElement) -> tuple[Any, ...]:
    """What is kept of a flight that came too late."""
    return (late.key, date_of(int(late.window.start)), *late.value, late.reason)


def week_row(item: tuple[str, Delays], week: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
    """The delays of seven days in one class of rain."""
    return (date_of(int(week.start)), item[0], *item[1])
