"""One attempt of one task: the real one, with rows, files and user code of the simulation around it.

Owns what an attempt has read and sends, and when it dies. Must not know which attempts count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from arcbeam.engine.grouping.effects import DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.plan.markers import Marker
from arcbeam.engine.plan.reports import TaskReport
from arcbeam.engine.state.agenda import Late
from arcbeam.engine.state.parking import SideInputWindow
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.step.bundles import Runner as EngineRunner
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import ShardFile, SideFile
from arcbeam.model.seams import StateView
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, Window
from arcbeam.steps.order import StepOrder
from arcbeam.steps.seams import SideData
from arcbeam.steps.sidejoining import latest
from arcbeam.steps.task import TaskAttempt
from arcbeam.steps.written import TaskStore
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import ShardVersion
from arcbeam.store.shards.overlay import Overlay
from arcbeam.testing.simulate.judging import checks
from arcbeam.testing.simulate.judging.records import Out
from arcbeam.testing.simulate.playing.desks import StageDesk, beginnings, dropped, runner_of, windows_of
from arcbeam.testing.simulate.playing.hosts import Host
from arcbeam.testing.simulate.playing.jobs import Box, Died, Job, Looks, Passed
from arcbeam.testing.simulate.scenario.combining import atoms_of, joined
from arcbeam.testing.simulate.scenario.kinds import Expand, Source
from arcbeam.testing.simulate.scenario.together import together

_VALIDATED = 4
"""In every step whose number is a multiple of this, all rows of restrictions are looked at."""


class TaskRun:
    """An attempt.

    Args:
        job: as above.
        order: of the step.
        level, task: which one.
        name: of the attempt, unique.
        inbox: what attempts of the level before have sent.
        host: where it runs.
        dies_after: so many calls; None: it lives.

    Attributes:
        box: what it sends.
    """

    def __init__(
        self,
        job: Job,
        order: StepOrder,
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
        self._desks: dict[tuple[str, int], StageDesk] = {}
        self._sides: dict[str, dict[bytes, list[bytes]]] | None = None
        self.side_rows: dict[tuple[str, int], list[tuple[Window, bytes]]] = {}
        specs = job.pipeline.specs(job.layout)
        self._attempt = TaskAttempt(
            job.layout, specs, order, level, task, name, self, self, self, self, Looks(job.looks)
        )

    # The two halves of its life.

    def work(self) -> TaskReport:
        """Does the task's part of the step; the report is without files."""
        report = self._attempt.work()
        for stage in report.stages:
            desk = self._desks[stage.stage, stage.shard]
            checks.of_report(desk, stage, self.plan)
            checks.of_lateness(desk.stage, desk.too_late, desk.records)
            if isinstance(desk.stage.kind, (Source, Expand)) and not self.plan.step % _VALIDATED:
                number = self.job.pipeline.numbers[stage.stage]
                Residuals(desk.view, number, desk.stage.outputs, 50).validate()
        return report

    def write(self, report: TaskReport) -> TaskReport:
        """Writes its files; the report with their names."""
        return self._attempt.write(report)

    def close(self) -> None:
        """Gives back what it holds."""
        self._attempt.close()

    def call(self) -> None:
        """One more call; it may be the last."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Died(f"task {self.task} of level {self.level} died")

    # `seams.Files`.

    def view(self, version: ShardVersion) -> Overlay:
        """See `seams.Files`."""
        return self._store.view(version)

    def delta(self, version: ShardVersion, written: Written, view: Overlay, step: int) -> ShardFile | None:
        """See `seams.Files`."""
        self.call()
        return self._store.delta(version, written, view, step)

    def merged(self, files: Sequence[ShardFile], first: int, written: Written) -> tuple[ShardFile, ...]:
        """See `seams.Files`."""
        self.call()
        return self._store.merged(files, first, written)

    def side(self, written: Written, data: SideData) -> SideFile:
        """See `seams.Files`."""
        self.call()
        return self._store.side(written, data)

    def joined(self, written: Written, files: Sequence[SideFile], newest: bool) -> SideFile:
        """See `seams.Files`."""
        self.call()
        data = b"\n".join(self.job.blobs.get(file.name) for file in files)
        whole = self._store.side(written, SideData(written.place, written.shard, data, latest(files)))
        return replace(whole, step=max(file.step for file in files))

    # `seams.Rows`.

    def markers(self) -> Sequence[Marker]:
        """See `seams.Rows`."""
        self.call()
        return [marker for box in self._inbox for marker in box.markers]

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `seams.Rows`."""
        self.call()
        return self._came(stage, shard)

    def _came(self, stage: str, shard: int) -> Iterator[tuple[bytes, Elements]]:
        for box in self._inbox:
            for key, elements in box.rows.get((stage, shard), ()):
                self._desks[stage, shard].expects(key, elements, self.plan.times.inputs.get(stage))
                yield key, together(elements)

    def passing(self, shard: int) -> Iterable[Passed]:
        """See `seams.Rows`."""
        for box in self._inbox:
            for (stage, of), rows in box.rows.items():
                if of == shard and self.job.pipeline.by_name[stage].level > self.level:
                    yield stage, of, rows

    def pass_on(self, row: Passed) -> None:
        """See `seams.Rows`."""
        stage, shard, rows = row
        self.box.rows.setdefault((stage, shard), []).extend(rows)

    def mark(self, marker: Marker) -> None:
        """See `seams.Rows`."""
        self.call()
        self.box.markers.append(marker)

    # `seams.UserCode`.

    def runner(self, stage: str, shard: int, view: StateView) -> EngineRunner:
        """See `seams.UserCode`."""
        desk = StageDesk(self, self.job.pipeline.by_name[stage], shard, view)
        self._desks[stage, shard] = desk
        return runner_of(desk, self.job.pipeline.numbers[stage])

    def beginning(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `seams.UserCode`."""
        kind = self.job.pipeline.by_name[stage].kind
        return beginnings(kind, shard, self.job.pipeline.shards) if isinstance(kind, Source) else ()

    def scripted(self, stage: str, elements: Sequence[tuple[bytes, Timestamp]]) -> Iterable[tuple[bytes, Elements]]:
        """See `seams.UserCode`."""
        raise AssertionError(f"no simulated job has a script, and {stage!r} is to follow one")

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `seams.UserCode`."""
        of = self.job.pipeline.by_name[stage]
        times = self.plan.times
        told = min((times.outputs.get(port, MIN_TIMESTAMP) for port in of.inputs), default=MIN_TIMESTAMP)
        upstream = max(told, times.upstream.get(stage, MIN_TIMESTAMP))
        record = dropped(of, drop)
        checks.of_drop(of, record, upstream, stage in self.job.honest)
        self._desks[stage, shard].records.append(record)

    def sides(self) -> Iterator[SideData]:
        """See `seams.UserCode`."""
        for (reader, shard), rows in sorted(self.side_rows.items(), key=lambda each: each[0]):
            data = b"\n".join(window.ordered().hex().encode() + b" " + atoms for window, atoms in rows)
            until = self.job.read_until(reader, [window for window, _ in rows])
            yield SideData(self.job.pipeline.numbers[reader], shard, data, until)

    def tended(self) -> Mapping[int, bool]:
        """See `seams.UserCode`."""
        pipeline = self.job.pipeline
        count = self.job.layout.tasks[self.level]
        return {
            pipeline.numbers[reader.name]: False
            for port, readers in pipeline.side_readers.items()
            for reader in readers
            if pipeline.by_name[port.stage].level == self.level and pipeline.numbers[reader.name] % count == self.task
        }

    # `SideInputs`.

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        """See `SideInputs`."""
        return (SideInputWindow("side", window.ordered()),)

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        """See `SideInputs`."""
        windowing = self.job.pipeline.by_name[stage].windowing
        assert windowing is not None
        return windowing.decode(lot.window).max_timestamp

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        """See `SideInputs`."""
        if self._sides is None:
            self._sides = self._read_sides()
        return lot.window in self._sides.get(stage, {})

    def _read_sides(self) -> dict[str, dict[bytes, list[bytes]]]:
        names = {number: name for name, number in self.job.pipeline.numbers.items()}
        sides: dict[str, dict[bytes, list[bytes]]] = {}
        for file in self.order.side_files:
            of = sides.setdefault(names[file.channel], {})
            for line in self.job.blobs.get(file.name).split(b"\n"):
                window, _, atoms = line.partition(b" ")
                of.setdefault(bytes.fromhex(window.decode()), []).extend(atoms_of(atoms))
        return sides

    # What user code puts out.

    def send_out(self, out: Out) -> None:
        """To all that read it."""
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
