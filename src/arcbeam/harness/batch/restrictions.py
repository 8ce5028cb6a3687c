"""Splittable DoFns on a bounded input: restrictions are processed, deferred, split and handed back.

Owns which restriction of a task runs when, and the form of what is left for the next round. Splits are asked for by
`harness.bundle.splitting`. Must not know Spark.

A *round* is one pass over all shards. A task works for `Settings.sdf_round_seconds`; what has not been started by then,
what was deferred beyond, and what was split off goes back as residual rows, which the next round spreads over all
shards again.
"""

from __future__ import annotations

import heapq
import itertools
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.splittable import SplittableOperation
from arcbeam.harness.bundle.splitting import Splitter
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.frames import BLOB_BYTES
from arcbeam.model.rows import RESIDUAL, BundleReport, Row

_HEADER = struct.Struct("<q?HdI")
"""Of a record in a residual blob: due, fresh, idle, size, length of the element that follows."""
_PAUSE, _LONGEST_PAUSE = 1_000, 1_000_000
"""Microseconds that a restriction waits which was put off again and again with nothing done; doubled each time."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A restriction that waits for its turn.

    Attributes:
        element: the encoded windowed `((element, (restriction, estimator state)), size)`, or decoded while it is fresh.
        size: as the restriction's provider sees it.
        due: unix microseconds before which it must not be processed; 0: none.
        fresh: no part of it was processed; it enters through the stage's root, others through the process operation.
        idle: how often in a row it was deferred without any progress.
    """

    element: Any
    size: float
    due: int = 0
    fresh: bool = False
    idle: int = 0


def now_micros() -> int:
    """Unix time, rounded up."""
    return -(-time.time_ns() // 1000)


class RestrictionInput:
    """See `arcbeam.harness.batch.inputs.InputDriver`.

    Each task processes at least one restriction if one is due, whatever its budget, so that rounds make progress.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self._bundles = processor.bundles
        self._settings = processor.settings
        self._operation = SplittableOperation(processor)
        self._blocks = BlockCoder(processor.root.written_coder)
        self._sequence = itertools.count()
        self._clear()

    def _clear(self) -> None:
        self._later: list[tuple[int, int, Waiting]] = []  # a heap by due time
        self._read: list[Waiting] = []  # read and ready; the next one last
        self._split_off: list[Waiting] = []  # for other tasks
        self._in_bundle = 0
        self._bundle_began = 0.0

    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        """See `InputDriver`."""
        self._clear()
        ready = self._ready(rows)
        seconds = self._settings.sdf_round_seconds
        with Splitter(
            self._operation.op, self._processor.sdk.delayed_bundle_application, seconds, self._pieces
        ) as splitter:
            started = False
            prefer_deferred = True
            while not (started and splitter.overdue):
                deferred = bool(self._later) and self._later[0][0] <= now_micros()
                # Deferred and new ones take turns, so that neither starves the other.
                entry = None if deferred and prefer_deferred else next(ready, None)
                if entry is None and self._later and self._later[0][0] <= now_micros():
                    entry = heapq.heappop(self._later)[2]
                    prefer_deferred = False
                else:
                    prefer_deferred = True
                if entry is not None:
                    self._process(entry, splitter)
                    started = True
                else:
                    self._bundles.close()
                    if not self._later or not self._sleep(self._later[0][0], splitter):
                        break
            self._bundles.close()
        self._hand_back(itertools.chain(self._split_off, ready, (entry for _, _, entry in self._later)), report)
        self._clear()

    # Reading.

    def _ready(self, rows: Iterable[Row]) -> Iterator[Waiting]:
        """The restrictions that may be processed at once, read as needed; those that are due later go to the heap."""
        for row in rows:
            if row.channel == RESIDUAL:
                read = list(_unpacked(row.blob))
            else:
                read = [Waiting(element, element.value[1], fresh=True) for element in self._blocks.decode(row.blob)]
            now = now_micros()
            for entry in read:
                if entry.due > now:
                    self._defer(entry)
            self._read = [entry for entry in reversed(read) if entry.due <= now]
            while self._read:
                yield self._read.pop()

    def _defer(self, entry: Waiting) -> None:
        if self._processor.stage.finalizes and not entry.fresh:
            # Its DoFn may wait for the callbacks of this task: they run when the task has ended.
            self._split_off.append(entry)
            return
        heapq.heappush(self._later, (entry.due, next(self._sequence), entry))

    # Processing, one at a time.

    def _process(self, entry: Waiting, splitter: Splitter) -> None:
        bundles = self._bundles
        if not bundles.is_open:
            bundles.open()
            self._in_bundle, self._bundle_began = 0, time.monotonic()
        operation, element = self._operation, entry.element
        if not entry.fresh:
            element = operation.op_coder.decode_nested(element)
        elif isinstance(element, bytes):
            element = operation.root_coder.decode_nested(element)
        processed = operation.process(element, splitter, fresh=entry.fresh)
        self._split_off += [self._residual(application, 0) for application in processed.split_off]
        for application in processed.deferred:
            self._defer_rest(application, entry, processed.made > 0)
        bundles.elements += 1
        self._in_bundle += 1
        settings = self._settings
        if (
            self._in_bundle >= settings.bundle_elements
            or time.monotonic() - self._bundle_began > settings.bundle_seconds
        ):
            bundles.close()

    def _defer_rest(self, application: Any, processed: Waiting, progressed: bool) -> None:
        """What a restriction has deferred waits for its time; longer and longer if it gets nowhere."""
        deferred = now_micros()
        residual = self._residual(application, deferred + max(0, application.requested_time_delay.ToMicroseconds()))
        if not progressed and residual.element == processed.element:
            idle = min(processed.idle + 1, 20)
            pause = min(_PAUSE << idle, _LONGEST_PAUSE)
            residual = replace(residual, due=max(residual.due, deferred + pause), idle=idle)
        self._defer(residual)

    def _residual(self, application: Any, due: int) -> Waiting:
        left = self._operation.left(application)
        return Waiting(left.element, left.size, due)

    def _sleep(self, due: int, splitter: Splitter) -> bool:
        """Sleeps until the time has come; False, at once, if that is beyond the task's budget."""
        if (due - now_micros()) / 1e6 > splitter.seconds_left:
            return False
        while (micros := due - now_micros()) > 0:
            time.sleep(micros / 1e6)
        return True

    # Handing back.

    def _pieces(self) -> int:
        """Into how many pieces to split what runs: enough for all shards, together with what else is left here.

        So a task hands back no more than the larger of the number of shards and of the restrictions it had.
        """
        left = 1 + len(self._read) + len(self._later)
        return -(-self._settings.shards // left)

    def _hand_back(self, left: Iterable[Waiting], report: BundleReport) -> None:
        """Writes what is left as residual rows, spread over the shards by size."""
        context, shards = self._processor.context, self._settings.shards
        loads = [(0.0, 0, (shard - context.partition) % shards, shard) for shard in range(shards)]
        heapq.heapify(loads)
        blobs: dict[int, bytearray] = {}
        earliest: int | None = None
        for entry in left:
            load, count, order, shard = loads[0]
            heapq.heapreplace(loads, (load + entry.size, count + 1, order, shard))
            blob = blobs.setdefault(shard, bytearray())
            blob += self._packed(entry)
            if len(blob) > BLOB_BYTES:
                context.outbox.put(Row(RESIDUAL, shard, 0, bytes(blobs.pop(shard))))
            report.residuals += 1
            earliest = entry.due if earliest is None else min(earliest, entry.due)
        for shard, blob in blobs.items():
            context.outbox.put(Row(RESIDUAL, shard, 0, bytes(blob)))
        if earliest is not None and earliest > now_micros():
            report.next_due = earliest / 1e6

    def _packed(self, entry: Waiting) -> bytes:
        element: bytes = (
            entry.element
            if isinstance(entry.element, bytes)
            else self._operation.root_coder.encode_nested(entry.element)
        )
        return _HEADER.pack(entry.due, entry.fresh, entry.idle, entry.size, len(element)) + element


def _unpacked(blob: bytes) -> Iterator[Waiting]:
    position, end = 0, len(blob)
    while position < end:
        due, fresh, idle, size, length = _HEADER.unpack_from(blob, position)
        start = position + _HEADER.size
        position = start + length
        yield Waiting(blob[start:position], size, due, fresh, idle)
