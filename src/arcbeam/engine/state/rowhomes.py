"""What decides the shard of each row: its user key, or a rule of the row's owner.

Owns the rule of each kind of row. Must not know the number of shards, nor how rows are moved.

A rewrite of a savepoint for another number of shards is not built. It must keep to these rules:

- A row with a whole key moves by its hash. A cell or hold of a cut key moves with a timer or waiting element that has
  the whole key; without one, the rewrite is refused.
- Blocked elements and buffered windows are split by key, in order. Restrictions are handed over and adopted.
- Of `ARRIVALS` the maximum counts; `SAID` is left out.
- SUBTLE: no single number joins two shards' input watermarks. The minimum could open expired windows again; the maximum
  fires timers before blocked elements. Timers need the minimum, the lateness of arriving elements the maximum. An
  element that was timely when it was blocked stays timely.
"""

from __future__ import annotations

import enum
from typing import Final, assert_never

from arcbeam.engine.rows.keyspace import END, Kind, Section, parts, whole
from arcbeam.engine.state.keyqueue import key_of_waiting
from arcbeam.engine.state.timers import key_of_entry
from arcbeam.engine.watermarks.holds import GATHERED, HolderKind
from arcbeam.model.rows import key_hash

_GATHERED: Final = GATHERED.encode()
_BUFFERED: Final = 0xFF
"""The first byte of a buffered window's rows, in place of the length of a key."""


class Home(enum.Enum):
    """Why the key of a row does not decide its shard."""

    EVERY = enum.auto()
    """Every shard with state has it."""
    SPLIT = enum.auto()
    """It has the contents of several keys, or follows from such rows: its owner has to take it apart."""
    RESTRICTION = enum.auto()
    """It is a restriction, or follows from restrictions, which `Residuals` can hand over to any shard."""
    SHARD = enum.auto()
    """It is a fact about all keys of its shard."""
    CUT = enum.auto()
    """Its key is so long that the row only has the beginning and a digest: the row cannot be placed."""


def home(row: bytes, value: bytes) -> int | Home:
    """Return what decides the shard of a row.

    Args:
        row: the row's key.
        value: its value.

    Returns:
        The `key_hash` of its user key, or why there is none.

    Raises:
        ValueError: there is no such row.
    """
    kind = Kind(row[0])
    match kind:
        case Kind.FORMAT:
            return Home.EVERY
        case Kind.KEYED:
            return _of_owner(row[:1] + row[3:])
        case Kind.FREE:
            return _of_owner(row[:1] + row[3:])
        case Kind.HOLDS | Kind.PENDING:
            _, _, rest = row[3:].partition(END)
            return _of_owner(rest[8:])
        case Kind.EVENT_HELD | Kind.EVENT | Kind.PROCESSING:
            return Home.SPLIT if _is_gathered(parts(row[12:])) else key_hash(key_of_entry(row, value))
        case Kind.SORTED:
            return key_hash(key_of_waiting(row, value))
        case Kind.PARKED:
            return Home.SPLIT
        case Kind.RESIDUAL | Kind.DUE | Kind.ROOT:
            return Home.RESTRICTION
        case Kind.CLOCK | Kind.SAID | Kind.ARRIVALS:
            return Home.SHARD
        case Kind.GROUPING:
            if row[3] == _BUFFERED:
                return Home.SPLIT
            return key_hash(row[7 : 7 + int.from_bytes(row[3:7], "big")])
        case _:
            assert_never(kind)


def _of_owner(owner: bytes) -> int | Home:
    """Return the same for the owner of a hold's index entry: the byte of its kind, and its key after the stage."""
    pieces = parts(owner[1:])
    if owner[0] == Kind.KEYED:
        if pieces[2][0] == Section.TIMER and _is_gathered(pieces):
            return Home.SPLIT
        key = whole(pieces[0])
        return Home.CUT if key is None else key_hash(key)
    if owner[0] != Kind.FREE:
        raise ValueError(f"{owner!r} does not hold a watermark")
    holder = HolderKind(pieces[0][1])
    match holder:
        case HolderKind.RESIDUAL:
            return Home.RESTRICTION
        case HolderKind.PARKED:
            return Home.SPLIT
        case HolderKind.SCRIPT:
            return Home.SHARD
        case _:
            raise ValueError(f"no {holder} has a hold without a user key")


def _is_gathered(pieces: list[bytes]) -> bool:
    """Return whether a slot is that of the end of a buffered window, which is set for all keys."""
    return not pieces[0] and pieces[2][1:] == _GATHERED
