"""The user code of a level's stages in one task, whatever runs it.

Owns which stage is open, and when its task begins and ends. Must not know what is behind a `TaskStage`, nor rows of the
exchange.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropHeld, DropLate, DropReason
from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner, SideInputs
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Firings
from arcbeam.model.rows import BundleReport, Outbox, Row
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from arcbeam.streaming.interfaces import Counting, Finalizations, SideData, StageRunner, TaskStage, UserCode
from arcbeam.streaming.physicalplan import PhysicalPlan, side_name
from arcbeam.streaming.task.sidefiles import SideFileReader, SideFileWriter

_NO_KEY: Final = b""
_IMPULSE: Final = b""


class LevelCode(SideInputs, UserCode):
    """See `arcbeam.streaming.interfaces.UserCode`, and of the level's side inputs
    `arcbeam.engine.task.bundles.SideInputs`.

    Args:
        physical: of the job.
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
        physical: PhysicalPlan,
        level: int,
        task: int,
        open: Callable[[str], TaskStage],
        sent: Outbox,
        sides: SideFileReader,
        scratch: Path,
        told: Timestamp | None,
    ) -> None:
        self._placing, self._level = physical, level
        self._placed = {each.name: each for each in physical.layout.at(level)}
        self._open, self._sent, self._task = open, sent, task
        self._first_shard = physical.layout.range_of(level, task)[0]
        self._sides, self._scratch = sides, scratch
        self._told, self._began = told, time.monotonic_ns()
        self._channels: dict[str, dict[str, int]] = {}
        self._begun: dict[str, TaskStage] = {}
        self._dropped: Counter[tuple[str, bool]] = Counter()
        self._writers: list[Counting] = []
        self._side_writers: list[tuple[TaskStage, int, SideFileWriter]] = []
        self.latest = ""
        self._runner: StageRunner | None = None

    def specs(self) -> dict[str, StageSpec]:
        """What the engine must know of the stages."""
        return {name: self._stage(name).spec(placed) for name, placed in self._placed.items()}

    def about(self) -> str:
        """What user code was called about last, for people; "" if nothing is known of it."""
        return "" if self._runner is None else self._runner.about()

    @property
    def stage(self) -> TaskStage | None:
        """The stage that had its turn last; None if none had."""
        return self._begun.get(self.latest)

    def elements(self, stage: str, rows: Iterable[Row]) -> Iterable[tuple[bytes, Elements]]:
        """What has come to a stage, of rows in ascending order of bucket."""
        return self._stage(stage).elements(rows)

    @override
    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        runner = self._runner = self._stage(stage).runner(view, self._placed[stage])
        return runner

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `UserCode`: an impulse, in the first shard."""
        if shard == 0:
            yield _NO_KEY, [(_IMPULSE, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    @override
    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        return self._stage(stage).scripted(elements)

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `UserCode`: it is counted, as a metric of where it was dropped, and put out where that is asked for."""
        closed = isinstance(drop, DropHeld) or (isinstance(drop, DropLate) and drop.reason is DropReason.CLOSED)
        self._dropped[stage, closed] += drop.count if isinstance(drop, DropHeld) else 1
        # It is dropped while the stage has its turn in the shard.
        assert self._runner is not None
        self._runner.late(drop)

    @override
    def sides(self) -> Iterable[SideData]:
        for stage, channel, writer in self._side_writers:
            last = max((stage.last_moment(channel, window) for window in writer.windows), default=MIN_TIMESTAMP)
            until = None if last >= END_OF_GLOBAL_WINDOW else shifted(last, self._placing.side_lateness[channel])
            if (data := writer.data(self._first_shard, until)) is not None:
                yield data

    @override
    def tended(self) -> Mapping[int, bool]:
        return self._placing.tended(self._level, self._task)

    @override
    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        return [
            SideInputWindow(side_name(number), of)
            for channel, of in self._stage(stage).sides_needed(window)
            for number in self._placing.side_parts[channel]
        ]

    @override
    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        return self._stage(stage).side_until(self._channel(stage, lot), lot.window)

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        """See `SideInputs`: whether it may be read before its end."""
        return self._stage(stage).side_exists(self._channel(stage, lot), lot.window)

    def _channel(self, stage: str, lot: SideInputWindow) -> int:
        """The channel of the plan that a stage's side input is in."""
        known = self._channels.get(stage)
        if known is None:
            physical = self._placing
            known = self._channels[stage] = {
                side_name(number): side.channel
                for side in physical.stages[stage].side_inputs
                for number in physical.side_parts[side.channel]
            }
        return known[lot.side_input]

    def end(self) -> list[BundleReport]:
        """Ends the task for all its stages, which hand over what they hold; what their bundles come to."""
        reports = []
        for name, stage in self._begun.items():
            report = BundleReport(stage=name, shard=self._task)
            self.latest = name
            stage.end(report, late=self._dropped[name, False], closed=self._dropped[name, True])
            reports.append(report)
        return reports

    def written(self) -> int:
        """How many elements the stages have put out so far."""
        return sum([op.taken for op in self._writers])

    def callbacks(self) -> list[Finalizations]:
        """The finalizations of the task's bundles; they are the caller's now."""
        return [taken for stage in self._begun.values() if (taken := stage.callbacks()) is not None]

    def _stage(self, name: str) -> TaskStage:
        stage = self._begun.get(name)
        if stage is None:
            stage = self._begun[name] = self._open(name)
            self._begin(name, stage)
        self.latest = name
        return stage

    def _begin(self, name: str, stage: TaskStage) -> None:
        def side_writer(channel: int) -> SideFileWriter:
            port = self._placing.ports[name, channel]
            last = self._placing.firings.get(channel) is Firings.LAST
            writer = SideFileWriter(self._scratch, self._placing.side_numbers[port], port, last=last)
            self._side_writers.append((stage, channel, writer))
            return writer

        written = self._placing.stages[name].sinks
        multimaps = {channel: side_writer(channel) for channel in written if channel in self._placing.multimaps}
        # A stage may take long to open.
        passed = Duration((time.monotonic_ns() - self._began) // 1000)
        now = None if self._told is None else shifted(self._told, passed)
        stage.begin(_Written(self._sent, multimaps, stage), self._task, side_writer, self._sides, now)
        self._writers += stage.writers


class _Written(Outbox):
    """Where the rows of a stage go; see `arcbeam.model.rows.Outbox`."""

    def __init__(self, sent: Outbox, multimaps: dict[int, SideFileWriter], stage: TaskStage) -> None:
        self._sent, self._multimaps, self._stage = sent, multimaps, stage

    @override
    def put(self, row: Row) -> None:
        multimap = self._multimaps.get(row.channel)
        if multimap is None:
            self._sent.put(row)
            return
        for window, key, values in self._stage.entries(row):
            multimap.put(window, key, values)
