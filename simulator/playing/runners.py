"""The environment of a runner of a simulated job, and the choice of the runner for a stage.

Owns the actions of one stage in one shard in one attempt: records, fired timers, elements that must be dropped. Must
not know where any of it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, DropReason
from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.microbatchplan import MicroBatchPlan
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import Runner as EngineRunner
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.commits import Committable
from arcbeam.model.interfaces import StateView
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, NO_PANE, Window
from simulator.judging import checks
from simulator.judging.records import Broken, Drop, Out, Part, Record
from simulator.playing.buffered import Buffered, Committing, commits_at_the_end_of_calls
from simulator.playing.debouncing import ALL_WAYS
from simulator.playing.jobs import Job
from simulator.playing.together import InBatches, fires_together
from simulator.playing.usercode import Buffering, Expanding, Grouping, Joining, Passing, Reading, Runner, RunnerContext
from simulator.scenario.combining import atoms_of
from simulator.scenario.kinds import Buffer, Expand, Group, Join, Keep, Source
from simulator.scenario.plans import Stage


class Attempt(Protocol):
    """The attempt of a task that a context belongs to."""

    job: Job
    plan: MicroBatchPlan
    name: str

    def put_aside(
        self, reader: Stage, port: Port, shard: int, windows: Sequence[Window], atoms: Sequence[bytes]
    ) -> None:
        """Write atoms into a side input."""

    def send_out(self, out: Out) -> None:
        """Send an output to all its consumers."""

    def read(self, stage: str, window: Window) -> tuple[bytes, ...]:
        """Return the contents of a stage's side input in a window, sorted."""


class StageContext(RunnerContext):
    """See `usercode.RunnerContext`.

    Args:
        run: the attempt.
        stage: the stage.
        shard: the shard of the stage.
        view: the state of the shard.

    Attributes:
        draining: a drain has begun.
        records: its outputs and drops.
        ends: what has fired, each with the timestamp that the watermark must have passed.
        waiting: the timestamps of event timers that were pending when a processing-time timer of the same key fired.
        too_late: the elements that must be dropped.
    """

    def __init__(self, run: Attempt, stage: Stage, shard: int, view: StateView) -> None:
        self._run, self.stage, self._shard = run, stage, shard
        self.view = view
        self.now, self.draining = run.plan.time, run.plan.drain
        self.chance = f"{run.name}/{stage.name}/{shard}"
        self.last_event = run.job.last_event
        self.records: list[Record] = []
        self.ends: list[tuple[str, Timestamp]] = []
        self.waiting: list[Timestamp] = []
        self.too_late: list[tuple[bytes, bytes, Window]] = []
        self._published: dict[Port, None] = {}

    def expects(self, key: bytes, elements: KeyElements, watermark: Timestamp | None) -> None:
        """Record incoming elements. Those whose windows have expired at the committed watermark must be dropped."""
        for value, _, windows, _ in elements:
            late = [window for window in windows if checks.is_expired(self.stage, window, watermark)]
            self.too_late += [(key, value, window) for window in late]

    @override
    def put_out(self, out: Out) -> None:
        run = self._run
        run.send_out(out)
        self.records.append(out)
        if out.pane is not None:
            checks.of_pane(out, self.ends)
        port = Port(out.stage, out.output)
        for reader in run.job.pipeline.side_readers.get(port, ()):
            if out.atoms:
                run.put_aside(reader, port, self._shard, windows_of(reader, out.time), out.atoms)
                self._published[port] = None

    @override
    def timed(self, fired: Fired) -> None:
        kind = self.stage.kind
        if fired.family == "clock":
            if fired.fire_at > self.now and self.draining:
                # In a drain, such timers do not wait for the clock, but for the end of the input.
                self.ends.append((f"a timer of {self.stage.name} before it is due", MAX_TIMESTAMP))
            elif fired.fire_at > self.now:
                raise Broken(f"a timer of {self.stage.name} fired at {self.now}, due at {fired.fire_at}")
        elif isinstance(kind, Keep):
            self.ends.append((TimeDomain.EVENT.value, fired.fire_at))

    @override
    def over(self, window: Window) -> None:
        self.ends.append(("the end of a window", window.max_timestamp))

    @override
    def not_over(self, moment: Timestamp) -> None:
        self.waiting.append(moment)

    @override
    def side_input(self, window: Window) -> tuple[bytes, ...] | None:
        return None if self.stage.side is None else self._run.read(self.stage.name, window)

    @override
    def published(self) -> tuple[Port, ...]:
        return tuple(self._published)

    @override
    def part(self) -> Committable | None:
        if not self.records:
            return None
        run = self._run
        id = f"{run.name}/{self.stage.name}/{self._shard}".encode()
        run.job.parts[id] = Part(
            run.plan.micro_batch,
            run.job.epoch,
            tuple(self.records),
            run.plan.time,
            frozenset(run.job.pipeline.by_name),
        )
        return Committable(self.stage.name, id)


def runner_of(context: StageContext, number: int) -> EngineRunner:
    """Return the user code of a stage."""
    runner: Runner
    calls: EngineRunner
    writes: Buffered | None = None
    if isinstance(context.stage.kind, (Buffer, Keep)) and commits_at_the_end_of_calls(context.chance):
        context.view = writes = Buffered(context.view)
    match context.stage.kind:
        case Source():
            runner = Reading(context)
        case Expand():
            runner = Expanding(context)
        case Group():
            runner = Grouping(context)
        case Buffer():
            runner = Buffering(context, number)
        case Keep(way=way):
            runner = ALL_WAYS[way](context, number)
        case Join():
            runner = Joining(context)
        case _:
            runner = Passing(context)
    calls = runner if writes is None else Committing(runner, writes)
    if isinstance(kind := context.stage.kind, Keep) and (together := fires_together(context.chance)) > 1:
        return InBatches(calls, together, context.chance, kind.windowing.decode)
    return calls


def windows_of(reader: Stage, time: Timestamp) -> tuple[Window, ...]:
    """Return the windows that an element has when it reaches a stage."""
    return (GLOBAL_WINDOW,) if reader.windowing is None else reader.windowing.fn.assign(time)


def beginnings(source: Source, shard: int, shards: int) -> Iterator[tuple[bytes, KeyElements]]:
    """Yield the initial restrictions of a source in one shard."""
    count, parts = len(source.events), source.parts
    for part in range(parts):
        if part % shards == shard:
            whole = b"%d:%d" % (count * part // parts, count * (part + 1) // parts)
            yield b"", [(whole, MIN_TIMESTAMP, (GLOBAL_WINDOW,), NO_PANE)]


def dropped(stage: Stage, drop: DropLate | DropHeld | DropCombined | Late) -> Drop:
    """Return the record of a drop by the engine."""
    match drop:
        case DropLate(key, window, value, time, watermark, reason):
            late = reason is DropReason.EXPIRED
            return Drop(stage.name, key, tuple(atoms_of(value)), time, window, late, watermark)
        case DropHeld(key, window, contents, count, watermark):
            values = list(contents)
            if isinstance(stage.kind, Group) and not stage.kind.accumulating and len(values) != count:
                raise Broken(f"{stage.name} has dropped {values}, but counts {count}")
            atoms = tuple(atom for value in values for atom in atoms_of(value))
            return Drop(stage.name, key, atoms, None, window, False, watermark, count)
        case DropCombined():
            raise Broken(f"{stage.name} has dropped accumulators, but the simulator has none")
        case Late(element, watermark):
            assert stage.windowing is not None
            window = stage.windowing.decode(element.window)
            return Drop(stage.name, element.key, tuple(atoms_of(element.value)), element.time, window, True, watermark)
