"""One attempt of one task: the real `TaskStep`, with an exchange, a host's state and user code around it.

Owns what an attempt has read and sends, and the files it writes. Must not know which attempts count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from arcbeam.engine.grouping.effects import DropHeld, DropLate
from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.plan.markers import Marker
from arcbeam.engine.plan.reports import TaskReport
from arcbeam.engine.plan.stepplan import StepPlan
from arcbeam.engine.state.agenda import Late
from arcbeam.engine.state.parking import SideInputWindow
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.step.bundles import Runner as EngineRunner
from arcbeam.engine.step.shard import TaskStep
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.files import Shard, ShardFile, SideFile, TaskFiles
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import NO_PANE, Window
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import Manifest
from arcbeam.store.shards.compaction import compact, worth_merging
from arcbeam.store.shards.overlay import Overlay
from arcbeam.testing.simulate.judging import checks
from arcbeam.testing.simulate.judging.records import Out
from arcbeam.testing.simulate.playing.desks import StageDesk, beginnings, dropped, runner_of, windows_of
from arcbeam.testing.simulate.playing.hosts import Host
from arcbeam.testing.simulate.playing.jobs import Box, Died, Job, Looks
from arcbeam.testing.simulate.scenario.combining import atoms_of, joined
from arcbeam.testing.simulate.scenario.kinds import Expand, Source

_VALIDATED = 4
"""In every step whose number is a multiple of this, all rows of restrictions are looked at."""


class TaskRun:
    """An attempt.

    Args:
        job: as above.
        head: what it stands on.
        plan: of the step.
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
        head: Manifest,
        plan: StepPlan,
        level: int,
        task: int,
        name: str,
        inbox: Sequence[Box],
        host: Host,
        dies_after: int | None = None,
    ) -> None:
        self.job, self.head, self.plan = job, head, plan
        self.level, self.task, self.name = level, task, name
        self.box = Box()
        self._inbox, self._host, self._left = inbox, host, dies_after
        self._views: dict[int, Overlay] = {}
        self._desks: dict[tuple[str, int], StageDesk] = {}
        self._sides: dict[str, dict[bytes, list[bytes]]] | None = None
        self.side_rows: dict[tuple[str, int], list[tuple[bytes, bytes]]] = {}

    # The two halves of its life.

    def work(self) -> TaskReport:
        """Does the task's part of the step; the report is without files."""
        job = self.job
        specs = job.pipeline.specs(job.layout)
        here = {placed.name: specs[placed.name] for placed in job.layout.at(self.level)}
        step = TaskStep(job.layout, here, self.level, self.task, self.name.encode(), self.plan)
        report = step.run(self, self, self, Looks(job.looks))
        for stage in report.stages:
            desk = self._desks[stage.stage, stage.shard]
            checks.of_report(desk, stage, self.plan)
            checks.of_lateness(desk.stage, desk.too_late, desk.records)
            if isinstance(desk.stage.kind, (Source, Expand)) and not self.plan.step % _VALIDATED:
                number = job.pipeline.numbers[stage.stage]
                Residuals(desk.view, number, desk.stage.outputs, 50).validate()
        self._pass_on()
        return report

    def write(self, report: TaskReport) -> TaskReport:
        """Writes its files; the report with their names."""
        shards = []
        for shard, view in self._views.items():
            self.call()
            files = self._written(shard, view)
            if files:
                shards.append(Shard(self.level, shard, files))
        sides = tuple(self._written_side(*place) for place in sorted(self.side_rows))
        self.close()
        return replace(report, files=TaskFiles(tuple(shards), sides))

    def close(self) -> None:
        """Gives back what it holds."""
        for view in self._views.values():
            view.close()
        self._views.clear()

    def call(self) -> None:
        """One more call; it may be the last."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Died(f"task {self.task} of level {self.level} died")

    def _written(self, shard: int, view: Overlay) -> tuple[ShardFile, ...]:
        job, version = self.job, self.head.version(self.level, shard)
        name = Written(self.level, shard, self.plan.step, job.epoch, self.name, "delta")
        delta = self._host.publish(job.blobs, version, name, view, self.plan.step)
        files = version.files
        first = worth_merging(files)
        if first is not None:
            self.call()
            merged = replace(name, attempt=f"{self.name}.merged")
            files = compact(job.blobs, job.scratch, files, first, merged)
        return files if delta is None else (*files, delta)

    def _written_side(self, reader: str, shard: int) -> SideFile:
        self.call()
        number = self.job.pipeline.numbers[reader]
        name = written_name(Written(number, shard, self.plan.step, self.job.epoch, self.name, "side"))
        data = b"\n".join(window.hex().encode() + b" " + atoms for window, atoms in self.side_rows[reader, shard])
        self.job.blobs.put(name, data)
        return SideFile(number, shard, name, len(data), crc32(data))

    def _pass_on(self) -> None:
        """Rows for deeper levels go on through the owner of their shard."""
        owned = self.job.layout.range_of(self.level, self.task)
        for box in self._inbox:
            for (stage, shard), rows in box.rows.items():
                if shard in owned and self.job.pipeline.by_name[stage].level > self.level:
                    self.box.rows.setdefault((stage, shard), []).extend(rows)

    # What the engine asks for: `Exchange`.

    def markers(self) -> Sequence[Marker]:
        """See `Exchange`."""
        self.call()
        return [marker for box in self._inbox for marker in box.markers]

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """See `Exchange`."""
        self.call()
        kind = self.job.pipeline.by_name[stage].kind
        if isinstance(kind, Source) and self.plan.initial:
            yield from beginnings(kind, shard, self.job.pipeline.shards)
        for box in self._inbox:
            for key, elements in box.rows.get((stage, shard), ()):
                self._desks[stage, shard].expects(key, elements, self.plan.times.inputs.get(stage))
                yield key, elements

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `Exchange`."""
        of = self.job.pipeline.by_name[stage]
        upstream = min((self.plan.times.outputs.get(port, MIN_TIMESTAMP) for port in of.inputs), default=MIN_TIMESTAMP)
        record = dropped(of, drop)
        checks.of_drop(of, record, upstream, stage in self.job.honest)
        self._desks[stage, shard].records.append(record)

    def send(self, marker: Marker) -> None:
        """See `Exchange`."""
        self.call()
        self.box.markers.append(marker)

    # `Shards`.

    def view(self, shard: int) -> Overlay:
        """See `Shards`."""
        if shard not in self._views:
            self._views[shard] = self._host.view(self.job.blobs, self.head.version(self.level, shard))
        return self._views[shard]

    def runner(self, stage: str, shard: int) -> EngineRunner:
        """See `Shards`."""
        desk = StageDesk(self, self.job.pipeline.by_name[stage], shard, self.view(shard))
        self._desks[stage, shard] = desk
        return runner_of(desk, self.job.pipeline.numbers[stage])

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
        for file in self.head.side_files:
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
