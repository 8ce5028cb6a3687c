"""Stateful stages on a bounded input: one key after the other, its elements first, then its timers.

Owns the order of events of a key, waiting for processing-time timers, and when a key's state is dropped.
`harness.state.timers` knows which timer fires next, `harness.state.handler` stores state, `harness.bundle.processor`
runs bundles.

While the elements of a key are processed, the watermark of its input is at the minimum; then it is at the maximum. All
elements of a key are adjacent, so other keys do not matter. Event-time timers then fire in the order of their
timestamps until none is left, including timers that are set by firings. Processing-time timers wait for the clock. A
key that has some is suspended with its state, the shard continues, and suspended keys fire in the order of due times.
Windows expire at the end of time: a key with nothing pending loses its state.

Nothing has to be committed between a key's elements and its timers. Within a bundle the SDK reads its own writes, and
timers arrive here as soon as they are set. It makes no difference where bundles are cut.

When nothing is pending for a key, its windows expire. A callback on that is called for each window that had elements.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

from apache_beam import coders
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from typing_extensions import override

from arcbeam.harness.batch.inputs import InputDriver
from arcbeam.harness.batch.keyblocks import InOrder, KeyBlocks, KeysOfOneKind, TimeSorted
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.encoding.blocks import Block, BlockCoder
from arcbeam.harness.state import bags
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.harness.state.timers import Family, KeyTimers, NotSet, PendingTimer, PendingTimers
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from arcbeam.model.plan import TimeDomain
from arcbeam.model.rows import BundleReport, Row
from arcbeam.sizes import threshold

bags.register()

_KEYS_PER_BUNDLE = threshold(16_384)
"""Keys of a bundle. Until the bundle ends, the SDK keeps state handles of each key, which take about a kilobyte."""
_KEYS = threshold(256)
"""Keys that are processed in one call."""
_END = int(MAX_TIMESTAMP.micros)


class ProcessingClock(Protocol):
    """Processing time, in microseconds since 1970."""

    def now(self) -> int:
        """Return the current time."""
        ...

    def wait_until(self, due: int) -> None:
        """Return when this time is reached."""
        ...


class SystemClock(ProcessingClock):
    """The system's clock."""

    @override
    def now(self) -> int:
        return time.time_ns() // 1000

    @override
    def wait_until(self, due: int) -> None:
        while (left := due - self.now()) > 0:
            time.sleep(left / 1e6)


class KeyedInput(InputDriver):
    """See `arcbeam.harness.batch.inputs.InputDriver`.

    Args:
        processor: the processor of a stage whose root has state or timers.
        clock: the clock of processing-time timers.
    """

    def __init__(self, processor: StageProcessor, clock: ProcessingClock | None = None) -> None:
        self._bundles = processor.bundles
        self._clock: ProcessingClock = clock or SystemClock()
        self._memory = processor.settings.group_memory_bytes
        taker = processor.root.output_blocks.only_taker
        self._keys: _Keys = _RunKeys(processor, taker) if isinstance(taker, StatefulOperation) else _SdkKeys(processor)
        self._timers = KeyTimers()
        self._families: list[Family] = []
        self._expirations: list[Family] = []
        for t in processor.stage.timers:
            timers = NotSet() if t.expiration else self._timers
            processing = t.domain is TimeDomain.PROCESSING
            family = Family(processor.sdk.ops[t.transform], t.family, processing, timers)
            (self._expirations if t.expiration else self._families).append(family)
        self._windows: dict[Any, None] = {}
        element, windows = processor.root.pcoll_coder.wrapped_value_coder, processor.root.pcoll_coder.window_coder
        self._decode_key: Callable[[bytes], Any] = element.key_coder().get_impl().decode
        values = BlockCoder(coders.WindowedValueCoder(element.value_coder(), windows))
        self._read: KeyBlocks = (TimeSorted if processor.root.how.time_sorted else InOrder)(values, self._memory)
        self._suspended: list[tuple[int, int, bytes, Any, PendingTimers, dict[Any, None]]] = []
        self._suspensions = 0

    @override
    def run(self, rows: Iterable[Row], report: BundleReport) -> None:
        self._suspended, self._suspensions = [], 0
        self._keys.begin_task()
        for some in self._read(rows):
            if (
                not (self._families or self._expirations)
                and isinstance(some, KeysOfOneKind)
                and self._keys.put_all(some)
            ):
                continue
            for encoded, blocks in some:
                self._process(encoded, blocks)
                while self._suspended and self._suspended[0][0] <= self._clock.now():
                    self._resume()
        while self._suspended:
            due = self._suspended[0][0]
            if due > self._clock.now():
                # Outputs in the open bundle must not wait for the clock.
                self._bundles.close()
                self._clock.wait_until(due)
            self._resume()
        self._bundles.close()
        self._keys.settle()

    def _process(self, encoded: bytes, blocks: Iterable[Block]) -> None:
        """Process all that is possible for a key now: its elements, then the timers that may fire."""
        key = self._decode_key(encoded)
        self._keys.enter(key, encoded, again=False)
        for block in blocks:
            self._keys.put(key, block)
            if self._expirations:
                self._windows.update(dict.fromkeys(window for each in block.elements() for window in each.windows))
        if self._families:
            timers = self._timers
            self._keys.fire(timers.event_timers(_END))
            while (due := timers.due()) is not None:
                now = self._clock.now()
                if due > now:
                    self._suspend(due, encoded, key)
                    self._keys.end_key(key, encoded, done=False)
                    return
                self._fire_processing_timer(now)
            timers.clear()
        self._expire(key)
        self._keys.end_key(key, encoded, done=True)

    def _suspend(self, due: int, encoded: bytes, key: Any) -> None:
        self._suspensions += 1
        windows, self._windows = self._windows, {}
        heapq.heappush(self._suspended, (due, self._suspensions, encoded, key, self._timers.suspend(), windows))

    def _resume(self) -> None:
        """Fire the earliest timer of all suspended keys."""
        due, _, encoded, key, suspended, self._windows = heapq.heappop(self._suspended)
        self._keys.enter(key, encoded, again=True)
        self._timers.resume(suspended)
        self._fire_processing_timer(due)
        next_due = self._timers.due()
        if next_due is not None:
            self._suspend(next_due, encoded, key)
        else:
            self._timers.clear()
            self._expire(key)
        self._keys.end_key(key, encoded, done=next_due is None)

    def _expire(self, key: Any) -> None:
        """Call the callbacks on expiration of the key's windows, in their order. What timers they set never fires."""
        if not self._expirations:
            return
        ends = sorted(((window.max_timestamp().micros, window) for window in self._windows), key=itemgetter(0))
        self._windows = {}
        families = self._expirations
        self._keys.fire(family.at_expiration(key, (window,), end) for end, window in ends for family in families)
        self._timers.clear()

    def _fire_processing_timer(self, now: int) -> None:
        timer = self._timers.take_processing(now)
        if timer is not None:
            # SUBTLE: the SDK gives a firing one timestamp, for its outputs and for timers that it sets. That must be an
            # event time. So the timer's hold is used, otherwise outputs would leave their window.
            self._keys.fire(iter((timer.fires_at_hold(),)))
            self._keys.fire(self._timers.event_timers(_END))


class _Keys(Protocol):
    """Processes a stage's keys one after the other: `enter`, elements and timers, `end_key`; later perhaps again."""

    def begin_task(self) -> None:
        """Reset: no key has been seen."""
        ...

    def enter(self, key: Any, encoded: bytes, *, again: bool) -> None:
        """Begin a key; `again` if it was left with something pending."""
        ...

    def put(self, key: Any, block: Block) -> None:
        """Process values of the key; the block's values are without the key."""
        ...

    def put_all(self, alike: KeysOfOneKind) -> bool:
        """Process all elements of complete keys, with `enter` and `end_key`; if impossible, return False."""
        ...

    def fire(self, timers: Iterator[PendingTimer]) -> None:
        """Fire timers of the key, each before the next is taken."""
        ...

    def end_key(self, key: Any, encoded: bytes, *, done: bool) -> None:
        """End a key; `done` if nothing is pending for it, so that its windows have expired."""
        ...

    def settle(self) -> None:
        """Complete pending work for keys that were left. No bundle is open."""
        ...


def _memory_of(processor: StageProcessor) -> InProcessStateHandler:
    """Return the state handler of a bounded stage."""
    assert isinstance(processor.state, InProcessStateHandler)
    return processor.state


class _RunKeys(_Keys):
    """Keys of our operation, which holds no state of a key that was left."""

    def __init__(self, processor: StageProcessor, operation: StatefulOperation) -> None:
        self._bundles, self._handler, self._op = processor.bundles, _memory_of(processor), operation
        operation.counts_for(processor.root.output_blocks)
        self._decode_key = processor.root.pcoll_coder.key_coder().get_impl().decode

    @override
    def begin_task(self) -> None:
        self._handler.clear_all()

    @override
    def enter(self, key: Any, encoded: bytes, *, again: bool) -> None:
        self._op.begin_key(key, fresh=not again)

    @override
    def put(self, key: Any, block: Block) -> None:
        self._bundles.put(self._op.put, block)

    @override
    def put_all(self, alike: KeysOfOneKind) -> bool:
        op, bundles, count = self._op, self._bundles, len(alike)
        if not op.takes_whole_keys or len(alike.like.windows) != 1 or count > bundles.room():
            return False
        keys = ((self._decode_key(key), values) for key, values in alike.values_of.items())
        # In groups, so that the clock is checked in between.
        while some := list(islice(keys, _KEYS)):
            bundles.open()
            op.put_whole_keys(some, alike.like)
            bundles.took(sum(len(values) for _, values in some))
        return True

    @override
    def fire(self, timers: Iterator[PendingTimer]) -> None:
        self._bundles.fire_each(self._op.fire, timers)

    @override
    def end_key(self, key: Any, encoded: bytes, *, done: bool) -> None:
        if self._op.end_key(keep=not done):
            nested = self._op.cells.encode_key(key)
            if done:
                self._handler.drop_key(nested)
            else:
                self._handler.suspend(nested)

    @override
    def settle(self) -> None:
        pass


class _SdkKeys(_Keys):
    """Keys of an SDK operation, which holds their state until a bundle ends. Only then it may be dropped or spilled.

    Invariant: `_open` are the keys of which the open bundle may hold state, by the key as the SDK compares it. `_left`
    are those that were left since the last bundle ended, and whether they are done.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._bundles = processor.bundles
        self._handler = _memory_of(processor)
        self._stateful = bool(processor.stage.states)
        key_coder = processor.root.pcoll_coder.key_coder().get_impl()
        self._encode_nested: Callable[[Any], bytes] = key_coder.encode_nested
        self.begin_task()

    @override
    def begin_task(self) -> None:
        self._count = self._bundles.count
        self._open: dict[Any, bytes] = {}
        self._left: dict[bytes, bool] = {}
        self._handler.clear_all()

    @override
    def enter(self, key: Any, encoded: bytes, *, again: bool) -> None:
        if not self._stateful:
            return
        if self._open.get(key, encoded) != encoded or len(self._open) >= _KEYS_PER_BUNDLE:
            # SUBTLE: within a bundle the SDK compares keys with `==`, but 1, 1.0 and True are three keys.
            self._bundles.close()
        if not self._bundles.is_open:
            self.settle()
        self._open[key] = encoded
        self._count = self._bundles.count

    @override
    def put(self, key: Any, block: Block) -> None:
        self._bundles.emit_block(block.with_values([(key, value) for value in block.values]))

    @override
    def put_all(self, alike: KeysOfOneKind) -> bool:
        return False

    @override
    def fire(self, timers: Iterator[PendingTimer]) -> None:
        for timer in timers:
            self._bundles.fire(timer.family.operation.process_timer, timer.family.name, timer.for_sdk())

    @override
    def end_key(self, key: Any, encoded: bytes, *, done: bool) -> None:
        if not self._stateful:
            return
        if self._bundles.count != self._count:
            # A bundle has ended meanwhile, so the SDK has released the state of earlier keys.
            self.settle()
            self._open[key] = encoded
        self._left[self._encode_nested(key)] = done

    def settle(self) -> None:
        """Drop the state of keys that were left and are done; suspend the others. The SDK does not hold their state."""
        for key, done in self._left.items():
            if done:
                self._handler.drop_key(key)
            else:
                self._handler.suspend(key)
        self._left, self._open = {}, {}
