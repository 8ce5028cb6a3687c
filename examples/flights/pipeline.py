"""The pipeline: from three text files to seven small tables, each written as CSV by the workers.

Owns only the graph; knows no runner. Event time is the scheduled departure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.pvalue import AsDict, TaggedOutput
from apache_beam.transforms import window

from .records import (
    HOUR,
    Airport,
    Flight,
    Weather,
    new_york_time,
    parse_airport,
    parse_flight,
    parse_weather,
    weather_classes,
    weather_key,
)
from .summaries import AddDelays, Burst, Delays, SummarizeBurst, SummarizeFlights

LONG_DELAY = 60
"""Minutes. Longer delays are part of a burst."""
BURST_GAP = 30 * 60
"""Seconds without a long delay that end a burst."""
BURST_FLIGHTS = 10
"""Minimum flights of a burst."""
ROUTE_FLIGHTS = 365
"""Minimum flights a year of a ranked route: one a day."""
TOP = 10

DELAY_COLUMNS = Delays._fields
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Inputs:
    """File patterns to read, with a header line each."""

    flights: str
    weather: str
    airports: str


class Joined(NamedTuple):
    """A flight, and the weather at its scheduled departure if known."""

    flight: Flight
    weather: Weather | None


class ParseFlights(beam.DoFn):
    """Lines -> Flights at their event time; invalid lines go to the output `unreadable`."""

    def process(self, line: str) -> Iterator[Any]:
        try:
            flight = parse_flight(line)
        except ValueError:
            yield TaggedOutput(UNREADABLE, line)
        else:
            yield window.TimestampedValue(flight, flight.scheduled)


def build(pipeline: beam.Pipeline, inputs: Inputs, results: str) -> None:
    """Add the whole pipeline to `pipeline`. Each table goes to `{results}/{name}*.csv`."""
    weather = (
        pipeline
        | "Read weather" >> ReadFromText(inputs.weather, skip_header_lines=1)
        | "Parse weather" >> beam.Map(parse_weather)
    )
    airports = (
        pipeline
        | "Read airports" >> ReadFromText(inputs.airports, skip_header_lines=1)
        | "Parse airports" >> beam.Map(parse_airport)
    )
    flights = (
        pipeline
        | "Read flights" >> ReadFromText(inputs.flights, skip_header_lines=1)
        | "Parse flights" >> beam.ParDo(ParseFlights()).with_outputs(UNREADABLE, main="flights")
    )
    joined = flights.flights | "Join weather" >> beam.Map(join_weather, AsDict(weather))

    flights[UNREADABLE] | "Unreadable" >> WriteCsv(results, "unreadable", ("line",))
    hourly = joined | "By hour" >> DelayByHour()
    hourly | "Hours" >> WriteCsv(results, "hours", ("airport", "hour", *DELAY_COLUMNS))
    (
        hourly
        | "Day" >> beam.Map(lambda row: ((row[0], row[1][:10]), Delays(*row[2:])))
        | "Add up days" >> beam.CombinePerKey(AddDelays())
        | "Day rows" >> beam.Map(flat)
        | "Days" >> WriteCsv(results, "days", ("airport", "day", *DELAY_COLUMNS))
    )
    (
        hourly
        | "Hour of week" >> beam.Map(lambda row: ((row[0], *hour_of_week(row[1])), Delays(*row[2:])))
        | "Add up week" >> beam.CombinePerKey(AddDelays())
        | "Week rows" >> beam.Map(flat)
        | "Week" >> WriteCsv(results, "week", ("airport", "weekday", "hour", *DELAY_COLUMNS))
    )
    routes = joined | "By route" >> DelayByRoute(airports)
    for name, rank in (("mean", mean_of_route), ("total", total_of_route)):
        (
            routes
            | f"Top by {name}" >> beam.combiners.Top.Of(TOP, key=rank)
            | f"Ranked by {name}" >> beam.FlatMap(lambda ranked: ranked)
            | f"Routes by {name}"
            >> WriteCsv(results, f"routes_by_{name}", ("origin", "destination", "name", *DELAY_COLUMNS))
        )
    (
        joined
        | "Weather classes" >> beam.FlatMap(by_weather_class)
        | "Add up classes" >> beam.CombinePerKey(SummarizeFlights())
        | "Class rows" >> beam.Map(flat)
        | "Classes" >> WriteCsv(results, "weather", ("measure", "class", *DELAY_COLUMNS))
    )
    (
        joined
        | "Bursts" >> Bursts()
        | "Top bursts" >> beam.combiners.Top.Of(TOP, key=minutes_of_burst)
        | "Ranked bursts" >> beam.FlatMap(lambda ranked: ranked)
        | "Burst rows" >> WriteCsv(results, "bursts", ("airport", "first", "last", *Burst._fields))
    )


class DelayByHour(beam.PTransform):
    """Joined flights -> rows (airport, local start of the hour as ISO text, *Delays), in windows of event time."""

    def expand(self, joined: beam.PCollection[Joined]) -> beam.PCollection[Any]:
        return (
            joined
            | "Hours" >> beam.WindowInto(window.FixedWindows(HOUR))
            | "Airport" >> beam.Map(lambda pair: (pair.flight.origin, pair.flight))
            | "Summarize" >> beam.CombinePerKey(SummarizeFlights())
            | "Name the hour" >> beam.Map(with_hour)
            | "All hours" >> beam.WindowInto(window.GlobalWindows())
        )


class DelayByRoute(beam.PTransform):
    """Joined flights -> rows (origin, destination, name of the destination, *Delays) of routes flown often enough."""

    def __init__(self, airports: beam.PCollection[tuple[str, Airport]]) -> None:
        super().__init__()
        self._airports = airports

    def expand(self, joined: beam.PCollection[Joined]) -> beam.PCollection[Any]:
        return (
            joined
            | "Route" >> beam.Map(lambda pair: ((pair.flight.origin, pair.flight.destination), pair.flight))
            | "Summarize" >> beam.CombinePerKey(SummarizeFlights())
            | "Often enough" >> beam.Filter(lambda item: item[1].scheduled >= ROUTE_FLIGHTS)
            | "Name" >> beam.Map(with_name, AsDict(self._airports))
        )


class Bursts(beam.PTransform):
    """Joined flights -> rows (airport, first, last, *Burst): sessions of long delays at an airport."""

    def expand(self, joined: beam.PCollection[Joined]) -> beam.PCollection[Any]:
        return (
            joined
            | "Long delays" >> beam.Filter(lambda pair: (pair.flight.departure_delay or 0) >= LONG_DELAY)
            | "Sessions" >> beam.WindowInto(window.Sessions(BURST_GAP))
            | "Airport" >> beam.Map(lambda pair: (pair.flight.origin, (pair.flight, pair.weather)))
            | "Summarize" >> beam.CombinePerKey(SummarizeBurst())
            | "Many" >> beam.Filter(lambda item: item[1].flights >= BURST_FLIGHTS)
            | "Name the span" >> beam.Map(with_span)
            | "All bursts" >> beam.WindowInto(window.GlobalWindows())
        )


class WriteCsv(beam.PTransform):
    """Rows -> `{folder}/{name}-*.csv`, with a header."""

    def __init__(self, folder: str, name: str, columns: Iterable[str]) -> None:
        super().__init__()
        self._prefix = f"{folder}/{name}"
        self._columns = tuple(columns)

    def expand(self, rows: beam.PCollection[Any]) -> Any:
        return (
            rows
            | "To text" >> beam.Map(to_csv)
            | "Write" >> WriteToText(self._prefix, file_name_suffix=".csv", header=to_csv(self._columns))
        )


def join_weather(flight: Flight, weather: Mapping[tuple[str, int], Weather]) -> Joined:
    """Return the flight with the weather at its airport in its scheduled hour."""
    return Joined(flight, weather.get(weather_key(flight)))


def by_weather_class(pair: Joined) -> Iterator[tuple[tuple[str, str], Flight]]:
    """Yield the flight, once for each class of its weather."""
    for measure_and_class in weather_classes(pair.weather):
        yield measure_and_class, pair.flight


def with_hour(item: tuple[str, Delays], hour: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
    """(airport, Delays) -> (airport, local start of the window, *Delays)."""
    return (item[0], f"{new_york_time(int(hour.start)):%Y-%m-%dT%H:%M%z}", *item[1])


def with_span(item: tuple[str, Burst], span: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
    """(airport, Burst) -> (airport, first and last scheduled departure, *Burst): a session ends a gap after it."""
    first, last = new_york_time(int(span.start)), new_york_time(int(span.end) - BURST_GAP)
    return (item[0], f"{first:%Y-%m-%d %H:%M}", f"{last:%Y-%m-%d %H:%M}", *item[1])


def with_name(item: tuple[tuple[str, str], Delays], airports: Mapping[str, Airport]) -> tuple[Any, ...]:
    """((origin, destination), Delays) -> (origin, destination, name, *Delays). Puerto Rico's airports have no name."""
    (origin, destination), delays = item
    airport = airports.get(destination)
    return (origin, destination, airport.name if airport else "", *delays)


def hour_of_week(hour: str) -> tuple[int, int]:
    """(weekday with Monday 0, hour of the day) of a local ISO text."""
    when = datetime.strptime(hour, "%Y-%m-%dT%H:%M%z")
    return when.weekday(), when.hour


def mean_of_route(row: tuple[Any, ...]) -> float:
    """Mean departure delay of a route's row."""
    return Delays(*row[3:]).mean_out


def total_of_route(row: tuple[Any, ...]) -> int:
    """Sum of departure delays of a route's row."""
    return Delays(*row[3:]).out


def minutes_of_burst(row: tuple[Any, ...]) -> int:
    """Sum of delays of a burst's row."""
    return Burst(*row[3:]).minutes


def flat(item: tuple[tuple[Any, ...], tuple[Any, ...]]) -> tuple[Any, ...]:
    """(key, values) -> one row."""
    return (*item[0], *item[1])


def to_csv(row: Iterable[Any] | str) -> str:
    """One line of CSV, without its end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([row] if isinstance(row, str) else row)
    return text.getvalue()
