"""One attempt of one task of a micro-batch: the engine's `EngineTask`, with its input and output.

Owns the order: rows for later levels are passed on first, the marker follows all rows, then files are written, and the
report names them. Must not know where rows, state and user code come from, nor which attempts count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.protocol.stagekinds import StageSpec
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.task.bundles import Budget, Exchange, Runner, Shards, SideInputs
from arcbeam.engine.task.shard import EngineTask
from arcbeam.engine.watermarks.clocks import SCRIPT_SHARD
from arcbeam.model.files import Shard, ShardFile, TaskFiles
from arcbeam.model.script import AddElements
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.compaction import worth_merging
from arcbeam.store.shards.overlay import Overlay
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.interfaces import Files, TaskExchange, UserCode
from arcbeam.streaming.task.sidemerging import worth_joining

R = TypeVar("R")


class TaskAttempt(Shards, Generic[R]):
    """An attempt of a task. Call `run`, or `work` and then `write`; call `close` if it ends before that.

    Args:
        layout: the layout of the job.
        specs: the job's stages by name; at least those of the level.
        order: the assignment of the micro-batch.
        level: the level of the task.
        task: its number in the level.
        name: the name of the attempt, of letters, digits, "_" and "."; unique among all attempts of the job.
        files: the files that it reads and writes.
        rows: its input and output rows.
        code: its stages' user code.
        sides: the side inputs of its stages.
        budget: its budget.
    """

    def __init__(
        self,
        layout: Layout,
        specs: Mapping[str, StageSpec],
        order: TaskAssignment,
        level: int,
        task: int,
        name: str,
        files: Files,
        rows: TaskExchange[R],
        code: UserCode,
        sides: SideInputs,
        budget: Budget,
    ) -> None:
        self._layout, self._order = layout, order
        self._level, self._task, self._name = level, task, name
        self._files, self._rows, self._code = files, rows, code
        self._sides, self._budget = sides, budget
        self._micro_batch = EngineTask(layout, specs, level, task, name.encode(), order.plan)
        self._views: dict[int, Overlay] = {}

    def run(self) -> TaskReport:
        """Do all work.

        Raises:
            InconsistentCutError: markers of the previous level are missing or contradictory. The micro-batch fails.
            DecidedCommitError: the micro-batch was decided without this attempt.
            StoreError: a file cannot be read or written.
        """
        try:
            return self.write(self.work())
        finally:
            self.close()

    def work(self) -> TaskReport:
        """Do the task's part of the micro-batch, including its marker; the report has no files. Raises as `run`."""
        exchange = _Exchange(self._layout, self._order, self._level, self._task, self._rows, self._code)
        return self._micro_batch.run(exchange, self, self._sides, self._budget)

    def write(self, report: TaskReport) -> TaskReport:
        """Write what was changed; return the report with the files. Raises as `run`."""
        # The driver keeps the files of a shard that is not reported, so that a micro-batch costs what it changes.
        some = [shard for shard, view in self._views.items() if view.written or self._version(shard).files]
        written = zip(some, self._files.each(self._written, some), strict=True)
        shards = tuple(Shard(self._level, shard, files) for shard, files in written if files is not None)
        put = tuple(self._code.sides())
        sides = tuple(
            self._files.side(self._name_of("side", data.channel, data.shard, n), data) for n, data in enumerate(put)
        )
        joined: list[str] = []
        for channel, newest in sorted(self._code.sides_to_compact().items()):
            # As for shards, without the files of this micro-batch: they are not committed yet.
            many = worth_joining(file for file in self._order.side_files if file.channel == channel)
            if many:
                name = self._name_of("side", channel, many[0].shard)
                sides += (self._files.joined(replace(name, attempt=f"{self._name}.merged"), many, newest),)
                joined += [file.name for file in many]
        self.close()
        published = {*report.published, *(data.port for data in put if data.port is not None)}
        return replace(report, files=TaskFiles(shards, sides, tuple(joined)), published=tuple(sorted(published)))

    def close(self) -> None:
        """Release the copies of shards; it is idempotent."""
        while self._views:
            self._views.popitem()[1].close()

    def _version(self, shard: int) -> ShardVersion:
        return self._order.version(self._level, shard)

    def _written(self, shard: int) -> tuple[ShardFile, ...] | None:
        """Return all files of a shard, with the micro-batch's changes; merge them if there are many.

        None: the files are those of the head.
        """
        version, view = self._version(shard), self._views[shard]
        name = self._name_of("delta", self._level, shard)
        delta = self._files.delta(version, name, view, self._order.plan.micro_batch)
        files = version.files
        # The delta is not merged: a copy of the shard at the head only needs the delta.
        first = worth_merging(files)
        if first is not None:
            files = self._files.merged(files, first, replace(name, attempt=f"{self._name}.merged"))
        elif delta is None:
            return None
        return files if delta is None else (*files, delta)

    def _name_of(self, kind: str, place: int, shard: int, n: int = 0) -> Written:
        # Two stages of a task may write one side input.
        attempt = f"{self._name}.{n}" if n else self._name
        return Written(place, shard, self._order.plan.micro_batch, self._order.epoch, attempt, kind)

    # `bundles.Shards`.

    @override
    def view(self, shard: int) -> Overlay:
        if shard not in self._views:
            self._views[shard] = self._files.view(self._version(shard))
        return self._views[shard]

    @override
    def runner(self, stage: str, shard: int) -> Runner:
        return self._code.runner(stage, shard, self.view(shard))


class _Exchange(Exchange, Generic[R]):
    """See `bundles.Exchange`: a shard's rows for later levels pass after its own stages have read theirs."""

    def __init__(
        self, layout: Layout, order: TaskAssignment, level: int, task: int, rows: TaskExchange[R], code: UserCode
    ) -> None:
        self._event, self._rows, self._code = order.plan.event, rows, code
        scripted = {placed.name for placed in layout.at(level) if placed.scripted}
        self._beginning = order.plan.beginning - scripted
        self._to_pass = list(reversed(layout.range_of(level, task)))

    @override
    def markers(self) -> Sequence[Marker]:
        return self._rows.markers()

    @override
    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        self._pass_on(shard)
        arrived = self._rows.elements(stage, shard)
        if stage in self._beginning:
            yield from self._code.beginning(stage, shard)
        match self._event:
            case AddElements(name, elements) if name == stage and shard == SCRIPT_SHARD:
                yield from self._code.scripted(stage, elements)
        yield from arrived

    @override
    def has_input(self, stage: str, shard: int) -> bool:
        self._pass_on(shard)
        return stage in self._beginning or isinstance(self._event, AddElements) or self._rows.any(stage, shard)

    @override
    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        self._code.late(stage, shard, drop)

    @override
    def send(self, marker: Marker) -> None:
        self._pass_on(None)
        self._rows.mark(marker)

    def _pass_on(self, before: int | None) -> None:
        """Pass on the rows for later levels in the shards before one; None: in all shards."""
        while self._to_pass and (before is None or self._to_pass[-1] < before):
            for row in self._rows.passing(self._to_pass.pop()):
                self._rows.pass_on(row)
