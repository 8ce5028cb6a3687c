"""Restrictions in a micro-batch: the engine's remainders, processed, split and truncated by the SDK.

Owns their encoding, and the conversion of an estimator's reports. The engine decides which restriction runs when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from typing_extensions import override

from arcbeam.engine.state.residuals import About, Remainder
from arcbeam.engine.task.bundles import Budget, CallResult, RestrictionResult
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.splittable import Sized, SplittableOperation
from arcbeam.harness.bundle.splitting import Splitter
from arcbeam.model import texts
from arcbeam.model.attempts import wait_reason
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import NOT_BEGUN, Timestamp
from arcbeam.sizes import remembered

_FRESH: Final = b"\1"
_LEFT: Final = b"\0"
"""First byte of an encoded restriction: which coder was used."""
_LOOK_SECONDS: Final = 0.01
"""Seconds between two checks of the running restriction."""
PATIENCE_SECONDS = 10.0
"""Seconds after the end of the budget until a warning about a running process."""


SHOWN_CHARACTERS_MAX = 200
"""Characters of a value in an error."""


class StageRestrictions(Protocol):
    """The restrictions of a stage, for its runner."""

    def admitted(self, element: Any, outputs: tuple[str, ...]) -> Remainder:
        """Return the remainder for a new restriction.

        Args:
            element: the windowed value as it arrived. Its outputs have its time or a later one.
            outputs: the outputs of the stage.
        """

    def resume(
        self,
        remainder: Remainder,
        budget: Budget,
        pieces: int,
        outputs: tuple[str, ...],
        clock: Callable[[], Timestamp],
    ) -> RestrictionResult:
        """Process one, until it is done, or defers the rest, or the budget is exhausted.

        Args:
            remainder: the restriction to process.
            budget: when it is exhausted, all that has not been claimed is split off, but not before there is progress.
            pieces: into how many parts the rest is then split, where possible.
            outputs: the outputs of the stage.
            clock: delays count from the moment when the SDK reports them.
        """

    def truncate(self, remainder: Remainder) -> Remainder | None:
        """Return what a drain keeps of a waiting restriction, with its watermarks; None if nothing."""

    def about(self) -> str:
        """Return a text that describes the restriction that was processed last."""

    def close(self) -> None:
        """Release what the processing of restrictions needs. Idempotent."""


class StreamingRestrictions(StageRestrictions):
    """The restrictions of a stage. A caller of `resume` must call `close`, unless `resume` has raised.

    Args:
        processor: the stage's processor.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self._operation = SplittableOperation(processor)
        self._splitter: Splitter | None = None
        self._budget: Budget
        self._pieces = 1
        self._running: Any = None
        self._idling = self._operation.idling
        self._waiting = remembered(10_000)(self._decoded)

    @override
    def admitted(self, element: Any, outputs: tuple[str, ...]) -> Remainder:
        encoded = self._operation.root_coder.encode_nested(element)
        return Remainder(_FRESH + encoded, element.value[1], None, watermarks_at_first(element, outputs))

    @override
    def resume(
        self,
        remainder: Remainder,
        budget: Budget,
        pieces: int,
        outputs: tuple[str, ...],
        clock: Callable[[], Timestamp],
    ) -> RestrictionResult:
        # In the open bundle.
        if (idle := self._idle(remainder, outputs, clock)) is not None:
            return RestrictionResult(deferred=idle)
        operation, sized = self._operation, _sized(remainder)
        coder = operation.root_coder if sized.fresh else operation.op_coder
        # SUBTLE: half of an unbounded restriction may begin where no data ever arrives.
        self._budget, self._pieces = budget, 1 if pieces > 1 and operation.endless else pieces
        try:
            element = self._running = coder.decode_nested(sized.element)
            wait_reason.take()  # Of one that has failed.
            processed = operation.process(element, self._watching(), fresh=sized.fresh)
            self._processor.bundles.elements += 1
            splits = [self._left(application, outputs, None) for application in processed.split_off]
            reason = wait_reason.take()
            deferred = [self._left(application, outputs, clock, reason) for application in processed.deferred]
        except BaseException:
            self.close()
            raise
        return result_of(splits, deferred, processed.made, self._processor.stage)

    def about(self) -> str:
        """Return a text that describes the restriction that was processed last."""
        if self._running is None:
            return ""
        (element, (restriction, _)), _ = self._running.value
        return f"restriction {_shown(restriction)} of element {_shown(element)}"

    def close(self) -> None:
        """End the splitter, until the next restriction is processed. Idempotent."""
        splitter, self._splitter = self._splitter, None
        if splitter is not None:
            splitter.__exit__(None, None, None)

    def _idle(self, remainder: Remainder, outputs: tuple[str, ...], clock: Callable[[], Timestamp]) -> Remainder | None:
        """Return what a restriction without work leaves, without processing it; None if it may have some."""
        sized = _sized(remainder)
        if self._idling is None or sized.fresh or sized.size:
            return None
        element, restriction = self._waiting(sized.element)
        try:
            idle = self._idling.idle(element, restriction)
        except Exception:
            return None  # `process` raises it again, with the names of transform and element.
        if idle is None:
            return None
        due = Timestamp(clock() + round(idle.seconds * 1e6))
        # SUBTLE: the estimator's state stays as it was. What it reports later counts only if it is later than this.
        mark = idle.watermark
        watermarks = remainder.watermarks if mark is None else dict.fromkeys(outputs, Timestamp(mark))
        return replace(remainder, due=due, watermarks=watermarks, about=About(partial(_shown, element)))

    def _decoded(self, encoded: bytes) -> tuple[Any, Any]:
        """Return element and restriction of a residual."""
        (element, (restriction, _)), _ = self._operation.op_coder.decode_nested(encoded).value
        return element, restriction

    def _watching(self) -> Splitter:
        """Return the splitter. All restrictions of a stage and shard share its thread: many of them end soon."""
        if self._splitter is None:
            self._splitter = Splitter(
                self._operation.op,
                self._processor.sdk.delayed_bundle_application,
                math.inf,
                lambda: self._pieces,
                lambda: self._budget.exhausted(),
                _LOOK_SECONDS,
                PATIENCE_SECONDS,
            ).__enter__()
        return self._splitter

    @override
    def truncate(self, remainder: Remainder) -> Remainder | None:
        kept = self._operation.truncate(_sized(remainder))
        return None if kept is None else Remainder(_bytes(kept), kept.size, None, remainder.watermarks)

    def _left(
        self, application: Any, outputs: tuple[str, ...], clock: Callable[[], Timestamp] | None, reason: str = ""
    ) -> Remainder:
        left = self._operation.left(application)
        due = due_of(application, clock)
        (element, _), _ = self._running.value
        about = About(partial(_shown, element), reason)
        return Remainder(_bytes(left), left.size, due, promised(application.application, outputs), about)


def _shown(of: Any) -> str:
    return texts.safe_text(repr, of, SHOWN_CHARACTERS_MAX)


def watermarks_at_first(element: Any, outputs: tuple[str, ...]) -> Mapping[str, Timestamp]:
    """Return the watermarks of a restriction that was not processed yet: the time of its element, for all outputs."""
    return dict.fromkeys(outputs, Timestamp(max(element.timestamp_micros, NOT_BEGUN)))


def due_of(application: Any, clock: Callable[[], Timestamp] | None) -> Timestamp | None:
    """Return when a `DelayedBundleApplication` is due; None if at once.

    Args:
        application: what the SDK has returned.
        clock: see `StageRestrictions.resume`; None for what was split off.
    """
    # SUBTLE: not from the recorded time of the micro-batch, which is in the past: the delay would be too short.
    if clock is not None and (delay := application.requested_time_delay.ToMicroseconds()) > 0:
        return Timestamp(clock() + delay)
    return None


def result_of(splits: list[Remainder], deferred: list[Remainder], made: int, stage: Stage) -> RestrictionResult:
    """Return the result of `StageRestrictions.resume`.

    Args:
        splits: what was split off.
        deferred: what the DoFn has deferred. There is at most one: an element is in one window here.
        made: how many elements it has output.
        stage: the stage.
    """
    last = deferred.pop() if deferred else None
    # Bundle finalization may have to wait for the commit.
    continues = made > 0 and not stage.finalizes
    return RestrictionResult((*splits, *deferred), last, CallResult(), continues, made)


def promised(application: Any, outputs: tuple[str, ...]) -> Mapping[str, Timestamp]:
    """Return the watermarks that the estimator has reported, for all outputs of the stage: the first of them."""
    # SUBTLE: the proto's own conversion is limited to the years 1 to 9999, but event time begins long before.
    reported = [mark.seconds * 1_000_000 + mark.nanos // 1000 for mark in application.output_watermarks.values()]
    return dict.fromkeys(outputs, Timestamp(min(reported))) if reported else {}


def _sized(remainder: Remainder) -> Sized:
    return Sized(remainder.element[1:], remainder.size, remainder.element[:1] == _FRESH)


def _bytes(sized: Sized) -> bytes:
    return (_FRESH if sized.fresh else _LEFT) + sized.element
