"""Names of part files: templates, and checks that names are unique.

Owns the fields of a template, the form of times in names, and which names and destinations are refused. Pure: no Beam,
no files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Final

STAGING: Final = ".arcbeam"
"""The folder below a path that holds staged files. No other file may have this name."""
FIELDS: Final = ("start", "end", "window", "destination", "shard", "part", "suffix")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000
_DISTANCES: Final = tuple(seconds * _SECOND for seconds in (1, 60, 3600, 86_400, 7 * 86_400, 31 * 86_400, 365 * 86_400))
"""Distances between windows for which a template is checked, besides the windows' own distance."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A window, as it appears in names.

    Attributes:
        start: microseconds since 1970; None for the global window and for windows of a user-defined type.
        end: microseconds since 1970; None: the global window.
        mark: distinguishes windows of a user-defined type that end at the same time.
    """

    start: int | None = None
    end: int | None = None
    mark: str = ""

    def plain(self) -> tuple[int | None, int | None, str]:
        """Return the values from which the span can be built again."""
        return self.start, self.end, self.mark

    def __str__(self) -> str:
        """Return the text for messages and for `Part.window`."""
        if self.end is None:
            return "global"
        return f"{'' if self.start is None else _iso(self.start)}/{_iso(self.end)}{self.mark and '#' + self.mark}"


GLOBAL: Final = Span()


def span_of_other(end: int, window: bytes) -> Span:
    """Return the span of a window of which only the end and the encoding are known."""
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
    """A time in a name, in UTC: 20240131T080000Z, or in the format that follows the colon."""

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


class _PartNumbers(tuple[int, ...]):
    """Numbers in a name: 00003, or in the given format; several are joined by "-"."""

    def __format__(self, spec: str) -> str:
        return "-".join(format(place, spec or "05d") for place in self)


class Template:
    """A template for the names of part files.

    `{part}` and `{shard}` are numbers with the default format `{part:05d}`. `{start}` and `{end}` of the window accept
    formats of times: `{start:%Y-%m-%d}`. `{window}` is both, or "global". `{destination}` is the destination.
    `{suffix}` is the suffix of the format. "/" separates folders.

    Args:
        text: the template.
        destinations: whether there are destinations.
        shards: number of shards of a destination and window; None: as many as there are tasks.

    Raises:
        ValueError: the template has an unknown field, its names are not unique, or they lead out of their folder.
    """

    def __init__(self, text: str, *, destinations: bool, shards: int | None) -> None:
        self.text = text
        try:
            fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ValueError(f"name={text!r}: {error}") from error
        for field in fields:
            if field not in FIELDS:
                raise ValueError(f"name={text!r}: unknown field {{{field}}}; the fields are {', '.join(FIELDS)}")
        self._fields = frozenset(fields)
        needed = ["part"] + ["shard"] * (shards != 1) + ["destination"] * destinations
        for field in needed:
            if field not in self._fields:
                raise ValueError(f"name={text!r}: names are not unique without {{{field}}}; add it")
        if "destination" in self._fields and not destinations:
            raise ValueError(f"name={text!r} has {{destination}}, but WriteParts has no destination")
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
                raise ValueError(f"name={text!r}: different {what} get the same name; change their format")

    @staticmethod
    def usual(*, destinations: bool, windows: bool) -> str:
        """Return the default template."""
        folder = "{destination}/" if destinations else ""
        return f"{folder}part-{'{window}-' if windows else ''}{{shard}}-{{part}}{{suffix}}"

    def check_windows(self, distance: int | None, spans: bool) -> None:
        """Check that the names of different windows differ.

        Args:
            distance: microseconds from one window to the next, if constant; 0: there is only the global window.
            spans: whether windows have a known start.

        Raises:
            ValueError: two windows may get the same name.
        """
        times = self._fields & {"start", "end", "window"}
        if distance == 0:
            if times & {"start", "end"}:
                raise ValueError(f"name={self.text!r}: the global window has neither {{start}} nor {{end}}")
            return
        if not times:
            raise ValueError(
                f"name={self.text!r}: names are not unique per window: add {{window}}, {{start}} or {{end}}"
            )
        if not spans:
            if "window" not in times or "start" in times:
                raise ValueError(
                    f"name={self.text!r}: windows of a user-defined type need {{window}}, and have no {{start}}"
                )
            return
        if distance is None:
            if "window" not in times and not {"start", "end"} <= times:
                raise ValueError(f"name={self.text!r}: these windows can share a start or end: add {{window}}")
            return
        first = Span(0, distance)
        name = self._made(first, "d", (1,), 1, "")
        for far in (1, *(-(-each // distance) for each in _DISTANCES)):
            other = Span(far * distance, (far + 1) * distance)
            if self._made(other, "d", (1,), 1, "") == name:
                raise ValueError(f"name={self.text!r}: the windows {first} and {other} get the same name")

    def name(self, span: Span, destination: str, shard: tuple[int, ...], part: int, suffix: str) -> str:
        """Return the name of a file, below the path.

        Raises:
            ValueError: the name leads out of the path.
        """
        return check_name(self._made(span, destination, shard, part, suffix), f"name={self.text!r}")

    def _made(self, span: Span, destination: str, shard: tuple[int, ...], part: int, suffix: str) -> str:
        values: dict[str, Any] = {
            "destination": destination,
            "shard": _PartNumbers(shard),
            "part": _PartNumbers((part,)),
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
    """Return the name, below the path, of the file that reports a complete window."""
    folder = f"{destination}/" if destination else ""
    return folder + (name if span.end is None else f"{name}-{_window(span)}")


def check_destination(destination: Any) -> str:
    """Check a destination, and return it.

    Raises:
        ValueError: it is not a folder below the path.
    """
    if not isinstance(destination, str):
        raise ValueError(f"the destination {destination!r} is a {type(destination).__name__}; expected a str")
    return check_name(destination, "the destination")


def check_name(name: str, what: str) -> str:
    """Check a name, and return it.

    Raises:
        ValueError: it is not a path below the base path.
    """
    for each in name.split("/"):
        why = {
            "": "it has an empty part" if name else "it is empty",
            ".": 'it contains "."',
            "..": "it leads out of the path",
            STAGING: f"{STAGING} is reserved for staged files",
        }.get(each)
        if name.startswith("/"):
            why = "it is absolute"
        if why or "\0" in each:
            raise ValueError(f"{what}: {name!r} is not a file below the path: {why or 'it contains a NUL'}")
    return name
