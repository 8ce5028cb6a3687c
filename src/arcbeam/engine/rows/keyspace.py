"""The layout of the rows of one shard: format 1.

Owns the kinds of rows and the encodings of their keys. Must not know the rows' values.

A row's key begins with its kind (one byte) and its stage (two bytes: a number that the stage keeps for the job's whole
life). The rest consists of *moments* (eight bytes, ascending in time) and *parts* (byte strings of any length, escaped
and terminated, so that no part is a prefix of another). So keys are ordered as the tuples that they encode, and all
rows of a (stage, user key, window) are adjacent: one range.

    kind        key after kind and stage                     content
    FORMAT                                                   the format of all rows; no stage
    KEYED       key, window, Section.KEY                     the whole key, if it is cut and has state cells
                key, window, Section.CELL, family, …         a state cell
                key, window, Section.TIMER, family, tag      a timer: its place in its index
                key, window, Section.HOLD, holder, output    a hold of output watermarks: its time
                key, window, Section.PENDING, holder, output a hold of the input watermark: its time
    FREE        Section, holder, output                      a hold without a user key: its time
    EVENT_HELD  moment, rank, slot                           index: event-time timers that hold at their own time
    EVENT       moment, rank, slot                           index: other event-time timers
    PROCESSING  moment, rank, slot                           index: processing-time timers
    SORTED      moment, arrival (8 bytes), key, window       elements that wait in order of time
    BLOCKED     side input, window, …                        elements that are blocked by a side input or a commit
    HOLDS       output, moment, owner                        index: holds of output watermarks
    PENDING     output, moment, owner                        index: holds of the input watermark
    RESIDUAL    id                                           a restriction that is not done
    DUE         moment, id                                   index: when restrictions may resume
    ROOT        root                                         the number of live restrictions of a root
                (nothing)                                    the totals of all restrictions
    CLOCK       (nothing)                                    the shard's input watermark of the stage, while work is
                                                             pending; else it is the stage's upstream watermark
    OUTPUT      output                                       the last watermark of an output, and since when
    GROUPING    …                                            a grouping's windows: laid out by `grouping`
    ARRIVALS    (nothing)                                    the number of elements that had to wait in order of time
    KEY_RANGES  (nothing)                                    later watermarks of keys from former shards

A *slot* is key, window, Section.TIMER, family, tag. An *owner* identifies an indexed row: the byte of its kind, and its
key after the stage.

SUBTLE: a part longer than its limit is cut, and a digest of the whole is appended. So no key of a row that consists of
parts is longer than `KEY_BYTES_MAX` (LMDB takes 511). Such parts are distinct and adjacent. They are ordered by what
precedes the cut, and arbitrarily after it; `whole` returns None for them. Code that needs the original stores it in the
row's value. A GROUPING row does not consist of parts: it contains its user key and window whole, and is as long as they
are.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
from typing import Final

from arcbeam.errors import ArcbeamError
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

FORMAT: Final = 1
"""The version of the layout."""

KEY_BYTES_MAX: Final = 511
"""The maximum length of a row's key, except for groupings."""

KEY_LIMIT: Final = threshold(88, 3)
"""A user key or a timer's tag with at most this number of escaped bytes is complete in a row's key."""
NAME_LIMIT: Final = 40
"""The same for windows, families, holders and outputs."""

OFFSET: Final = 1 << 63
"""Added to a time, so that its bytes sort like the time."""
END: Final = b"\0\1"
"""The end of a part; no escaped part contains it."""
_TEXT: Final = b"\x04"
"""The first byte of a text, as Python's coder for values of any type encodes it."""
_SHOWN_BYTES: Final = 16
"""Bytes of a key that is no text."""
_CUT = b"\0\2"
_DIGEST_BYTES = 16


class RowKind(enum.IntEnum):
    """The first byte of a row's key."""

    FORMAT = 0x01
    KEYED = 0x10
    FREE = 0x11
    EVENT_HELD = 0x20
    EVENT = 0x21
    PROCESSING = 0x22
    SORTED = 0x28
    BLOCKED = 0x29
    HOLDS = 0x30
    PENDING = 0x31
    RESIDUAL = 0x40
    DUE = 0x41
    ROOT = 0x42
    CLOCK = 0x50
    ARRIVALS = 0x51
    KEY_RANGES = 0x52
    OUTPUT = 0x53
    GROUPING = 0x60


class Section(enum.IntEnum):
    """The kind of a row with a user key and window."""

    KEY = 0x30
    CELL = 0x31
    TIMER = 0x32
    HOLD = 0x33
    PENDING = 0x34


def check_format(view: StateView, level: int, shard: int) -> bool:
    """Check that a shard's rows are of this format, before their first use.

    Args:
        view: the view of the shard.
        level: its level, for the error.
        shard: its number, for the error.

    Returns:
        Whether the shard is empty. Once it has a row, it needs `put_format`.

    Raises:
        ArcbeamError: the rows are of another format. Nothing was changed.
    """
    stored = view.get(bytes((RowKind.FORMAT,)))
    if stored is None and view.empty:
        return True
    if stored != FORMAT.to_bytes(2, "big"):
        found = "no known format" if stored is None else f"format {int.from_bytes(stored, 'big')}"
        raise ArcbeamError(
            f"the state of shard {shard} of level {level} has {found}; this version of arcbeam reads format {FORMAT}",
            "resume the job with the version that wrote it, or start a new job in an empty folder",
        )
    return False


def put_format(view: StateView) -> None:
    """Mark a shard's rows as those of this format. An empty shard needs no mark, so that it has no file."""
    view.put(bytes((RowKind.FORMAT,)), FORMAT.to_bytes(2, "big"))


def prefix(kind: RowKind, stage: int) -> bytes:
    """Return the common prefix of all rows of a kind and stage.

    Args:
        kind: the kind of the rows.
        stage: the stage's number, below 65,536.

    Raises:
        ValueError: the number is out of range.
    """
    try:
        return bytes((kind, stage >> 8, stage & 0xFF))
    except ValueError:
        raise ValueError(f"the number of a stage must be from 0 to 65,535: {stage:,}") from None


def moment(time: Timestamp) -> bytes:
    """Return eight bytes, which sort like times."""
    return (time + OFFSET).to_bytes(8, "big")


def time_of(encoded: bytes) -> Timestamp:
    """Return the time of a `moment`."""
    return Timestamp(int.from_bytes(encoded, "big") - OFFSET)


def part(raw: bytes, limit: int = KEY_LIMIT) -> bytes:
    """Return a byte string as a part of a key; it is self-delimiting, and sorts like byte strings up to the limit."""
    escaped = raw.replace(b"\0", b"\0\xff")
    if len(escaped) <= limit:
        return escaped + END
    # The digest is in hexadecimal, so that it does not contain END.
    digest = hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest().encode()
    return escaped[:limit] + _CUT + digest + END


def name(text: str) -> bytes:
    """Return a name as a part: a family, a holder, an output."""
    return part(text.encode(), NAME_LIMIT)


def parts(encoded: bytes) -> list[bytes]:
    """Split adjacent parts; each is still escaped, without its end."""
    return encoded.split(END)[:-1]


def whole(piece: bytes) -> bytes | None:
    """Return the byte string of one piece of `parts`; None if it was cut."""
    if b"\0" not in piece:
        return piece
    if _CUT in piece:
        return None
    return unescaped(piece)


def unescaped(piece: bytes) -> bytes:
    """Return the byte string of one piece of `parts` that was not cut."""
    return piece.replace(b"\0\xff", b"\0")


def shown(piece: bytes) -> str:
    """Return a piece of `parts` for people: as text if possible; cut parts end with an ellipsis."""
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


def key_shown(piece: bytes) -> str:
    """Return a user key, a piece of `parts`, for people: as text if it is text, else the beginning in hexadecimal."""
    raw, end = whole(piece), ""
    if raw is None:
        raw, end = unescaped(piece[: piece.index(_CUT)]).removesuffix(b"\0"), "…"
    for encoded in (raw, raw.removeprefix(_TEXT)):
        with contextlib.suppress(UnicodeDecodeError):
            if (text := encoded.decode()).isprintable():
                return text + end
    return f"0x{raw[:_SHOWN_BYTES].hex()}" + (end if len(raw) <= _SHOWN_BYTES else "…")


def after(start: bytes) -> bytes | None:
    """Return the first key after all that begin with `start`; None if there is none."""
    stripped = start.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes((stripped[-1] + 1,))
