"""A whole job in memory: tasks, exchange, state, commits, a clock; driven by the real driver.

Stages: `read` and `rates` are splittable sources of events; `sum` groups those of `read` by key and minute-like window;
`join` reads the last rate of a window as a side input; `alarm` keeps a count by key and window, and outputs it by a
timer. Their output goes to a sink and counts once the micro-batch is committed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arcbeam.engine.coordinator import (
    AT_BEGINNING,
    CoordinatorSettings,
    End,
    Event,
    JobMachine,
    JobStarted,
    MicroBatchPlan,
    Propose,
    Retry,
)
from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageSpec, Stateful
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, RestrictionResult, TimerSet
from arcbeam.engine.task.shard import EngineTask
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.plan import TimeDomain
from arcbeam.model.script import AddElements, ScriptEvent
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, IntervalWindow, Window
from arcbeam.streaming.driver.driver import JobDriver, drive
from arcbeam.testing.views import MemoryView
from arcbeam.testing.windowfns import FixedWindows
from tests.engine.around import Around

SIZE = 10
WINDOWS = FixedWindows(Duration(SIZE), Duration(0))
READ, RATES = Port("read", "main"), Port("rates", "main")
SHARDS = 2


def _placed(number: int, name: str, level: int, *inputs: Port, **more: Any) -> StagePlacement:
    return StagePlacement(StageFlow(name, inputs, ("main",), SHARDS), number, level, **more)


LAYOUT = Layout(
    (
        _placed(1, "read", 0),
        _placed(2, "rates", 0),
        _placed(3, "sum", 1, READ),
        _placed(4, "alarm", 1, READ),
        _placed(5, "join", 1, READ, side_inputs=(("rates", RATES),)),
    ),
    SHARDS,
    (2, 2),
)
_STAGES = {placed.name: placed for placed in LAYOUT.stages}


def _end(window: Window) -> Timestamp:
    return window.max_timestamp


SPECS = {
    "read": StageSpec(_STAGES["read"], Splittable()),
    "rates": StageSpec(_STAGES["rates"], Splittable()),
    "sum": StageSpec(_STAGES["sum"], Grouped(Strategy(Repeatedly(AfterWatermark())), IntervalWindow.from_ordered)),
    "alarm": StageSpec(_STAGES["alarm"], Stateful({"end": TimeDomain.EVENT}, IntervalWindow.from_ordered, _end)),
    "join": StageSpec(_STAGES["join"], Plain(), IntervalWindow.from_ordered),
}


SCRIPTED = replace(
    LAYOUT, stages=tuple(replace(placed, scripted=placed.name in ("read", "rates")) for placed in LAYOUT.stages)
)
"""The same, but a script provides the sources' elements; values are keys."""


_PATIENT = CoordinatorSettings(retry=Retry(1000, Duration(1), Duration(1)))
"""A micro-batch is retried however often it fails."""


@dataclass(frozen=True)
class Feed:
    """A source's events (key, time), in the order in which they arrive.

    Attributes:
        pause: processing time until the next event can be read, after every `every` events.
        piece: how many are read before a checkpoint.
        poll_at: the processing time at which to look for more, 0 for at once; None: the source has ended.
    """

    events: Sequence[tuple[bytes, int]]
    every: int = 5
    pause: int = 0
    piece: int = 3
    poll_at: int | None = None

    def watermark(self, at: int) -> Timestamp:
        """A correct watermark: the earliest of the following events."""
        more = (
            MAX_TIMESTAMP if self.poll_at is None else Timestamp(1 + max((time for _, time in self.events), default=0))
        )
        return min((Timestamp(time) for _, time in self.events[at:]), default=more)


class Counted:
    """A budget of this many looks, whatever parts of it are requested."""

    def __init__(self, looks: int, parts: list[float]) -> None:
        self.looks, self.parts = looks, parts

    def exhausted(self) -> bool:
        self.looks -= 1
        return self.looks <= 0

    def part(self, fraction: float) -> Counted:
        self.parts.append(fraction)
        return self


@dataclass
class Attempt:
    """The results of one attempt of a micro-batch so far."""

    rows: dict[tuple[str, int], list[tuple[bytes, list[WindowedElement]]]] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    views: dict[tuple[int, int], MemoryView] = field(default_factory=dict)
    rates: dict[bytes, list[int]] = field(default_factory=dict)
    out: list[tuple[Any, ...]] = field(default_factory=list)
    drops: list[object] = field(default_factory=list)
    read_in: list[int] = field(default_factory=list)
    prepared: int = 0


class Nothing:
    """A runner of a stage; calls that do not fit the stage's kind fail."""

    def __init__(self, toy: Toy, attempt: Attempt, stage: str, shard: int, view: MemoryView) -> None:
        self.toy = toy
        self.attempt = attempt
        self.stage = stage
        self.shard = shard
        self.view = view
        self.published: set[Port] = set()
        self.wrote = False

    def put_out(self, *row: Any) -> CallResult:
        self.wrote = True
        self.attempt.out.append((self.stage, *row))
        return CallResult(1)

    together = 1

    def settle(self) -> CallResult:
        raise AssertionError(f"results of {self.stage} never come later")

    def fire_together(self, lot: Sequence[Fired]) -> CallResult:
        raise AssertionError(f"{self.stage} fires one timer after the other")

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        raise AssertionError(f"{self.stage} has no elements")

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        raise AssertionError(f"{self.stage} has no panes")

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        for fired in due:
            led_to(self.call(fired))

    def call(self, fired: Fired) -> CallResult:
        raise AssertionError(f"{self.stage} has no timers")

    def expire(self, key: bytes, window: Window) -> CallResult:
        raise AssertionError(f"{self.stage} has no callback")

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        raise AssertionError(f"{self.stage} has no restrictions")

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        raise AssertionError(f"{self.stage} has no restrictions")

    def truncate(self, restriction: Restriction) -> Remainder | None:
        raise AssertionError(f"{self.stage} has no restrictions")

    def prepare(self) -> CallResult:
        self.attempt.prepared += 1
        return CallResult()

    def finish(self) -> BundleResult:
        committables = (Committable(self.stage, b"part"),) if self.wrote else ()
        return BundleResult(published=tuple(self.published), committables=committables)


class Source(Nothing):
    """Reads positions `lo` to `hi` of a feed."""

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        return Remainder(element[0], float(len(element[0])))

    def truncate(self, restriction: Restriction) -> Remainder | None:
        self.toy.truncated += 1
        return None

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        feed = self.toy.feeds[self.stage]
        lo, hi = map(int, restriction.remainder.element.split(b":"))
        splits: list[Remainder] = []
        if self.toy.chance.random() < 0.3 and hi - lo > 4:
            # The second half is split off, and this one ends earlier.
            half = (lo + hi) // 2
            splits.append(self._rest(half, hi, None))
            hi = half
        for count, at in enumerate(range(lo, hi)):
            if count and (count >= feed.piece or budget.exhausted()):
                due = self.toy.now + feed.pause if feed.pause and at % feed.every == 0 else None
                return RestrictionResult((*splits,), self._rest(at, hi, due), CallResult(count))
            self._read(*feed.events[at])
        if feed.poll_at is not None and hi == len(feed.events):
            return RestrictionResult((*splits,), self._rest(hi, hi, feed.poll_at or None), CallResult(hi - lo))
        return RestrictionResult((*splits,), None, CallResult(hi - lo))

    def _rest(self, lo: int, hi: int, due: int | None) -> Remainder:
        mark = self.toy.feeds[self.stage].watermark(lo)
        return Remainder(b"%d:%d" % (lo, hi), hi - lo, None if due is None else Timestamp(due), {"main": mark})

    def _read(self, key: bytes, time: int) -> None:
        windows = WINDOWS.assign(Timestamp(time))
        if self.stage == "rates":
            for window in windows:
                self.attempt.rates.setdefault(window.ordered(), []).append(time)
            self.published.add(RATES)
            return
        self.attempt.read_in.append(self.shard)
        element = (b"%d" % time, Timestamp(time), windows, NO_PANE)
        for stage in ("sum", "alarm", "join"):
            self.attempt.rows.setdefault((stage, sum(key) % SHARDS), []).append((key, [element]))


class Scripted(Source):
    """Reads a script's elements: keys, each with its time."""

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        for value, time, _, _ in elements:
            self._read(value, time)
        return CallResult(len(elements))


class Sum(Nothing):
    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for pane in panes:
            values = sorted(int(value) for value in pane.contents)
            self.put_out(pane.key, pane.window.max_timestamp, tuple(values), pane.pane.timing.value)
        return CallResult(len(panes))


class Alarm(Nothing):
    """Counts, and outputs the count when the window ends."""

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        cell, timers = self._cell(), {}
        for _, _, windows, _ in elements:
            for window in windows:
                encoded = window.ordered()
                cell.add(key, encoded, b"one more")
                # A time after the window's end: it fires at the end.
                fire_at = Timestamp(window.max_timestamp + 3)
                timers[window] = TimerSet(key, window, "end", fire_at, window.max_timestamp)
        return CallResult(0, tuple(timers.values()))

    def call(self, fired: Fired) -> CallResult:
        count = len(list(self._cell().read(fired.key, fired.window)))
        assert count
        return self.put_out(fired.key, IntervalWindow.from_ordered(fired.window).max_timestamp, count)

    def _cell(self) -> BagCell:
        return BagCell(Cells(self.view, _STAGES["alarm"].number), "count")


class Join(Nothing):
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        for value, _, windows, _ in elements:
            for window in windows:
                rates = self.toy.rates.get(window.ordered(), [])
                self.put_out(key, int(value), bool(rates))
        return CallResult(len(elements))


_RUNNERS = {"read": Source, "rates": Source, "sum": Sum, "alarm": Alarm, "join": Join}


class Toy:
    """The job. What counts: `out` (committed, published), `drops`, `read_in` (elements by shard), `parts` of budgets.

    Args:
        feeds: the feeds of the sources.
        seed: the seed of all random choices.
        failures: the share of runs of micro-batches that fail.
        doubles: how often the tasks of the first level run twice, and one of the second level reads the second output.
        looks: the budget of a task.
        script: provides the input, if there are no feeds.
    """

    def __init__(
        self,
        feeds: Mapping[str, Feed],
        seed: int = 0,
        failures: float = 0.0,
        looks: int = 5,
        doubles: float = 0.0,
        script: Sequence[ScriptEvent] | None = None,
    ) -> None:
        self.feeds, self.script, self.script_place = feeds, script, AT_BEGINNING
        self.layout = LAYOUT if script is None else SCRIPTED
        self.levels = len(LAYOUT.tasks)
        self.chance = random.Random(seed)
        self.failures = failures
        self.doubles = doubles
        self.looks = looks
        self.now = Timestamp(1000)
        self.store: dict[tuple[int, int], dict[bytes, bytes]] = {}
        self.rates: dict[bytes, list[int]] = {}
        self.head, self.head_time, self.times = 0, Timestamp(0), WatermarkTimes()
        self.out: list[tuple[Any, ...]] = []
        self.drops: list[object] = []
        self.read_in: Counter[int] = Counter()
        self.parts: list[float] = []
        self.prepared = self.truncated = 0
        self.unbegun = self.layout.sources
        self.mode, self.drains_to, self.unpublished = CommitMode.RUNNING, "", False
        self.attempt: Attempt | None = None
        self.warnings: list[str] = []
        self.calls: list[str] = []
        self.savepoints: list[str] = []
        self.micro_batches = 0

    def run(
        self,
        request: Callable[[int], Event | None] = lambda micro_batch: None,
        settings: CoordinatorSettings | None = None,
    ) -> End:
        """Drive the job to its end; `request` returns an event after the commit of a micro-batch, if any."""
        end = self.drive(5000, request, settings)
        assert end is not None, "the job does not end"
        return end

    def drive(
        self,
        events: int,
        request: Callable[[int], Event | None] = lambda micro_batch: None,
        settings: CoordinatorSettings | None = None,
    ) -> End | None:
        """A driver takes over the job, and dies after this many events: None if the job has not ended by then."""
        draining = self.mode is CommitMode.DRAINING
        start = JobStarted(
            self.now,
            self.head,
            self.head_time,
            self.times,
            self.unbegun,
            draining,
            self.drains_to,
            self.unpublished,
            self.mode if self.mode in (CommitMode.DONE, CommitMode.DRAINED) else None,
            self.script_place,
        )
        self.attempt = None
        around = Around(self, request, start)
        machine = JobMachine(self.layout, settings or _PATIENT)
        driver = JobDriver(machine, around, around, around, around, around, around, script=around)
        return drive(driver, around, around, lambda: around.taken < events)

    def run_tasks(self, plan: MicroBatchPlan, levels: int = len(LAYOUT.tasks)) -> tuple[TaskReport, ...]:
        attempt = self.attempt = Attempt()
        begins = 0 if plan.first else LAYOUT.tasks[0]
        reports = [report for task in range(begins) for report in self._task(plan, attempt, 0, task, 0)]
        again = attempt
        if begins and self.chance.random() < self.doubles:
            again = Attempt()
            for task in range(begins):
                self._task(plan, again, 0, task, 1)
        for task in range(LAYOUT.tasks[1] if levels > 1 else 0):
            reports += self._task(plan, again if task else attempt, 1, task, 0)
        return tuple(reports)

    def _task(self, plan: MicroBatchPlan, attempt: Attempt, level: int, task: int, time: int) -> tuple[TaskReport]:
        token = b"%d.%d.%d.%d.%d" % (plan.micro_batch, plan.attempt, level, task, time)
        specs = {
            placed.name: StageSpec(placed) if placed.scripted else SPECS[placed.name]
            for placed in self.layout.at(level)
        }
        around = _Task(self, attempt, level, plan)
        micro_batch = EngineTask(self.layout, specs, level, task, token, plan)
        return (micro_batch.run(around, around, around, Counted(self.looks, self.parts)),)

    def commit(self, command: Propose) -> None:
        command.times.check_after(self.times)
        assert not self.unpublished, "unpublished committables are lost"
        if command.reports:
            assert self.attempt is not None
            self.store.update({place: view.snapshot() for place, view in self.attempt.views.items()})
            for window, times in self.attempt.rates.items():
                self.rates.setdefault(window, []).extend(times)
            self.out += self.attempt.out
            self.drops += self.attempt.drops
            self.read_in.update(self.attempt.read_in)
            self.prepared += self.attempt.prepared
        self.attempt = None
        self.head, self.head_time, self.times = command.micro_batch, command.time, command.times
        self.savepoints += command.savepoints
        self.unbegun, self.script_place = command.unbegun, command.script
        self.mode, self.drains_to = command.mode, command.drains_to
        self.unpublished = any(report.committables for report in command.reports)


class _Task:
    """The environment of a task: exchange, shards, side inputs."""

    def __init__(self, toy: Toy, attempt: Attempt, level: int, plan: MicroBatchPlan) -> None:
        self.toy = toy
        self.attempt = attempt
        self.level = level
        self.plan = plan

    def markers(self) -> Sequence[Marker]:
        return self.attempt.markers

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        match self.plan.event:
            case AddElements(name, added) if (name, 0) == (stage, shard):
                yield b"", [(value, time, (GLOBAL_WINDOW,), NO_PANE) for value, time in added]
        if self.level == 0:
            if stage in self.plan.beginning and shard == 0 and self.toy.script is None:
                whole = b"0:%d" % len(self.toy.feeds[stage].events)
                yield b"", [(whole, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]
            return
        yield from self.attempt.rows.get((stage, shard), ())

    def has_input(self, stage: str, shard: int) -> bool:
        return next(iter(self.elements(stage, shard)), None) is not None

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        self.attempt.drops.append(drop)

    def send(self, marker: Marker) -> None:
        if self.level == 0:
            self.attempt.markers.append(marker)

    def view(self, shard: int) -> MemoryView:
        place = (self.level, shard)
        return self.attempt.views.setdefault(place, MemoryView(self.toy.store.get(place)))

    def runner(self, stage: str, shard: int) -> Nothing:
        runner = Scripted if self.level == 0 and self.toy.script is not None else _RUNNERS[stage]
        return runner(self.toy, self.attempt, stage, shard, self.view(shard))

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        return (SideInputWindow("rates", window.ordered()),)

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        return IntervalWindow.from_ordered(lot.window).max_timestamp

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        return lot.window in self.toy.rates


def expected(feeds: Mapping[str, Feed]) -> list[tuple[Any, ...]]:
    """The job's output, by a plain computation; `join` only shows whether there was any rate."""
    groups: dict[tuple[bytes, Timestamp], list[int]] = {}
    rows: list[tuple[Any, ...]] = []
    rates = {WINDOWS.assign(Timestamp(time))[0] for _, time in feeds["rates"].events}
    for key, time in feeds["read"].events:
        window = WINDOWS.assign(Timestamp(time))[0]
        groups.setdefault((key, window.max_timestamp), []).append(time)
        rows.append(("join", key, time, window in rates))
    for (key, end), times in groups.items():
        rows.append(("sum", key, end, tuple(sorted(times)), "on time"))
        rows.append(("alarm", key, end, len(times)))
    return sorted(rows, key=repr)
