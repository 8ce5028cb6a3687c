"""What the engine's state, timers, holds and order of time cost over a view in memory: run by hand.

Processor time of one core, the view's part included. `python benchmarks/engine_time.py [keys]`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from arcbeam.engine.agenda import Element, SortedInput
from arcbeam.engine.cells import BagCell, Cells, CombiningCell, ValueCell
from arcbeam.engine.holds import Holder, HolderKind, Holds
from arcbeam.engine.timers import Timers
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

WINDOW = (1_700_000_000_000 + (1 << 63)).to_bytes(8, "big") + b"\xe0\xd4\x03"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    keys = [b"key%07d" % (i * 7919 % count) for i in range(count)]
    for work in (_cells, _timers, _holds, _sorted):
        work(keys)


def _told(what: str, count: int, work: Callable[[], object]) -> None:
    began = time.process_time()
    work()
    seconds = time.process_time() - began
    print(f"{what:44s} {seconds / count * 1e6:6.2f} µs  {count / seconds / 1e3:6.0f} k/s", flush=True)


def _cells(keys: list[bytes]) -> None:
    cells = Cells(MemoryView(), 1)
    value, bag = ValueCell(cells, "value"), BagCell(cells, "bag")
    combining = CombiningCell(cells, "sum", lambda all: max(all))

    def modify() -> None:
        read, write = value.read, value.write
        for key in keys:
            read(key, WINDOW)
            write(key, WINDOW, b"12345678")

    def each(add: Callable[[bytes, bytes, bytes], None]) -> Callable[[], None]:
        def work() -> None:
            for key in keys:
                add(key, WINDOW, b"12345678")

        return work

    def hot() -> None:
        for _ in keys:
            bag.add(b"hot", WINDOW, b"12345678")

    _told("value: read and write, keys new", len(keys), modify)
    _told("value: read and write", len(keys), modify)
    _told("bag: add, keys new", len(keys), each(bag.add))
    _told("bag: add, one key", len(keys), hot)
    _told("bag: read a value", len(keys), lambda: sum(1 for _ in bag.read(b"hot", WINDOW)))
    _told("combining: add, keys new", len(keys), each(combining.add))


def _timers(keys: list[bytes]) -> None:
    timers = Timers(MemoryView(), 1, {"end": TimeDomain.EVENT})
    count = len(keys)

    def set_all() -> None:
        for i, key in enumerate(keys):
            time = Timestamp(i * 104_729 % count)
            timers.set(key, WINDOW, "end", time, time)

    def fire_and_set() -> None:
        for _ in range(count // 4):
            fired = timers.take_event(MAX_TIMESTAMP)
            assert fired is not None
            later = Timestamp(fired.fire_at + count)
            timers.set(fired.key, WINDOW, "end", later, later)

    def fire_all() -> None:
        while timers.take_event(MAX_TIMESTAMP):
            pass

    _told("timers: set", count, set_all)
    _told("timers: sorting what was set (the view's)", count, timers.next_event)
    _told("timers: fire one and set it for later", count // 4, fire_and_set)
    _told("timers: fire", count, fire_all)


def _holds(keys: list[bytes]) -> None:
    holds = Holds(MemoryView(), 1)
    holders = [Holder(HolderKind.STATE, "pane", key, WINDOW) for key in keys]

    def move() -> None:
        for i, holder in enumerate(holders):
            holds.set(holder, Timestamp(i * 104_729 % len(keys)))

    def earliest() -> None:
        for _ in range(10_000):
            holds.earliest("main")

    _told("holds: set", len(keys), move)
    _told("holds: sorting what was set (the view's)", len(keys), holds.earliest)
    _told("holds: the earliest", 10_000, earliest)
    _told("holds: clear", len(keys), lambda: [holds.clear(holder) for holder in holders])


def _sorted(keys: list[bytes]) -> None:
    ordered = SortedInput(MemoryView(), 1)
    elements = [Element(key, WINDOW, Timestamp(i * 104_729 % len(keys)), b"12345678") for i, key in enumerate(keys)]

    def take() -> None:
        while ordered.take(MAX_TIMESTAMP):
            pass

    _told("in order of time: add", len(keys), lambda: [ordered.add(each, MIN_TIMESTAMP) for each in elements])
    _told("in order of time: take", len(keys), take)


if __name__ == "__main__":
    main()
