"""Where many encoded values end: the functions of `arcbeam.fnapi.wire.skipping` for columns of places.

Owns which coders are skipped in columns. Places after all bytes are allowed, because the caller compares the result
with where values should end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from apache_beam.portability import common_urns
from numpy.typing import NDArray

from arcbeam.fnapi.wire.skipping import CutShortError, Skip, skip_prefixed, skip_varint, skipper
from arcbeam.sizes import threshold

Positions = NDArray[np.int64]
SkipMany = Callable[[bytes, Positions], Positions]
"""Takes bytes and the places where values begin; returns the place after each value.

What is not a whole value does not end where the next one begins, nor where the bytes end.
"""

_CODERS = common_urns.coders
_LENGTH_BYTES_MAX: Final = threshold(4)
"""Bytes of a length that is read in columns: with more of them, numbers could overflow."""
_VARINT_BYTES_MAX: Final = threshold(10)


def skipper_of_many(coders: Mapping[str, Any], id: str) -> SkipMany:
    """Return the function that skips many values of a coder, in nested context.

    Args:
        coders: `Coder` protos by id.
        id: id of the coder.

    Raises:
        UnknownCoderError: the coder is not a standard one of known length.
    """
    coder = coders[id]
    urn = coder.spec.urn
    if urn == _CODERS.KV.urn:
        return _in_turn([skipper_of_many(coders, part) for part in coder.component_coder_ids])
    size = _SIZES.get(urn)
    if size is not None:
        return lambda data, at: at + size
    skip = skipper(coders, id)
    return _COLUMNS.get(skip) or _each(skip)


def _each(skip: Skip) -> SkipMany:
    def skip_each(data: bytes, at: Positions) -> Positions:
        found = np.empty(len(at), np.int64)
        for n, place in enumerate(at.tolist()):
            try:
                found[n] = skip(data, place)
            except CutShortError:
                found[n] = len(data) + 1
        return found

    return skip_each


def _in_turn(parts: Sequence[SkipMany]) -> SkipMany:
    def skip(data: bytes, at: Positions) -> Positions:
        for part in parts:
            at = part(data, at)
        return at

    return skip


def _bytes_at(data: bytes, at: Positions) -> Positions:
    """Return the byte at each place.

    SUBTLE: for a place after all bytes it is the last one. Nothing that begins there ends at the end of a whole value.
    """
    return np.frombuffer(data, np.uint8)[np.minimum(at, len(data) - 1)].astype(np.int64)


def _skip_varints(data: bytes, at: Positions) -> Positions:
    after, more = at, np.ones(len(at), np.bool_)
    for n in range(_VARINT_BYTES_MAX):
        after = after + more
        more &= _bytes_at(data, at + n) >= 0x80
        if not more.any():
            return after
    return _skip_each_varint(data, at)


def _skip_prefixed(data: bytes, at: Positions) -> Positions:
    byte = _bytes_at(data, at)
    length, more = byte & 0x7F, byte >= 0x80
    after = at + 1
    for n in range(1, _LENGTH_BYTES_MAX + 1):
        if not more.any():
            return after + length
        byte = _bytes_at(data, at + n)
        length += np.where(more, (byte & 0x7F) << 7 * n, 0)
        after = after + more
        more &= byte >= 0x80
    return _skip_each_prefixed(data, at)


_skip_each_varint, _skip_each_prefixed = _each(skip_varint), _each(skip_prefixed)
_COLUMNS: Final[Mapping[Skip, SkipMany]] = {skip_prefixed: _skip_prefixed, skip_varint: _skip_varints}
_SIZES: Final = {_CODERS.BOOL.urn: 1, _CODERS.DOUBLE.urn: 8, _CODERS.GLOBAL_WINDOW.urn: 0}
