"""A job's figures over time: as columns of values, which a browser draws (`static/charts.js`), and as rows of a table.

Owns which figures are shown, with their units, and where a line is interrupted. Knows the record of a history only; see
`arcbeam.streaming.status.history.history_record`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, is_far, long_shown
from arcbeam.page.views import Cell
from arcbeam.streaming.status.history import RINGS
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.status import PARTS
from arcbeam.streaming.status.words import bytes_shown

_GAP: Final = 5
"""Points are missing where two are farther apart than this many times the usual distance."""
_HOLDERS: Final = 4
"""The number of holders of the watermark that are named; the others are together."""
_STARTS: Final = frozenset({"start", "restart"})
"""Events of a driver that starts: nothing ran between the last point before it and the first one after it."""
_MINUTE: Final = 60
"""Seconds, and points of the finest resolution."""
_SECONDS_MIN: Final = 10
"""Of a shorter time it is not known whether a backlog grows."""
EVENTS_SHOWN: Final = 20
ROWS_SHOWN: Final = 60
SPANS: Final = ("10 min", "2 h", "7 d")
"""What the rings of a history hold, the finest first."""

Values = Sequence[float | None]


class Figure(NamedTuple):
    """A figure over time.

    Attributes:
        name: what it is.
        unit: of its values: "s", "B", "/s", "" (a number), or "time", in seconds since 1970.
        lines: the names of its values. A gauge has the least, the greatest and the last one of a point.
        values: returns them from a point; None: unknown.
        stacked: whether the values are parts of a whole.
    """

    name: str
    unit: str
    lines: Sequence[str]
    values: Callable[[Record], Values]
    stacked: bool = False


_GAUGE: Final = ("last", "least", "greatest")
_NONE: Final = (None, None, None)


def _gauge(name: str, scale: float = 1.0) -> Callable[[Record], Values]:
    def values(point: Record) -> Values:
        least, greatest, last = point["job"].get(name) or _NONE
        if least is None or greatest is None or last is None:
            return _NONE
        return last * scale, least * scale, greatest * scale

    return values


def _watermark_and_clock(point: Record) -> Values:
    """Return the watermark, and the clock if the watermark follows it."""
    *_, last = point["job"].get("watermark") or _NONE
    *_, behind = point["job"].get("behind") or _NONE
    if last is None or not MIN_TIMESTAMP < last < END_OF_GLOBAL_WINDOW:
        return None, None
    return last / 1e6, None if behind is None or is_far(behind / 1e6) else (last + behind) / 1e6


def _parts(point: Record) -> Values:
    """Return the mean seconds of the parts of a micro-batch, from the bottom of the stack."""
    job = point["job"]
    if not job.get("micro_batches") or job.get("seconds") is None:
        return (None,) * 5
    of = {part: (job.get(part) or 0.0) / job["micro_batches"] for part in PARTS}
    other = max(0.0, of["seconds"] - of["user"] - of["spark"] - of["plan"])
    return of["user"], of["spark"], of["plan"], other, of["commit"]


def _total(name: str) -> Callable[[Record], Values]:
    return lambda point: (sum(stage.get(name) or 0 for stage in point["stages"].values()),)


_GAP_FIGURE: Final = Figure("watermark gap", "s", _GAUGE, _gauge("behind", 1e-6))
_RATE: Final = Figure("elements from sources, mean of a minute", "/s", _GAUGE, _gauge("rate"))
_BACKLOG: Final = Figure("backlog (units of the DoFns)", "", _GAUGE, _gauge("backlog"))
_MICRO_BATCH: Final = Figure(
    "micro-batch by part, mean", "s", ("transforms", "Spark", "plan", "other", "commit"), _parts, stacked=True
)
_STATE: Final = Figure("state", "B", _GAUGE, _gauge("state_bytes"))
FIGURES: Final = (
    Figure("watermark", "time", ("watermark", "clock"), _watermark_and_clock),
    _GAP_FIGURE,
    _RATE,
    Figure("elements that all stages read, mean of a minute", "/s", _GAUGE, _gauge("read_rate")),
    _BACKLOG,
    _MICRO_BATCH,
    _STATE,
    Figure("late elements dropped", "", ("dropped",), _total("late")),
)
"""All of these are drawn."""


class Row(NamedTuple):
    """A row of the table: what was committed in the time of a point, perhaps several micro-batches."""

    time: int
    micro_batches: Cell
    seconds: Cell
    elements: Cell
    failures: Cell
    gap: Cell
    rate: Cell
    backlog: Cell
    state: Cell
    held: str


def width_of(history: Record, span: int) -> str:
    """Return the time of a row of the table, for people."""
    return long_shown((history["rings"][span]["width"] if history["rings"] else RINGS[0][0]) / 1e6)


def span_of(history: Record) -> int:
    """Return the finest resolution that has the whole life of a job, or else the coarsest that has points."""
    rings, last = history["rings"], max((event["time"] for event in history["events"]), default=0)
    found = max((at for at, ring in enumerate(rings) if ring["points"]), default=0)
    # Points begin at multiples of their width, so those of a coarser ring begin earlier.
    while found and (finer := rings[found - 1])["points"]:
        coarser = rings[found]
        if finer["points"][0]["time"] >= coarser["points"][0]["time"] + coarser["width"]:
            break
        if last > finer["points"][-1]["time"] + _reach(finer):
            break
        found -= 1
    return found


def _reach(ring: Record) -> float:
    """Return by how many microseconds events may be after the last point: by as much as the points cover."""
    size = dict(RINGS[:-1]).get(ring["width"])
    return float("inf") if size is None else float(size * ring["width"])


def newest_of(history: Record, span: int) -> str:
    """Return what changes whenever the values of a resolution change; "" if it has none."""
    points = history["rings"][span]["points"] if history["rings"] else ()
    return f"{points[-1]['time']}-{points[-1]['job'].get('micro_batches')}-{len(history['events'])}" if points else ""


def backlog_growth(history: Record) -> float | None:
    """Return by how much the backlog has grown per second in the last minute; negative: it falls; None: unknown."""
    points = history["rings"][0]["points"] if history["rings"] else ()
    known = [
        (point["time"], backlog) for point in points[-_MINUTE:] if (backlog := _BACKLOG.values(point)[0]) is not None
    ]
    recent = [each for each in known if known[-1][0] - each[0] <= _MINUTE * 1_000_000]
    if len(recent) < 2 or (microseconds := recent[-1][0] - recent[0][0]) < _SECONDS_MIN * 1_000_000:
        return None
    return float((recent[-1][1] - recent[0][1]) * 1e6 / microseconds)


def last_time(history: Record, span: int) -> int:
    """Return the time of the last point of a resolution, in seconds since 1970; 0: it has none."""
    points = history["rings"][span]["points"] if len(history["rings"]) > span else ()
    return points[-1]["time"] // 1_000_000 if points else 0


def columns_of(history: Record, span: int, after: int = 0, stages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the charts of a resolution, as JSON values.

    Args:
        history: the record of its history. A point may have `follows`: a driver ran since the point before it.
        span: the number of a resolution.
        after: leave out points before this time, in seconds since 1970.
        stages: the names of the job's stages.

    Returns:
        `times`, in seconds since 1970; `charts`, each with its values in columns; `held`, by what; `events`. Where a
        line is interrupted, all values of a time are unknown.
    """
    points = history["rings"][span]["points"] if history["rings"] else []
    breaks = set(_breaks(history, span))
    holder = _holders(stages)
    rows: list[tuple[float, Record | None]] = []
    for before, point in pairwise((None, *points)):
        if point["time"] < after * 1e6:
            continue
        if before is not None and point["time"] in breaks:
            rows.append(((before["time"] + point["time"]) / 2e6, None))
        rows.append((point["time"] / 1e6, point))
    charts = [
        {
            "name": each.name,
            "unit": each.unit,
            "lines": each.lines,
            "stacked": each.stacked,
            "values": _columns(each, [point for _, point in rows]),
        }
        for each in FIGURES
    ]
    return {
        "times": [time for time, _ in rows],
        "charts": charts,
        "held": [holder(point["job"].get("held")) if point else "" for _, point in rows],
        "events": [{**event, "time": event["time"] / 1e6} for event in history["events"]],
        "start": points[0]["time"] / 1e6 if points else 0,
    }


def _columns(figure: Figure, points: Sequence[Record | None]) -> list[list[float | None]]:
    unknown = (None,) * len(figure.lines)
    found = [unknown if point is None else figure.values(point) for point in points]
    digits = ".13g" if figure.unit == "time" else ".6g"
    return [
        [None if value is None else float(format(value, digits)) for value in column]
        for column in zip(*found, strict=True)
    ] or [[] for _ in figure.lines]


def _breaks(history: Record, span: int) -> Iterator[int]:
    """Yield the times of points before which nothing is known, or before which a driver started."""
    if not history["rings"]:
        return
    points, width = history["rings"][span]["points"], history["rings"][span]["width"]
    times = [point["time"] for point in points]
    # Points begin at multiples of their width.
    starts = sorted(event["time"] // width * width for event in history["events"] if event["kind"] in _STARTS)
    # A micro-batch of many seconds leaves no point in most of them.
    usual = median([then - each for each, then in pairwise(times)] or [0])
    for before, point in pairwise(points):
        is_far_off = point["time"] - before["time"] > max(2 * width, _GAP * usual) and not point.get("follows")
        if is_far_off or bisect_right(starts, before["time"]) < bisect_right(starts, point["time"]):
            yield point["time"]


def _holders(stages: Sequence[str]) -> Callable[[str | None], str]:
    """Return a function from what holds the watermark to its kind and stage: a restriction's own name changes often."""
    known, found = sorted(stages, key=len, reverse=True), dict[str, str]()

    def holder(held: str | None) -> str:
        if not held:
            return ""
        if held not in found:
            kind, _, rest = held.partition(" ")
            found[held] = f"{kind} {next((stage for stage in known if rest.startswith(stage)), rest)}"
        return found[held]

    return holder


def rows_of(history: Record, span: int, stages: Sequence[str] = ()) -> list[Row]:
    """Return the newest points of a resolution as rows of a table, the newest first."""
    points = history["rings"][span]["points"] if history["rings"] else []
    width, holder = history["rings"][span]["width"] if points else 1, _holders(stages)
    failures = [event for event in history["events"] if event["kind"] == "trouble"]
    times = [event["time"] for event in failures]
    rows = []
    for point in reversed(points[-ROWS_SHOWN:]):
        time, job = point["time"], point["job"]
        failed = failures[bisect_left(times, time) : bisect_left(times, time + width)]
        rows.append(
            Row(
                time,
                _numbers_of(point),
                _duration(point),
                Cell(f"{_total('read')(point)[0]:,.0f}", "that all stages have read"),
                Cell(f"{len(failed):,}", "; ".join(event["text"] for event in failed)),
                _last(_GAP_FIGURE, point),
                _last(_RATE, point),
                _last(_BACKLOG, point),
                _last(_STATE, point),
                holder(job.get("held")),
            )
        )
    return rows


def _numbers_of(point: Record) -> Cell:
    """Return the numbers of the micro-batches of a point."""
    (*_, last), count = point["job"]["micro_batch"], round(point["job"]["micro_batches"])
    hint = f"{count:,} micro-batches; the duration is their mean"
    return Cell(f"{last - count + 1:,.0f} to {last:,.0f}", hint) if count > 1 else Cell(f"{last:,.0f}")


def _duration(point: Record) -> Cell:
    known = [value for value in _parts(point) if value is not None]
    parts = ", ".join(f"{name} {value:.2f} s" for name, value in zip(_MICRO_BATCH.lines, known, strict=False))
    return Cell(f"{sum(known):.2f} s", parts) if known else Cell("–", "no micro-batch was measured in this time")


def _last(figure: Figure, point: Record) -> Cell:
    last, least, greatest = figure.values(point)
    if last is None or least is None or greatest is None:
        return Cell("–", "unknown")
    text = {"s": _seconds, "B": bytes_shown}.get(figure.unit, _number)
    return Cell(text(last), "" if least == greatest else f"from {text(least)} to {text(greatest)}")


def held_shares(history: Record, span: int, stages: Sequence[str]) -> str:
    """Return what held the watermark most often in a resolution, with its share of the time; "" if nothing did."""
    points, holder = history["rings"][span]["points"] if history["rings"] else [], _holders(stages)
    often = Counter(filter(None, (holder(point["job"].get("held")) for point in points)))
    return "; ".join(f"{text}, {count / len(points):.0%}" for text, count in often.most_common(_HOLDERS))


def events_of(history: Record) -> Iterator[tuple[int, str, str]]:
    """Yield the newest events of a job, the newest first: time, kind and text."""
    for event in reversed(history["events"][-EVENTS_SHOWN:]):
        yield event["time"], str(event["kind"]), str(event["text"])


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else long_shown(value)


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
