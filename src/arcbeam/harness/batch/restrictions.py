"""Splittable DoFns on a bounded input: restrictions are processed, deferred, split and returned.

Owns which restriction of a task runs when, and the encoding of residuals for the next round. `harness.bundle.splitting`
requests splits. Must not know Spark.

A *round* is one pass over all shards. A task works for `Settings.sdf_round_seconds`. Restrictions that it has not
started by then, that were deferred for longer, and that were split off are returned as residual rows. The next round
distributes them over all shards.
"""

from __future__ import annotations

import heapq
import itertools
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from arcbeam.harness.batch.inputs import InputDriver
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.splittable import SplittableOperation
from arcbeam.harness.bundle.splitting import Splitter
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.frames import BLOB_BYTES
from arcbeam.model.rows import RESIDUAL, BundleReport, Row

_HEADER = struct.Struct("<q?HdI")
"""Header of a record in a residual blob: due, fresh, idle, size, length of the element that follows."""
_PAUSE, _PAUSE_MAX = 1_000, 1_000_000
"""Microseconds that a restriction waits that was deferred repeatedly without progress; doubled each time."""


@dataclass(frozen=True, slots=True)
class WaitingRestriction:
    """A waiting restriction.

    Attributes:
        element: the encoded windowed `((element, (restriction, estimator state)), size)`; may be decoded if fresh.
        size: the size, according to the restriction's provider.
        due: unix microseconds before which it must not be processed; 0: none.
        fresh: whether no part of it was processed. A fresh one enters through the stage's root, others through the
            operation that processes restrictions.
        idle: how often in a row it was deferred without any progress.
    """

    element: Any
    size: float
    due: int = 0
    fresh: bool = False
    idle: int = 0


def now_micros() -> int:
    """Return unix time in microseconds, rounded up."""
    return -(-time.time_ns() // 1000)


class RestrictionInput(InputDriver):
    """See `arcbeam.harness.batch.inputs.InputDriver`.

    Each task processes at least one restriction if one is due, whatever its budget, so that each round makes progress.
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
        self._later: list[tuple[int, int, WaitingRestriction]] = []  # a heap by due time
        self._read: list[WaitingRestriction] = []  # read and ready; the next one last
        self._split_off: list[WaitingRestriction] = []  # for other tasks
        self._in_bundle = 0
        self._bundle_began = 0.0

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
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
                # Deferred and new ones alternate, so that neither can starve the other.
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
        self._return_residuals(itertools.chain(self._split_off, ready, (entry for _, _, entry in self._later)), report)
        self._clear()

    # Reading.

    def _ready(self, rows: Iterable[Row]) -> Iterator[WaitingRestriction]:
        """Yield the restrictions that are due, read as needed; those that are due later are added to the heap."""
        for row in rows:
            if row.channel == RESIDUAL:
                read = list(_unpacked(row.blob))
            else:
                read = [
                    WaitingRestriction(element, element.value[1], fresh=True)
                    for element in self._blocks.decode(row.blob)
                ]
            now = now_micros()
            for entry in read:
                if entry.due > now:
                    self._defer(entry)
            self._read = [entry for entry in reversed(read) if entry.due <= now]
            while self._read:
                yield self._read.pop()

    def _defer(self, entry: WaitingRestriction) -> None:
        if self._processor.stage.finalizes and not entry.fresh:
            # Its DoFn may wait for the finalization callbacks of this task, which run after the task.
            self._split_off.append(entry)
            return
        heapq.heappush(self._later, (entry.due, next(self._sequence), entry))

    # Processing.

    def _process(self, entry: WaitingRestriction, splitter: Splitter) -> None:
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

    def _defer_rest(self, application: Any, processed: WaitingRestriction, progressed: bool) -> None:
        """Put what a restriction has deferred into the heap; without progress it waits longer each time."""
        deferred = now_micros()
        residual = self._residual(application, deferred + max(0, application.requested_time_delay.ToMicroseconds()))
        if not progressed and residual.element == processed.element:
            idle = min(processed.idle + 1, 20)
            pause = min(_PAUSE << idle, _PAUSE_MAX)
            residual = replace(residual, due=max(residual.due, deferred + pause), idle=idle)
        self._defer(residual)

    def _residual(self, application: Any, due: int) -> WaitingRestriction:
        left = self._operation.left(application)
        return WaitingRestriction(left.element, left.size, due)

    def _sleep(self, due: int, splitter: Splitter) -> bool:
        """Sleep until the time is reached; return False at once if that is beyond the task's budget."""
        if (due - now_micros()) / 1e6 > splitter.seconds_left:
            return False
        while (micros := due - now_micros()) > 0:
            time.sleep(micros / 1e6)
        return True

    # Returning residuals.

    def _pieces(self) -> int:
        """Return into how many pieces to split the running restriction: enough for all shards, with the other ones.

        So a task returns no more restrictions than the larger of the number of shards and the number that it had.
        """
        left = 1 + len(self._read) + len(self._later)
        return -(-self._settings.shards // left)

    def _return_residuals(self, left: Iterable[WaitingRestriction], report: BundleReport) -> None:
        """Write residual rows, distributed over the shards by size."""
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

    def _packed(self, entry: WaitingRestriction) -> bytes:
        element: bytes = (
            entry.element
            if isinstance(entry.element, bytes)
            else self._operation.root_coder.encode_nested(entry.element)
        )
        return _HEADER.pack(entry.due, entry.fresh, entry.idle, entry.size, len(element)) + element


def _unpacked(blob: bytes) -> Iterator[WaitingRestriction]:
    position, end = 0, len(blob)
    while position < end:
        due, fresh, idle, size, length = _HEADER.unpack_from(blob, position)
        start = position + _HEADER.size
        position = start + length
        yield WaitingRestriction(blob[start:position], size, due, fresh, idle)
