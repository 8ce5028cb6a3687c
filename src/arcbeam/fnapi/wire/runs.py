"""Runs: consecutive elements of a stream that share windows and pane, cut from it together.

Owns how many elements are cut at once. Most elements have the windows and the pane of the one before, and often its
time. So the bytes of these divide a message into values. To look at each element alone takes several times as long.
Must not know how values are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from arcbeam.fnapi.wire.skipping import CutShortError, skipper, skipper_of_stamps
from arcbeam.fnapi.wire.skippingmany import skipper_of_many
from arcbeam.fnapi.wire.times import TIME, micros_of
from arcbeam.sizes import threshold

_STEP_BYTES_MAX: Final = threshold(128 << 10, 200)
"""Most bytes in which a run is looked for. It is not longer than that."""
_STEP_BYTES_MIN: Final = threshold(16 << 10, 50)
_ELEMENTS_MIN: Final = threshold(16, 2)
"""Elements of a run; fewer are cut one by one."""
_SHARE_MIN: Final = threshold(8)
"""The part of a step that a run must be, as its divisor; after a shorter one, steps are shorter."""


_FIRST: Final = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True)
class ElementRun:
    """Elements that share windows and pane.

    Attributes:
        count: how many.
        micros: their event time in microseconds, or the time of each.
        stamp: their encoded windows and pane.
        values: their encoded values, one after the other.
        ends: the place after each of these.
    """

    count: int
    micros: int | list[int]
    stamp: bytes
    values: bytes
    ends: NDArray[np.int64]


class Runs:
    """Cuts a stream of elements into runs.

    Args:
        coders: `Coder` protos by id.
        id: id of the elements' coder, which is for windowed values.

    Raises:
        UnknownCoderError: the length of elements is unknown.
    """

    def __init__(self, coders: Mapping[str, Any], id: str) -> None:
        value, window = coders[id].component_coder_ids
        self._skip, self._skip_value = skipper(coders, id), skipper(coders, value)
        self._skip_stamp = skipper_of_stamps(coders, window)
        self._skip_many = skipper_of_many(coders, value)
        self.begin()

    def begin(self) -> None:
        """Begin another stream."""
        self._rest = b""
        self._step = _STEP_BYTES_MAX

    def of(self, message: bytes) -> Iterator[ElementRun | bytes]:
        """Yield all elements that are complete with this message, in order: runs, and others as they are encoded."""
        data = self._rest + message if self._rest else message
        at, size = 0, len(data)
        while at < size:
            step = self._step
            part = data[at : at + step] if at or size > step else data
            found = self._run(part)
            if found is not None:
                run, length = found
                yield run
                at += length
                if length >= len(part) // _SHARE_MIN:
                    self._step = min(2 * step, _STEP_BYTES_MAX)
                    continue
            self._step = max(step // 4, _STEP_BYTES_MIN)
            if found is None or step <= _STEP_BYTES_MIN:
                end = self._after_step(data, at)
                if end > at:
                    yield data[at:end]
                if end < min(size, at + _STEP_BYTES_MIN):
                    self._rest = data[end:]
                    return
                at = end
        self._rest = b""

    def end(self) -> None:
        """End the stream.

        Raises:
            CutShortError: it ends inside of an element.
        """
        if self._rest:
            raise CutShortError(f"the stream ends {len(self._rest)} bytes after the beginning of an element")

    def _after_step(self, data: bytes, at: int) -> int:
        """Return the place after the elements that begin in the shortest step, or of the first that is not whole."""
        skip, end = self._skip, min(len(data), at + _STEP_BYTES_MIN)
        try:
            while at < end:
                at = skip(data, at)
        except CutShortError:
            pass
        return at

    def _run(self, part: bytes) -> tuple[ElementRun, int] | None:
        """Return the run at the beginning, and its length in bytes; None if it is short."""
        try:
            head = self._skip_stamp(part, TIME)
            second = self._skip_value(part, head)
        except CutShortError:
            return None
        stamp = part[TIME:head]
        if part.startswith(part[:head], second):
            between, times = part[:head], 0
        elif part.startswith(stamp, second + TIME):
            between, times = stamp, TIME
        else:
            return None
        # SUBTLE: the bytes between two values may also occur in a value. Then what precedes them is no whole value.
        pieces = part.split(between)
        before, last = pieces[0], pieces[-1]
        del pieces[0], pieces[-1]
        if len(before) != times:
            return None
        if times and min(map(len, pieces), default=TIME) < TIME:
            short = next(n for n, each in enumerate(pieces) if len(each) < TIME)
            pieces, last = pieces[:short], pieces[short]
        values = [*(each[:-TIME] for each in pieces), last] if times else [*pieces, last]
        ends, count = self._whole(values)
        if count < len(values):
            # The last value of a run has another run after it.
            try:
                after = pieces[count] if count < len(pieces) else last
                values[count] = after[: self._skip_value(after, 0)]
                ends[count] = (ends[count - 1] if count else 0) + len(values[count])
                count += 1
            except CutShortError:
                pass
        if count < _ELEMENTS_MIN:
            return None
        if times:
            micros: int | list[int] = micros_of(b"".join((before, *(each[-TIME:] for each in pieces[: count - 1]))))
        else:
            (micros,) = micros_of(part[:TIME])
        del values[count:]
        joined = b"".join(values)
        return ElementRun(count, micros, stamp, joined, ends[:count]), len(joined) + count * head

    def _whole(self, values: list[bytes]) -> tuple[NDArray[np.int64], int]:
        """Return the place after each value, and how many of the first values are whole."""
        ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
        begins = np.concatenate((_FIRST, ends[:-1]))
        wrong = np.flatnonzero(self._skip_many(b"".join((*values, b"\0")), begins) != ends)
        return ends, int(wrong[0]) if len(wrong) else len(values)
