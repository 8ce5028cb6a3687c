"""Event times on the Fn API: milliseconds, where this runner has microseconds.

Owns the rounding, and the moments that have another value there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.encodedvalues import EncodedValues
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW

_MILLI: Final = 1000
_END: Final = int(END_OF_GLOBAL_WINDOW)
_THEIR_END: Final = _END + 1
"""The end of the global window on the Fn API: the next whole millisecond."""
TIME: Final = 8
"""Bytes of an encoded time: milliseconds, shifted so that times are in the order of their bytes."""
_SHIFT: Final = np.uint64(1 << 63)
_MICROS_MIN: Final = MIN_TIMESTAMP.micros
_MICROS_MAX: Final = MAX_TIMESTAMP.micros


def to_millis(block: Block) -> Block:
    """Return a block whose times are whole milliseconds: none later than before, but the end of the global window.

    SUBTLE: the SDK's coder rounds towards 1970. So the last moment of a window that ends at 1970 would be 1970, which
    is outside of the window.
    """
    micros = block.micros
    if type(micros) is not Each:
        return block if micros % _MILLI == 0 else _with_times(block, _rounded(micros))
    return _with_times(block, Each(map(_rounded, micros)))


def micros_of(encoded: bytes) -> list[int]:
    """Return times as the SDK's coder of windowed values decodes them, in microseconds.

    Args:
        encoded: times as on the data streams, one after the other.
    """
    millis = (np.frombuffer(encoded, ">u8") ^ _SHIFT).astype(np.int64)
    micros = np.clip(millis, _MICROS_MIN // _MILLI, _MICROS_MAX // _MILLI) * _MILLI
    micros[millis <= -(-_MICROS_MIN // _MILLI)] = _MICROS_MIN
    micros[millis >= _MICROS_MAX // _MILLI] = _MICROS_MAX
    found: list[int] = micros.tolist()
    return found


def encoded_times(micros: list[int]) -> bytes:
    """Return times as the SDK's coder of windowed values encodes them, one after the other.

    Args:
        micros: whole milliseconds, in microseconds.
    """
    millis = np.array(micros, np.int64) // _MILLI
    return (millis.astype(np.uint64) ^ _SHIFT).astype(">u8").tobytes()


def _rounded(micros: int) -> int:
    return _THEIR_END if micros == _END else micros - micros % _MILLI


def from_millis(block: Block) -> Block:
    """Return a block from a worker with the end of the global window as it is here."""
    micros = block.micros
    if type(micros) is not Each:
        return _with_times(block, _END) if micros == _THEIR_END else block
    if _THEIR_END not in micros:
        return block
    return _with_times(block, Each(_END if each == _THEIR_END else each for each in micros))


def timer_in_millis(timer: Any) -> Any:
    """Return a timer of the SDK with such times."""
    fires, holds = (Timestamp(micros=_rounded(at.micros)) for at in (timer.fire_timestamp, timer.hold_timestamp))
    return timer._replace(fire_timestamp=fires, hold_timestamp=holds)


def _with_times(block: Block, micros: Any) -> Block:
    if isinstance(block, EncodedValues):
        return block.at(micros)
    return Block(block.values, micros, block.windows, block.panes)
