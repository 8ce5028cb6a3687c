"""Plain and splittable stages in a shard: nothing in them waits for a watermark.

Owns the order in which restrictions are admitted, truncated and resumed. Must not know what a restriction is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from arcbeam.engine.grouping.groupings import Elements
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Movable, Restrictions
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

_MOVABLE: Final = threshold(16)
"""So many restrictions of a stage and shard are offered to other shards in each micro-batch: they travel in the
reports."""
_MOVABLE_BYTES: Final = threshold(16 << 10, 64)
_MOST_READY: Final = threshold(1000)
"""So many restrictions that are due are counted: of what could be split for slots that are idle there are enough."""


class PlainLogic:
    """Elements are processed as they come."""

    def __init__(self, place: StageContext) -> None:
        self._place = place

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """See `StageLogic`."""

    def timely(self, key: bytes, elements: Elements) -> Elements:
        """See `StageLogic`: nothing is too late here."""
        return elements

    def deliver(self, key: bytes, elements: Elements) -> None:
        """See `StageLogic`."""
        self._place.record(self._place.runner.process(key, elements))

    def resume(self) -> bool:
        """See `StageLogic`."""
        return False

    def fire(self, watermark: Timestamp) -> bool:
        """See `StageLogic`."""
        return False

    def next_event(self) -> Timestamp | None:
        """See `StageLogic`."""
        return None

    def next_due(self) -> Timestamp | None:
        """See `StageLogic`."""
        return None

    def restrictions(self) -> Restrictions:
        """See `StageLogic`."""
        return Restrictions()

    def kept(self, closed: BundleResult) -> StateMetrics:
        """See `StageLogic`."""
        return NO_STATE


class SplittableLogic(PlainLogic):
    """Elements have restrictions.

    Args:
        place: of the stage.
        bound: how many restrictions of one root should live at most.
    """

    def __init__(self, place: StageContext, bound: int) -> None:
        super().__init__(place)
        self._residuals = Residuals(place.view, place.placed.number, place.placed.flow.outputs, bound)
        self._drain = False
        self._pieces = 1
        self._admitted = 0

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """What changes its shard goes and comes, with its holds; then a drain truncates what waits."""
        self._residuals.go_on()
        self._drain = plan.drain
        self._pieces = plan.pieces.get(self._place.placed.name, 1)
        for move in moves:
            if move.source == self._place.shard:
                if self._residuals.hand_over(move.id) != move.handed:
                    raise ValueError(f"restriction {move.id.hex()} of {move.stage!r} is not what the plan takes it for")
            else:
                self._residuals.adopt(move.handed)
        if plan.drain:
            for restriction in list(self._residuals.untruncated()):
                kept = self._place.runner.truncate(restriction)
                self._residuals.truncate(restriction.id, kept, self._place.now)

    def deliver(self, key: bytes, elements: Elements) -> None:
        """Each element's restriction waits; while a drain runs, what it leaves of it."""
        place = self._place
        for element in elements:
            # Of one micro-batch only one run is ever real, so the number of the micro-batch makes the names different
            # for ever.
            root = f"{place.micro_batch}.{place.shard}.{self._admitted}"
            self._admitted += 1
            admitted = self._residuals.admit(root, place.runner.restriction(key, element), place.now)
            if self._drain:
                self._residuals.truncate(admitted.id, place.runner.truncate(admitted), place.now)

    def resume(self) -> bool:
        """Runs what is due: each once, but what was deferred without a delay, and got somewhere, as long as the budget
        lasts. What else a restriction leaves waits for the next micro-batch, also if it is due at once.

        At least one is run, however little is allowed.
        """
        place, residuals = self._place, self._residuals
        later: set[bytes] = set()
        aside: list[bytes] = []
        while (restriction := residuals.take(place.now)) is not None:
            if place.tally.resumed and place.budget.exhausted():
                aside.append(restriction.id)
                break
            if restriction.id in later:
                aside.append(restriction.id)
                continue
            place.tally.resumed += 1
            pieces = max(1, min(self._pieces, residuals.room(restriction.root)))
            result = place.runner.resume(restriction, place.budget, pieces)
            place.record(result.call)
            place.tally.made += result.made
            splits = [residuals.split(restriction.id, split, place.now) for split in result.splits]
            later.update(split.id for split in splits)
            left = residuals.finish(restriction.id, result.deferred, place.now)
            for each in (*splits, left):
                if each is not None and each.remainder.about is not None:
                    place.abouts[each.id.hex()] = each.remainder.about
            if left is not None and not result.goes_on:
                later.add(left.id)
        for id in aside:
            residuals.put_back(id)
        residuals.settled()
        due = residuals.next_due()
        return due is not None and due <= place.now

    def next_due(self) -> Timestamp | None:
        """See `StageLogic`."""
        return self._residuals.next_due()

    def restrictions(self) -> Restrictions:
        """See `StageLogic`."""
        known = self._residuals.standing()
        if not known.live:
            return Restrictions()
        movable = tuple(
            Movable(restriction.id, restriction.remainder.size, handed)
            for restriction, handed in self._residuals.movable(_MOVABLE, _MOVABLE_BYTES)
        )
        return Restrictions(
            known.live,
            known.size,
            tuple(sorted(known.silent)),
            self._residuals.crowded(),
            movable,
            self._residuals.ready(self._place.now, _MOST_READY),
        )
