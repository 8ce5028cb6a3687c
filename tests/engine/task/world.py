"""One stage in one shard, with user code that records its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget, MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.engine.protocol.stagekinds import StageKind, StageSpec, Stateful
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, RestrictionResult, TimerSet
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.watermarks.clocks import Clock, Port
from arcbeam.engine.watermarks.stages import StageFlow, WatermarkTimes
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.model.windows import NO_PANE, IntervalWindow, Window
from arcbeam.testing.views import MemoryView

W = IntervalWindow(Timestamp(0), Timestamp(10))
V = IntervalWindow(Timestamp(10), Timestamp(20))
DECODE = IntervalWindow.from_ordered
RATES, NAMES = Port("rates", "main"), Port("names", "main")
FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING}


def end_of(window: Window) -> Timestamp:
    return window.max_timestamp


class World:
    """A stage in a shard, from micro-batch to micro-batch, with its environment.

    `event_log` contains the calls of its user code; `on` contains the results, by the beginning of the call's line.
    """

    def __init__(
        self,
        kind: StageKind,
        sides: tuple[tuple[str, Port], ...] = (),
        stable: bool = False,
        *,
        prepares: bool = False,
        reads: tuple[Port, ...] = (),
    ) -> None:
        self.view = MemoryView()
        self.reached = MIN_TIMESTAMP
        self.spec = StageSpec(
            StagePlacement(StageFlow("it", reads, ("main",)), 1, 0, sides), kind, DECODE, stable, prepares
        )
        self.event_log: list[str] = []
        self.on: dict[str, Any] = {}
        self.closed = BundleResult()
        self.arrived: Sequence[tuple[bytes, KeyElements | Combined]] = []
        self.drops: list[DropLate | DropHeld | DropCombined | Late] = []
        self.fired: list[Fired] = []
        self.committed_outputs = {RATES: MIN_TIMESTAMP, NAMES: MIN_TIMESTAMP}
        self.full: set[SideInputWindow] = set()
        self.looks = 1000
        self.micro_batches = 0

    def micro_batch(
        self,
        watermark: int,
        *arrived: Any,
        now: int = 0,
        shard: int = 3,
        block: KeyElements | None = None,
        **of_plan: Any,
    ) -> StageReport:
        """Run a micro-batch up to that watermark. An element is a time, or a time and window; or a list of these."""
        elements = [each if isinstance(each, tuple) else (each, W if each < 10 else V) for each in arrived]
        self.arrived = (
            [(b"k", [(b"%d" % time, Timestamp(time), (window,), NO_PANE) for time, window in elements])]
            if arrived
            else []
        )
        if block is not None:
            self.arrived = [(b"k", block)]
        return self._run(watermark, now, shard, of_plan)

    def run(self, watermark: int, arrived: Sequence[tuple[bytes, KeyElements | Combined]], now: int = 0) -> StageReport:
        """Run a micro-batch with any elements, by key."""
        self.arrived = arrived
        return self._run(watermark, now, 3, {})

    def _run(self, watermark: int, now: int, shard: int, of_plan: dict[str, Any]) -> StageReport:
        self.micro_batches += 1
        budget = MicroBatchBudget(Duration(1), 1, 1)
        flow, head = self.spec.placed.flow, WatermarkTimes({}, self.committed_outputs, {"it": self.reached})
        plan = MicroBatchPlan(self.micro_batches, 0, Timestamp(now), self.micro_batches - 1, head, budget, **of_plan)
        clock = Clock(self.view, 1, flow.outputs, head.upstream_at(flow))
        self.reached = max(self.reached, Timestamp(watermark))
        place = StageContext(
            self.spec.placed,
            shard,
            self.micro_batches,
            Timestamp(now),
            MIN_TIMESTAMP,
            self.view,
            clock,
            self,
            self,
            self,
        )
        report, _ = StageRun(self.spec, place, self, self.committed_outputs).run(
            Timestamp(watermark), plan, [move for move in plan.moves if move.stage == "it"]
        )
        return report

    def calls(self) -> list[str]:
        event_log, self.event_log = self.event_log, []
        return event_log

    def _record(self, line: str) -> Any:
        self.event_log.append(line)
        return next((answer for start, answer in self.on.items() if line.startswith(start)), None)

    # Runner.

    together = 1

    def settle(self) -> CallResult:
        raise AssertionError("its results never come later")

    def fire_together(self, lot: Sequence[Fired]) -> CallResult:
        raise AssertionError("it fires one timer after the other")

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        return self._record(" ".join(["process", *(value.decode() for value, _, _, _ in elements)])) or CallResult(
            len(elements)
        )

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for pane in panes:
            self._record(" ".join(["pane", *sorted(value.decode() for value in pane.contents)]))
        return CallResult(len(panes))

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        for fired in due:
            led_to(self.call(fired))

    def call(self, fired: Fired) -> CallResult:
        self.fired.append(fired)
        return self._record(f"fire {fired.family} {fired.fire_at}") or CallResult()

    def expire(self, key: bytes, window: Window) -> CallResult:
        return self._record(f"expire {window.max_timestamp}") or CallResult()

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        return Remainder(element[0], 2.0, watermarks={"main": element[1]})

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        return self._record(f"resume {restriction.remainder.element.decode()}") or RestrictionResult()

    def truncate(self, restriction: Restriction) -> Remainder | None:
        return self._record(f"truncate {restriction.remainder.element.decode()}")  # type: ignore[no-any-return]

    def prepare(self) -> CallResult:
        return self._record("prepare") or CallResult()

    def finish(self) -> BundleResult:
        return self.closed

    # Exchange, side inputs, budget.

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        return self.arrived

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        assert (stage, shard) == ("it", 3)
        self.drops.append(drop)

    def markers(self) -> Sequence[Marker]:
        raise AssertionError("a stage reads no markers")

    def send(self, marker: Marker) -> None:
        raise AssertionError("a stage sends no markers")

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        return [SideInputWindow(name, window.ordered()) for name, _ in self.spec.placed.side_inputs]

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        return DECODE(lot.window).max_timestamp

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        return lot in self.full

    def exhausted(self) -> bool:
        self.looks -= 1
        return self.looks <= 0

    def part(self, fraction: float) -> Any:
        return self


def timer_set(family: str, at: int, hold: int | None = None, window: Window = W) -> TimerSet:
    return TimerSet(b"k", window, family, Timestamp(at), None if hold is None else Timestamp(hold))


def stateful(**of_kind: Any) -> World:
    return World(Stateful(FAMILIES, DECODE, end_of, **of_kind))
