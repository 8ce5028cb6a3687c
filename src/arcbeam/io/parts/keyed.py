"""Part files by destination and shard: records travel to the task that writes them.

Owns the DoFns. In a bounded pipeline a grouping brings the records of a shard, and they are written as they are read.
In an unbounded pipeline a part is in progress while its records arrive, over many micro-batches. They are kept in the
state, so each commit and savepoint contains them. When the part is full or old, or its window ends, one attempt writes
the whole part. No file is ever appended to, and a failed micro-batch loses no part of a file.

Records are encoded where they are produced. They travel and wait in chunks: a call and a state write for each record
would cost several times as much as writing it. A chunk has one window. So late records are dropped, and counted, by
chunks. Parts are split inside of chunks, between records.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import TupleCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from typing_extensions import override

from arcbeam.io.parts.direct import Destination, key_of
from arcbeam.io.parts.naming import Span, check_destination
from arcbeam.io.parts.packs import Pack, missing, pack_coder, packed
from arcbeam.io.parts.packs import Plain as Packed
from arcbeam.io.parts.spans import span_of
from arcbeam.io.parts.staging import Staging
from arcbeam.io.parts.work import PartFile, PartWriter, Plain, Work
from arcbeam.io.publishing import attempt
from arcbeam.model.dofns import TakesLists
from arcbeam.model.rows import key_hash
from arcbeam.model.urns import STATE_ANNOTATION
from arcbeam.sizes import threshold

_RECORDS: Final = threshold(4_096)
"""Records of a chunk, approximately."""
_BYTES: Final = threshold(1 << 20)
"""Bytes of a chunk, approximately."""
_HELD_BYTES_MAX: Final = threshold(16 << 20)
"""Bytes of all incomplete chunks. Beyond it all are emitted: there is one per destination, window and shard."""
_OVERHEAD: Final = 48
"""Memory of a record besides its own bytes."""

Key = tuple[str, int]
"""Destination and shard."""


class _Chunk:
    """Records for the same destination and shard."""

    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.size = 0


class EncodedChunks(beam.DoFn, TakesLists):  # type: ignore[misc]  # Beam is untyped
    """Encodes records, and emits them as ((destination, shard), chunk).

    Args:
        work: what is written.
        destination: returns the destination of a record; None: there are no destinations.
        shards: number of shards of each destination and window. A hash of a record's encoding selects its shard.
    """

    def __init__(self, work: Work, destination: Destination | None, shards: int) -> None:
        self._encode, self._destination, self._shards = work.format.encode, destination, shards

    def start_bundle(self) -> None:
        """Start with no chunks."""
        self._chunks: dict[tuple[Any, Key], _Chunk] = {}
        self._held = 0
        self._known: set[str] = set()

    @override
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> Iterable[Any]:
        return self.take([element], window)

    @override
    def take(self, values: list[Any], window: Any) -> Iterable[Any]:
        if self._destination is None:
            return self._add("", window, values)
        by_destination = defaultdict(list)
        for record in values:
            by_destination[self._destination(record)].append(record)
        return [
            chunk
            for destination, records in by_destination.items()
            for chunk in self._add(self._checked(destination), window, records)
        ]

    def _checked(self, destination: str) -> str:
        if destination not in self._known:
            self._known.add(check_destination(destination))
        return destination

    def _add(self, destination: str, window: Any, records: list[Any]) -> list[Any]:
        encoded = self._encode(records)
        if self._shards == 1:
            return self._keep((destination, 0), window, encoded)
        by_shard = defaultdict(list)
        for record in encoded:
            by_shard[key_hash(record) % self._shards].append(record)
        return [chunk for shard, some in by_shard.items() for chunk in self._keep((destination, shard), window, some)]

    def _keep(self, key: Key, window: Any, encoded: list[bytes]) -> list[Any]:
        chunk = self._chunks.get((window, key))
        if chunk is None:
            chunk = self._chunks[window, key] = _Chunk()
        chunk.records += encoded
        size = sum(map(len, encoded))
        chunk.size += size
        self._held += size + _OVERHEAD * len(encoded)
        if len(chunk.records) >= _RECORDS or chunk.size >= _BYTES:
            del self._chunks[window, key]
            self._held -= chunk.size + _OVERHEAD * len(chunk.records)
            return [self._windowed(window, key, chunk)]
        return list(self.finish_bundle()) if self._held > _HELD_BYTES_MAX else []

    def finish_bundle(self) -> Iterator[Any]:
        """Emit the incomplete chunks."""
        chunks, self._chunks, self._held = self._chunks, {}, 0
        for (window, key), chunk in chunks.items():
            yield self._windowed(window, key, chunk)

    @staticmethod
    def _windowed(window: Any, key: Key, chunk: _Chunk) -> Any:
        # A part has the time of its window's end, so a chunk has, too. It holds no watermark that its window does not
        # hold.
        return WindowedValue((key, packed(chunk.records)), window.max_timestamp(), (window,))


class BoundedChunks(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Gives chunks of a bounded input the key of the grouping: (span, destination, shard).

    Args:
        coder: coder of the windows; None: windows merge, and are known after the grouping.
    """

    def __init__(self, coder: Any | None) -> None:
        self._coder = coder

    def process(
        self, element: tuple[Key, Packed], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[tuple[str, str, int], Packed]]:
        """Key a chunk."""
        (destination, shard), chunk = element
        of = "" if self._coder is None else json.dumps(span_of(window, self._coder).plain())
        yield (of, destination, shard), chunk


class WriteGrouped(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Takes ((span, destination, shard), chunks) of a bounded input, and emits part files with their keys.

    Args:
        work: what is written.
        coder: coder of the windows.
    """

    def __init__(self, work: Work, coder: Any) -> None:
        self._work, self._coder = work, coder

    @override
    def setup(self) -> None:
        self._staging = self._work.staging()

    def process(
        self, element: tuple[tuple[str, str, int], Iterable[Packed]], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[tuple[str, Plain]]:
        """Write a shard of a window."""
        (of, destination, shard), chunks = element
        span = Span(*json.loads(of)) if of else span_of(window, self._coder)
        for file in written(self._work, self._staging, span, destination, shard, 0, chunks):
            yield key_of(file), file.plain()


def written(
    work: Work, staging: Staging, span: Span, destination: str, shard: int, part: int, packs: Iterable[Packed]
) -> Iterator[PartFile]:
    """Write encoded records to as many parts as they need.

    Args:
        work: what is written.
        staging: the staging for the path.
        span: the window.
        destination: the records' destination.
        shard: the records' shard.
        part: number of the first part.
        packs: the records, in order.
    """
    writer: PartWriter | None = None
    size = 0
    try:
        for rest in map(Pack.of, packs):
            while len(rest):
                if writer is None:
                    of = (span, destination, (shard,), part)
                    writer, part, size = PartWriter(work, staging, attempt(), *of, named=True), part + 1, 0
                most = missing(work.roll, writer.records, size, rest)
                some, rest = rest.split(len(rest) if most is None else most)
                writer.add_pack(some)
                size += len(some.data)
                if most is not None:
                    yield writer.finish()
                    writer = None
        if writer is not None:
            yield writer.finish()
            writer = None
    finally:
        if writer is not None:
            writer.abandon()


class WriteWaitingRecords(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """Applies `WriteWaiting`, and declares how the records in its state are encoded.

    Args:
        work: what is written.
        coder: coder of the windows.
    """

    def __init__(self, work: Work, coder: Any) -> None:
        super().__init__(WriteWaiting(work, coder))
        self._form = f"records as {work.format.waits_as()}"

    @override
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), STATE_ANNOTATION: self._form.encode()}


class WriteWaiting(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Takes ((destination, shard), chunk) of an unbounded input, and emits part files with their keys.

    Args:
        work: what is written.
        coder: coder of the windows.
    """

    WAITING = BagStateSpec("records", pack_coder())
    """Encoded records of the part in progress."""
    OPEN = ReadModifyWriteStateSpec("open", TupleCoder([VarIntCoder(), VarIntCoder()]))
    """Number of these records, and their bytes."""
    PART = ReadModifyWriteStateSpec("part", VarIntCoder())
    """The number of the next part."""
    END = TimerSpec("end", TimeDomain.WATERMARK)
    AGE = TimerSpec("age", TimeDomain.REAL_TIME)
    IDLE = TimerSpec("idle", TimeDomain.REAL_TIME)

    def __init__(self, work: Work, coder: Any) -> None:
        self._work, self._coder = work, coder

    @override
    def setup(self) -> None:
        self._staging = self._work.staging()

    def process(
        self,
        element: tuple[Key, Packed],
        window: Any = beam.DoFn.WindowParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        opened: Any = beam.DoFn.StateParam(OPEN),
        part: Any = beam.DoFn.StateParam(PART),
        end: Any = beam.DoFn.TimerParam(END),
        age: Any = beam.DoFn.TimerParam(AGE),
        idle: Any = beam.DoFn.TimerParam(IDLE),
    ) -> Iterator[tuple[str, Plain]]:
        """Add a chunk to the part in progress, and write each part that becomes full."""
        key, chunk = element
        count, size = opened.read() or (0, 0)
        rest, new = Pack.of(chunk), count == 0
        while (most := missing(self._work.roll, count, size, rest) if len(rest) else None) is not None:
            some, rest = rest.split(most)
            packs = chain(waiting.read() if count else (), (some.plain(),))
            yield from self._write(key, window, part, packs)
            waiting.clear()
            count, size, new = 0, 0, True
        if not len(rest):
            self._closed(opened, end, age, idle)
            return
        waiting.add(rest.plain())
        opened.write((count + len(rest), size + len(rest.data)))
        roll = self._work.roll
        if new:
            end.set(window.max_timestamp())
            if roll.seconds is not None:
                age.set(Timestamp.now() + roll.seconds)
        if roll.idle_seconds is not None:
            idle.set(Timestamp.now() + roll.idle_seconds)

    def _write(self, key: Key, window: Any, part: Any, packs: Iterable[Packed]) -> Iterator[tuple[str, Plain]]:
        number = part.read() or 0
        span = span_of(window, self._coder)
        for file in written(self._work, self._staging, span, *key, number, packs):
            number += 1
            yield key_of(file), file.plain()
        part.write(number)

    @staticmethod
    def _closed(opened: Any, end: Any, age: Any, idle: Any) -> None:
        """Reset the state: no part is in progress."""
        opened.clear()
        for timer in (end, age, idle):
            timer.clear()

    @on_timer(END)  # type: ignore[untyped-decorator]
    @on_timer(AGE)  # type: ignore[untyped-decorator]
    @on_timer(IDLE)  # type: ignore[untyped-decorator]
    def due(
        self,
        key: Any = beam.DoFn.KeyParam,
        window: Any = beam.DoFn.WindowParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        opened: Any = beam.DoFn.StateParam(OPEN),
        part: Any = beam.DoFn.StateParam(PART),
        end: Any = beam.DoFn.TimerParam(END),
        age: Any = beam.DoFn.TimerParam(AGE),
        idle: Any = beam.DoFn.TimerParam(IDLE),
    ) -> Iterator[tuple[str, Plain]]:
        """Write the part when the window ends (late records make further parts), or at its age or idle limit."""
        if opened.read() is not None:
            yield from self._write(key, window, part, waiting.read())
            waiting.clear()
        self._closed(opened, end, age, idle)
