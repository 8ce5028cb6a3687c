"""Lines of the files as values, and what follows from a single value: event time, weather classes.

Pure functions over the standard library and dateutil; must not know Beam.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from dateutil import tz

NEW_YORK = tz.gettz("America/New_York")
"""dateutil instead of zoneinfo: it has its own tables if the system has none."""

FLIGHT_COLUMNS = 19
HOUR = 3600
BELIEVABLE_WIND = 200.0
"""Miles per hour. The file has a reading of 1048 at Newark on 12 February, a fault of the instrument."""

WIND = ((10, "under 10 mph"), (20, "10 to 20 mph"), (30, "20 to 30 mph"))
RAIN = ((0.001, "none"), (0.1, "under 0.1 in/h"))
VISIBILITY = ((1, "under 1 mile"), (3, "1 to 3 miles"), (10, "3 to 10 miles"))


class Flight(NamedTuple):
    """One scheduled departure.

    Attributes:
        origin: code of the airport it leaves from: EWR, JFK or LGA.
        destination: code of the airport it goes to.
        scheduled: when it should leave, in seconds since 1970 UTC. Its event time.
        departure_delay: minutes after the schedule, negative when early; None when cancelled.
        arrival_delay: minutes after the schedule; None when cancelled, diverted or not recorded.
    """

    origin: str
    destination: str
    scheduled: int
    departure_delay: int | None
    arrival_delay: int | None


class Weather(NamedTuple):
    """Weather at an airport for an hour; None for what was not measured.

    Attributes:
        wind: miles an hour.
        rain: inches an hour.
        visibility: miles, at most 10.
    """

    wind: float | None
    rain: float | None
    visibility: float | None


class Airport(NamedTuple):
    """A destination. Attributes: name: as people know it."""

    name: str


@lru_cache(maxsize=1024)
def _start_of_hour(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=NEW_YORK).timestamp())


def new_york_time(seconds: int) -> datetime:
    """Local time at the airports, of seconds since 1970 UTC."""
    return datetime.fromtimestamp(seconds, NEW_YORK)


def parse_flight(line: str) -> Flight:
    """A line of flights.csv.

    Raises:
        ValueError: it has the wrong number of columns, or text where a number belongs.
    """
    cells = line.split(",")
    if len(cells) != FLIGHT_COLUMNS:
        raise ValueError(f"{len(cells)} columns where {FLIGHT_COLUMNS} belong")
    year, month, day, hour, minute = int(cells[0]), int(cells[1]), int(cells[2]), int(cells[16]), int(cells[17])
    return Flight(
        origin=cells[12],
        destination=cells[13],
        scheduled=_start_of_hour(year, month, day, hour) + 60 * minute,
        departure_delay=_whole(cells[5]),
        arrival_delay=_whole(cells[8]),
    )


def parse_weather(line: str) -> tuple[tuple[str, int], Weather]:
    """A line of weather.csv, keyed by (airport, start of the hour in seconds since 1970 UTC)."""
    cells = line.split(",")
    wind = _decimal(cells[9])
    if wind is not None and wind > BELIEVABLE_WIND:
        wind = None
    hour = int(datetime.strptime(cells[14], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    return (cells[0], hour), Weather(wind, _decimal(cells[11]), _decimal(cells[13]))


def parse_airport(line: str) -> tuple[str, Airport]:
    """A line of airports.csv, keyed by the airport's code."""
    cells = next(csv.reader([line]))
    return cells[0], Airport(cells[1])


def weather_key(flight: Flight) -> tuple[str, int]:
    """Key of the weather a flight was to leave in."""
    return flight.origin, flight.scheduled - flight.scheduled % HOUR


def weather_classes(weather: Weather | None) -> Iterator[tuple[str, str]]:
    """(measure, class) for each measure; the class starts with a digit that sorts it. No reading is a class, too."""
    if weather is None:
        weather = Weather(None, None, None)
    yield "Wind", _class(weather.wind, WIND, "30 mph and more")
    yield "Rain", _class(weather.rain, RAIN, "0.1 in/h and more")
    yield "Visibility", _class(weather.visibility, VISIBILITY, "10 miles")


def _class(value: float | None, limits: tuple[tuple[float, str], ...], beyond: str) -> str:
    """Name of the first class whose (exclusive) limit is above the value."""
    if value is None:
        return "9 not measured"
    for rank, (limit, name) in enumerate(limits):
        if value < limit:
            return f"{rank} {name}"
    return f"{len(limits)} {beyond}"


def _whole(cell: str) -> int | None:
    return None if cell == "NA" else int(cell)


def _decimal(cell: str) -> float | None:
    return None if cell == "NA" else float(cell)
