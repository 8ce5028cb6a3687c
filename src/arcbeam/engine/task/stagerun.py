"""The work of one stage in one shard in a micro-batch.

Owns the order: unblocked elements, arrived elements, work that is due by the clock; then the watermark moves, and fires
timers and panes. Must not know other shards and stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Awaited, StageReport
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
from arcbeam.engine.watermarks.clocks import SCRIPT_SHARD, Local, Port
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.idleness import mark_idle
from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermarks
from arcbeam.engine.watermarks.observed import Seen
from arcbeam.model.script import AdvanceWatermark, ScriptOver
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.model.windows import PaneInfo, Window
from arcbeam.sizes import threshold

_UNBLOCKED_MAX: Final = threshold(1000)
"""The maximum of unblocked elements of a key that are passed on together."""
_COMMIT: Final = SideInputWindow("commit", b"")
"""What elements of a stage with stable input wait for: the commit of the micro-batch in which they arrived."""


_UNPREPARED: Final = Hold(END_OF_GLOBAL_WINDOW, HolderKind.UNPREPARED, "")


def _with_hold(local: Local, hold: Hold) -> Local:
    """Return the times with one more hold on all outputs; it is not stored."""
    outputs = {
        name: of if of.hold is not None and of.hold.time <= hold.time else replace(of, hold=hold)
        for name, of in local.outputs.items()
    }
    return replace(local, outputs=outputs)


def logic_of(spec: StageSpec, place: StageContext) -> StageLogic:
    """Return the work of a stage, by its kind."""
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
        place: its context.
        sides: the side inputs at the head.
        committed_outputs: the output watermarks at the head. Side inputs are compared with these, because they are the
            head's, too.
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
        self._blocked = BlockedElements(place.view, spec.placed.number) if self._ports or spec.stable else None

    def run(
        self, upstream: Timestamp, plan: MicroBatchPlan, moves: Sequence[Handover]
    ) -> tuple[StageReport, BundleResult]:
        """Do all work.

        Args:
            upstream: the stage's upstream watermark, in this micro-batch.
            plan: the plan of the micro-batch.
            moves: the plan's moves from and to this shard of the stage.
        """
        place, work = self._place, self._work
        work.begin(plan, moves, upstream)
        if place.placed.scripted and place.shard == SCRIPT_SHARD:
            self._follow(plan)
        self._unblock()
        # SUBTLE: no key range applies to unblocked elements: they were timely when they were blocked.
        ranges = KeyRangeWatermarks(place.view, place.placed.number) if isinstance(self._spec.kind, Stateful) else None
        for key, elements in place.exchange.elements(place.placed.name, place.shard):
            if isinstance(elements, Combined):
                place.tally.read += elements.elements
                work.combined(elements)
                continue
            place.tally.read += len(elements)
            if ranges:
                place.late_until = ranges.of(key)
            if self._spec.stable:
                self._await_commit(key, elements)
            else:
                self._deliver(key, elements)
        leftover = work.resume()
        # All arrived elements are in their windows, or pending. So the watermark may move.
        watermark = upstream if self._is_transparent else place.clock.advance(upstream)
        if ranges:
            ranges.passed(watermark)
        leftover |= work.fire(watermark)
        prepares = place.placed.name in plan.preparing
        if prepares:
            place.record(place.runner.prepare())
        closed = self._finish()
        unprepared = self._prepares and not prepares
        return self._report(leftover, upstream, watermark, closed, plan.times.seen, unprepared=unprepared), closed

    @property
    def _prepares(self) -> bool:
        """Return whether user code that prepares its shutdown has not done so, according to the head.

        Its output then comes before the end of time, so no output reports the end earlier.
        """
        place = self._place
        return self._spec.prepares and not (place.placed.ports and place.committed_output == MAX_TIMESTAMP)

    @property
    def _is_transparent(self) -> bool:
        """Whether nothing is ever pending: its input watermark is the upstream one, and need not be stored."""
        return isinstance(self._spec.kind, Plain) and self._blocked is None and not self._place.placed.scripted

    def _follow(self, plan: MicroBatchPlan) -> None:
        """Move the watermark of the script's elements."""
        clock = self._place.clock
        match plan.event:
            case AdvanceWatermark(stage, watermark) if stage == self._place.placed.name:
                clock.follow(watermark)
            case ScriptOver():
                clock.follow(MAX_TIMESTAMP)
            case _ if self._place.placed.name in plan.beginning:
                clock.follow(MIN_TIMESTAMP)

    def _finish(self) -> BundleResult:
        """End the bundles.

        Raises:
            ValueError: state was written, or a timer set. Expired windows are dropped by now, so it would stay
                forever.
        """
        place = self._place
        before = place.view.written
        closed = place.runner.finish()
        if place.view.written != before:
            raise ValueError(
                f"user code of {place.placed.name!r} in shard {place.shard} has written state at the end of its "
                f"bundles: "
                f"write state before the call returns"
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
        if self._blocked is not None:
            for lot, time in self._blocked.lots():
                port = None if lot == _COMMIT else self._ports[lot.side_input]
                if first is None or time < first:
                    first, earliest = time, port
                if port is None:
                    uncommitted = True
                else:
                    awaited.add(Awaited(port, self._sides.until(place.placed.name, lot)))
        flow = place.placed.flow
        local = place.clock.local(earliest, closed.seen, closed.sketches, closed.unconfirmed)
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
            tally.counts(),
            uncommitted,
            unprepared,
            self._kept(closed),
        )

    def _kept(self, closed: BundleResult) -> StateMetrics:
        kept, blocked = self._work.kept(closed), self._blocked
        return kept if blocked is None else kept + StateMetrics(blocked=blocked.more, waiting_bytes=blocked.size)

    # Blocked elements.

    def _ready(self, lot: SideInputWindow) -> bool:
        """Return whether a lot is unblocked; one that waits for its commit waited since an earlier micro-batch."""
        if lot == _COMMIT:
            return True
        name = self._place.placed.name
        committed = self._committed_outputs.get(self._ports[lot.side_input], MIN_TIMESTAMP)
        over = passed(committed, self._sides.until(name, lot))
        return over or self._sides.exists(name, lot)

    def _lacks(self, window: Window) -> SideInputWindow | None:
        """Return what an element of a window has to wait for."""
        needed = self._sides.needed(self._place.placed.name, window)
        return next((lot for lot in needed if not self._ready(lot)), None)

    def _unblock(self) -> None:
        """Process elements whose side input is ready, or that are committed; some may wait for another side input."""
        if self._blocked is None:
            return
        assert self._spec.decode is not None
        for lot in [lot for lot, _ in self._blocked.lots() if self._ready(lot)]:
            together: list[WindowedElement] = []
            key = b""
            for element in self._blocked.take(lot):
                self._place.tally.unblocked += 1
                owner, window, value, *pane = sequences.unframed(element.value)
                if together and (owner != key or len(together) == _UNBLOCKED_MAX):
                    self._deliver(key, together)
                    together = []
                key = owner
                together.append((value, element.time, (self._spec.decode(window),), PaneInfo.unpacked(*pane)))
            if together:
                self._deliver(key, together)

    def _deliver(self, key: bytes, elements: KeyElements) -> None:
        if self._blocked is None or not self._ports:
            self._work.deliver(key, elements)
            return
        lacking: dict[Window, SideInputWindow | None] = {}
        ready: list[WindowedElement] = []
        # A late element must not wait: it would hold the watermark without use.
        for value, time, windows, pane in self._work.timely(key, elements):
            for window in windows:
                if window not in lacking:
                    lacking[window] = self._lacks(window)
            for window, lot in ((window, lacking[window]) for window in windows):
                if lot is not None:
                    self._block(lot, key, value, time, window, pane)
            if here := tuple(window for window in windows if lacking[window] is None):
                ready.append((value, time, here, pane))
        if ready:
            self._work.deliver(key, ready)

    def _await_commit(self, key: bytes, elements: KeyElements) -> None:
        """Block arrived elements until this micro-batch is committed; the next one processes them in this order."""
        for value, time, windows, pane in self._work.timely(key, elements):
            for window in windows:
                self._block(_COMMIT, key, value, time, window, pane)

    def _block(
        self, lot: SideInputWindow, key: bytes, value: bytes, time: Timestamp, window: Window, pane: PaneInfo
    ) -> None:
        assert self._blocked is not None
        # An element that no grouping has made has no pane, and needs no bytes for it.
        fields = (key, window.ordered(), value, *filter(None, [pane.packed()]))
        self._blocked.add(lot, BlockedElement(time, b"".join(map(sequences.framed, fields))))
