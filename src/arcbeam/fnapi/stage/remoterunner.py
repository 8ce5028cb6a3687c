"""The user code of a stage in a shard, during a micro-batch, if an SDK worker runs it.

Owns where bundles end: the calls of many keys are in one bundle, so their effects are known when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from typing_extensions import override

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.stagekinds import Stateful
from arcbeam.engine.state.residuals import Restriction
from arcbeam.engine.state.timers import EXPIRATION, Fired
from arcbeam.engine.task.bundles import Budget, CallResult, RestrictionResult
from arcbeam.fnapi.stage.encodedgroups import EncodedGroups
from arcbeam.fnapi.stage.keybatch import KeyBatch
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.elements import PaneValues
from arcbeam.harness.streaming.restrictions import StageRestrictions
from arcbeam.harness.streaming.runner import StreamingRunner
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.model.interfaces import StateView
from arcbeam.sizes import threshold


class RemoteRunner(StreamingRunner):
    """See `arcbeam.engine.task.bundles.Runner`.

    SUBTLE: elements and timers of a key are never in one bundle: SDKs disagree on their order.

    Args:
        stage, view, placed, clock, restrictions: see `StreamingRunner`.
        key_batch: the keys of the stage's bundles; None if it has no state.
        groups: encodes groups; None if they are decoded, or the stage has none.
    """

    together = threshold(1000, 2)

    def __init__(
        self,
        stage: StageParts,
        view: StateView,
        placed: StagePlacement,
        clock: TaskClock | None,
        restrictions: StageRestrictions | None,
        key_batch: KeyBatch | None,
        groups: EncodedGroups | None = None,
    ) -> None:
        super().__init__(stage, view, placed, clock, restrictions)
        self._encoded_groups = groups
        self._key_batch = key_batch if isinstance(stage.kind, Stateful) else None
        if key_batch is not None:
            key_batch.clear()

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        if self._key_batch is not None:
            self._join(self._key_batch, key)
        return super().process(key, elements)

    @override
    def _alike(self, panes: Sequence[EmitPane], stamp: tuple[int, tuple[Any], Any]) -> Iterator[Block]:
        if self._encoded_groups is None:
            yield from super()._alike(panes, stamp)
            return
        for few, some in groupby(panes, lambda pane: PaneValues.are_few(pane.contents)):
            if few:
                yield self._encoded_groups.block(list(some), stamp)
            else:
                yield from super()._alike(list(some), stamp)

    @override
    def settle(self) -> CallResult:
        self._end_lot()
        return self._end_call()

    @override
    def fire_together(self, key_batch: Sequence[Fired]) -> CallResult:
        stage = self._stage
        assert self._key_batch is not None
        for fired in key_batch:
            user_key, windows = self._join(self._key_batch, fired.key), self._their_windows(fired.window)
            if fired.family != EXPIRATION:
                self._bundles.fire(stage.families[fired.family].fire, fired, user_key, windows)
                continue
            last = int(stage.windows.decode(fired.window).max_timestamp)
            for family in stage.expirations:
                self._bundles.fire(family.expire, user_key, windows, last)
        return self.settle()

    @override
    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        return self._restrictions.resume(restriction.remainder, budget, pieces, self._outputs, self._clock.now)

    def _join(self, key_batch: KeyBatch, key: bytes) -> Any:
        """Add a key to the bundle, or to a new one; return the key for the worker."""
        user_key = self._decoded(key)
        if not key_batch.has_room(key, user_key):
            self._end_lot()
        key_batch.add(key, user_key)
        return user_key

    def _end_lot(self) -> None:
        self._bundles.close()
        if self._key_batch is not None:
            self._key_batch.clear()
