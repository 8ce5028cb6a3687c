"""Charts of a job's figures over time, as the coordinates of SVG paths.

Owns which figures are drawn, their scale, and how points become a path. Knows the record of a history only; see
`arcbeam.streaming.status.history.history_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from arcbeam.model.timestamps import long_shown
from arcbeam.streaming.status.words import Record, bytes_shown, shown

WIDTH: Final = 360
HEIGHT: Final = 90
_PAD: Final = 4
"""Free space above and below a path, so that its line is not cut off."""
_COLUMNS: Final = 150
"""A path has two points at most in each of them."""

_GAP: Final = 5
"""Points are missing where two are farther apart than this many times the usual distance."""

_KINDS: Final = frozenset({"start", "restart", "savepoint", "trouble", "end"})
EVENTS_SHOWN: Final = 20

SPANS: Final = ("10 min", "2 h", "7 d")
"""What the rings of a history hold, the finest first."""


class Range(NamedTuple):
    """The least and the greatest value in the time of a point or column."""

    time: int
    least: float
    greatest: float
    last: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the time axis, with its kind."""

    x: float
    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, `WIDTH` times `HEIGHT`.

    Attributes:
        name: what it shows, with its unit.
        path: the path's data; "" if no value is known.
        dots: the part of it that has no length; "" if there is none.
        least, greatest, last: as text.
        start, end: of the time axis.
        marks: events.
    """

    name: str
    path: str
    least: str
    greatest: str
    last: str
    start: str
    end: str
    marks: tuple[Mark, ...]
    dots: str = ""


Value = Callable[[Mapping[str, Any], int], tuple[float, float, float] | None]
"""Returns least, greatest and last value of a point, whose width in microseconds is the argument; None: unknown."""


def _gauge(name: str, scale: float = 1.0) -> Value:
    def value(point: Mapping[str, Any], width: int) -> tuple[float, float, float] | None:
        found = point["job"].get(name)
        if found is None or any(each is None for each in found):
            return None
        least, greatest, last = (each * scale for each in found)
        return least, greatest, last

    return value


def _mean(part: str) -> Value:
    def value(point: Mapping[str, Any], width: int) -> tuple[float, float, float] | None:
        number, total = point["job"].get("micro_batches"), point["job"].get(part)
        return (total / number,) * 3 if number and total is not None else None

    return value


def _of_stages(name: str, per_second: bool) -> Value:
    def value(point: Mapping[str, Any], width: int) -> tuple[float, float, float]:
        total = sum(stage.get(name) or 0 for stage in point["stages"].values())
        return (total / (width / 1e6) if per_second else total,) * 3

    return value


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if abs(value) < 10 else f"{'-' if value < 0 else ''}{long_shown(abs(value))}"


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


_CHARTS: Final[tuple[tuple[str, Value, Callable[[float], str]], ...]] = (
    ("watermark gap", _gauge("behind", 1e-6), _seconds),
    ("elements read per second, all stages", _of_stages("read", True), _number),
    ("backlog", _gauge("backlog"), _number),
    ("micro-batch, mean", _mean("seconds"), _seconds),
    ("user code in a micro-batch, mean", _mean("user"), _seconds),
    ("state", _gauge("state_bytes"), lambda value: bytes_shown(round(value))),
    ("late elements dropped", _of_stages("late", False), _number),
)


def _kind(event: Mapping[str, Any]) -> str:
    """Return a kind that the page has a line for: another version may know more."""
    kind = str(event["kind"])
    return kind if kind in _KINDS else ""


def _clock(time: int) -> str:
    """Return a time to the second."""
    return shown(time - time % 1_000_000).replace(".000Z", "Z")


def span_of(history: Record) -> int:
    """Return the finest resolution that has the whole life of a job, or else the coarsest that has points."""
    rings = history["rings"]
    found = max((at for at, ring in enumerate(rings) if ring["points"]), default=0)
    # Points begin at multiples of their width, so those of a coarser ring begin earlier.
    while found and (finer := rings[found - 1])["points"]:
        coarser = rings[found]
        if finer["points"][0]["time"] >= coarser["points"][0]["time"] + coarser["width"]:
            break
        found -= 1
    return found


def charts_of(history: Record, span: int) -> Iterator[Chart]:
    """Yield the charts of a job.

    Args:
        history: the record of its history.
        span: the number of a resolution.
    """
    ring = history["rings"][span]
    points, width = ring["points"], ring["width"]
    if not points:
        return
    start, end = points[0]["time"], points[-1]["time"] + width
    scale = WIDTH / (end - start)
    marks = tuple(
        Mark(
            round((event["time"] - start) * scale, 1),
            f"{_clock(event['time'])} {event['kind']}: {event['text']}",
            _kind(event),
        )
        for event in history["events"]
        if start <= event["time"] <= end
    )
    for name, value, text in _CHARTS:
        ranges = [Range(point["time"], *found) for point in points if (found := value(point, width)) is not None]
        if not ranges:
            yield Chart(name, "", "", "", "unknown", _clock(start), _clock(end), marks)
            continue
        least, greatest = min(each.least for each in ranges), max(each.greatest for each in ranges)
        lines = _lines(ranges, width, start, end, least, greatest)
        shown_values = text(least), text(greatest), text(ranges[-1].last)
        dots = " ".join(line for line in lines if "L" not in line)
        yield Chart(name, " ".join(lines), *shown_values, _clock(start), _clock(end), marks, dots)


def events_of(history: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the newest events of a job, the newest first: time, kind and text."""
    for event in reversed(history["events"][-EVENTS_SHOWN:]):
        yield _clock(event["time"]), str(event["kind"]), str(event["text"])


def _lines(ranges: Sequence[Range], width: int, start: int, end: int, least: float, greatest: float) -> Sequence[str]:
    """Return the data of lines, which end where points are missing. A point without neighbours is a dot."""
    height, span = HEIGHT - 2 * _PAD, greatest - least
    column = max(width, (end - start) // _COLUMNS)
    joined = list(_joined(ranges, column))
    # A micro-batch of many seconds leaves no point in most of them.
    usual = median([then.time - each.time for each, then in pairwise(joined)] or [0])
    longest = max(2 * column, _GAP * usual)
    lines: list[list[str]] = []
    for at, each in enumerate(joined):
        if not at or each.time - joined[at - 1].time > longest:
            lines.append([])
        x = round((each.time + column / 2 - start) * WIDTH / (end - start), 1)
        for value in dict.fromkeys((each.least, each.greatest)):
            part = (value - least) / span if span else 0.0
            lines[-1].append(f"{x:g} {round(_PAD + height * (1 - part), 1):g}")
    # A line of no length is drawn as a dot, because its ends are round.
    return ["M" + " L".join(line) + ("h0" if len(line) == 1 else "") for line in lines]


def _joined(ranges: Sequence[Range], column: int) -> Iterator[Range]:
    """Yield one range for each column that has points."""
    first = ranges[0].time
    current = ranges[0]
    for each in ranges[1:]:
        if (each.time - first) // column == (current.time - first) // column:
            lowest, highest = min(current.least, each.least), max(current.greatest, each.greatest)
            current = Range(current.time, lowest, highest, each.last)
        else:
            yield current
            current = each
    yield current
