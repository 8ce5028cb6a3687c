"""The record of an open window between two micro-batches, as bytes.

Owns the format. Version 1 has a short form, for windows without panes so far and with few elements, which are most, and
a long one. In both forms, the contents of `engine.grouping.contents` follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error

from arcbeam.errors import StateFormatError
from arcbeam.model.timestamps import Timestamp

VERSION = 1
_LONG, _CLOSED, _PASSED, _ON_TIME, _HOLD, _ALARM = (1 << n for n in range(6))
_SHORT = Struct("<BBQq")
"""Version, flags, elements, hold."""
SHORT_BYTES = _SHORT.size
"""The number of bytes before the contents in the short form."""
_PLAIN = (bytes((VERSION, 0)), bytes((VERSION, _HOLD)))
_WHOLE = Struct("<BBQqqQQIIIHH")
"""The same; then next timer, until ready, elements unknown to the trigger, indexes, entries, two lengths."""


@dataclass(slots=True)
class Record:
    """The stored state of a window.

    Attributes:
        closed: the trigger has finished: no further pane is emitted.
        passed: the watermark has passed its end, and the window has handled that.
        on_time: its contents arrived before that and are not emitted yet.
        fresh: the number of elements since the last pane.
        unseen: the number of those that the trigger has not seen.
        until_ready: how many more may arrive before it has to see them.
        hold: the timestamp of the next pane, if an element decides on it.
        next_timer: the processing time at which to evaluate the trigger.
        index: the index of the next pane.
        nonspeculative: the same among panes that are not early.
        entries: see `engine.grouping.contents`.
        address: see `engine.grouping.contents`.
        trigger: its state.
        contents: see `engine.grouping.contents`.
    """

    until_ready: int
    closed: bool = False
    passed: bool = False
    on_time: bool = False
    fresh: int = 0
    unseen: int = 0
    hold: Timestamp | None = None
    next_timer: Timestamp | None = None
    index: int = 0
    nonspeculative: int = 0
    entries: int = 0
    address: bytes = b""
    trigger: bytes = b""
    contents: bytes = b""

    def pack(self, first_until_ready: int) -> bytes:
        """Return the bytes.

        Args:
            first_until_ready: `elements_until_ready` of a trigger in its first state.
        """
        hold, next_timer = self.hold, self.next_timer
        flags = (
            (_CLOSED if self.closed else 0)
            | (_PASSED if self.passed else 0)
            | (_ON_TIME if self.on_time else 0)
            | (0 if hold is None else _HOLD)
        )
        fresh, unseen = self.fresh, self.unseen
        idle = not self.index and next_timer is None and not self.trigger and unseen == fresh
        if idle and not self.entries and self.until_ready + unseen == first_until_ready:
            return _SHORT.pack(VERSION, flags, fresh, hold or 0) + self.contents
        flags |= _LONG | (0 if next_timer is None else _ALARM)
        head = _WHOLE.pack(
            VERSION, flags, fresh, hold or 0, next_timer or 0, self.until_ready, unseen, self.index,
            self.nonspeculative, self.entries, len(self.trigger), len(self.address),
        )  # fmt: skip
        return b"".join((head, self.trigger, self.address, self.contents))

    @staticmethod
    def unpack(data: bytes, first_until_ready: int) -> Record:
        """Return the record of such bytes.

        Raises:
            StateFormatError: they are not a record.
        """
        if data[:1] != b"\x01":
            raise StateFormatError(
                "the record of a window", f"has version {data[:1].hex()}; this code reads version {VERSION}"
            )
        try:
            flags = data[1]
            closed, passed, on_time = bool(flags & _CLOSED), bool(flags & _PASSED), bool(flags & _ON_TIME)
            if not flags & _LONG:
                _, _, fresh, micros = _SHORT.unpack_from(data)
                hold = Timestamp(micros) if flags & _HOLD else None
                return Record(
                    first_until_ready - fresh, closed, passed, on_time, fresh, fresh, hold, contents=data[_SHORT.size :]
                )
            (
                _, _, fresh, micros, due, until_ready, unseen, index, nonspeculative, entries, of_trigger, of_address,
            ) = _WHOLE.unpack_from(data)  # fmt: skip
        except (error, IndexError) as e:
            raise StateFormatError("the record of a window", "is cut off") from e
        hold = Timestamp(micros) if flags & _HOLD else None
        next_timer = Timestamp(due) if flags & _ALARM else None
        address = _WHOLE.size + of_trigger
        contents = address + of_address
        return Record(
            until_ready, closed, passed, on_time, fresh, unseen, hold, next_timer, index, nonspeculative, entries,
            data[address:contents], data[_WHOLE.size : address], data[contents:],
        )  # fmt: skip


def pack_short(fresh: int, contents: bytes) -> bytes:
    """Return the bytes of a record that only has elements, none of which decides on its pane's time."""
    return _SHORT.pack(VERSION, 0, fresh, 0) + contents


def unpack_short(data: bytes) -> tuple[int, Timestamp | None] | None:
    """Return the elements and hold of a record that only has elements; None if it may be another one."""
    if data[:2] not in _PLAIN or len(data) < SHORT_BYTES:
        return None
    _, flags, fresh, micros = _SHORT.unpack_from(data)
    return fresh, Timestamp(micros) if flags else None
