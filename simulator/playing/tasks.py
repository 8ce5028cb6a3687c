"""One attempt of one task: the real code, with the rows, files and user code of the simulation.

Owns the data that an attempt reads and sends, and when it dies. Must not know which attempts count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.protocol.reports import TaskReport
from arcbeam.engine.rows import sequences
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.task.bundles import Runner as EngineRunner
from arcbeam.engine.task.bundles import SideInputs
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import ShardFile, SideFile
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, Window
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.overlay import Overlay
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.interfaces import Files, SideData, TaskExchange, UserCode
from arcbeam.streaming.task.outputs import TaskStore
from arcbeam.streaming.task.sidefiles import SideFileReader, SideFileWriter
from arcbeam.streaming.task.task import TaskAttempt
from simulator.judging import checks
from simulator.judging.records import Out
from simulator.playing.hosts import Host
from simulator.playing.jobs import Box, Died, Job, Looks, Passed
from simulator.playing.runners import Attempt, StageContext, beginnings, dropped, runner_of, windows_of
from simulator.scenario.combining import joined
from simulator.scenario.kinds import Expand, Source
from simulator.scenario.plans import Stage, side_name
from simulator.scenario.together import together

_VALIDATED = 4
"""In every micro-batch whose number is a multiple of this, all rows of restrictions are validated."""


class TaskRun(SideInputs, Attempt, Files, TaskExchange[Any], UserCode):
    """An attempt.

    Args:
        job: the job of its driver.
        order: the assignment of the micro-batch.
        level, task: the level and number of the task.
        name: the unique name of the attempt.
        inbox: the boxes from attempts of the previous level.
        host: the host that it runs on.
        dies_after: the number of calls before it dies; None: it does not die.

    Attributes:
        box: the data that it sends.
    """

    def __init__(
        self,
        job: Job,
        order: TaskAssignment,
        level: int,
        task: int,
        name: str,
        inbox: Sequence[Box],
        host: Host,
        dies_after: int | None = None,
    ) -> None:
        self.job, self.order, self.plan = job, order, order.plan
        self.level, self.task, self.name = level, task, name
        self.box = Box()
        self._inbox, self._left = inbox, dies_after
        self._store = TaskStore(job.blobs, host, job.scratch)
        self._contexts: dict[tuple[str, int], StageContext] = {}
        # Read and written in the same way as in a job on Spark.
        job.copies.keep({file.name for file in order.side_files})
        parts = job.pipeline.side_parts
        newest = job.pipeline.newest
        self._sides = SideFileReader(job.blobs, job.scratch, order.side_files, parts, job.copies, newest)
        self._read: dict[tuple[str, Window], tuple[bytes, ...]] = {}
        self._aside: dict[tuple[int, int], tuple[str, SideFileWriter, set[Window]]] = {}
        specs = job.pipeline.specs(job.layout)
        self._looks = Looks(job.looks)
        self._attempt = TaskAttempt(job.layout, specs, order, level, task, name, self, self, self, self, self._looks)

    # Working and writing.

    def work(self) -> TaskReport:
        """Do the task's part of the micro-batch, and return the report without files."""
        report = self._attempt.work()
        checks.of_looks(self._looks.used, report)
        for stage in report.stages:
            context = self._contexts.get((stage.stage, stage.shard))
            if context is None:
                assert stage.idle, f"{stage} has not run"
                continue
            checks.of_report(context, stage, self.plan)
            checks.of_lateness(context.stage, context.too_late, context.records)
            if isinstance(context.stage.kind, (Source, Expand)) and not self.plan.micro_batch % _VALIDATED:
                number = self.job.pipeline.numbers[stage.stage]
                Residuals(context.view, number, context.stage.outputs, 50).validate()
        return report

    def write(self, report: TaskReport) -> TaskReport:
        """Write its files, and return the report with their names."""
        return self._attempt.write(report)

    def close(self) -> None:
        """Close the files and views of the attempt."""
        self._attempt.close()

    def call(self) -> None:
        """Count a call; die if it was the last one."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Died(f"task {self.task} of level {self.level} died")

    # `seams.Files`.

    @override
    def view(self, version: ShardVersion) -> Overlay:
        return self._store.view(version)

    @override
    def each(self, write: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
        return self._store.each(write, things)

    @override
    def delta(self, version: ShardVersion, written: Written, view: Overlay, micro_batch: int) -> ShardFile | None:
        self.call()
        return self._store.delta(version, written, view, micro_batch)

    @override
    def merged(self, files: Sequence[ShardFile], first: int, written: Written) -> tuple[ShardFile, ...]:
        self.call()
        return self._store.merged(files, first, written)

    @override
    def side(self, written: Written, data: SideData) -> SideFile:
        self.call()
        return self._store.side(written, data)

    @override
    def joined(self, written: Written, files: Sequence[SideFile], newest: bool) -> SideFile:
        self.call()
        return self._store.joined(written, files, newest)

    # `seams.TaskExchange`.

    @override
    def markers(self) -> Sequence[Marker]:
        self.call()
        return [marker for box in self._inbox for marker in box.markers]

    @override
    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        self.call()
        return self._arrived(stage, shard)

    @override
    def any(self, stage: str, shard: int) -> bool:
        return any(box.rows.get((stage, shard)) for box in self._inbox)

    def _arrived(self, stage: str, shard: int) -> Iterator[tuple[bytes, KeyElements]]:
        for box in self._inbox:
            for key, elements in box.rows.get((stage, shard), ()):
                self._contexts[stage, shard].expects(key, elements, self.plan.times.inputs.get(stage))
                yield key, together(elements)

    @override
    def passing(self, shard: int) -> Iterable[Passed]:
        for box in self._inbox:
            for (stage, of), rows in box.rows.items():
                if of == shard and self.job.pipeline.by_name[stage].level > self.level:
                    yield stage, of, rows

    @override
    def pass_on(self, row: Passed) -> None:
        stage, shard, rows = row
        self.box.rows.setdefault((stage, shard), []).extend(rows)

    @override
    def mark(self, marker: Marker) -> None:
        self.call()
        self.box.markers.append(marker)

    # `seams.UserCode`.

    @override
    def runner(self, stage: str, shard: int, view: StateView) -> EngineRunner:
        context = StageContext(self, self.job.pipeline.by_name[stage], shard, view)
        self._contexts[stage, shard] = context
        return runner_of(context, self.job.pipeline.numbers[stage])

    @override
    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements]]:
        kind = self.job.pipeline.by_name[stage].kind
        return beginnings(kind, shard, self.job.pipeline.shards) if isinstance(kind, Source) else ()

    @override
    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, KeyElements]]:
        raise AssertionError(f"no simulated job has a script, but {stage!r} has one")

    @override
    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        of = self.job.pipeline.by_name[stage]
        times = self.plan.times
        published = min((times.outputs.get(port, MIN_TIMESTAMP) for port in of.inputs), default=MIN_TIMESTAMP)
        upstream = max(published, times.upstream.get(stage, MIN_TIMESTAMP))
        record = dropped(of, drop)
        checks.of_drop(of, record, upstream, stage in self.job.honest)
        self._contexts[stage, shard].records.append(record)

    @override
    def sides(self) -> Iterator[SideData]:
        for (_, shard), (reader, writer, windows) in sorted(self._aside.items(), key=lambda each: each[0]):
            data = writer.data(shard, self.job.read_until(reader, list(windows)))
            assert data is not None
            yield data

    @override
    def sides_to_compact(self) -> Mapping[int, bool]:
        pipeline = self.job.pipeline
        count = self.job.layout.tasks[self.level]
        return {
            pipeline.side_number(reader, port): reader.newest
            for port, readers in pipeline.side_readers.items()
            for reader in readers
            if pipeline.by_name[port.stage].level == self.level
            and pipeline.side_number(reader, port) % count == self.task
        }

    # `SideInputs`.

    @override
    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        of = self.job.pipeline.by_name[stage]
        return tuple(SideInputWindow(side_name(n), window.ordered()) for n in range(len(of.sides)))

    @override
    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        windowing = self.job.pipeline.by_name[stage].windowing
        assert windowing is not None
        return windowing.decode(lot.window).max_timestamp

    @override
    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        return self._sides.has_chunks(self.job.pipeline.numbers[stage], lot.window)

    @override
    def read(self, stage: str, window: Window) -> tuple[bytes, ...]:
        known = self._read.get((stage, window))
        if known is None:
            chunks = self._sides.chunks(self.job.pipeline.numbers[stage], window.ordered())
            known = self._read[stage, window] = tuple(sorted(sequences.unframed(b"".join(chunks))))
        return known

    @override
    def put_aside(
        self, reader: Stage, port: Port, shard: int, windows: Sequence[Window], atoms: Sequence[bytes]
    ) -> None:
        number = self.job.pipeline.side_number(reader, port)
        known = self._aside.get((number, shard))
        if known is None:
            writer = SideFileWriter(self.job.scratch, number, port)
            known = self._aside[number, shard] = reader.name, writer, set()
        known[2].update(windows)
        for window in windows:
            known[1].append(window.ordered(), b"".join(map(sequences.framed, atoms)))

    # Outputs of user code.

    def send_out(self, out: Out) -> None:
        """Send an output to all its consumers."""
        self.call()
        pipeline, port = self.job.pipeline, Port(out.stage, out.output)
        checks.of_output(out, self.plan.times.outputs.get(port, MIN_TIMESTAMP), out.stage in self.job.honest)
        if not out.atoms:
            return
        value = joined(out.atoms)
        for reader in pipeline.consumers[port]:
            key = reader.key_of(out.key)
            shard = crc32(key) % pipeline.shards
            element: WindowedElement = (value, out.time, windows_of(reader, out.time), NO_PANE)
            self.box.rows.setdefault((reader.name, shard), []).append((key, [element]))
