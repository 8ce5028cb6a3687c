"""The user code of a level's stages in one task, and how much of it a task may run.

Owns which stage is open, and when its task begins and ends. Must not know rows of the exchange.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason
from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.microbatchplan import MicroBatchBudget
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Firings
from arcbeam.model.rows import BundleReport, Row
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from arcbeam.spark.streaming.rows import Sent
from arcbeam.streaming.interfaces import SideData
from arcbeam.streaming.physicalplan import PhysicalPlan, side_name
from arcbeam.streaming.task.sidefiles import SideFileReader, SideFileWriter

if TYPE_CHECKING:
    from arcbeam.harness.bundle.finalization import Callbacks
    from arcbeam.harness.streaming.clocks import TaskClock
    from arcbeam.harness.streaming.runner import StreamingRunner
    from arcbeam.harness.streaming.streamingstage import StreamingStage

_NO_KEY: Final = b""
_IMPULSE: Final = b""


class LevelCode:
    """See `arcbeam.streaming.interfaces.UserCode`, and of the level's side inputs
    `arcbeam.engine.task.bundles.SideInputs`.

    Args:
        placing: of the job.
        level: of the task.
        task: its number.
        open: opens a stage, by its uid.
        sent: takes what stages write.
        sides: the side inputs of the head.
        scratch: a local folder, for side inputs that are written.
        told: the job's time when the micro-batch was planned; None: what user code sees is the job's.

    Attributes:
        latest: uid of the stage that had its turn last.
        budget: what the task may do.
    """

    def __init__(
        self,
        placing: PhysicalPlan,
        level: int,
        task: int,
        open: Callable[[str], StreamingStage],
        sent: Sent,
        sides: SideFileReader,
        scratch: Path,
        told: Timestamp | None,
    ) -> None:
        self._placing, self._level = placing, level
        self._placed = {each.name: each for each in placing.layout.at(level)}
        self._open, self._sent, self._task = open, sent, task
        self._first_shard = placing.layout.range_of(level, task)[0]
        self._sides, self._scratch = sides, scratch
        self._told, self._began = told, time.monotonic_ns()
        self._clock: TaskClock | None = None
        self._channels: dict[str, dict[str, int]] = {}
        self._begun: dict[str, StreamingStage] = {}
        self._dropped: Counter[tuple[str, bool]] = Counter()
        self._writers: list[Any] = []
        self._side_writers: list[tuple[StreamingStage, int, SideFileWriter]] = []
        self.latest = ""
        self._runner: StreamingRunner | None = None

    def specs(self) -> dict[str, StageSpec]:
        """What the engine must know of the stages."""
        specs = {}
        for name, placed in self._placed.items():
            stage = self._stage(name)
            specs[name] = StageSpec(placed, stage.kind, stage.windows.decode, stage.stable, stage.prepares)
        return specs

    def about(self) -> str:
        """What user code was called about last, for people; "" if nothing is known of it."""
        return "" if self._runner is None else self._runner.about()

    @property
    def processor(self) -> Any:
        """Of the stage that had its turn last; None if none had."""
        stage = self._begun.get(self.latest)
        return None if stage is None else stage.processor

    def elements(self, stage: str, rows: Iterable[Row]) -> Iterable[tuple[bytes, Elements]]:
        """What has come to a stage, of rows in ascending order of bucket."""
        return self._stage(stage).elements(rows)

    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        """See `UserCode`."""
        # SUBTLE: before the imports: as it is opened, the prelude silences what the SDK says at import.
        opened = self._stage(stage)
        from arcbeam.harness.streaming.clocks import TaskClock
        from arcbeam.harness.streaming.runner import StreamingRunner

        if self._clock is None:
            passed = Duration((time.monotonic_ns() - self._began) // 1000)
            self._clock = TaskClock(None if self._told is None else shifted(self._told, passed))
        runner = self._runner = StreamingRunner(opened, view, self._placed[stage], self._clock)
        return runner

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `UserCode`: an impulse, in the first shard."""
        if shard == 0:
            yield _NO_KEY, [(_IMPULSE, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        """See `UserCode`."""
        return self._stage(stage).scripted(elements)

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `UserCode`: it is counted, as a metric of where it was dropped, and put out where that is asked for."""
        closed = isinstance(drop, DropHeld) or (isinstance(drop, DropLate) and drop.reason is DropReason.CLOSED)
        self._dropped[stage, closed] += drop.count if isinstance(drop, DropHeld) else 1
        # It is dropped while the stage has its turn in the shard.
        assert self._runner is not None
        self._runner.late(drop)

    def sides(self) -> Iterable[SideData]:
        """See `UserCode`."""
        for stage, channel, writer in self._side_writers:
            last = max((stage.last_moment(channel, window) for window in writer.windows), default=MIN_TIMESTAMP)
            until = None if last >= END_OF_GLOBAL_WINDOW else shifted(last, self._placing.side_lateness[channel])
            if (data := writer.data(self._first_shard, until)) is not None:
                yield data

    def tended(self) -> Mapping[int, bool]:
        """See `UserCode`."""
        return self._placing.tended(self._level, self._task)

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        """See `SideInputs`."""
        return [
            SideInputWindow(side_name(number), of)
            for channel, of in self._stage(stage).sides.needed(window)
            for number in self._placing.side_parts[channel]
        ]

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        """See `SideInputs`."""
        return self._stage(stage).sides.until(self._channel(stage, lot), lot.window)

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        """See `SideInputs`: whether it may be read before its end."""
        return self._stage(stage).sides.is_there(self._channel(stage, lot), lot.window, self._sides)

    def _channel(self, stage: str, lot: SideInputWindow) -> int:
        """The channel of the plan that a stage's side input is in."""
        known = self._channels.get(stage)
        if known is None:
            placing = self._placing
            known = self._channels[stage] = {
                side_name(number): side.channel
                for side in placing.stages[stage].side_inputs
                for number in placing.side_parts[side.channel]
            }
        return known[lot.side_input]

    def end(self) -> list[BundleReport]:
        """Ends the task for all its stages, which hand over what they hold; what their bundles come to."""
        reports = []
        for name, stage in self._begun.items():
            report = BundleReport(stage=name, shard=self._task)
            self.latest = name
            stage.processor.end_task(report)
            report.metrics += stage.dropped(self._dropped[name, False], self._dropped[name, True])
            reports.append(report)
        return reports

    def written(self) -> int:
        """How many elements the stages have put out so far."""
        return sum([op.taken for op in self._writers])

    def callbacks(self) -> list[Callbacks]:
        """The finalization callbacks of the task's bundles; they are the caller's now."""
        return [taken for stage in self._begun.values() if (taken := stage.processor.bundles.callbacks.take())]

    def _stage(self, name: str) -> StreamingStage:
        stage = self._begun.get(name)
        if stage is None:
            stage = self._begun[name] = self._open(name)
            self._begin(name, stage)
        self.latest = name
        return stage

    def _begin(self, name: str, stage: StreamingStage) -> None:
        def side_writer(channel: int) -> SideFileWriter:
            port = self._placing.ports[name, channel]
            last = self._placing.firings.get(channel) is Firings.LAST
            writer = SideFileWriter(self._scratch, self._placing.side_numbers[port], port, last=last)
            self._side_writers.append((stage, channel, writer))
            return writer

        written = self._placing.stages[name].sinks
        multimaps = {channel: side_writer(channel) for channel in written if channel in self._placing.multimaps}
        stage.processor.begin_task(_Written(self._sent, multimaps), self._task, side_writer, self._sides)
        self._writers += stage.processor.context.writers


class _Written:
    """Where the rows of a stage go; see `arcbeam.model.rows.Outbox`."""

    def __init__(self, sent: Sent, multimaps: dict[int, SideFileWriter]) -> None:
        self._sent, self._multimaps = sent, multimaps

    def put(self, row: Row) -> None:
        """See `Outbox`."""
        multimap = self._multimaps.get(row.channel)
        if multimap is None:
            self._sent.put(row)
            return
        from arcbeam.harness.encoding.frames import COUNT, records

        for key, window, start, end in records(row.blob):
            multimap.put(window, key, row.blob[start + COUNT.size : end])


class TaskBudget:
    """How much a task may do; see `arcbeam.engine.task.bundles.Budget`.

    A part begins when it is first asked. What is done before that, with what has come by the exchange, cannot be left:
    if that counted, a task that has much of it would fire next to nothing, micro-batch after micro-batch. The timers of
    what has come have as long as that took, at least: such a micro-batch is a long one in any case, and what is left
    costs more, since it is written to the state, and found again by another micro-batch.

    Args:
        budget: of the micro-batch.
        sent: bytes that the task has sent so far.
        written: elements that its user code has put out so far.
        clock: seconds.
    """

    def __init__(
        self,
        budget: MicroBatchBudget,
        sent: Callable[[], int],
        written: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = _Amount(budget.time / 1e6, budget.elements, budget.bytes)
        self._meter = _Meter(clock, written, sent)
        self._part: _Part | None = None

    def exhausted(self) -> bool:
        """See `Budget`."""
        self._settle()
        return min(self._left) <= 0

    def part(self, fraction: float) -> _Part:
        """See `Budget`: one at a time, the last one ends with that."""
        self._settle()
        part = self._part = _Part(lambda: self._left.part(fraction), self._meter, self._meter.seconds())
        return part

    def _settle(self) -> None:
        if self._part is not None:
            self._left = self._left.minus(self._part.used())
        self._part = None


class _Part:
    """See `TaskBudget`.

    Args:
        amount: how much it has, asked for when it begins.
        meter: of the task.
        since: when what comes by the exchange began to be delivered; None if it is not for what came.
    """

    def __init__(self, amount: Callable[[], _Amount], meter: _Meter, since: float | None = None) -> None:
        self._amount, self._meter, self._since = amount, meter, since
        self._began: _Amount | None = None
        # Seconds beside its amount.
        self._extra = 0.0
        self._until = self._elements = self._bytes = 0.0

    def exhausted(self) -> bool:
        """See `Budget`."""
        if self._began is None:
            began = self._began = self._meter.read()
            amount = self._amount()
            if self._since is not None:
                self._extra = max(0.0, began.seconds - self._since - amount.seconds)
            self._until, self._elements, self._bytes = began.plus(amount)
            self._until += self._extra
        meter = self._meter
        return meter.seconds() >= self._until or meter.bytes() >= self._bytes or meter.elements() >= self._elements

    def part(self, fraction: float) -> _Part:
        """See `Budget`. Whoever asks for one has restrictions, not timers of what has come."""
        self._since = None
        return _Part(lambda: self._amount().part(fraction), self._meter)

    def used(self) -> _Amount:
        """What was done since it began, of its amount."""
        if self._began is None:
            return _NOTHING
        used = self._meter.read().minus(self._began)
        return used._replace(seconds=max(0.0, used.seconds - self._extra))


class _Amount(NamedTuple):
    """What a budget is of."""

    seconds: float
    elements: float
    bytes: float

    def plus(self, other: _Amount) -> _Amount:
        return _Amount(self.seconds + other.seconds, self.elements + other.elements, self.bytes + other.bytes)

    def minus(self, other: _Amount) -> _Amount:
        return _Amount(self.seconds - other.seconds, self.elements - other.elements, self.bytes - other.bytes)

    def part(self, fraction: float) -> _Amount:
        return _Amount(self.seconds * fraction, self.elements * fraction, self.bytes * fraction)


_NOTHING: Final = _Amount(0.0, 0, 0)


class _Meter(NamedTuple):
    """What a task has done so far, and the time."""

    seconds: Callable[[], float]
    elements: Callable[[], float]
    bytes: Callable[[], float]

    def read(self) -> _Amount:
        return _Amount(self.seconds(), self.elements(), self.bytes())
