"""One attempt of one task: the real `TaskStep`, with an exchange, a host's state and user code around it.

Owns what an attempt has read and made, the files it writes, and what must hold of it whatever comes later. Must not know
which attempts count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from arcbeam.engine.agenda import Late
from arcbeam.engine.bundles import Runner as EngineRunner
from arcbeam.engine.clocks import Port
from arcbeam.engine.effects import DropHeld, DropLate, DropReason
from arcbeam.engine.grouping import Came
from arcbeam.engine.layout import Layout
from arcbeam.engine.markers import Marker
from arcbeam.engine.parking import Lot
from arcbeam.engine.reports import Committable, TaskReport
from arcbeam.engine.residuals import Residuals
from arcbeam.engine.shard import TaskStep
from arcbeam.engine.stepplan import StepPlan
from arcbeam.engine.timers import Fired
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, Window
from arcbeam.store.compaction import compact, worth_merging
from arcbeam.store.durable import DurableBlobs
from arcbeam.store.manifest import Manifest, Shard, ShardFile, SideFile
from arcbeam.store.names import Written, written_name
from arcbeam.store.overlay import Overlay
from arcbeam.testing.simulate import checks
from arcbeam.testing.simulate.combining import atoms_of, joined
from arcbeam.testing.simulate.hosts import Host
from arcbeam.testing.simulate.keeping import WAYS
from arcbeam.testing.simulate.plans import (
    MAIN,
    Expand,
    Group,
    Join,
    Keep,
    Pipeline,
    Source,
    Stage,
)
from arcbeam.testing.simulate.records import Broken, Drop, Out, Part, Record
from arcbeam.testing.simulate.usercode import Expanding, Grouping, Joining, Passing, Reading, Runner

Rows = dict[tuple[str, int], list[tuple[bytes, list[Came]]]]
"""What goes to each stage and shard."""


class Died(Exception):
    """A task's process is gone."""


class Looks:
    """An allowance of so many looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def spent(self) -> bool:
        """See `Allowance`."""
        self._looks -= 1
        return self._looks <= 0


@dataclass
class Box:
    """What an attempt sends to the next level, with its marker behind all rows."""

    rows: Rows = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)


@dataclass(frozen=True)
class Made:
    """The files of an attempt: the shards as they are with them, and new side files."""

    shards: tuple[Shard, ...]
    sides: tuple[SideFile, ...]


@dataclass(frozen=True)
class Job:
    """What does not change while a driver lives.

    Attributes:
        pipeline: what runs.
        layout: where.
        blobs: its way to the store.
        epoch: of the driver.
        scratch: a local folder.
        parts: where it is kept what is to be published, by id.
        honest: the stages to which nothing can come too late.
        looks: how much a task may do in a step.
        last_event: a time behind those of all events.
    """

    pipeline: Pipeline
    layout: Layout
    blobs: DurableBlobs
    epoch: int
    scratch: Path
    parts: dict[bytes, Part]
    honest: frozenset[str]
    looks: int
    last_event: int


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
        self._desks: dict[tuple[str, int], _Desk] = {}
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
            checks.of_report(job.pipeline.by_name[stage.stage], stage, self.plan, desk.ends, desk.records)
            checks.of_lateness(desk.stage, desk.too_late, desk.records)
            if isinstance(desk.stage.kind, (Source, Expand)) and len(desk.records) < 4:
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
        return replace(report, files=Made(tuple(shards), sides))

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
        return SideFile(number, shard, name, len(data))

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

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Sequence[Came]]]:
        """See `Exchange`."""
        self.call()
        kind = self.job.pipeline.by_name[stage].kind
        if isinstance(kind, Source) and self.plan.initial:
            yield from _beginnings(kind, shard, self.job.pipeline.shards)
        for box in self._inbox:
            for key, elements in box.rows.get((stage, shard), ()):
                self._desks[stage, shard].expects(key, elements, self.plan.times.inputs.get(stage))
                yield key, elements

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """See `Exchange`."""
        of = self.job.pipeline.by_name[stage]
        upstream = min((self.plan.times.outputs.get(port, MIN_TIMESTAMP) for port in of.inputs), default=MIN_TIMESTAMP)
        record = _dropped(of, drop)
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
        desk = _Desk(self, self.job.pipeline.by_name[stage], shard)
        self._desks[stage, shard] = desk
        return _runner(desk, self.job.pipeline.numbers[stage])

    # `SideInputs`.

    def needed(self, stage: str, window: Window) -> Sequence[Lot]:
        """See `SideInputs`."""
        return (Lot("side", window.ordered()),)

    def until(self, stage: str, lot: Lot) -> Timestamp:
        """See `SideInputs`."""
        windowing = self.job.pipeline.by_name[stage].windowing
        assert windowing is not None
        return windowing.decode(lot.window).max_timestamp

    def exists(self, stage: str, lot: Lot) -> bool:
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
            element: Came = (value, out.time, _windows(reader, out.time))
            self.box.rows.setdefault((reader.name, shard), []).append((key, [element]))


class _Desk:
    """See `usercode.Desk`."""

    def __init__(self, run: TaskRun, stage: Stage, shard: int) -> None:
        self._run, self.stage, self._shard = run, stage, shard
        self.view = run.view(shard)
        self.now = run.plan.time
        self.chance = f"{run.name}/{stage.name}/{shard}"
        self.last_event = run.job.last_event
        self.records: list[Record] = []
        self.ends: list[tuple[str, Timestamp]] = []
        self.too_late: list[tuple[bytes, bytes, Window]] = []
        self._published: dict[Port, None] = {}

    def expects(self, key: bytes, elements: Sequence[Came], watermark: Timestamp | None) -> None:
        """Elements come; those for whose windows the head is too late must be dropped."""
        for value, _, windows in elements:
            late = [window for window in windows if checks.is_expired(self.stage, window, watermark)]
            self.too_late += [(key, value, window) for window in late]

    def put_out(self, out: Out) -> None:
        run = self._run
        run.send_out(out)
        self.records.append(out)
        if out.pane is not None:
            checks.of_pane(out, self.ends)
        port = Port(out.stage, out.output)
        for reader in run.job.pipeline.side_readers.get(port, ()):
            if out.atoms:
                rows = run.side_rows.setdefault((reader.name, self._shard), [])
                rows += [(window.ordered(), joined(out.atoms)) for window in _windows(reader, out.time)]
                self._published[port] = None

    def timed(self, fired: Fired) -> None:
        kind = self.stage.kind
        if fired.family == "clock":
            if fired.fire_at > self.now:
                raise Broken(f"a timer of {self.stage.name} fired at {self.now}, due at {fired.fire_at}")
        elif isinstance(kind, Keep):
            self.ends.append((TimeDomain.EVENT.value, fired.fire_at))

    def over(self, window: Window) -> None:
        self.ends.append(("the end of a window", window.max_timestamp))

    def joins(self, window: Window) -> bool:
        return self._run.exists(self.stage.name, Lot("side", window.ordered()))

    def published(self) -> tuple[Port, ...]:
        return tuple(self._published)

    def part(self) -> Committable | None:
        if not self.records:
            return None
        run = self._run
        id = f"{run.name}/{self.stage.name}/{self._shard}".encode()
        run.job.parts[id] = Part(run.plan.step, run.job.epoch, tuple(self.records))
        return Committable(self.stage.name, id)


def _runner(desk: _Desk, number: int) -> EngineRunner:
    runner: Runner
    match desk.stage.kind:
        case Source():
            runner = Reading(desk)
        case Expand():
            runner = Expanding(desk)
        case Group():
            runner = Grouping(desk)
        case Keep(way=way):
            runner = WAYS[way](desk, number)
        case Join():
            runner = Joining(desk)
        case _:
            runner = Passing(desk)
    return runner


def _windows(reader: Stage, time: Timestamp) -> tuple[Window, ...]:
    return (GLOBAL_WINDOW,) if reader.windowing is None else reader.windowing.fn.assign(time)


def _beginnings(source: Source, shard: int, shards: int) -> Iterator[tuple[bytes, Sequence[Came]]]:
    count, parts = len(source.events), source.parts
    for part in range(parts):
        if part % shards == shard:
            whole = b"%d:%d" % (count * part // parts, count * (part + 1) // parts)
            yield b"", [(whole, MIN_TIMESTAMP, (GLOBAL_WINDOW,))]


def _dropped(stage: Stage, drop: DropLate | DropHeld | Late) -> Drop:
    match drop:
        case DropLate(key, window, value, time, watermark, reason):
            late = reason is DropReason.EXPIRED
            return Drop(stage.name, key, tuple(atoms_of(value)), time, window, late, watermark)
        case DropHeld(key, window, contents, _, watermark):
            atoms = tuple(atom for value in contents for atom in atoms_of(value))
            return Drop(stage.name, key, atoms, None, window, False, watermark)
        case Late(element, watermark):
            assert stage.windowing is not None
            window = stage.windowing.decode(element.window)
            return Drop(stage.name, element.key, tuple(atoms_of(element.value)), element.time, window, True, watermark)


__all__ = ["MAIN", "Box", "Died", "Job", "Made", "TaskRun"]
