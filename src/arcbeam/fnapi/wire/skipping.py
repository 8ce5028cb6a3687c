"""Where encoded values end: functions that skip a value without decoding it.

Owns the lengths of Beam's standard coders in nested context, as on the Fn API's data streams. Must not know values.

SUBTLE: the SDK's compiled coders do not check the end of their input. On bytes that end inside of a value they read
beyond it, and may crash the process. So bytes from another process pass through here before they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apache_beam.portability import common_urns, python_urns

Skip = Callable[[bytes, int], int]
"""Takes bytes and the place where a value begins; returns the place after the value.

Raises:
    CutShortError: the bytes end inside of the value.
"""

_CODERS = common_urns.coders


class CutShortError(Exception):
    """The bytes end inside of a value."""


class UnknownCoderError(Exception):
    """Values of a coder cannot be skipped: it is not a standard one of known length."""


def skipper(coders: Mapping[str, Any], id: str) -> Skip:
    """Return the function that skips values of a coder, in nested context.

    Args:
        coders: `Coder` protos by id.
        id: id of the coder.

    Raises:
        UnknownCoderError: the coder is not a standard one of known length.
    """
    coder = coders[id]
    urn = coder.spec.urn
    simple = _SIMPLE.get(urn)
    if simple is not None:
        return simple
    make = _COMPOSED.get(urn)
    if make is None:
        raise UnknownCoderError(f"the length of values of coder '{urn}' is unknown")
    return make([skipper(coders, part) for part in coder.component_coder_ids])


def skip_varint(data: bytes, at: int) -> int:
    """Skip a varint; see `Skip`."""
    for place in range(at, len(data)):
        if data[place] < 0x80:
            return place + 1
    raise CutShortError


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the place after it.

    Raises:
        CutShortError: the bytes end inside of it.
    """
    result = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise CutShortError


def _fixed(size: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        at += size
        if at > len(data):
            raise CutShortError
        return at

    return skip


def _skip_nothing(data: bytes, at: int) -> int:
    return at


def skip_prefixed(data: bytes, at: int) -> int:
    """Skip bytes after their length; see `Skip`."""
    if at >= len(data):
        raise CutShortError
    size = data[at]
    at += 1
    if size >= 0x80:
        size, at = read_varint(data, at - 1)
    at += size
    if at > len(data):
        raise CutShortError
    return at


def _in_turn(parts: Sequence[Skip]) -> Skip:
    if len(parts) == 2:
        first, second = parts
        return lambda data, at: second(data, first(data, at))

    def skip(data: bytes, at: int) -> int:
        for part in parts:
            at = part(data, at)
        return at

    return skip


def _count(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise CutShortError
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def _iterable(parts: Sequence[Skip]) -> Skip:
    """A count of 32 bits and the elements; if it is -1, chunks that begin with a varint count, until an empty one."""
    (element,) = parts
    # Elements without bytes are not skipped one by one: their number has no limit.
    empty = element is _skip_nothing

    def skip(data: bytes, at: int) -> int:
        count = _count(data, at)
        at += 4
        if count >= 0:
            for _ in () if empty else range(count):
                at = element(data, at)
            return at
        while True:
            count, at = read_varint(data, at)
            if not count:
                return at
            for _ in () if empty else range(count):
                at = element(data, at)

    return skip


def _nullable(parts: Sequence[Skip]) -> Skip:
    (value,) = parts

    def skip(data: bytes, at: int) -> int:
        if at >= len(data):
            raise CutShortError
        return value(data, at + 1) if data[at] else at + 1

    return skip


def _skip_pane(data: bytes, at: int) -> int:
    """Skip a pane: its first byte says how many varints follow."""
    if at >= len(data):
        raise CutShortError
    kind = data[at] >> 4
    at += 1
    for _ in range(min(kind, 2)):
        at = skip_varint(data, at)
    return at


_TIME = _fixed(8)


def skipper_of_stamps(coders: Mapping[str, Any], window: str) -> Skip:
    """Return the function that skips windows and pane, which follow the time of an element.

    Args:
        coders: `Coder` protos by id.
        window: id of the windows' coder.
    """
    windows = _iterable([skipper(coders, window)])
    return lambda data, at: _skip_pane(data, windows(data, at))


def _windowed(parts: Sequence[Skip]) -> Skip:
    """Time, windows, pane and value. Most elements have the same time, windows and pane as the one before."""
    value, window = parts
    windows = _iterable([window])
    before = b""

    def skip(data: bytes, at: int) -> int:
        nonlocal before
        if before and data.startswith(before, at):
            return value(data, at + len(before))
        end = _skip_pane(data, windows(data, _TIME(data, at)))
        before = data[at:end]
        return value(data, end)

    return skip


def _timer(parts: Sequence[Skip]) -> Skip:
    """Key, tag, windows, and, unless the timer is cleared, fire time, hold and pane."""
    key, window = parts
    windows = _iterable([window])

    def skip(data: bytes, at: int) -> int:
        at = windows(data, skip_prefixed(data, key(data, at)))
        if at >= len(data):
            raise CutShortError
        return at + 1 if data[at] else _skip_pane(data, _TIME(data, _TIME(data, at + 1)))

    return skip


_SIMPLE: Mapping[str, Skip] = {
    _CODERS.BYTES.urn: skip_prefixed,
    _CODERS.STRING_UTF8.urn: skip_prefixed,
    _CODERS.LENGTH_PREFIX.urn: skip_prefixed,
    _CODERS.VARINT.urn: skip_varint,
    _CODERS.BOOL.urn: _fixed(1),
    _CODERS.DOUBLE.urn: _TIME,
    _CODERS.GLOBAL_WINDOW.urn: _skip_nothing,
    _CODERS.INTERVAL_WINDOW.urn: _in_turn([_TIME, skip_varint]),
    python_urns.TIMESTAMP_PREFIXED_OPAQUE_WINDOW_CODER: _in_turn([_TIME, skip_prefixed]),
}
_COMPOSED: Mapping[str, Callable[[Sequence[Skip]], Skip]] = {
    _CODERS.KV.urn: _in_turn,
    _CODERS.ITERABLE.urn: _iterable,
    _CODERS.NULLABLE.urn: _nullable,
    _CODERS.WINDOWED_VALUE.urn: _windowed,
    _CODERS.TIMER.urn: _timer,
    _CODERS.SHARDED_KEY.urn: lambda parts: _in_turn([skip_prefixed, *parts]),
    _CODERS.CUSTOM_WINDOW.urn: lambda parts: _in_turn([_TIME, *parts]),
}
