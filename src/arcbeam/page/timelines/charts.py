"""Charts of a job's figures over time, as the coordinates of SVG paths.

Owns which figures are drawn, their scale, and how points become a path. Knows the record of a history only; see
`arcbeam.streaming.status.history.history_record`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, long_shown
from arcbeam.streaming.status.history import RINGS
from arcbeam.streaming.status.status import PARTS
from arcbeam.streaming.status.words import Record, bytes_shown, shown

WIDTH: Final = 360
HEIGHT: Final = 90
LANE: Final = 12
"""The height of the lane below a chart that shows what held the watermark."""
_PAD: Final = 4
"""Free space above and below a path, so that its line is not cut off."""
_COLUMNS: Final = 150
"""A path has two points at most in each of them."""

_GAP: Final = 5
"""Points are missing where two are farther apart than this many times the usual distance."""

_STEPS: Final = 60
"""A stack or a lane has this many columns at most."""
_HOLDERS: Final = 4
"""The number of holders of the watermark that are named; the others are together."""
_PARTS: Final = (("user", "transforms"), ("spark", "Spark"), ("plan", "plan"), ("", "other"), ("commit", "commit"))
"""Parts of a micro-batch, from the bottom to the top. What is not in the others is ""."""

_STARTS: Final = frozenset({"start", "restart"})
"""Events of a driver that starts: nothing ran between the last point before it and the first one after it."""
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


class Part(NamedTuple):
    """A part of a stack: its name, the data of its area down to the axis, and its last value as text."""

    name: str
    path: str
    last: str


class Hold(NamedTuple):
    """What held the watermark for some time: the number of its holder (0: another one), its place in the lane."""

    number: int
    x: float
    width: float
    text: str


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
        clock: the data of the clock's line; "" if it is not drawn.
        parts: of a stack, from the top to the bottom: each covers those before it. () if the chart is none.
        holds: the lane below; () if there is none.
        holders: their numbers and names, with the share of time.
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
    clock: str = ""
    parts: tuple[Part, ...] = ()
    holds: tuple[Hold, ...] = ()
    holders: tuple[tuple[int, str], ...] = ()


Value = Callable[[Mapping[str, Any]], tuple[float, float, float] | None]
"""Returns least, greatest and last value of a point; None: unknown."""


def _gauge(name: str, scale: float = 1.0) -> Value:
    def value(point: Mapping[str, Any]) -> tuple[float, float, float] | None:
        found = point["job"].get(name)
        if found is None or any(each is None for each in found):
            return None
        least, greatest, last = (each * scale for each in found)
        return least, greatest, last

    return value


def _watermark(point: Mapping[str, Any]) -> tuple[float, float, float] | None:
    found = point["job"].get("watermark")
    if found is None or any(each is None or not MIN_TIMESTAMP < each < END_OF_GLOBAL_WINDOW for each in found):
        return None
    least, greatest, last = found
    return least, greatest, last


def _of_stages(name: str) -> Value:
    def value(point: Mapping[str, Any]) -> tuple[float, float, float]:
        return (sum(stage.get(name) or 0 for stage in point["stages"].values()),) * 3

    return value


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else long_shown(value)


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


_STATE: Final = _gauge("state_bytes")
_CHARTS: Final[tuple[tuple[str, Value, Callable[[float], str]], ...]] = (
    ("watermark gap", _gauge("behind", 1e-6), _seconds),
    ("elements per second from sources, mean of a minute", _gauge("rate"), _number),
    ("elements per second that all stages read, mean of a minute", _gauge("read_rate"), _number),
    ("backlog (units of the DoFns)", _gauge("backlog"), _number),
    ("state", _STATE, lambda value: bytes_shown(round(value))),
    ("late elements dropped", _of_stages("late"), _number),
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
    """Return by how many microseconds events may extend the axis of a resolution: by as much as its points cover."""
    size = dict(RINGS[:-1]).get(ring["width"])
    return float("inf") if size is None else float(size * ring["width"])


def _axis(history: Record, span: int) -> tuple[int, int]:
    """Return the time axis of a resolution: its points, and events before and after them."""
    ring, events = history["rings"][span], [event["time"] for event in history["events"]]
    points, width, reach = ring["points"], ring["width"], _reach(ring)
    start, end = points[0]["time"], points[-1]["time"] + width
    coarser = [other for other in history["rings"][span + 1 :] if other["points"]]
    # Where earlier points are lost, events before the first one would be in an empty part.
    is_whole = len(points) < dict(RINGS).get(width, len(points) + 1)
    if is_whole and all(other["points"][0]["time"] + other["width"] > start for other in coarser):
        first = min((at for at in events if at >= start - reach), default=start)
        # Columns remain at multiples of the width.
        start -= max(0, -(-(start - first) // width)) * width
    last = max((at for at in events if at <= end + reach), default=end)
    return start, end + max(0, -(-(last - end) // width)) * width


def charts_of(history: Record, span: int, stages: Sequence[str] = ()) -> Iterator[Chart]:
    """Yield the charts of a job.

    Args:
        history: the record of its history. A point may have `follows`: a driver ran since the point before it.
        span: the number of a resolution.
        stages: the names of the job's stages.
    """
    ring = history["rings"][span]
    points, width = ring["points"], ring["width"]
    if not points:
        return
    start, end = _axis(history, span)
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
    # Points begin at multiples of their width.
    starts = sorted(event["time"] // width * width for event in history["events"] if event["kind"] in _STARTS)
    yield _against_the_clock(points, width, start, end, marks, stages, starts)
    for name, value, text in _CHARTS:
        if value is _STATE:
            yield _stack(points, width, start, end, marks, starts)
        ranges = [Range(point["time"], *found) for point in points if (found := value(point)) is not None]
        if not ranges:
            yield Chart(name, "", "", "", "unknown", _clock(start), _clock(end), marks)
            continue
        least, greatest = min(each.least for each in ranges), max(each.greatest for each in ranges)
        lines = _lines(ranges, width, start, end, least, greatest, _follows(points), starts)
        shown_values = text(least), text(greatest), text(ranges[-1].last)
        dots = " ".join(line for line in lines if "L" not in line)
        yield Chart(name, " ".join(lines), *shown_values, _clock(start), _clock(end), marks, dots)


def _against_the_clock(
    points: Sequence[Record],
    width: int,
    start: int,
    end: int,
    marks: tuple[Mark, ...],
    stages: Sequence[str],
    starts: Sequence[int],
) -> Chart:
    """Return the chart of the watermark and the clock, with what held the watermark."""
    name, axis = "watermark (line) and clock (dashed)", (_clock(start), _clock(end))
    ranges = [Range(point["time"], *found) for point in points if (found := _watermark(point)) is not None]
    if not ranges:
        return Chart(name, "", "", "", "at the beginning or the end", *axis, marks)
    least = min(start, *(each.least for each in ranges))
    greatest = max(end, *(each.greatest for each in ranges))
    lines = _lines(ranges, width, start, end, least, greatest, _follows(points), starts)
    texts = (_clock(int(least)), _clock(int(greatest)), _clock(int(ranges[-1].last)))
    heights = [_height(each, least, greatest) for each in (start, end)]
    clock = f"M0 {heights[0]:g} L{WIDTH} {heights[1]:g}"
    dots = " ".join(line for line in lines if "L" not in line)
    holds, holders = _held(points, width, start, end, stages)
    scale = WIDTH / (end - start)
    for began, ended in _outages(points, width, starts):
        holds = tuple(_without(holds, (began - start) * scale, (ended - start) * scale))
    return Chart(name, " ".join(lines), *texts, *axis, marks, dots, clock, (), holds, holders)


def _outages(points: Sequence[Record], width: int, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the times without points before each start of a driver."""
    for before, then in pairwise(point["time"] for point in points):
        if before + width < then and _is_started(before, starts, then):
            yield before + width, then


def _without(holds: Iterable[Hold], began: float, ended: float) -> Iterator[Hold]:
    """Yield what is left of holds without a part of the lane."""
    for hold in holds:
        until = hold.x + hold.width
        if until <= began or ended <= hold.x:
            yield hold
            continue
        for x, to in ((hold.x, began), (ended, until)):
            if x < to:
                yield hold._replace(x=round(x, 1), width=round(to - x, 1))


def _is_started(before: int, starts: Sequence[int], at: int) -> bool:
    """Return whether a driver started after a point, or column, and not after a later one; `starts` is sorted."""
    return bisect_right(starts, before) < bisect_right(starts, at)


def _height(value: float, least: float, greatest: float) -> float:
    """Return the y of a value in a chart with that range."""
    part = (value - least) / (greatest - least) if greatest > least else 0.0
    return round(_PAD + (HEIGHT - 2 * _PAD) * (1 - part), 1)


def _held(
    points: Sequence[Record], width: int, start: int, end: int, stages: Sequence[str]
) -> tuple[tuple[Hold, ...], tuple[tuple[int, str], ...]]:
    """Return what held the watermark in each column, and the most frequent holders."""
    columns: dict[int, Counter[str]] = {}
    column = max(width, -(-(end - start) // _STEPS))
    known = sorted(stages, key=len, reverse=True)
    for point in points:
        found = columns.setdefault((point["time"] - start) // column, Counter())
        if held := point["job"].get("held"):
            kind, _, rest = held.partition(" ")
            # Its own name, as that of a restriction, changes often.
            found[f"{kind} {next((stage for stage in known if rest.startswith(stage)), rest)}"] += 1
    most = {at: found.most_common(1)[0][0] for at, found in columns.items() if found}
    often = Counter(most.values()).most_common(_HOLDERS)
    numbers = {text: number for number, (text, _) in enumerate(often, 1)}
    holds: list[Hold] = []
    size, longest = column * WIDTH / (end - start), max(2, _GAP * _usual(columns))
    follows = None if (time := _follows(points)) is None else (time - start) // column
    for at, then in pairwise([*columns, 2 * _STEPS]):
        if at not in most:
            continue
        text, x = most[at], round(at * size, 1)
        # It held until the next micro-batch, if a driver ran.
        is_next = then - at <= longest or (then in columns and _is_between(at, follows, then))
        until = min(WIDTH, (then if is_next else at + 1) * size)
        if holds and holds[-1].text == text and abs(x - holds[-1].x - holds[-1].width) < size / 2:
            holds[-1] = holds[-1]._replace(width=round(until - holds[-1].x, 1))
        else:
            holds.append(Hold(numbers.get(text, 0), x, round(until - x, 1), text))
    named = tuple((number, f"{text}, {of / len(columns):.0%}") for number, (text, of) in enumerate(often, 1))
    return tuple(holds), named


def _usual(columns: Iterable[int]) -> float:
    """Return the usual distance of columns."""
    return median([then - each for each, then in pairwise(columns)] or [1])


def _stack(
    points: Sequence[Record], width: int, start: int, end: int, marks: tuple[Mark, ...], starts: Sequence[int]
) -> Chart:
    """Return the chart of the mean micro-batch by part."""
    name, axis = "micro-batch by part, mean", (_clock(start), _clock(end))
    column = max(width, -(-(end - start) // _STEPS))
    sums: dict[int, dict[str, float]] = {}
    for point in points:
        job = point["job"]
        if job.get("micro_batches") and job.get("seconds") is not None:
            of = sums.setdefault((point["time"] - start) // column, dict.fromkeys((*PARTS, "micro_batches"), 0.0))
            for part in of:
                of[part] += job.get(part) or 0.0
    if not sums:
        return Chart(name, "", "", "", "unknown", *axis, marks)
    layers = {at: _layers(of) for at, of in sums.items()}
    totals = {at: sum(each) for at, each in layers.items()}
    greatest, last = max(totals.values()), layers[max(layers)]
    usual, size = _usual(layers), column * WIDTH / (end - start)
    follows = None if (time := _follows(points)) is None else (time - start) // column
    started = [(each - start) // column for each in starts]
    parts = [
        Part(
            _PARTS[number][1],
            _area(
                {at: sum(each[: number + 1]) for at, each in layers.items()}, usual, size, greatest, follows, started
            ),
            _seconds(last[number]),
        )
        for number in reversed(range(len(_PARTS)))
    ]
    texts = _seconds(min(totals.values())), _seconds(greatest), _seconds(sum(last))
    return Chart(name, parts[0].path, *texts, *axis, marks, parts=tuple(parts))


def _layers(of: Mapping[str, float]) -> list[float]:
    """Return the mean seconds of the parts of a micro-batch, in the order of `_PARTS`."""
    other = of["seconds"] - sum(of[name] for name, _ in _PARTS if name not in ("", "commit"))
    return [max(0.0, of[name] if name else other) / of["micro_batches"] for name, _ in _PARTS]


def _area(
    tops: Mapping[int, float], usual: float, size: float, greatest: float, follows: int | None, starts: Sequence[int]
) -> str:
    """Return the data of an area from the axis to a value in each column; it ends where columns are missing.

    Args:
        tops: the values, by the number of the column.
        usual: the distance of columns.
        size: the width of a column in the chart.
        greatest: value of the chart.
        follows: the column before which none is missing; None: there is none.
        starts: the columns in which a driver started.
    """
    runs: list[list[tuple[float, float]]] = []
    before = None
    for at, top in tops.items():
        is_far = before is None or at - before > max(2, _GAP * usual)
        is_interrupted = before is not None and at - before > 1 and _is_started(before, starts, at)
        if before is None or is_interrupted or (is_far and not _is_between(before, follows, at)):
            runs.append([])
        before = at
        y = _height(top, 0.0, greatest)
        runs[-1] += [(round(at * size, 1), y), (round(min(WIDTH, (at + 1) * size), 1), y)]
    return " ".join(
        f"M{run[0][0]:g} {HEIGHT} {' '.join(f'L{x:g} {y:g}' for x, y in run)} L{run[-1][0]:g} {HEIGHT}Z" for run in runs
    )


def events_of(history: Record) -> Iterator[tuple[str, str, str]]:
    """Yield the newest events of a job, the newest first: time, kind and text."""
    for event in reversed(history["events"][-EVENTS_SHOWN:]):
        yield _clock(event["time"]), str(event["kind"]), str(event["text"])


def _follows(points: Sequence[Record]) -> int | None:
    """Return the time of the point before which none is missing, however long ago the one before it is; None: none."""
    return next((point["time"] for point in reversed(points) if point.get("follows")), None)


def _is_between(before: int, follows: int | None, at: int) -> bool:
    return follows is not None and before < follows <= at


def _lines(
    ranges: Sequence[Range],
    width: int,
    start: int,
    end: int,
    least: float,
    greatest: float,
    follows: int | None,
    starts: Sequence[int],
) -> Sequence[str]:
    """Return the data of lines, which end where points are missing, or a driver started.

    A point without neighbours is a dot.
    """
    column = max(width, (end - start) // _COLUMNS)
    joined = list(_joined(ranges, column, starts))
    # A micro-batch of many seconds leaves no point in most of them.
    usual = median([then.time - each.time for each, then in pairwise(joined)] or [0])
    longest = max(2 * column, _GAP * usual)
    lines: list[list[str]] = []
    for at, each in enumerate(joined):
        before = joined[at - 1].time
        is_far = each.time - before > longest and not _is_between(before, follows, each.time)
        if not at or is_far or _is_started(before, starts, each.time):
            lines.append([])
        x = round((min(each.time + column / 2, end) - start) * WIDTH / (end - start), 1)
        for value in dict.fromkeys((each.least, each.greatest)):
            lines[-1].append(f"{x:g} {_height(value, least, greatest):g}")
    # A line of no length is drawn as a dot, because its ends are round.
    return ["M" + " L".join(line) + ("h0" if len(line) == 1 else "") for line in lines]


def _joined(ranges: Sequence[Range], column: int, starts: Sequence[int]) -> Iterator[Range]:
    """Yield one range for each column that has points; two if a driver started between them."""
    first = ranges[0].time
    current = ranges[0]
    for each in ranges[1:]:
        is_same = (each.time - first) // column == (current.time - first) // column
        if is_same and not _is_started(current.time, starts, each.time):
            lowest, highest = min(current.least, each.least), max(current.greatest, each.greatest)
            current = Range(current.time, lowest, highest, each.last)
        else:
            yield current
            current = each
    yield current
