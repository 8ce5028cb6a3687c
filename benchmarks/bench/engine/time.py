"""What the engine's timers, holds and order of time cost, with as many pending ones as there are keys.

Each function measures once and returns its figures.
"""

from __future__ import annotations

from pathlib import Path

from arcbeam.engine.state.keyqueue import Element, SortedInput
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.watermarks.holds import Holder, HolderKind, Holds
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.shards.overlay import EmptyBase, Overlay
from arcbeam.testing.views import MemoryView
from bench.engine.state import VALUE, WINDOW, key_of
from bench.engine.views import DiskShard
from bench.figures import Figure, core_seconds, per_second

_FAMILY = "end"


def _keys(count: int) -> list[bytes]:
    return [key_of(n * 7919 % count) for n in range(count)]


def _timers(view: StateView) -> Timers:
    return Timers(view, 1, {_FAMILY: TimeDomain.EVENT})


def _set_all(timers: Timers, keys: list[bytes]) -> None:
    count = len(keys)
    for i, key in enumerate(keys):
        time = Timestamp(i * 104_729 % count)
        timers.set(key, WINDOW, _FAMILY, time, time)


def _fire_all(timers: Timers) -> None:
    while timers.take_event(MAX_TIMESTAMP):
        pass


def pending_timers(count: int) -> list[Figure]:
    """A number of timers are set, and then all of them fire, in one micro-batch over the store's overlay."""
    keys, timers = _keys(count), _timers(Overlay(EmptyBase()))
    setting = core_seconds(lambda: _set_all(timers, keys))
    firing = core_seconds(lambda: _fire_all(timers))
    return [
        per_second("timers: set", count, setting, 200),
        per_second("timers: fire, including the sorting of those set", count, firing, 200),
        per_second("timers: set and fire, as a pair", count, setting + firing),
    ]


def timers_on_disk(count: int, folder: Path) -> list[Figure]:
    """A number of timers are committed; in the next micro-batch they fire, and a quarter of them is set again."""
    shard, keys = DiskShard(folder), _keys(count)
    view = shard.view()
    _set_all(_timers(view), keys)
    shard.commit(view)
    view = shard.view()
    timers = _timers(view)

    def fire_and_set() -> None:
        for _ in range(count // 4):
            fired = timers.take_event(MAX_TIMESTAMP)
            assert fired is not None
            later = Timestamp(fired.fire_at + count)
            timers.set(fired.key, WINDOW, _FAMILY, later, later)

    again = core_seconds(fire_and_set)
    firing = core_seconds(lambda: _fire_all(timers))
    view.close()
    shard.forget()
    return [
        per_second("timers on disk: fire, and set again for later", count // 4, again),
        per_second("timers on disk: fire", count, firing, 200),
    ]


def timers_in_memory(count: int) -> list[Figure]:
    """Over a view in memory: the cost of the engine only."""
    keys, timers = _keys(count), _timers(MemoryView())
    setting = core_seconds(lambda: _set_all(timers, keys))
    firing = core_seconds(lambda: _fire_all(timers))
    return [
        per_second("timers in memory: set", count, setting),
        per_second("timers in memory: fire", count, firing),
    ]


def holds(count: int) -> list[Figure]:
    """Holds are set, read and cleared."""
    holds = Holds(Overlay(EmptyBase()), 1)
    holders = [Holder(HolderKind.STATE, "pane", key, WINDOW) for key in _keys(count)]

    def move() -> None:
        for i, holder in enumerate(holders):
            holds.set(holder, Timestamp(i * 104_729 % count))

    def earliest() -> None:
        for _ in range(10_000):
            holds.earliest("main")

    setting = core_seconds(move)
    holds.earliest()
    return [
        per_second("holds: set", count, setting),
        per_second("holds: the earliest", 10_000, core_seconds(earliest)),
        per_second("holds: clear", count, core_seconds(lambda: [holds.clear(holder) for holder in holders])),
    ]


def in_order(count: int) -> list[Figure]:
    """Elements wait in order of time."""
    ordered = SortedInput(Overlay(EmptyBase()), 1)
    elements = [Element(key, WINDOW, Timestamp(i * 104_729 % count), VALUE) for i, key in enumerate(_keys(count))]

    def take() -> None:
        while ordered.take(MAX_TIMESTAMP):
            pass

    adding = core_seconds(lambda: [ordered.add(each, MIN_TIMESTAMP) for each in elements])
    return [
        per_second("elements in order of time: add", count, adding),
        per_second("elements in order of time: take", count, core_seconds(take)),
    ]
