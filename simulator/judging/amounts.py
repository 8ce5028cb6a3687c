"""Compare the reported sizes of state with sizes computed from the committed rows: keys, timers, buffered elements.

Owns the counting of rows. Must not know how the engine counts: it updates its counters with each change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from arcbeam.engine.protocol.stagekinds import Grouped, StageSpec, Stateful
from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import END, RowKind, Section
from arcbeam.engine.state.cells import CellKind
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.model.plan import TimeDomain

Row = tuple[bytes, bytes]

_TIMERS = (RowKind.EVENT_HELD, RowKind.EVENT, RowKind.PROCESSING)
_BAG = bytes((Section.CELL, CellKind.BAG))
_RUNS = b"\xff"


def counted(spec: StageSpec, rows: Iterable[Row]) -> StateMetrics:
    """Return what a stage keeps, from all its rows."""
    kinds: dict[int, list[Row]] = {}
    for key, value in rows:
        kinds.setdefault(key[0], []).append((key[3:], value))
    timers = [(RowKind(kind), key[8]) for kind in _TIMERS for key, _ in kinds.get(kind, ())]
    blocked = [each for key, value in kinds.get(RowKind.BLOCKED, ()) for each in _blocked(key, value)]
    ordered = [value for _, value in kinds.get(RowKind.SORTED, ())]
    ends = sum(rank for _, rank in timers)
    grouped, runs = kinds.get(RowKind.GROUPING, ()), set[tuple[bytes, bytes]]()
    for key, value in grouped:
        if key.startswith(_RUNS):
            runs |= _of_run(key, value)
    return StateMetrics(
        len(runs) + sum(_is_record(key) for key, _ in grouped) if isinstance(spec.kind, Grouped) else ends,
        _cells(key for key, _ in kinds.get(RowKind.KEYED, ())) if _without_ends(spec) else {},
        sum(kind is not RowKind.PROCESSING and not rank for kind, rank in timers),
        sum(kind is RowKind.PROCESSING for kind, _ in timers),
        len(blocked),
        len(ordered),
        sum(map(len, blocked)) - 8 * len(blocked) + sum(map(len, ordered)),
    )


def _without_ends(spec: StageSpec) -> bool:
    """Return whether the stage keeps nothing until the end of the global window."""
    kind = spec.kind
    if not isinstance(kind, Stateful):
        return False
    return not kind.at_expiration and TimeDomain.PROCESSING not in kind.families.values()


def _blocked(key: bytes, value: bytes) -> list[bytes]:
    _, _, row = key.split(END, 2)
    return list(sequences.of_row(row, value)) if row else []


def _is_record(key: bytes) -> bool:
    return not key.startswith(_RUNS) and key[4 + int.from_bytes(key[:4], "big") :].startswith(b"w")


def _of_run(key: bytes, value: bytes) -> set[tuple[bytes, bytes]]:
    """Return the keys in a row of a run, each with the identity of that run. The row of a directory has no keys."""
    window, row = key.split(END, 1)
    found, position = set(), 0
    while row and position < len(value):
        of_key, of_payload = (int.from_bytes(value[position + at : position + at + 4], "little") for at in (0, 4))
        found.add((window + END + row[:4], value[position + 8 : position + 8 + of_key]))
        position += 8 + of_key + of_payload
    return found


def _cells(keys: Iterable[bytes]) -> dict[str, int]:
    """Count the keys with a non-empty bag in the global window, by family."""
    found = Counter[str]()
    for key in keys:
        _, window, *rest = key.split(END, 3)
        if not window and len(rest) == 2 and rest[0].startswith(_BAG) and rest[1] == sequences.TAIL:
            found[rest[0][2:].decode()] += 1
    return dict(found)


def same(reported: StateMetrics, found: StateMetrics) -> bool:
    """Return whether both are equal. A cell with a count of zero equals a missing cell."""
    return reported + StateMetrics() == found + StateMetrics(cells=dict.fromkeys(reported.cells, 0))
