"""Plain and splittable stages in a shard: nothing in them waits for a watermark.

Owns the order in which restrictions are admitted, truncated and resumed. Must not know what a restriction is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import Movable, Restrictions
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.state.statemetrics import NO_STATE, StateMetrics
from arcbeam.engine.task.bundles import BundleResult
from arcbeam.engine.task.stagecontext import StageContext, StageLogic
from arcbeam.model.timestamps import Timestamp
from arcbeam.sizes import threshold

_MOVABLE_MAX: Final = threshold(16)
"""The maximum of a stage's restrictions that a shard offers to others in each micro-batch: the reports contain them."""
_MOVABLE_BYTES_MAX: Final = threshold(16 << 10, 64)
_READY_MAX: Final = threshold(1000)
"""The count of due restrictions ends here: beyond that, there is enough work for all idle tasks."""


class PlainLogic(StageLogic):
    """Elements are processed when they arrive."""

    def __init__(self, place: StageContext) -> None:
        self._place = place

    @override
    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        pass

    def timely(self, key: bytes, elements: KeyElements) -> KeyElements:
        """See `StageLogic`: no element is late here."""
        return elements

    @override
    def deliver(self, key: bytes, elements: KeyElements) -> None:
        self._place.record(self._place.runner.process(key, elements))

    @override
    def resume(self) -> bool:
        return False

    @override
    def fire(self, watermark: Timestamp) -> bool:
        return False

    @override
    def next_event(self) -> Timestamp | None:
        return None

    @override
    def next_due(self) -> Timestamp | None:
        return None

    @override
    def restrictions(self) -> Restrictions:
        return Restrictions()

    @override
    def kept(self, closed: BundleResult) -> StateMetrics:
        return NO_STATE


class SplittableLogic(PlainLogic):
    """Elements have restrictions.

    Args:
        place: the stage's context.
        bound: the intended maximum of live restrictions of one root.
    """

    def __init__(self, place: StageContext, bound: int) -> None:
        super().__init__(place)
        self._residuals = Residuals(place.view, place.placed.number, place.placed.flow.outputs, bound)
        self._drain = False
        self._pieces = 1
        self._admitted = 0

    def begin(self, plan: MicroBatchPlan, moves: Sequence[Handover], upstream: Timestamp) -> None:
        """Move restrictions from and to other shards, with their holds; then truncate waiting ones if it is a drain."""
        self._residuals.adapt()
        self._drain = plan.drain
        self._pieces = plan.pieces.get(self._place.placed.name, 1)
        for move in moves:
            if move.source == self._place.shard:
                if self._residuals.hand_over(move.id) != move.handed:
                    raise ValueError(f"restriction {move.id.hex()} of {move.stage!r} differs from the plan's")
            else:
                self._residuals.adopt(move.handed)
        if plan.drain:
            for restriction in list(self._residuals.untruncated()):
                kept = self._place.runner.truncate(restriction)
                self._residuals.truncate(restriction.id, kept, self._place.now)

    def deliver(self, key: bytes, elements: KeyElements) -> None:
        """Store each element's restriction; during a drain, what truncation leaves of it."""
        place = self._place
        for element in elements:
            # Only one run of a micro-batch is ever committed, so names with the micro-batch's number are unique for the
            # job's whole life.
            root = f"{place.micro_batch}.{place.shard}.{self._admitted}"
            self._admitted += 1
            admitted = self._residuals.admit(root, place.runner.restriction(key, element), place.now)
            if self._drain:
                self._residuals.truncate(admitted.id, place.runner.truncate(admitted), place.now)

    def resume(self) -> bool:
        """Run the due restrictions, each once. What one deferred without a delay runs again if it made progress, while
        the budget lasts. Other residuals wait for the next micro-batch, even if they are due at once.

        At least one restriction runs, however small the budget is.
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
            pieces = max(1, min(self._pieces, residuals.splits_left(restriction.root)))
            result = place.runner.resume(restriction, place.budget, pieces)
            place.record(result.call)
            place.tally.made += result.made
            splits = [residuals.split(restriction.id, split, place.now) for split in result.splits]
            later.update(split.id for split in splits)
            left = residuals.finish(restriction.id, result.deferred, place.now)
            for each in (*splits, left):
                if each is not None and each.remainder.about is not None:
                    place.abouts[each.id.hex()] = each.remainder.about
            if left is not None and not result.may_resume:
                later.add(left.id)
        for id in aside:
            residuals.put_back(id)
        residuals.settled()
        due = residuals.next_due()
        return due is not None and due <= place.now

    @override
    def next_due(self) -> Timestamp | None:
        return self._residuals.next_due()

    @override
    def restrictions(self) -> Restrictions:
        known = self._residuals.totals()
        if not known.live:
            return Restrictions()
        movable = tuple(
            Movable(restriction.id, restriction.remainder.size, handed)
            for restriction, handed in self._residuals.movable(_MOVABLE_MAX, _MOVABLE_BYTES_MAX)
        )
        return Restrictions(
            known.live,
            known.size,
            tuple(sorted(known.silent)),
            self._residuals.crowded(),
            movable,
            self._residuals.ready(self._place.now, _READY_MAX),
        )
