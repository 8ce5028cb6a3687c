"""Restrictions in a micro-batch: the engine's remainders, as the SDK processes, splits and truncates them.

Owns their bytes, and what an estimator's reports are to the engine. Which of them runs when is the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from arcbeam.engine.state.residuals import Remainder
from arcbeam.engine.task.bundles import Budget, CallResult, RestrictionResult
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.splittable import Sized, SplittableOperation
from arcbeam.harness.bundle.splitting import Splitter
from arcbeam.model import texts
from arcbeam.model.timestamps import NOT_BEGUN, Timestamp

_FRESH: Final = b"\1"
_LEFT: Final = b"\0"
"""In front of a restriction's bytes: which coder they are of."""
_LOOK_SECONDS: Final = 0.01
"""Between two looks at what runs."""
PATIENCE_SECONDS = 10.0
"""Behind the budget's end, until somebody is told of a process that goes on."""


LONGEST_SHOWN = 200
"""Characters of what an error is about."""


class StreamingRestrictions:
    """The restrictions of a stage. Who has begun with `resume` ends with `close`, unless that has raised.

    Args:
        processor: of the stage.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self._operation = SplittableOperation(processor)
        self._splitter: Splitter | None = None
        self._budget: Budget
        self._pieces = 1
        self._running: Any = None

    def admitted(self, element: Any, outputs: tuple[str, ...]) -> Remainder:
        """A new one.

        Args:
            element: windowed, as it has come. What comes of it has its time or a later one.
            outputs: of the stage.
        """
        encoded = self._operation.root_coder.encode_nested(element)
        time = Timestamp(max(element.timestamp_micros, NOT_BEGUN))
        return Remainder(_FRESH + encoded, element.value[1], None, dict.fromkeys(outputs, time))

    def resume(
        self,
        remainder: Remainder,
        budget: Budget,
        pieces: int,
        outputs: tuple[str, ...],
        clock: Callable[[], Timestamp],
    ) -> RestrictionResult:
        """Processes one, in the open bundle, until it is done, or defers the rest, or the budget is exhausted.

        Args:
            remainder: what is to be processed.
            budget: when it is exhausted, all that has not been claimed is split off, though not before progress.
            pieces: into how many parts that is then cut, where it can be.
            outputs: of the stage.
            clock: delays count from when the SDK tells them.
        """
        operation, sized = self._operation, _sized(remainder)
        coder = operation.root_coder if sized.fresh else operation.op_coder
        # SUBTLE: half of a restriction without an end is a time, or a place, that may never come.
        self._budget, self._pieces = budget, 1 if pieces > 1 and operation.endless else pieces
        try:
            element = self._running = coder.decode_nested(sized.element)
            processed = operation.process(element, self._watching(), fresh=sized.fresh)
            self._processor.bundles.elements += 1
            splits = [self._left(application, outputs, None) for application in processed.split_off]
            deferred = [self._left(application, outputs, clock) for application in processed.deferred]
        except BaseException:
            self.close()
            raise
        # There is one at most: an element is in one window here.
        last = deferred.pop() if deferred else None
        # What asks for finalization may wait for the commit.
        goes_on = processed.made > 0 and not self._processor.stage.finalizes
        return RestrictionResult((*splits, *deferred), last, CallResult(), goes_on, processed.made)

    def about(self) -> str:
        """The restriction that was processed last, for people."""
        if self._running is None:
            return ""
        (element, (restriction, _)), _ = self._running.value
        return f"restriction {_shown(restriction)} of element {_shown(element)}"

    def close(self) -> None:
        """No restriction is processed for now. Again does nothing."""
        splitter, self._splitter = self._splitter, None
        if splitter is not None:
            splitter.__exit__(None, None, None)

    def _watching(self) -> Splitter:
        """One thread for all restrictions of a stage and shard: many of them are soon done."""
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

    def truncate(self, remainder: Remainder) -> Remainder | None:
        """What a drain leaves of one that waits, with the promises that it has."""
        kept = self._operation.truncate(_sized(remainder))
        return None if kept is None else Remainder(_bytes(kept), kept.size, None, remainder.watermarks)

    def _left(self, application: Any, outputs: tuple[str, ...], clock: Callable[[], Timestamp] | None) -> Remainder:
        left = self._operation.left(application)
        due: Timestamp | None = None
        # SUBTLE: not from the micro-batch's recorded time, which has passed: what was to be due at a time would be so
        # earlier.
        if clock is not None and (delay := application.requested_time_delay.ToMicroseconds()) > 0:
            due = Timestamp(clock() + delay)
        (element, _), _ = self._running.value
        return Remainder(
            _bytes(left), left.size, due, _promised(application.application, outputs), partial(_shown, element)
        )


def _shown(of: Any) -> str:
    return texts.said(repr, of, LONGEST_SHOWN)


def _promised(application: Any, outputs: tuple[str, ...]) -> Mapping[str, Timestamp]:
    """What the estimator has promised.

    The SDK reports one value for all outputs of its operation, or none; so it holds for all outputs of the stage.
    """
    # SUBTLE: not by the proto's own arithmetic, which knows the years 1 to 9999 only: time begins long before.
    reported = [mark.seconds * 1_000_000 + mark.nanos // 1000 for mark in application.output_watermarks.values()]
    return dict.fromkeys(outputs, Timestamp(min(reported))) if reported else {}


def _sized(remainder: Remainder) -> Sized:
    return Sized(remainder.element[1:], remainder.size, remainder.element[:1] == _FRESH)


def _bytes(sized: Sized) -> bytes:
    return (_FRESH if sized.fresh else _LEFT) + sized.element
