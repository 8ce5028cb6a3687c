"""What the engine's grouping by key and window costs, on one core.

Elements arrive in micro-batches; in each, all elements of a key together. Then the watermark passes the micro-batch's
windows, their timers fire, and the panes are read. Measures processor time of the grouping only: elements are made
before, and timers are kept outside.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.effects import ClearTimer, Effect, EmitPane, SetTimer
from arcbeam.engine.grouping.groupings import Clocks, Grouping, KeyElement
from arcbeam.engine.grouping.merging import SessionMerging
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.stagekinds import Grouped
from arcbeam.engine.task.bundles import CallResult
from arcbeam.engine.task.groupedstage import GroupedLogic
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.watermarks.clocks import Clock, Port
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import IntervalWindow
from arcbeam.store.shards.overlay import EmptyBase, Overlay
from arcbeam.testing.views import MemoryView
from arcbeam.testing.windowfns import FixedWindows, Sessions, SlidingWindows, WindowFn
from bench.figures import Figure, core_seconds, per_second

SECOND = 1_000_000
MICRO_BATCH = 60 * SECOND
DEFAULT = Repeatedly(AfterWatermark())


class Total:
    """Adds up the lengths of values."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, values: Sequence[bytes]) -> int:
        return accumulator + sum(map(len, values))

    def merge(self, accumulators: Sequence[int]) -> int:
        return sum(accumulators)

    def compact(self, accumulator: int) -> int:
        return accumulator

    def extract(self, accumulator: int) -> int:
        return accumulator

    def encode(self, accumulator: int) -> bytes:
        return accumulator.to_bytes(8, "big")

    def decode(self, data: bytes) -> int:
        return int.from_bytes(data, "big")


def micro_batches_of(
    elements: int, micro_batches: int, keys: int, windowfn: WindowFn
) -> list[dict[bytes, list[KeyElement]]]:
    """Return the elements of each micro-batch by key; a micro-batch covers a minute of event time."""
    rng, same = random.Random(1), {}  # type: ignore[var-annotated]
    made = []
    for micro_batch in range(micro_batches):
        by_key = defaultdict(list)
        for n in range(elements // micro_batches):
            at = Timestamp(micro_batch * MICRO_BATCH + rng.randrange(MICRO_BATCH))
            windows = windowfn.assign(at)
            by_key[b"key%d" % rng.randrange(keys)].append(
                KeyElement(b"value-%08d" % n, at, same.setdefault(windows, windows))
            )
        made.append(dict(by_key))
    return made


def measure(strategy: Strategy, micro_batches: list[dict[bytes, list[KeyElement]]]) -> float:
    """Return seconds of processor time."""
    view = MemoryView()
    grouping = Grouping(strategy, view, b"stage")
    timers: dict[Any, Timestamp] = {}

    def carry_out(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                timers[effect.key, effect.window, effect.domain] = effect.at
            elif isinstance(effect, ClearTimer):
                timers.pop((effect.key, effect.window, effect.domain), None)
            elif isinstance(effect, EmitPane) and strategy.combiner is None:
                for _ in effect.contents:
                    pass

    watermark, spent = MIN_TIMESTAMP, 0.0
    gc.collect()
    gc.freeze()
    for number, by_key in enumerate(micro_batches, 1):
        started = time.process_time()
        clocks = Clocks(Timestamp(number), watermark, watermark)
        for key, elements in by_key.items():
            carry_out(grouping.add(key, elements, clocks))
        spent += time.process_time() - started
        watermark = Timestamp(number * MICRO_BATCH) if number < len(micro_batches) else MAX_TIMESTAMP
        due = sorted((at, name) for name, at in timers.items() if at < watermark)
        started = time.process_time()
        clocks = Clocks(Timestamp(number), watermark, watermark)
        for _, name in due:
            timers.pop(name, None)
            carry_out(grouping.fire(*name, clocks))
        spent += time.process_time() - started
    assert not len(view), "state is left"
    gc.unfreeze()
    return spent


FIXED = FixedWindows(Duration(MICRO_BATCH), Duration(0))
SLIDING = SlidingWindows(Duration(MICRO_BATCH), Duration(MICRO_BATCH // 3), Duration(0))
WORKS: dict[str, tuple[Strategy, WindowFn]] = {
    "elements": (Strategy(DEFAULT), FIXED),
    "earliest": (Strategy(DEFAULT, pane_time=PaneTime.EARLIEST), FIXED),
    "combined": (Strategy(DEFAULT, combiner=Total()), FIXED),
    "early": (Strategy(AfterWatermark(early=AfterCount(5))), FIXED),
    "sliding": (Strategy(DEFAULT), SLIDING),
    "sessions": (Strategy(DEFAULT, merging=SessionMerging()), Sessions(Duration(5 * SECOND))),
}
TEXTS = {
    "elements": "windows of a minute",
    "earliest": "the same at the earliest element's time",
    "combined": "the same with a combiner",
    "early": "the same with a pane after five elements",
    "sliding": "three sliding windows",
    "sessions": "sessions",
}


class _Reads:
    """User code that reads each pane."""

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for pane in panes:
            for _ in pane.contents:
                pass
        return _DID


class _NoEnd:
    """A budget without a limit."""

    def exhausted(self) -> bool:
        return False


_DID = CallResult()


def stage_seconds(micro_batches: list[dict[bytes, list[KeyElement]]]) -> float:
    """Return processor seconds of a whole grouping stage, with its holds and timers, over the store's overlays."""
    placed = StagePlacement(StageFlow("group", (Port("read", "main"),), ("main",), 1), 1, 1)
    kind = Grouped(Strategy(DEFAULT), IntervalWindow.from_ordered)
    watermark = reported = MIN_TIMESTAMP
    runner: Any = _Reads()
    nowhere: Any = None

    def run() -> None:
        nonlocal watermark, reported
        for number, by_key in enumerate(micro_batches, 1):
            view: Any = Overlay(EmptyBase())
            clock = Clock(view, 1, ("main",))
            clock.advance(watermark)
            place = StageContext(placed, 0, number, Timestamp(number), reported, view, clock, runner, nowhere, _NoEnd())
            work = GroupedLogic(place, kind)
            for key, elements in by_key.items():
                work.deliver(key, elements)
            watermark = Timestamp(number * MICRO_BATCH) if number < len(micro_batches) else MAX_TIMESTAMP
            clock.advance(watermark)
            assert not work.fire(watermark)
            assert place.tally.fired >= len(by_key)
            reported = watermark
            assert len(list(view.changes())) == 1, "state other than the clock is left"

    return core_seconds(run)


def stages(elements: int) -> list[Figure]:
    """Measure a grouping stage in a micro-batch, with few and with many elements per key, window and micro-batch."""
    figures = []
    for per_key in (1, 10, 100):
        micro_batches = micro_batches_of(elements, 10, elements // 10 // per_key, FIXED)
        target = 400.0 if per_key == 10 else None
        what = f"grouping stage, with its holds and timers: {per_key} of a key in a micro-batch"
        figures.append(per_second(what, elements, stage_seconds(micro_batches), target))
    return figures


def groups(elements: int) -> list[Figure]:
    """Measure each kind of grouping, with few and with many elements per key, window and micro-batch."""
    figures = []
    for name, (strategy, windowfn) in WORKS.items():
        for per_key in (1, 10, 100):
            micro_batches = micro_batches_of(elements, 10, elements // 10 // per_key, windowfn)
            target = 400.0 if name == "elements" and per_key == 10 else None
            what = f"grouping, {TEXTS[name]}: {per_key} of a key in a micro-batch"
            figures.append(per_second(what, elements, measure(strategy, micro_batches), target))
    return figures
