"""The rows of a level in another number of shards: a key's shard is `key_hash(key) % shards`.

Owns the rule of each kind of row. Must not know where rows are stored.

- A row with a user key moves by the key's hash. A row of a cut key moves by another row that has the whole key: one of
  its cells' window, a timer, a waiting or blocked element, a grouping. Without one, the stage is refused: earlier
  versions did not write the first.
- Blocked elements and buffered windows are divided by key, in order: `blocked`, `windows`.
- Restrictions may be in any shard: `restrictions`.
- Facts about a whole shard are joined: `clocks`.
- Rows of stages that the job no longer has are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Protocol, assert_never

from arcbeam.engine.rescaling.blocked import RescaledLots
from arcbeam.engine.rescaling.clocks import RescaledClocks
from arcbeam.engine.rescaling.restrictions import RescaledRestrictions
from arcbeam.engine.rescaling.sink import Put
from arcbeam.engine.rescaling.windows import RescaledWindows, WindowTimers
from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import (
    END,
    FORMAT,
    KEY_LIMIT,
    RowKind,
    Section,
    after,
    part,
    parts,
    prefix,
    shown,
    whole,
)
from arcbeam.engine.state.keyqueue import key_of_waiting
from arcbeam.engine.state.timers import key_of_entry
from arcbeam.engine.watermarks.clocks import SCRIPT_SHARD
from arcbeam.engine.watermarks.holds import WINDOW_END, HolderKind
from arcbeam.errors import ArcbeamError
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp

_WINDOW_END: Final = WINDOW_END.encode()
_BUFFERED: Final = 0xFF
"""The first byte of a buffered window's rows, in place of the length of a key."""
_FORMAT: Final = FORMAT.to_bytes(2, "big")
_WITH_KEYS: Final = (
    RowKind.EVENT_HELD,
    RowKind.EVENT,
    RowKind.PROCESSING,
    RowKind.SORTED,
    RowKind.BLOCKED,
    RowKind.GROUPING,
)
"""The kinds of rows that have whole keys."""


@dataclass(frozen=True, slots=True)
class RescaledStage:
    """A stage with state.

    Attributes:
        name: its name, for errors.
        stateful: its user code has state or timers: its elements belong to the shards of their keys.
        upstream: its upstream watermark at the head.
    """

    name: str
    stateful: bool
    upstream: Timestamp = MIN_TIMESTAMP


class OldShardRows(Protocol):
    """The rows of an old shard."""

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with start <= key < end, ascending; to the last one if `end` is None."""


@dataclass(frozen=True, slots=True)
class MovedElsewhere:
    """What another `LevelRescaling` of the same level has moved, and does not know how to end.

    Attributes:
        filled: the new shards that have rows.
        windows: the timers of the ends of buffered windows.
    """

    filled: frozenset[int]
    windows: WindowTimers


class LevelRescaling:
    """The rescaling of one level. Call `take` for each old shard, then `end`.

    Several of them share the work if each calls `move` for some of the old shards. One more calls `join` for all, then
    `adopt` with what the others return from `moved`, then `end`.

    Args:
        had: the number of old shards.
        shards: the number of new shards.
        stages: the level's stages by number.
        put: puts the rows of new shards.
    """

    def __init__(self, had: int, shards: int, stages: Mapping[int, RescaledStage], put: Put) -> None:
        self._shards, self._stages = shards, stages
        self._filled: set[int] = set()

        def filling(shard: int, row: bytes, value: bytes) -> None:
            self._filled.add(shard)
            put(shard, row, value)

        self._put = put
        self._stateful = {number for number, of in stages.items() if of.stateful}
        self._clocks = RescaledClocks(had, shards, {n: of.upstream for n, of in stages.items()}, filling)
        self._lots = RescaledLots(shards, self._stateful, filling)
        self._restrictions = RescaledRestrictions(shards, filling)
        self._windows = RescaledWindows(shards, filling)
        # The hashes of cut keys in an old shard, by stage and piece: those in rows of their own, and those in others.
        self._named: dict[tuple[int, bytes], int] = {}
        self._cut: dict[int, dict[bytes, int]] = {}

    def take(self, source: int, rows: OldShardRows) -> None:
        """Take all rows of an old shard.

        Raises:
            ArcbeamError: they are of another format, or a stage has rows whose key is unknown.
        """
        self._look_for_pending(source, rows)
        self._take(source, rows, rows.scan(b""))

    def move(self, source: int, rows: OldShardRows) -> None:
        """Take the rows of an old shard that have a user key: they move whole, each by itself. See `take`."""
        self._take(
            source, rows, chain.from_iterable(rows.scan(*limits) for limits in self._ranges(_MOVED, buffered=False))
        )

    def join(self, source: int, rows: OldShardRows) -> None:
        """Take the other rows of an old shard: they are divided, or joined with those of others. See `take`."""
        self._look_for_pending(source, rows)
        self._take(
            source, rows, chain.from_iterable(rows.scan(*limits) for limits in self._ranges(_JOINED, buffered=True))
        )

    def moved(self) -> MovedElsewhere:
        """Return what `move` has found, for another one."""
        return MovedElsewhere(frozenset(self._filled), self._windows.taken())

    def adopt(self, moved: MovedElsewhere) -> None:
        """Add what another one has moved."""
        self._filled |= moved.filled
        self._windows.adopt(moved.windows)

    def _look_for_pending(self, source: int, rows: OldShardRows) -> None:
        """Note the stages whose work is pending in an old shard; those rows may be moved elsewhere."""
        for stage in self._stages:
            start = prefix(RowKind.PENDING, stage)
            if next(rows.scan(start, after(start)), None) is not None:
                self._clocks.pending(source, stage)

    def _ranges(self, kinds: _Ranges, *, buffered: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the limits of ranges of rows: those of some kinds, and the buffered or the other groupings."""
        for first, end in kinds:
            yield bytes((first,)), bytes((end,))
        for stage in sorted(self._stages):
            start = prefix(RowKind.GROUPING, stage)
            border = start + bytes((_BUFFERED,))
            yield (border, after(start)) if buffered else (start, border)

    def _take(self, source: int, rows: OldShardRows, taken: Iterable[tuple[bytes, bytes]]) -> None:
        self._cut.clear()
        self._named.clear()
        beginning, place = b"", None
        known, shard = b"\xff", 0
        put, shards, filled = self._put, self._shards, self._filled
        for row, value in taken:
            if row[:3] != beginning:
                beginning, place, known = row[:3], self._place_of(source, row, value, rows), b"\xff"
            if place is None:
                continue
            # Most rows have the same key as the one before.
            if not row.startswith(known):
                found = place(row, value)
                if found is None:
                    continue
                known, hashed = found
                shard = hashed % shards
                filled.add(shard)
            put(shard, row, value)
        self._windows.end_shard()

    def end(self) -> Mapping[int, int]:
        """Write what depends on all old shards.

        Returns:
            By stage, the change of the number of event timers: the end of a buffered window has one in each shard.
        """
        self._lots.end()
        self._restrictions.end()
        self._windows.end()
        self._clocks.end(self._stateful)
        for shard in sorted(self._filled):
            self._put(shard, bytes((RowKind.FORMAT,)), _FORMAT)
        return Counter(self._windows.timers)

    def _place_of(self, source: int, row: bytes, value: bytes, rows: OldShardRows) -> _Place | None:
        """Return the function that places rows with the same kind and stage as this one; None: they are left out.

        It returns the prefix of all rows of its key, and the key's hash; None if it has taken care of the row.
        """
        kind = RowKind(row[0])
        if kind is RowKind.FORMAT:
            if value != _FORMAT:
                found = int.from_bytes(value, "big")
                raise ArcbeamError(
                    f"the state of shard {source} has format {found}; this version of arcbeam rescales format {FORMAT}",
                    "rescale with the version of arcbeam that wrote it",
                )
            return None
        stage = int.from_bytes(row[1:3], "big")
        if stage not in self._stages:
            return None
        match kind:
            case RowKind.KEYED:
                return partial(self._keyed, stage, rows)
            case RowKind.FREE:
                return lambda row, _: self._free(row[:1] + row[3:])
            case RowKind.HOLDS | RowKind.PENDING:
                return lambda row, _: self._index(stage, rows, row)
            case RowKind.EVENT_HELD | RowKind.EVENT | RowKind.PROCESSING:
                return self._timer
            case RowKind.SORTED:
                return lambda row, value: (row, key_hash(key_of_waiting(row, value)))
            case RowKind.BLOCKED:
                return lambda row, value: self._lots.take(stage, row, value)
            case RowKind.RESIDUAL:
                return lambda row, value: self._restrictions.take(stage, row, value)
            case RowKind.ROOT:
                return lambda row, value: self._restrictions.totals(stage, value) if len(row) == _AFTER_STAGE else None
            case RowKind.CLOCK | RowKind.KEY_RANGES | RowKind.ARRIVALS | RowKind.OUTPUT:
                return lambda row, value: self._clocks.take(source, stage, row, value)
            case RowKind.GROUPING:
                return self._grouping
            case RowKind.DUE:
                return None
            case _:
                assert_never(kind)

    def _keyed(self, stage: int, rows: OldShardRows, row: bytes, value: bytes) -> _Placed | None:
        key_end = row.index(END, _AFTER_STAGE)
        end = key_end + len(END)
        if key_end == _AFTER_STAGE:
            pieces = parts(row[_AFTER_STAGE:])
            if _is_window_end(pieces):
                self._windows.take_timer(pieces[1], row, value, entry=False)
                return None
            # Rows of other windows of an empty key may be those of a timer for a window's end.
            return row, key_hash(b"")
        piece = row[_AFTER_STAGE:key_end]
        if b"\0" not in piece:  # most keys: neither escaped nor cut
            return row[:end], key_hash(piece)
        if row[row.index(END, end) + len(END)] == Section.KEY:
            self._named[stage, piece] = key_hash(value)
        return row[:end], self._hash_of(stage, rows, piece)

    def _free(self, owner: bytes) -> _Placed | None:
        pieces = parts(owner[1:])
        holder = HolderKind(pieces[0][1])
        match holder:
            case HolderKind.RESIDUAL:
                shard = self._restrictions.shard_of(pieces[0][2:])
            case HolderKind.SCRIPT:
                shard = SCRIPT_SHARD
            case HolderKind.BLOCKED:
                return None
            case _:
                raise ValueError(f"no {holder} has a hold without a user key")
        return b"\xff", shard

    def _index(self, stage: int, rows: OldShardRows, row: bytes) -> _Placed | None:
        at = row.index(END, _AFTER_STAGE) + len(END) + 8
        if row[at] == RowKind.FREE:
            return self._free(row[at:])
        return row, self._hash_of(stage, rows, row[at + 1 : row.index(END, at + 1)])

    def _timer(self, row: bytes, value: bytes) -> _Placed | None:
        slot = row[12:]
        if slot.startswith(END):
            pieces = parts(slot)
            if _is_window_end(pieces):
                self._windows.take_timer(pieces[1], row, value, entry=True)
                return None
        return row, key_hash(key_of_entry(row, value))

    def _grouping(self, row: bytes, value: bytes) -> _Placed | None:
        if row[_AFTER_STAGE] == _BUFFERED:
            self._windows.take(row, value)
            return None
        end = 7 + int.from_bytes(row[3:7], "big")
        return row[:end], key_hash(row[7:end])

    # Cut keys.

    def _hash_of(self, stage: int, rows: OldShardRows, piece: bytes) -> int:
        key = whole(piece)
        if key is not None:
            return key_hash(key)
        named = self._named.get((stage, piece))
        if named is not None:
            return named
        known = self._cut.get(stage)
        if known is None:
            known = self._cut[stage] = {}
            for key in _keys(stage, rows):
                if len(key) * 2 > KEY_LIMIT:
                    known[part(key).removesuffix(END)] = key_hash(key)
        found = known.get(piece)
        if found is None:
            raise ArcbeamError(
                f"the state of stage '{self._stages[stage].name}' cannot be rescaled: its rows only have the beginning "
                f"of the long key {shown(piece)!r}",
                "keep the number of shards; or rename the stage and discard its state (--allow_dropped_state)",
            )
        return found


_AFTER_STAGE: Final = 3
_Ranges = tuple[tuple[RowKind, RowKind], ...]
_MOVED: Final[_Ranges] = ((RowKind.KEYED, RowKind.BLOCKED), (RowKind.HOLDS, RowKind.RESIDUAL))
"""The kinds of rows with a user key: from the first on, before the second. Groupings that are not buffered, too."""
_JOINED: Final[_Ranges] = (
    (RowKind.FORMAT, RowKind.KEYED),
    (RowKind.BLOCKED, RowKind.HOLDS),
    (RowKind.RESIDUAL, RowKind.GROUPING),
)
"""The other kinds."""
_Placed = tuple[bytes, int]
_Place = Callable[[bytes, bytes], _Placed | None]


def _keys(stage: int, rows: OldShardRows) -> Iterator[bytes]:
    """Yield the keys of all rows that have whole keys; some several times."""
    for kind in _WITH_KEYS:
        start = prefix(kind, stage)
        for row, value in rows.scan(start, after(start)):
            if kind is RowKind.SORTED:
                yield key_of_waiting(row, value)
            elif kind is RowKind.BLOCKED:
                at = row.index(END, row.index(END, 3) + len(END)) + len(END)
                if at < len(row):
                    yield from (next(sequences.unframed(each, 8)) for each in sequences.of_row(row[at:], value))
            elif kind is RowKind.GROUPING:
                if row[3] != _BUFFERED:
                    yield row[7 : 7 + int.from_bytes(row[3:7], "big")]
            else:
                yield key_of_entry(row, value)


def _is_window_end(pieces: list[bytes]) -> bool:
    """Return whether a slot is that of the end of a buffered window, which is set for all keys."""
    return not pieces[0] and pieces[2][0] == Section.TIMER and pieces[2][1:] == _WINDOW_END
