"""Sums over flights: what is kept of a group, how it grows, and how two are added. Knows only Beam's CombineFn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apache_beam as beam

from .records import Flight, Weather

LATE = 15
"""Minutes from which a departure counts as late, by the Department of Transportation's definition."""


class Delays(NamedTuple):
    """Counts and sums over a group of flights.

    Attributes:
        scheduled: all flights.
        cancelled: flights that never left.
        diverted: flights that left, and for which no arrival delay is known.
        late: departures LATE minutes or more after the schedule.
        out: sum of departure delays, minutes; early departures count as negative.
        inbound: sum of arrival delays, minutes, over flights that arrived.
        worst: longest departure delay, minutes.
    """

    scheduled: int = 0
    cancelled: int = 0
    diverted: int = 0
    late: int = 0
    out: int = 0
    inbound: int = 0
    worst: int = 0

    @property
    def departed(self) -> int:
        """Flights that left."""
        return self.scheduled - self.cancelled

    @property
    def mean_out(self) -> float:
        """Mean departure delay, minutes; 0 if nothing left."""
        return self.out / self.departed if self.departed else 0.0

    @property
    def mean_inbound(self) -> float:
        """Mean arrival delay, minutes; 0 if nothing arrived."""
        arrived = self.departed - self.diverted
        return self.inbound / arrived if arrived else 0.0


def add(left: Delays, right: Delays) -> Delays:
    """Return both groups together."""
    return Delays(*(a + b for a, b in zip(left[:-1], right[:-1], strict=True)), max(left.worst, right.worst))


class AddDelays(beam.CombineFn):
    """Delays of groups -> Delays of all of them together."""

    def create_accumulator(self) -> Delays:
        return Delays()

    def add_input(self, accumulator: Delays, element: Delays) -> Delays:
        return add(accumulator, element)

    def merge_accumulators(self, accumulators: Iterable[Delays]) -> Delays:
        total = Delays()
        for accumulator in accumulators:
            total = add(total, accumulator)
        return total

    def extract_output(self, accumulator: Delays) -> Delays:
        return accumulator


class SummarizeFlights(AddDelays):
    """Flights -> Delays."""

    def add_input(self, accumulator: Delays, element: Flight) -> Delays:
        scheduled, cancelled, diverted, late, out, inbound, worst = accumulator
        delay = element.departure_delay
        if delay is None:
            return Delays(scheduled + 1, cancelled + 1, diverted, late, out, inbound, worst)
        return Delays(
            scheduled + 1,
            cancelled,
            diverted + (element.arrival_delay is None),
            late + (delay >= LATE),
            out + delay,
            inbound + (element.arrival_delay or 0),
            max(worst, delay),
        )


class Burst(NamedTuple):
    """A run of long delays at an airport.

    Attributes:
        flights: how many were delayed.
        minutes: sum of their delays.
        worst: the longest, minutes.
        wind: strongest wind any of them was to leave in, miles an hour; -1 when never measured.
        rain: heaviest rain, inches an hour.
        visibility: shortest sight, miles.
    """

    flights: int = 0
    minutes: int = 0
    worst: int = 0
    wind: float = -1.0
    rain: float = 0.0
    visibility: float = 10.0


class SummarizeBurst(beam.CombineFn):
    """(Flight, Weather or None) pairs, delayed all of them -> Burst."""

    def create_accumulator(self) -> Burst:
        return Burst()

    def add_input(self, accumulator: Burst, element: tuple[Flight, Weather | None]) -> Burst:
        flight, weather = element
        delay = flight.departure_delay or 0
        one = Burst(1, delay, delay)
        if weather is not None:
            one = one._replace(
                wind=one.wind if weather.wind is None else weather.wind,
                rain=one.rain if weather.rain is None else weather.rain,
                visibility=one.visibility if weather.visibility is None else weather.visibility,
            )
        return self.merge_accumulators((accumulator, one))

    def merge_accumulators(self, accumulators: Iterable[Burst]) -> Burst:
        total = Burst()
        for each in accumulators:
            total = Burst(
                total.flights + each.flights,
                total.minutes + each.minutes,
                max(total.worst, each.worst),
                max(total.wind, each.wind),
                max(total.rain, each.rain),
                min(total.visibility, each.visibility),
            )
        return total

    def extract_output(self, accumulator: Burst) -> Burst:
        return accumulator
