"""What one stage does in one shard in a micro-batch.

Owns the order: what was parked, what has come, what is due by the clock, then the watermark, and what it lets fire.
Must not know other shards and stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Awaited, Counts, StageReport
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageSpec, Stateful
from arcbeam.engine.rows import sequences
from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.state.unblocking import with_releases
from arcbeam.engine.task.bundles import BundleResult, SideInputs
from arcbeam.engine.task.groupedstage import GroupedLogic
from arcbeam.engine.task.plainstage import PlainLogic, SplittableLogic
from arcbeam.engine.task.stagecontext import StageContext, StageLogic
from arcbeam.engine.task.statefulstage import StatefulLogic
from arcbeam.engine.watermarks.clocks import Local, Port
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.idleness import mark_idle
from arcbeam.engine.watermarks.observed import Seen
from arcbeam.model.script import AdvanceWatermark, ScriptOver
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import PaneInfo, Window
from arcbeam.sizes import threshold

SCRIPT_SHARD: Final = 0
"""Where all that a script adds comes in, so that it stays in its order."""
_TOGETHER: Final = threshold(1000)
"""Elements of a key that go on from where they were parked are handed over so many at once, at most."""
_COMMIT: Final = SideInputWindow("commit", b"")
"""What elements wait for whose stage wants its input stable: that the micro-batch is real in which they came."""


_UNPREPARED: Final = Hold(END_OF_GLOBAL_WINDOW, HolderKind.UNPREPARED, "")


def _with_hold(local: Local, hold: Hold) -> Local:
    """The same, with one hold more on all outputs; it is no row."""
    outputs = {
        name: of if of.hold is not None and of.hold.time <= hold.time else replace(of, hold=hold)
        for name, of in local.outputs.items()
    }
    return replace(local, outputs=outputs)


def logic_of(spec: StageSpec, place: StageContext) -> StageLogic:
    """What a stage does with what comes."""
    match spec.kind:
        case Plain():
            return PlainLogic(place)
        case Grouped():
            return GroupedLogic(place, spec.kind)
        case Stateful():
            return StatefulLogic(place, spec.kind)
        case Splittable(bound):
            return SplittableLogic(place, bound)
        case _:
            assert_never(spec.kind)


class StageRun:
    """A stage in a shard, for one micro-batch.

    Args:
        spec: the stage.
        place: where it is.
        sides: side inputs, as the head has them.
        committed_outputs: output watermarks, as the head has them: what side inputs are judged by, because they are of
            the head.
    """

    def __init__(
        self, spec: StageSpec, place: StageContext, sides: SideInputs, committed_outputs: Mapping[Port, Timestamp]
    ) -> None:
        self._spec = spec
        self._place = place
        self._sides = sides
        self._committed_outputs = committed_outputs
        self._work = logic_of(spec, place)
        self._ports = dict(spec.placed.side_inputs)
        self._parking = BlockedElements(place.view, spec.placed.number) if self._ports or spec.stable else None

    def run(
        self, upstream: Timestamp, plan: MicroBatchPlan, moves: Sequence[Handover]
    ) -> tuple[StageReport, BundleResult]:
        """Does all of it.

        Args:
            upstream: the stage's upstream watermark, in this micro-batch.
            plan: of the micro-batch.
            moves: of the plan's, those from and to this shard of the stage.
        """
        place, work = self._place, self._work
        self._catch_up()
        work.begin(plan, moves, upstream)
        if place.placed.scripted and place.shard == SCRIPT_SHARD:
            self._follow(plan)
        self._unpark()
        for key, elements in place.exchange.elements(place.placed.name, place.shard):
            place.tally.read += len(elements)
            if self._spec.stable:
                self._await_commit(key, elements)
            else:
                self._deliver(key, elements)
        leftover = work.resume()
        # Whatever has come is where it belongs: in its windows, or pending. So the watermark may move.
        watermark = upstream if self._is_transparent else place.clock.advance(upstream)
        leftover |= work.fire(watermark)
        prepares = place.placed.name in plan.preparing
        if prepares:
            place.record(place.runner.prepare())
        closed = self._finish()
        unprepared = self._prepares and not prepares
        return self._report(leftover, upstream, watermark, closed, plan.times.seen, unprepared=unprepared), closed

    def _catch_up(self) -> None:
        """Moves the watermark to where the head has it.

        Within a micro-batch a shard learns of it from markers. But what was observed has moved outputs behind the
        micro-batch before, and what comes now is late by that, whether or not there was a micro-batch without data in
        between.
        """
        inputs = self._place.placed.flow.inputs
        if inputs and not self._is_transparent:
            known = min(self._committed_outputs.get(port, MIN_TIMESTAMP) for port in inputs)
            if known > self._place.clock.input:
                self._place.clock.advance(known)

    @property
    def _prepares(self) -> bool:
        """Whether user code that prepares to shut down has not done so, as far as the head knows: what it does then
        comes before the end of time, so that is not said of any output before.
        """
        place = self._place
        return self._spec.prepares and not (place.placed.ports and place.committed_output == MAX_TIMESTAMP)

    @property
    def _is_transparent(self) -> bool:
        """Whether nothing is ever pending: its input watermark is the upstream one, and need not be written down."""
        return isinstance(self._spec.kind, Plain) and self._parking is None and not self._place.placed.scripted

    def _follow(self, plan: MicroBatchPlan) -> None:
        """Moves the watermark of what the script adds here."""
        clock = self._place.clock
        match plan.event:
            case AdvanceWatermark(stage, watermark) if stage == self._place.placed.name:
                clock.follow(watermark)
            case ScriptOver():
                clock.follow(MAX_TIMESTAMP)
            case _ if self._place.placed.name in plan.beginning:
                clock.follow(MIN_TIMESTAMP)

    def _finish(self) -> BundleResult:
        """Ends the bundles.

        Raises:
            ValueError: state was written, or a timer set. Windows that are over have been dropped by now: nobody would
                ever remove it.
        """
        place = self._place
        before = place.view.written
        closed = place.runner.finish()
        if place.view.written != before:
            raise ValueError(
                f"user code of {place.placed.name!r} in shard {place.shard} has written state when its bundles ended: "
                f"what a call changes must be in the view when the call returns"
            )
        place.record(closed.call)
        return closed

    def _report(
        self,
        leftover: bool,
        upstream: Timestamp,
        watermark: Timestamp,
        closed: BundleResult,
        seen: Seen,
        *,
        unprepared: bool,
    ) -> StageReport:
        place, work, tally = self._place, self._work, self._place.tally
        awaited: set[Awaited] = set()
        earliest: Port | None = None
        first: Timestamp | None = None
        uncommitted = False
        if self._parking is not None:
            for lot, time in self._parking.lots():
                port = None if lot == _COMMIT else self._ports[lot.side_input]
                if first is None or time < first:
                    first, earliest = time, port
                if port is None:
                    uncommitted = True
                else:
                    awaited.add(Awaited(port, self._sides.until(place.placed.name, lot)))
        flow = place.placed.flow
        local = place.clock.local(earliest, closed.seen, closed.sketches, closed.doubted)
        if unprepared:
            local = _with_hold(local, _UNPREPARED)
        next_due = work.next_due()
        if flow.observed:
            local, ends = mark_idle(place.view, place.placed.number, flow.observed, upstream, local, place.now, seen)
            next_due = min((each for each in (next_due, ends) if each is not None), default=None)
        return StageReport(
            place.placed.name,
            place.shard,
            watermark,
            with_releases(place.view, place.placed.number, local, place.abouts),
            leftover,
            work.next_event(),
            next_due,
            tuple(sorted(awaited)),
            work.restrictions(),
            Counts(tally.read, tally.written, tally.fired, tally.resumed, tally.unparked, tally.late, tally.made),
            uncommitted,
            unprepared,
            self._kept(closed),
        )

    def _kept(self, closed: BundleResult) -> StateMetrics:
        kept, parking = self._work.kept(closed), self._parking
        return kept if parking is None else kept + StateMetrics(parked=parking.more, waiting_bytes=parking.size)

    # What waits.

    def _ready(self, lot: SideInputWindow) -> bool:
        """Whether what waits goes on; asked of what waited when the micro-batch began, where it is for the commit."""
        if lot == _COMMIT:
            return True
        name = self._place.placed.name
        committed = self._committed_outputs.get(self._ports[lot.side_input], MIN_TIMESTAMP)
        over = passed(committed, self._sides.until(name, lot))
        return over or self._sides.exists(name, lot)

    def _lacks(self, window: Window) -> SideInputWindow | None:
        """What an element of a window has to wait for."""
        needed = self._sides.needed(self._place.placed.name, window)
        return next((lot for lot in needed if not self._ready(lot)), None)

    def _unpark(self) -> None:
        """What waited for a side input that is ready, or for its commit, goes on, or waits for another one."""
        if self._parking is None:
            return
        assert self._spec.decode is not None
        for lot in [lot for lot, _ in self._parking.lots() if self._ready(lot)]:
            together: list[WindowedElement] = []
            key = b""
            for parked in self._parking.take(lot):
                self._place.tally.unparked += 1
                owner, window, value, *pane = sequences.unframed(parked.value)
                if together and (owner != key or len(together) == _TOGETHER):
                    self._deliver(key, together)
                    together = []
                key = owner
                together.append((value, parked.time, (self._spec.decode(window),), PaneInfo.unpacked(*pane)))
            if together:
                self._deliver(key, together)

    def _deliver(self, key: bytes, elements: Elements) -> None:
        if self._parking is None or not self._ports:
            self._work.deliver(key, elements)
            return
        lacking: dict[Window, SideInputWindow | None] = {}
        ready: list[WindowedElement] = []
        # What is too late must not wait: it would hold the watermark for nothing.
        for value, time, windows, pane in self._work.timely(key, elements):
            for window in windows:
                if window not in lacking:
                    lacking[window] = self._lacks(window)
            for window, lot in ((window, lacking[window]) for window in windows):
                if lot is not None:
                    self._park(lot, key, value, time, window, pane)
            if here := tuple(window for window in windows if lacking[window] is None):
                ready.append((value, time, here, pane))
        if ready:
            self._work.deliver(key, ready)

    def _await_commit(self, key: bytes, elements: Elements) -> None:
        """What has come goes on in the next micro-batch, in this order, if this one becomes real."""
        for value, time, windows, pane in self._work.timely(key, elements):
            for window in windows:
                self._park(_COMMIT, key, value, time, window, pane)

    def _park(
        self, lot: SideInputWindow, key: bytes, value: bytes, time: Timestamp, window: Window, pane: PaneInfo
    ) -> None:
        assert self._parking is not None
        # What no grouping has made has no pane, and no bytes for it.
        fields = (key, window.ordered(), value, *filter(None, [pane.packed()]))
        self._parking.park(lot, BlockedElement(time, b"".join(map(sequences.framed, fields))))
