"""Check when the panes of a grouping fire: not before their trigger, and no later than the trigger or the window's end.

Owns the bounds, computed from the elements and the time of each micro-batch. Merging windows are not judged, nor
groupings of panes. Must not know the engine's triggers: it has its own arithmetic of counts and delays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import Timing, Window
from simulator.judging.assigning import assigned
from simulator.judging.records import Broken, Drop, Out, Record
from simulator.judging.reference import is_single
from simulator.scenario.kinds import ALIGNED, SOON, Group
from simulator.scenario.plans import Pipeline, Stage


@dataclass(frozen=True)
class MicroBatchRun:
    """A micro-batch that was run and committed.

    Attributes:
        time: its recorded time.
        inputs: the input watermark of each stage after it.
        leftover: the stages and shards that did not finish the work that was due.
        shards: the number of shards of each level.
    """

    time: Timestamp
    inputs: Mapping[str, Timestamp]
    leftover: frozenset[tuple[str, int]]
    shards: int = 1


class _Element(NamedTuple):
    atoms: tuple[bytes, ...]
    arrived: Timestamp


_DELAYS: Mapping[str, Callable[[int], int]] = {
    "clock": lambda count: count * 1000,
    "early by the clock": lambda count: count * 1000,
    "count or clock": lambda count: SOON,
    "count and clock": lambda count: SOON,
    "aligned clock": lambda count: count * 300,
}
"""By trigger, the shortest delay between the first element and a pane that the clock fires."""
_FIRES_AT: Mapping[str, Callable[[int], int]] = {
    "counts": lambda count: count,
    "count once": lambda count: count,
    "count or clock": lambda count: count,
    "each": lambda count: count,
    "early and late": lambda count: count,
    "watermark or count": lambda count: count + 1,
    "always": lambda count: 1,
}
"""By trigger, the number of buffered elements at which it fires."""
_PROMPT = frozenset({"watermark", "early and late", "early by the clock", "repeated watermark", "watermark or count"})
"""Triggers that leave nothing buffered after the end of the window."""


def check(pipeline: Pipeline, micro_batches: Sequence[tuple[MicroBatchRun, Sequence[Record]]]) -> Counter[str]:
    """Check all groupings.

    Args:
        pipeline: the pipeline of the job.
        micro_batches: the micro-batches that count, in order, each with its outputs and drops.

    Returns:
        The number of panes checked, by kind.

    Raises:
        Broken: a pane came too early or too late.
    """
    counts: Counter[str] = Counter()
    for stage in pipeline.stages:
        # If elements have several atoms, a pane does not show which elements are in it.
        is_clear = all(is_single(pipeline, port) for port in stage.inputs)
        if isinstance(stage.kind, Group) and not stage.kind.windowing.merges and is_clear:
            watch = _Watch(stage, stage.kind, counts)
            for run, records in micro_batches:
                watch.micro_batch(run, records)
    return counts


class _Watch:
    """The buffered elements of one grouping, by key and window."""

    def __init__(self, stage: Stage, group: Group, counts: Counter[str]) -> None:
        self._stage, self._group = stage, group
        self._counts = counts
        self._waiting: dict[tuple[bytes, Window], list[_Element]] = defaultdict(list)
        # The atoms of the previous pane. An accumulating pane repeats them: an atom may also come by two inputs.
        self._shown: dict[tuple[bytes, Window], Counter[bytes]] = defaultdict(Counter)

    def micro_batch(self, run: MicroBatchRun, records: Sequence[Record]) -> None:
        """Add the records of a micro-batch, and check them."""
        stage, inputs = self._stage, self._stage.inputs
        for record in records:
            if isinstance(record, Out) and record.atoms and Port(record.stage, record.output) in inputs:
                for window in assigned(self._group.windowing, record.time):
                    self._waiting[stage.key_of(record.key), window].append(_Element(record.atoms, run.time))
        for record in records:
            if record.stage == stage.name:
                self._out(run, record) if isinstance(record, Out) else self._dropped(record)
        for (key, window), waiting in list(self._waiting.items()):
            if waiting:
                self._not_too_late(run, key, window, waiting)
            else:
                del self._waiting[key, window]

    def _out(self, run: MicroBatchRun, out: Out) -> None:
        assert out.pane is not None
        assert out.window is not None
        group, trigger = self._group, self._group.trigger
        place, atoms = (out.key, out.window), Counter(out.atoms)
        fresh, left = _parted(self._waiting[place], atoms - self._shown[place])
        self._waiting[place] = left
        if group.accumulating:
            self._shown[place] = atoms
        late = out.pane.timing is Timing.LATE
        by_the_clock = trigger in _DELAYS and (trigger != "early by the clock" or out.pane.timing is Timing.EARLY)
        if out.pane.is_last or not fresh:
            return
        count, wrong = len(fresh), ""
        if late and trigger in ("early and late", "early by the clock") and count != 1:
            wrong = f"with {count} elements: each late element comes out alone"
        if by_the_clock and not (trigger == "count or clock" and count >= group.count):
            self._counts["panes by the clock"] += 1
            first = min(element.arrived for element in fresh)
            if run.time < first + _DELAYS[trigger](group.count):
                wrong = f"but its first element came at {first}: too early"
        if wrong:
            raise Broken(f"{self._stage.name} has put out {out} at {run.time}, {wrong}")
        self._counts["late panes"] += late

    def _dropped(self, drop: Drop) -> None:
        place = drop.key, drop.window
        _, left = _parted(self._waiting[place][::-1], Counter(drop.atoms))
        self._waiting[place] = left[::-1]

    def _not_too_late(self, run: MicroBatchRun, key: bytes, window: Window, waiting: Sequence[_Element]) -> None:
        if wrong := self._overdue(run, key, window, waiting):
            watermark = run.inputs[self._stage.name]
            raise Broken(
                f"{self._stage.name} is at {watermark}, the time is {run.time}; {waiting[:5]} of {key!r} in {window} "
                f"are still buffered, but {wrong}"
            )

    def _overdue(self, run: MicroBatchRun, key: bytes, window: Window, waiting: Sequence[_Element]) -> str:
        """Return why buffered elements are overdue; empty if they may wait."""
        group, trigger = self._group, self._group.trigger
        watermark, end = run.inputs[self._stage.name], window.max_timestamp
        if trigger in _FIRES_AT and len(waiting) >= _FIRES_AT[trigger](group.count):
            return f"at most {_FIRES_AT[trigger](group.count) - 1} may wait"
        if (self._stage.name, crc32(key) % run.shards) in run.leftover:
            return ""
        if _has_passed(watermark, min(Timestamp(end + group.lateness), END_OF_GLOBAL_WINDOW)):
            return "the window has expired"
        if _has_passed(watermark, end) and trigger in _PROMPT:
            return "the window has ended"
        if trigger == "synchronized":
            return "this trigger leaves nothing for the next micro-batch"
        if trigger not in _DELAYS:
            return ""
        due = waiting[0].arrived + _DELAYS[trigger](group.count) + (ALIGNED if trigger == "aligned clock" else 0)
        if trigger == "count and clock":
            if len(waiting) < group.count:
                return ""
            # An element that comes after the clock has fired may have to wait until the clock advances.
            due = max(due, waiting[group.count - 1].arrived) + 1
        return f"was due at {due}" if run.time >= due else ""


def _has_passed(watermark: Timestamp, moment: Timestamp) -> bool:
    return moment < watermark or watermark == MAX_TIMESTAMP


def _parted(waiting: Sequence[_Element], atoms: Counter[bytes]) -> tuple[list[_Element], list[_Element]]:
    """Split the elements into those with these atoms and the others."""
    there = atoms.copy()
    of, left = [], []
    for element in waiting:
        if all(there[atom] > 0 for atom in element.atoms):
            there.subtract(element.atoms)
            of.append(element)
        else:
            left.append(element)
    return of, left
