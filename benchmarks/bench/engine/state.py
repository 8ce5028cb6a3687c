"""What the engine's cells cost, and what the store's copies of shards cost: state on a local disk.

Each function measures once and returns its figures; the caller decides how often, and in what order.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.shards import cache
from arcbeam.store.shards.compaction import opened
from arcbeam.testing.views import MemoryView
from bench.engine.views import DiskShard
from bench.figures import Figure, core_seconds, per_second, wall_seconds

WINDOW = (1_700_000_000_000 + (1 << 63)).to_bytes(8, "big") + b"\xe0\xd4\x03"
VALUE = b"12345678"
MIB = 2**20
TOUCHED = 50_000
"""Keys that a micro-batch changes when memory is measured."""
MEMORY_KEYS = (100_000, 1_000_000, 4_000_000)


def key_of(number: int) -> bytes:
    return b"user-key-%08d" % number


class Value(BagCell):
    """A state of one value, as the SDK's is kept: a bag that is read, and filled again."""

    def value(self, key: bytes, window: bytes) -> bytes | None:
        return next(self.read(key, window), None)

    def write(self, key: bytes, window: bytes, value: bytes) -> None:
        self.replace(key, window, (value,))


def rows_of(keys: int, value: bytes = VALUE) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the rows of a state with one value for each of this many keys, ascending."""
    view = MemoryView()
    Value(Cells(view, 1), "value").write(key_of(0), WINDOW, value)
    ((row, stored),) = view.snapshot().items()
    head, _, tail = row.partition(key_of(0))
    return ((head + key_of(n) + tail, stored) for n in range(keys))


def on_disk(keys: int, folder: Path) -> list[Figure]:
    """Measure a value for each of `keys` keys on disk; a micro-batch reads and writes a third of them, at random."""
    shard = DiskShard(folder)
    shard.fill(rows_of(keys))
    shard.view().close()
    chosen = [key_of(n) for n in random.Random(1).sample(range(keys), keys // 3)]
    view = shard.view()
    value = Value(Cells(view, 1), "value")

    def modify() -> None:
        read, write = value.value, value.write
        for key in chosen:
            assert read(key, WINDOW) == VALUE
            write(key, WINDOW, b"87654321")

    modified = core_seconds(modify)
    committed = core_seconds(lambda: shard.commit(view))
    applied = core_seconds(lambda: shard.view().close())
    shard.forget()
    size = f"{_short(keys)} keys on disk"
    return [
        per_second(f"a value: read, modify, write; {size}", len(chosen), modified, 300),
        per_second("… with writing the micro-batch's delta", len(chosen), modified + committed),
        per_second("… and applying it to the copy", len(chosen), modified + committed + applied),
    ]


def in_memory(count: int) -> list[Figure]:
    """Measure cells over a view in memory: the cost of the engine only."""
    keys = [key_of(n * 7919 % count) for n in range(count)]
    cells = Cells(MemoryView(), 1)
    value, bag, ordered = Value(cells, "value"), BagCell(cells, "bag"), OrderedListCell(cells, "list")

    def modify() -> None:
        read, write = value.value, value.write
        for key in keys:
            read(key, WINDOW)
            write(key, WINDOW, VALUE)

    def each(add: Callable[[bytes, bytes, bytes], None]) -> Callable[[], None]:
        def work() -> None:
            for key in keys:
                add(key, WINDOW, VALUE)

        return work

    def insert(key: bytes, window: bytes, value: bytes) -> None:
        ordered.add(key, window, Timestamp(7), value)

    def hot() -> None:
        for _ in keys:
            bag.add(b"hot", WINDOW, VALUE)

    modify()
    return [
        per_second("a value: read, modify, write; in memory", count, core_seconds(modify)),
        per_second("bag: add, new keys", count, core_seconds(each(bag.add))),
        per_second("bag: add, one key", count, core_seconds(hot)),
        per_second("bag: read a value", count, core_seconds(lambda: sum(1 for _ in bag.read(b"hot", WINDOW)))),
        per_second("ordered list: add, new keys", count, core_seconds(each(insert))),
    ]


def copies(megabytes: int, folder: Path) -> list[Figure]:
    """Measure a large shard: opened if its copy exists, and copied to this host if not."""
    shard = DiskShard(folder)
    value = bytes(range(256)) * 4
    keys = megabytes * MIB // (len(value) + 40)
    shard.fill(rows_of(keys, value))
    size = shard.file.stat().st_size / MIB

    def read_whole() -> None:
        with shard.file.open("rb") as file:
            while file.read(MIB):
                pass

    plain = min(wall_seconds(read_whole) for _ in range(3))
    checked = core_seconds(lambda: [None for _ in opened(shard.blobs, shard.version.files[0]).blocks()])
    brought = core_seconds(lambda: shard.view().close())
    again = min(wall_seconds(lambda: shard.view().close()) for _ in range(5))
    first = min(_opened_first(shard) for _ in range(5))
    shard.forget()
    named = f"a shard of {size / 1024:.2g} GiB"
    return [
        Figure(f"open {named} at its committed version, cached", first * 1e3, "ms", 50),
        Figure("… by a process that has opened it before", again * 1e3, "ms"),
        Figure("recover it without a copy", size / brought, "MiB/s"),
        Figure("read and check its file", size / checked, "MiB/s"),
        Figure("read its file without checks", size / plain, "MiB/s"),
    ]


def _opened_first(shard: DiskShard) -> float:
    """Return the seconds to open it in a process that has not opened it before."""
    cache._databases.close_below(shard.copies)
    return wall_seconds(lambda: shard.view().close())


def memory(scale: float = 1.0) -> list[Figure]:
    """Measure the memory of a process that does the same micro-batch on shards of more and more keys."""
    figures = []
    for keys in MEMORY_KEYS:
        keys = int(keys * scale)
        command = [sys.executable, "-m", "bench.engine.memory", str(keys)]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=600
        )
        what = f"peak memory of a micro-batch that changes {TOUCHED // 1000} k keys of {_short(keys)} on disk"
        figures.append(Figure(what, float(done.stdout), "MiB"))
    most, more = figures[-1].value, figures[-2].value
    return [*figures, Figure("… the last to the one before", most / more, "times", 1.1)]


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder on the project's disk: a temporary folder may be in memory."""
    build = Path(__file__).resolve().parents[3] / "build"
    build.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="bench-", dir=build)


def _short(number: int) -> str:
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number / 1e3:g} k"
