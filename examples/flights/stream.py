"""The streaming pipeline: days and weeks of flights, joined with the weather, as the flights leave.

Event time is the scheduled departure; flights come when they have left, minutes to a day later. Owns the graph; the
same one gives the batch answer. Of arcbeam it uses `arcbeam.io`, whose transforms run on any runner.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import WriteToText
from apache_beam.pvalue import AsDict
from apache_beam.transforms import trigger, window

from arcbeam.io import LateElement, OutputMode, WithLate, WithWatermark

from .pipeline import UNREADABLE, Joined, ParseFlights, join_weather, to_csv
from .records import parse_weather, weather_classes
from .summaries import Delays, SummarizeFlights

DAY = 24 * 3600
MIDNIGHT = 5 * 3600
"""In New York, in winter."""
EARLY = 2
"""Seconds by the clock between what is told of a day that is not over."""
LATENESS = 3600
"""Seconds behind its end that a day still changes, by the watermark."""


def build(
    flights: beam.PCollection[str], weather: beam.PCollection[str], results: str, delay: float, *, weeks: bool = True
) -> None:
    """Adds everything behind the lines of both files.

    Args:
        flights: lines of flights.csv, in any order.
        weather: lines of weather.csv, by hour.
        results: folder; `days` has a file for each pane, `late` what was too late, `weeks` text files in windows.
        delay: seconds that a flight may come later than those scheduled with it.
        weeks: whether weeks are wanted, too.
    """
    for name in ("days", "late", "weeks"):
        Path(results, name).mkdir(parents=True, exist_ok=True)
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
    _ = days | "Write days" >> beam.Map(write_pane, results)
    (
        late
        | "When dropped" >> beam.Map(lambda each: window.TimestampedValue(late_row(each), each.watermark))
        | "Dropped on a day" >> beam.WindowInto(window.FixedWindows(DAY, MIDNIGHT))
        | "Of a day" >> beam.GroupBy(lambda row: None)
        | "Write late" >> beam.Map(write_late, results)
    )
    if weeks:
        (
            joined
            | "Rain" >> beam.FlatMap(by_rain)
            | "Weeks" >> OutputMode.append(window.SlidingWindows(7 * DAY, DAY, MIDNIGHT))
            | "Add up weeks" >> beam.CombinePerKey(SummarizeFlights())
            | "Week rows" >> beam.Map(week_row)
            | "Months" >> beam.WindowInto(window.FixedWindows(28 * DAY, MIDNIGHT))
            | "Write weeks" >> WriteToText(f"{results}/weeks/rain", file_name_suffix=".csv", num_shards=1)
        )


def by_rain(pair: Joined) -> Iterable[tuple[str, Any]]:
    """The flight, by how much it rained when it was to leave."""
    return [(name, pair.flight) for measure, name in weather_classes(pair.weather) if measure == "Rain"]


def date_of(seconds: float) -> str:
    """The day in New York that begins, or is, then."""
    return f"{datetime.fromtimestamp(seconds - MIDNIGHT, UTC):%Y-%m-%d}"


def write_pane(
    item: tuple[str, Delays], results: str, day: Any = beam.DoFn.WindowParam, pane: Any = beam.DoFn.PaneInfoParam
) -> None:
    """Writes what is known of an airport's day; if it runs again, the same again."""
    airport, delays = item
    name = f"{date_of(int(day.start))}-{airport}-{pane.index:03}.csv"
    whole = Path(results, "days", name)
    partial = whole.with_suffix(".partial")
    partial.write_text(to_csv((pane.timing, *delays)) + "\n", encoding="utf-8")
    partial.rename(whole)


def late_row(late: LateElement) -> tuple[Any, ...]:
    """What is kept of a flight that came too late."""
    return (late.key, date_of(int(late.window.start)), *late.value, late.reason)


def write_late(item: tuple[None, Iterable[tuple[Any, ...]]], results: str, day: Any = beam.DoFn.WindowParam) -> None:
    """Writes what was dropped on a day of the watermark."""
    rows = sorted(map(to_csv, item[1]))
    Path(results, "late", f"{date_of(int(day.start))}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def week_row(item: tuple[str, Delays], week: Any = beam.DoFn.WindowParam) -> str:
    """The delays of seven days in one class of rain, as a line."""
    return to_csv((date_of(int(week.start)), item[0], *item[1]))
