"""What part files are called: a template, and what it has to tell apart.

Owns the fields of a template, how times stand in names, and which names and destinations are refused. Pure: no Beam, no
files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Final

STAGING: Final = ".arcbeam"
"""The folder below a path in which is staged; nothing else is called so."""
FIELDS: Final = ("start", "end", "window", "destination", "shard", "part", "suffix")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000
_DISTANCES: Final = tuple(seconds * _SECOND for seconds in (1, 60, 3600, 86_400, 7 * 86_400, 31 * 86_400, 365 * 86_400))
"""How far apart windows are for which a template is tried, beside their own distance."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A window, as names tell it.

    Attributes:
        start: microseconds since 1970; None if it has none, as the global window and windows of a user's own kind.
        end: microseconds since 1970; None: the global window.
        mark: tells apart windows of a user's own kind that end together.
    """

    start: int | None = None
    end: int | None = None
    mark: str = ""

    def plain(self) -> tuple[int | None, int | None, str]:
        """What it is made of again."""
        return self.start, self.end, self.mark

    def __str__(self) -> str:
        """For people, and in `Part.window`."""
        if self.end is None:
            return "global"
        return f"{'' if self.start is None else _iso(self.start)}/{_iso(self.end)}{self.mark and '#' + self.mark}"


GLOBAL: Final = Span()


def span_of_other(end: int, window: bytes) -> Span:
    """Of a window of which is known when it ends, and how it is encoded."""
    return Span(None, end, hashlib.sha256(window).hexdigest()[:8])


def _time(micros: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _iso(micros: int) -> str:
    time = _time(micros)
    return f"{micros}us" if time is None else time.isoformat().replace("+00:00", "Z")


class _Moment:
    """A time in a name: 20240131T080000Z, or as the format says that follows the colon, in UTC."""

    def __init__(self, micros: int) -> None:
        self._micros = micros

    def __format__(self, spec: str) -> str:
        time = _time(self._micros)
        if time is None:
            return f"{self._micros}us"
        if spec:
            return time.strftime(spec)
        fraction = f"{time.microsecond:06d}".rstrip("0")
        return f"{time:%Y%m%dT%H%M%S}{fraction and '.' + fraction}Z"


class _Places(tuple[int, ...]):
    """Numbers in a name: 00003, or as the format says; several with "-" between."""

    def __format__(self, spec: str) -> str:
        return "-".join(format(place, spec or "05d") for place in self)


class Template:
    """The names of part files.

    `{part}` and `{shard}` are numbers, as `{part:05d}` if nothing else is said; `{start}` and `{end}` of the window may
    be formatted like times, `{start:%Y-%m-%d}`; `{window}` is both, or "global"; `{destination}`; `{suffix}` is the
    format's. "/" makes folders.

    Args:
        text: the template.
        destinations: whether there are any.
        shards: how many a destination has in a window; None: as many as there are tasks.

    Raises:
        ValueError: it has a field that is not there, does not tell apart what it should, or leads out of its folder.
    """

    def __init__(self, text: str, *, destinations: bool, shards: int | None) -> None:
        self.text = text
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ValueError(f"name={text!r}: {error}") from error
        for field in fields:
            if field not in FIELDS:
                raise ValueError(f"name={text!r}: there is no {{{field}}}, but {', '.join(FIELDS)}")
        self._fields = frozenset(fields)
        needed = ["part"] + ["shard"] * (shards != 1) + ["destination"] * destinations
        for field in needed:
            if field not in self._fields:
                raise ValueError(f"name={text!r} does not tell files apart: it needs {{{field}}}")
        if "destination" in self._fields and not destinations:
            raise ValueError(f"name={text!r} has {{destination}}, and no destination is given")
        try:
            sample = self._made(Span(0, _SECOND), "d", (1,), 1, "")
        except (ValueError, TypeError) as error:
            raise ValueError(f"name={text!r}: {error}") from error
        check_name(sample, f"name={text!r}")
        for what, other in (
            ("parts", self._made(Span(0, _SECOND), "d", (1,), 2, "")),
            *([("shards", self._made(Span(0, _SECOND), "d", (2,), 1, ""))] if shards != 1 else []),
        ):
            if other == sample:
                raise ValueError(f"name={text!r} does not tell {what} apart")

    @staticmethod
    def usual(*, destinations: bool, windows: bool) -> str:
        """What is taken if none is given."""
        folder = "{destination}/" if destinations else ""
        return f"{folder}part-{'{window}-' if windows else ''}{{shard}}-{{part}}{{suffix}}"

    def check_windows(self, distance: int | None, spans: bool) -> None:
        """Looks whether windows are told apart.

        Args:
            distance: microseconds from one window to the next, if it is always the same; 0: there is the global one.
            spans: whether it is known when windows start.

        Raises:
            ValueError: they are not.
        """
        times = self._fields & {"start", "end", "window"}
        if distance == 0:
            if times & {"start", "end"}:
                raise ValueError(f"name={self.text!r}: the global window has neither {{start}} nor {{end}}")
            return
        if not times:
            raise ValueError(
                f"name={self.text!r} does not tell windows apart: it needs {{window}}, {{start}} or {{end}}"
            )
        if not spans:
            if "window" not in times or "start" in times:
                raise ValueError(
                    f"name={self.text!r}: windows of a kind of your own are told apart by {{window}} alone"
                )
            return
        if distance is None:
            if "window" not in times and not {"start", "end"} <= times:
                raise ValueError(f"name={self.text!r} does not tell these windows apart: it needs {{window}}")
            return
        first = Span(0, distance)
        name = self._made(first, "d", (1,), 1, "")
        for far in (1, *(-(-each // distance) for each in _DISTANCES)):
            other = Span(far * distance, (far + 1) * distance)
            if self._made(other, "d", (1,), 1, "") == name:
                raise ValueError(f"name={self.text!r} does not tell the window {first} from {other}")

    def name(self, span: Span, destination: str, shard: tuple[int, ...], part: int, suffix: str) -> str:
        """The name of a file, below the path.

        Raises:
            ValueError: it leads out of it.
        """
        return check_name(self._made(span, destination, shard, part, suffix), f"name={self.text!r}")

    def _made(self, span: Span, destination: str, shard: tuple[int, ...], part: int, suffix: str) -> str:
        values: dict[str, Any] = {
            "destination": destination,
            "shard": _Places(shard),
            "part": _Places((part,)),
            "suffix": suffix,
        }
        for field, micros in (("start", span.start), ("end", span.end)):
            if micros is not None:
                values[field] = _Moment(micros)
        values["window"] = _window(span)
        return self.text.format(**values)


def _window(span: Span) -> str:
    if span.end is None:
        return "global"
    first = span.mark if span.start is None else format(_Moment(span.start), "")
    return f"{first}-{_Moment(span.end):}"


def success_name(name: str, destination: str, span: Span) -> str:
    """The name of the file that says that a window is over, below the path."""
    folder = f"{destination}/" if destination else ""
    return folder + (name if span.end is None else f"{name}-{_window(span)}")


def check_destination(destination: Any) -> str:
    """Gives a destination back.

    Raises:
        ValueError: it is no folder below the path.
    """
    if not isinstance(destination, str):
        raise ValueError(f"the destination {destination!r} is a {type(destination).__name__}, not a str")
    return check_name(destination, "the destination")


def check_name(name: str, what: str) -> str:
    """Gives a name back.

    Raises:
        ValueError: it does not lead to something below the path.
    """
    for each in name.split("/"):
        why = {
            "": "it has an empty part" if name else "it is empty",
            ".": 'it has a "."',
            "..": "it leads out of the path",
            STAGING: f"{STAGING} is for what is staged",
        }.get(each)
        if name.startswith("/"):
            why = "it is absolute"
        if why or "\0" in each:
            raise ValueError(f"{what} gives {name!r}, which is no file below the path: {why or 'it has a NUL'}")
    return name
