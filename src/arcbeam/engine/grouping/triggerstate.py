"""The state of a trigger as bytes: the cell that stores it between micro-batches.

Owns the format. Version 1: nothing at all for the first state; else the version, then the tree in the order of
`Trigger.parts`, numbers as little-endian groups of seven bits. AfterWatermark only stores its active part; the other is
in its first state.
"""

from __future__ import annotations

from arcbeam.engine.grouping.composites import AfterEach, AfterWatermark, OrFinally
from arcbeam.engine.grouping.triggers import AfterCount, AfterTime, Trigger
from arcbeam.errors import StateFormatError
from arcbeam.model.timestamps import Timestamp

VERSION = 1


def dump(trigger: Trigger) -> bytes:
    """Return the state of a trigger."""
    out = bytearray((VERSION,))
    _write(trigger, out)
    return bytes(out) if any(memoryview(out)[1:]) else b""


def load(shape: Trigger, data: bytes) -> Trigger:
    """Return the trigger with that state.

    Args:
        shape: a trigger of the same kind, in any state; not changed.
        data: the result of `dump`.

    Raises:
        StateFormatError: it is not a state of such a trigger.
    """
    trigger = shape.fresh()
    if data:
        if data[0] != VERSION:
            raise StateFormatError("a trigger's state", f"has version {data[0]}; this code reads version {VERSION}")
        try:
            end = _read(trigger, data, 1)
        except IndexError:
            end = -1
        if end != len(data):
            raise StateFormatError("a trigger's state", "belongs to another trigger, or is damaged")
    return trigger


def _write(trigger: Trigger, out: bytearray) -> None:
    match trigger:
        case AfterCount():
            _number(trigger.seen << 1 | trigger.fired, out)
        case AfterTime():
            # Zigzag, plus one: zero means no time.
            due = trigger.due
            _number(0 if due is None else (((due << 1) ^ (due >> 63)) + 1) << 1 | trigger.fired, out)
        case AfterWatermark():
            out.append(trigger.fired)
            for part in trigger.active():
                _write(part, out)
            return
        case AfterEach():
            out.append(trigger.index)
        case OrFinally():
            out.append(trigger.ended)
    for part in trigger.parts():
        _write(part, out)


def _read(trigger: Trigger, data: bytes, at: int) -> int:
    """Read a trigger's state; return the position after it."""
    match trigger:
        case AfterCount():
            number, at = _number_at(data, at)
            trigger.seen, trigger.fired = number >> 1, bool(number & 1)
        case AfterTime():
            number, at = _number_at(data, at)
            if number:
                zigzag = (number >> 1) - 1
                trigger.due, trigger.fired = Timestamp((zigzag >> 1) ^ -(zigzag & 1)), bool(number & 1)
        case AfterWatermark():
            trigger.fired, at = bool(data[at]), at + 1
            for part in trigger.active():
                at = _read(part, data, at)
            return at
        case AfterEach():
            trigger.index, at = data[at], at + 1
        case OrFinally():
            trigger.ended, at = bool(data[at]), at + 1
    for part in trigger.parts():
        at = _read(part, data, at)
    return at


def _number(number: int, out: bytearray) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the position after it."""
    number = shift = 0
    while data[at] > 127:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
