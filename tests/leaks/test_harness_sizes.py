"""The same of stages on the SDK's bundle processor: rows of state, and what a worker's objects and modules keep."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder, VarIntCoder
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, WithLate, deduplication, joins
from arcbeam.model.timestamps import Timestamp
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.leaks.sizes import in_modules, in_objects
from tests.leaks.test_sizes import FEW, LAST, PIECE, TIMES, grown, largest

CACHE_SIZES = {"_KNOWN_MAX", "_KNOWN_WINDOWS", "_WINDOWS_MAX", "_SESSIONS_MAX", "_STAMPS_MAX", "_KINDS_MAX"}
COUNT = PIECE * FEW * TIMES
SECOND = 1_000_000


class Keeps(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """State of every kind that lives as long as its window, or a few seconds, and timers that are set again."""

    BAG = userstate.BagStateSpec("bag", VarIntCoder())
    LAST = userstate.ReadModifyWriteStateSpec("last", VarIntCoder())
    SUM = userstate.CombiningValueStateSpec("sum", PickleCoder(), sum)
    SET = userstate.SetStateSpec("set", VarIntCoder())
    LIST = userstate.OrderedListStateSpec("list", PickleCoder())
    SOON = userstate.TimerSpec("soon", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        time: Any = beam.DoFn.TimestampParam,
        bag: Any = beam.DoFn.StateParam(BAG),
        last: Any = beam.DoFn.StateParam(LAST),
        sum: Any = beam.DoFn.StateParam(SUM),
        set: Any = beam.DoFn.StateParam(SET),
        list: Any = beam.DoFn.StateParam(LIST),
        soon: Any = beam.DoFn.TimerParam(SOON),
    ) -> Iterator[Any]:
        number = element[1]
        bag.add(number)
        last.write(number)
        sum.add(number)
        sum.read()
        set.add(number % 3)
        list.add((time, str(number)))
        list.clear_range(SdkTimestamp(0), time - 5)
        soon.set(time + 4, dynamic_timer_tag=str(number % 4))
        soon.set(time + 3, dynamic_timer_tag=str(number % 4))
        yield element

    @userstate.on_timer(SOON)
    def on_soon(self, bag: Any = beam.DoFn.StateParam(BAG), set: Any = beam.DoFn.StateParam(SET)) -> Iterator[Any]:
        bag.clear()
        set.clear()
        yield from ()


def fixed(p: Any) -> Any:
    return p | beam.WindowInto(window.FixedWindows(10))


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "state in windows": lambda p: fixed(p) | beam.ParDo(Keeps()),
    "state in the global window": lambda p: p | beam.ParDo(Keeps()),
    "deduplication": lambda p: p | DeduplicateWithinWatermark(5, key=lambda element: element[1] % 7),
    "a join": lambda p: (
        (
            p,
            p | "doubled" >> beam.Map(lambda pair: pair),
        )
        | JoinWithin(before=3, after=4)
    ),
    "batches": lambda p: fixed(p) | beam.GroupIntoBatches(3),
    "windows": lambda p: fixed(p) | beam.GroupByKey(),
    "overlapping windows": lambda p: p | beam.WindowInto(window.SlidingWindows(10, 2)) | beam.CombinePerKey(sum),
    "sessions": lambda p: (
        p
        | beam.WindowInto(
            window.Sessions(2),
            trigger=trigger.AfterWatermark(early=trigger.AfterCount(2), late=trigger.AfterCount(1)),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
            allowed_lateness=6,
        )
        | beam.GroupByKey()
    ),
    "late elements": lambda p: (fixed(p) | WithLate(beam.GroupByKey()))[0],
}


class Steady:
    """Cuts what comes into equal micro-batches; each begins when its elements' time has come, and sizes are taken.

    Attributes:
        sizes: by micro-batch.
    """

    def __init__(self) -> None:
        self.sizes: dict[int, Counter[str]] = {}
        self.micro_batches = 0

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        arrived = sorted(arrived, key=lambda pair: pair[1][1])
        size = len(arrived) // (FEW * TIMES)
        for micro_batch, start in enumerate(range(0, len(arrived), size)):
            now = arrived[start : start + size]
            times = [time for _, (_, time, _, _) in now]
            shard.settle(
                MicroBatch([(key, [one]) for key, one in now], Timestamp(min(times) - SECOND), Timestamp(max(times)))
            )
            self.micro_batches = micro_batch + 1
            if any(at - LAST <= micro_batch < at for at in (FEW, FEW * TIMES)):
                self.sizes[micro_batch] = self._sizes(shard)

    def _sizes(self, shard: Shard) -> Counter[str]:
        inside = ("arcbeam.", "apache_beam.runners.worker.")
        found = in_objects(shard.stage, inside=inside)
        found += in_modules("arcbeam.engine", "arcbeam.harness", "arcbeam.io", "arcbeam.model")
        rows = list(shard.view.scan(b""))
        found["rows"], found["bytes of rows"] = len(rows), sum(len(key) + len(value) for key, value in rows)
        return found


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that have a bound reach it within the first micro-batches, and so do lists that are kept in two ways."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("arcbeam.engine", "arcbeam.harness")):
            for holder in (module, *(each for each in vars(module).values() if isinstance(each, type))):
                for bound in CACHE_SIZES & vars(holder).keys():
                    monkeypatch.setattr(holder, bound, 10)
    for module in (deduplication, joins):
        monkeypatch.setattr(module, "ELEMENTS_MAX", 2)


SAMPLE = ("state in windows", "deduplication", "a join", "sessions")
"""The others are long."""
NAMES = [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in PIPELINES]


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("name", NAMES)
def test_stage_does_not_grow_with_micro_batches(name: str) -> None:
    cut = Steady()
    elements = [("abcde"[n % 5], n, n) for n in range(COUNT)]
    with InMicroBatches(cut) as p:
        arrived = p | beam.Create(elements, reshuffle=False)
        timed = arrived | beam.Map(lambda e: window.TimestampedValue(e[:2], e[2])).with_output_types(tuple[str, int])
        PIPELINES[name](timed) | beam.Map(lambda _: None) | Collect()
    assert cut.micro_batches >= FEW * TIMES
    assert grown(largest(cut.sizes, FEW), largest(cut.sizes, FEW * TIMES)) == {}
