"""User code of a stage in a shard, during a micro-batch: the engine's runner, on the SDK's bundles.

Owns the translation of the engine's calls to the SDK, and of their results. Must not know when calls are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from typing_extensions import override

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, DropReason, EmitPane
from arcbeam.engine.grouping.groupings import KeyElements, WindowedElement
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import NOTHING, Budget, BundleResult, CallResult, RestrictionResult
from arcbeam.engine.task.taskstage import StageRunner
from arcbeam.errors import ArcbeamError
from arcbeam.harness.bundle.observedtimes import seen, sketches, unconfirmed
from arcbeam.harness.bundle.windows import column, their_pane
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.operations.lateoperation import ELEMENTS_MAX, dropped
from arcbeam.harness.streaming.clocks import TaskClock
from arcbeam.harness.streaming.elements import PaneValues
from arcbeam.harness.streaming.restrictions import SHOWN_CHARACTERS_MAX, StageRestrictions
from arcbeam.harness.streaming.stageparts import StageParts
from arcbeam.model import texts
from arcbeam.model.commits import Committable
from arcbeam.model.interfaces import StateView
from arcbeam.model.windows import Window
from arcbeam.sizes import threshold

_PANES_PER_STAMP_MIN: Final = threshold(4)
"""Average number of panes with a common stamp from which these get a block of their own; else all share one block."""
_stamp: Final = attrgetter("window", "timestamp", "pane")


class StreamingRunner(StageRunner):
    """See `arcbeam.engine.task.bundles.Runner`: one bundle for all calls, or several where they are cut.

    Changes of user state are in the view when a call returns, although the SDK would keep them until the bundle ends.

    Args:
        stage: the stage with the user code. Only one runner may use it at any time.
        view: view of the shard's state.
        placed: the stage, as the engine knows it.
        clock: the task's clock; by default the host's clock is trusted.
        restrictions: the restrictions of a splittable stage; None for others.
    """

    def __init__(
        self,
        stage: StageParts,
        view: StateView,
        placed: StagePlacement,
        clock: TaskClock | None = None,
        restrictions: StageRestrictions | None = None,
    ) -> None:
        self._stage, self._of_restrictions = stage, restrictions
        self._outputs = placed.flow.outputs
        self._clock = clock or TaskClock()
        stage.timers.clock = self._clock
        self._bundles = stage.processor.bundles
        self._writers: Any = stage.processor.context.writers
        self._taken = self._taken_so_far()
        self._finalizations = len(self._bundles.callbacks)
        # Discard the observations of a task that ended early.
        seen(stage.observers)
        sketches(stage.observers)
        unconfirmed(stage.observers)
        self._encoded_key: bytes | None = None
        self._key: Any = None
        self._encoded_window: bytes | None = None
        self._window: tuple[Any] = (None,)
        self._late: list[Any] = []
        stage.state.work_on(view, placed.number)

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        stage = self._stage
        block = stage.codec.block(elements)
        if not stage.keyed:
            self._bundles.emit_block(block)
            return NOTHING
        user_key = self._enter(key)
        if stage.driven is None:
            self._bundles.emit_block(block.with_values([(user_key, value) for value in block.values]))
        else:
            self._bundles.put(stage.driven.put, block)
        return self._end_call()

    @override
    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        windows = self._stage.windows
        runs = [(stamp, list(alike)) for stamp, alike in groupby(panes, _stamp)]
        if len(runs) * _PANES_PER_STAMP_MIN <= len(panes):
            for (window, timestamp, info), alike in runs:
                for block in self._alike(alike, (int(timestamp), (windows.theirs(window),), their_pane(info))):
                    self._bundles.emit_block(block)
            return NOTHING
        # SUBTLE: in their order. If they were sorted, a key's second pane might precede its first.
        stamps, times, infos = zip(*[stamp for stamp, alike in runs for _ in alike], strict=True)
        theirs = Each([windows.all_theirs((window,)) for window in stamps])
        self._bundles.emit_block(Block(self._groups(panes), Each(map(int, times)), theirs, column(infos, their_pane)))
        return NOTHING

    def _alike(self, panes: Sequence[EmitPane], stamp: tuple[int, tuple[Any], Any]) -> Iterator[Block]:
        """Yield blocks of panes that share time, window and pane info."""
        yield Block(self._groups(panes), *stamp)

    def _groups(self, panes: Sequence[EmitPane]) -> list[Any]:
        """Return key and values of each pane for the SDK."""
        stage, decode = self._stage, self._stage.decode_key
        return [(decode(pane.key), PaneValues.of(pane.contents, stage.codec, stage.packed)) for pane in panes]

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        """See `Runner`. State is written to the view before the next key, and at the end."""
        stage, bundles, log = self._stage, self._bundles, self._stage.timers
        if stage.fires_at_once:
            failed: list[Exception] = []
            bundles.fire_each(stage.stateful[0].fire, self._firing(due, led_to, failed))
            if failed:
                raise failed[0]
            return
        latest: bytes | None = None
        for fired in due:
            if fired.key != latest:
                if latest is not None:
                    self._store()
                latest = fired.key
                user_key = self._enter(latest)
            family = stage.families[fired.family]
            bundles.fire(family.fire, fired, user_key, self._their_windows(fired.window))
            if log:
                led_to(CallResult(timers=log.take()))
        if latest is not None:
            self._store()

    def _firing(
        self, due: Iterator[Fired], led_to: Callable[[CallResult], None], failed: list[Exception]
    ) -> Iterator[Any]:
        """Yield the timers, for an operation that fires each before it takes the next.

        SUBTLE: the operation would attribute an error in here to user code. So this generator ends instead, and leaves
        the error in `failed`.
        """
        families, log = self._stage.families, self._stage.timers
        driven = self._stage.stateful[0]
        latest: bytes | None = None
        user_key: Any = None
        try:
            for fired in due:
                key = fired[0]
                if key != latest:
                    if latest is not None and driven.has_handles:
                        self._store()
                    latest = key
                    user_key = self._enter(key)
                yield families[fired[2]].as_set(fired, user_key, self._their_windows(fired[1]))
                if log:
                    led_to(CallResult(timers=log.take()))
            if latest is not None:
                self._store()
        except Exception as e:
            failed.append(e)

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        stage = self._stage
        user_key, windows = self._enter(key), (stage.windows.theirs(window),)
        for family in stage.expirations:
            self._bundles.fire(family.expire, user_key, windows, int(window.max_timestamp))
        return self._end_call()

    @override
    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        return self._restrictions.admitted(self._stage.codec.block([element]).element(0), self._outputs)

    @override
    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        self._bundles.open()
        return self._restrictions.resume(restriction.remainder, budget, pieces, self._outputs, self._clock.now)

    @override
    def truncate(self, restriction: Restriction) -> Remainder | None:
        return self._restrictions.truncate(restriction.remainder)

    @override
    def late(self, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """Record dropped elements for output, if the pipeline requests them; emitted when the bundles end at latest."""
        stage = self._stage
        if stage.late is None or isinstance(drop, Late | DropCombined):
            return
        key, window, codec = stage.decode_key(drop.key), stage.windows.theirs(drop.window), stage.codec
        if isinstance(drop, DropLate):
            values: Any = (codec.decode(drop.value),)
            time, expired = drop.timestamp, drop.reason is DropReason.EXPIRED
        else:
            values = PaneValues(drop.contents, codec, stage.packed)
            time, expired = drop.window.max_timestamp, False
        for value in values:
            self._late.append(dropped(key, value, time, window, drop.watermark, expired))
            if len(self._late) >= ELEMENTS_MAX:
                self._put_late()

    def _put_late(self) -> None:
        late, self._late = self._late, []
        if late:
            assert self._stage.late is not None
            self._bundles.put(self._stage.late.put, Block.of(late))

    def prepare(self) -> CallResult:
        """See `Runner`: once per task, by the first of its shards. Its outputs are counted when bundles end."""
        self._stage.processor.prepare()
        return NOTHING

    @override
    def finish(self) -> BundleResult:
        if self._of_restrictions is not None:
            self._of_restrictions.close()
        self._put_late()
        self._bundles.close()
        committables = tuple(
            Committable(publisher, each)
            for publisher, collected in self._stage.processor.committables().items()
            for each in collected
        )
        finalizations = len(self._bundles.callbacks) - self._finalizations
        return BundleResult(
            CallResult(self._taken_so_far() - self._taken),
            seen(self._stage.observers),
            sketches(self._stage.observers),
            unconfirmed(self._stage.observers),
            committables=committables,
            finalizations=finalizations,
            cells=dict(self._stage.state.more()),
        )

    @override
    def about(self) -> str:
        if self._of_restrictions is not None:
            return self._of_restrictions.about()
        return "" if self._encoded_key is None else f"key {texts.safe_text(repr, self._key, SHOWN_CHARACTERS_MAX)}"

    def _enter(self, key: bytes) -> Any:
        """Begin a call for a user key; return the key for the SDK."""
        self._stage.state.enter(key)
        self._stage.timers.key = key
        user_key = self._decoded(key)
        if self._stage.driven is not None:
            self._stage.driven.begin_key(user_key)
        return user_key

    def _end_call(self) -> CallResult:
        """End the call: write state to the view, and return the timers."""
        self._store()
        log = self._stage.timers
        return CallResult(timers=log.take()) if log else NOTHING

    def _store(self) -> None:
        for operation in self._stage.stateful:
            operation.end_key()
        self._stage.state.commit()

    def _their_windows(self, encoded: bytes) -> tuple[Any]:
        # Most calls are for the same window as the previous one.
        if encoded != self._encoded_window:
            windows = self._stage.windows
            self._encoded_window, self._window = encoded, (windows.theirs(windows.decode(encoded)),)
        return self._window

    def _decoded(self, key: bytes) -> Any:
        # Many calls are for the same key as the previous one.
        if key != self._encoded_key:
            self._key = self._stage.decode_key(key)
            self._encoded_key = key
        return self._key

    def _taken_so_far(self) -> int:
        taken: int = sum(op.elements for op in self._writers)
        return taken

    @property
    def _restrictions(self) -> StageRestrictions:
        if self._of_restrictions is None:
            raise ArcbeamError(f"stage {self._stage.processor.stage.name!r} has no restrictions")
        return self._of_restrictions
