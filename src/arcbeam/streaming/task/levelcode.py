"""The user code of a level's stages in one task, independent of the SDK.

Owns which stages are open, and when their tasks begin and end. Must not know the implementation of a `TaskStage`, nor
rows of the exchange.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, DropReason
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Runner, SideInputs
from arcbeam.engine.task.taskstage import Counting, Finalizations, StageRunner, TaskStage
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import Firings
from arcbeam.model.rows import BundleReport, Outbox, Row
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MIN_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from arcbeam.streaming.interfaces import SideData, UserCode
from arcbeam.streaming.physicalplan import PhysicalPlan, side_name
from arcbeam.streaming.task.sidefiles import SideFileReader, SideFileWriter

_NO_KEY: Final = b""
_IMPULSE: Final = b""


class LevelCode(SideInputs, UserCode):
    """See `arcbeam.streaming.interfaces.UserCode`, and of the level's side inputs
    `arcbeam.engine.task.bundles.SideInputs`.

    Args:
        physical: the job's physical plan.
        level: the level of the task.
        task: the number of the task.
        open: opens a stage by its uid.
        sent: receives the rows that stages write.
        sides: the side inputs of the head.
        scratch: a local folder for side inputs that are written.
        planned: the job's time when the micro-batch was planned; None: the job's time is the clock that user code sees.

    Attributes:
        latest: the uid of the stage that ran last.
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
        planned: Timestamp | None,
    ) -> None:
        self._placing, self._level = physical, level
        self._placed = {each.name: each for each in physical.layout.at(level)}
        self._open, self._sent, self._task = open, sent, task
        self._first_shard = physical.layout.range_of(level, task)[0]
        self._sides, self._scratch = sides, scratch
        self._planned, self._began = planned, time.monotonic_ns()
        self._channels: dict[str, dict[str, int]] = {}
        self._begun: dict[str, TaskStage] = {}
        self._dropped: Counter[tuple[str, bool]] = Counter()
        self._writers: list[Counting] = []
        self._side_writers: list[tuple[TaskStage, int, SideFileWriter]] = []
        self.latest = ""
        self._runner: StageRunner | None = None

    def specs(self) -> dict[str, StageSpec]:
        """Return the specifications of the stages for the engine."""
        return {name: self._stage(name).spec(placed) for name, placed in self._placed.items()}

    def about(self) -> str:
        """Describe the last call of user code, for messages; "" if it is unknown."""
        return "" if self._runner is None else self._runner.about()

    @property
    def stage(self) -> TaskStage | None:
        """Return the stage that ran last; None if none has run."""
        return self._begun.get(self.latest)

    def elements(self, stage: str, rows: Iterable[Row]) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        """Return the elements of a stage, from rows in ascending order of their buckets."""
        return self._stage(stage).elements(rows)

    @override
    def runner(self, stage: str, shard: int, view: StateView) -> Runner:
        runner = self._runner = self._stage(stage).runner(view, self._placed[stage])
        return runner

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements]]:
        """See `UserCode`: an impulse, only in the first shard."""
        if shard == 0:
            yield _NO_KEY, [(_IMPULSE, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]

    @override
    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        return self._stage(stage).scripted(elements)

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """See `UserCode`: counts the drop in the metrics of its stage. A stage may also put the element out."""
        closed = isinstance(drop, DropHeld) or (isinstance(drop, DropLate) and drop.reason is DropReason.CLOSED)
        self._dropped[stage, closed] += drop.count if isinstance(drop, DropHeld | DropCombined) else 1
        # A drop happens while the stage runs in the shard, so the runner is the stage's.
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
    def sides_to_compact(self) -> Mapping[int, bool]:
        return self._placing.sides_to_compact(self._level, self._task)

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
        """See `SideInputs`: returns whether it may be read before its end."""
        return self._stage(stage).side_exists(self._channel(stage, lot), lot.window)

    def _channel(self, stage: str, lot: SideInputWindow) -> int:
        """Return the channel of a stage's side input in the plan."""
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
        """End the task of all its stages, which write their buffered rows, and return the reports of their bundles."""
        reports = []
        for name, stage in self._begun.items():
            report = BundleReport(stage=name, shard=self._task)
            self.latest = name
            stage.end(report, late=self._dropped[name, False], closed=self._dropped[name, True])
            reports.append(report)
        return reports

    def written(self) -> int:
        """Return the number of elements that the stages have output so far."""
        return sum([op.taken for op in self._writers])

    def callbacks(self) -> list[Finalizations]:
        """Return the finalizations of the task's bundles, and release them to the caller."""
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
        # Opening a stage may take long.
        passed = Duration((time.monotonic_ns() - self._began) // 1000)
        now = None if self._planned is None else shifted(self._planned, passed)
        stage.begin(_Written(self._sent, multimaps, stage), self._first_shard, side_writer, self._sides, now)
        self._writers += stage.writers


class _Written(Outbox):
    """The destination of the rows of a stage; see `arcbeam.model.rows.Outbox`."""

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
