"""How the rows of one shard are laid out: format 1.

Owns the kinds of rows and their keys' encodings. Must not know what stands in a row's value.

A row's key begins with its kind (one byte) and its stage (two bytes, a number that the job keeps for the stage as long
as it lives). What follows is made of *moments* (eight bytes, ascending in time) and *parts* (byte strings of any
length, escaped and ended, so that no part is the beginning of another). So keys are ordered as the tuples of what they
are made of, and all rows of a (stage, user key, window) lie together: one range.

    kind        key behind kind and stage                    what
    FORMAT                                                   the format of all rows; no stage
    KEYED       key, window, Section.CELL, family, …         a state cell
                key, window, Section.TIMER, family, tag      a timer: where it stands in its index
                key, window, Section.HOLD, holder, output    a hold of output watermarks: its time
                key, window, Section.PENDING, holder, output a hold of the input watermark: its time
    FREE        Section, holder, output                      a hold without a user key: its time
    EVENT_HELD  moment, rank, slot                           index: event-time timers that hold at their own time
    EVENT       moment, rank, slot                           index: other event-time timers
    PROCESSING  moment, rank, slot                           index: processing-time timers
    SORTED      moment, arrival (8 bytes), key, window       elements that wait to be fed in order of time
    PARKED      side input, window, …                        elements that wait for a side input
    HOLDS       output, moment, owner                        index: holds of output watermarks
    PENDING     output, moment, owner                        index: holds of the input watermark
    RESIDUAL    id                                           a restriction that is not done
    DUE         moment, id                                   index: when restrictions may resume
    ROOT        root                                         how many restrictions live of a root
                (nothing)                                    how they stand, all together
    CLOCK       (nothing)                                    the shard's input watermark of the stage
    SAID        output                                       what was last said of an output, and since when
    GROUPING    …                                            a grouping's windows: as `grouping` lays them out
    ARRIVALS    (nothing)                                    how many elements had to wait in order of time

A *slot* is key, window, Section.TIMER, family, tag; an *owner* is the kind's byte of the row that is indexed, and what
stands in its key behind the stage.

SUBTLE: a part longer than its limit is cut, and a digest of the whole put behind: no key of a row that is made of parts
is longer than `LONGEST` bytes (LMDB takes 511). Such parts are still told apart, and lie together; they are in the
order of what stands before the cut, and behind that in no order that means anything; `whole` gives None for them. Who
needs the original keeps it in the row's value. A GROUPING row is not made of parts: it has its user key and window
whole, and is as long as they are.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

from arcbeam.errors import ArcbeamError
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

FORMAT: Final = 1
"""Version of the layout."""

LONGEST: Final = 511
"""No row's key is longer, but for those of groupings."""

KEY_LIMIT: Final = threshold(88, 3)
"""Escaped bytes of a user key or a timer's tag that stand in a row's key whole."""
NAME_LIMIT: Final = 40
"""Of windows, families, holders and outputs."""

OFFSET: Final = 1 << 63
"""What is added to a time, so that its bytes sort as it does."""
END: Final = b"\0\1"
"""Ends a part: no escaped part has it inside."""
_CUT = b"\0\2"
_DIGEST_BYTES = 16


class Kind(enum.IntEnum):
    """The first byte of a row's key."""

    FORMAT = 0x01
    KEYED = 0x10
    FREE = 0x11
    EVENT_HELD = 0x20
    EVENT = 0x21
    PROCESSING = 0x22
    SORTED = 0x28
    PARKED = 0x29
    HOLDS = 0x30
    PENDING = 0x31
    RESIDUAL = 0x40
    DUE = 0x41
    ROOT = 0x42
    CLOCK = 0x50
    ARRIVALS = 0x51
    SAID = 0x53
    GROUPING = 0x60


class Section(enum.IntEnum):
    """What a row of a user key and window is."""

    CELL = 0x31
    TIMER = 0x32
    HOLD = 0x33
    PENDING = 0x34


def claim(view: StateView, level: int, shard: int) -> None:
    """Makes sure that the rows of a shard are of this format; call it before they are used. An empty shard becomes so.

    Args:
        view: of the shard.
        level: whose it is, for the error.
        shard: which one it is, for the error.

    Raises:
        ArcbeamError: they are of another one. Nothing was changed.
    """
    row = bytes((Kind.FORMAT,))
    stored = view.get(row)
    if stored is None and next(iter(view.scan(b"")), None) is None:
        view.put(row, FORMAT.to_bytes(2, "big"))
    elif stored != FORMAT.to_bytes(2, "big"):
        found = "no known format" if stored is None else f"format {int.from_bytes(stored, 'big')}"
        raise ArcbeamError(
            f"the state of shard {shard} of level {level} is of {found}; this version of arcbeam reads format {FORMAT}",
            "resume the job with the version that wrote it, or start it anew",
        )


def prefix(kind: Kind, stage: int) -> bytes:
    """The beginning of all rows of a kind and stage.

    Args:
        kind: of rows.
        stage: the stage's number, below 65,536.

    Raises:
        ValueError: the number is none.
    """
    try:
        return bytes((kind, stage >> 8, stage & 0xFF))
    except ValueError:
        raise ValueError(f"the number of a stage is from 0 to 65,535: {stage:,}") from None


def moment(time: Timestamp) -> bytes:
    """Eight bytes, ordered as times are."""
    return (time + OFFSET).to_bytes(8, "big")


def time_of(encoded: bytes) -> Timestamp:
    """The time of a `moment`."""
    return Timestamp(int.from_bytes(encoded, "big") - OFFSET)


def part(raw: bytes, limit: int = KEY_LIMIT) -> bytes:
    """A byte string within a key, told apart from whatever follows; ordered as byte strings are, up to the limit."""
    escaped = raw.replace(b"\0", b"\0\xff")
    if len(escaped) <= limit:
        return escaped + END
    # The digest is in hexadecimal, so that it does not hold END.
    digest = hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest().encode()
    return escaped[:limit] + _CUT + digest + END


def name(text: str) -> bytes:
    """A part that holds a name: a family, a holder, an output."""
    return part(text.encode(), NAME_LIMIT)


def parts(encoded: bytes) -> list[bytes]:
    """Adjacent parts, taken apart; each still escaped, without its end."""
    return encoded.split(END)[:-1]


def whole(piece: bytes) -> bytes | None:
    """The byte string of one piece of `parts`; None if only its beginning and digest stand there."""
    if b"\0" not in piece:
        return piece
    if _CUT in piece:
        return None
    return unescaped(piece)


def unescaped(piece: bytes) -> bytes:
    """The byte string of one piece of `parts` that is known to stand there whole."""
    return piece.replace(b"\0\xff", b"\0")


def shown(piece: bytes) -> str:
    """A piece of `parts` for people: text where it is text; cut parts end with an ellipsis."""
    raw = whole(piece)
    cut = raw is None
    if raw is None:
        raw = unescaped(piece[: piece.index(_CUT)]).removesuffix(b"\0")
    try:
        text = raw.decode()
        text = text if text.isprintable() else repr(raw)
    except UnicodeDecodeError:
        text = repr(raw)
    return text + "…" if cut else text


def after(start: bytes) -> bytes | None:
    """The first key behind all that begin with `start`; None if there is none."""
    stripped = start.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes((stripped[-1] + 1,))
