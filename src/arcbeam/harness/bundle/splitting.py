"""Splits the restriction in process from a second thread, when the task's time is up.

Owns when to request splits, and at which fractions. The SDK does the splitting. The caller decides what happens to the
residuals (`harness.batch.restrictions`, `harness.streaming.restrictions`). Must not know Spark.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from apache_beam.runners import common, sdf_utils

from arcbeam.harness.bundle.restrictionoperation import RestrictionOperation
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.splitting")

PIECES_MAX = threshold(64, 2)
"""Maximum number of pieces into which one restriction is split, however many slots there are."""

_NUDGES = (0.0, 1 / 64, 1 / 8, 1 / 2)
"""Fractions of the remainder to keep, tried in this order to get the rest back. SUBTLE: not every tracker can stop
exactly at its position (a BoundedSource never can). Then it is requested to stop a little later."""

_BACKOFF_SECONDS_MAX = 5.0

_claiming = threading.local()
_PRESENT = object()


class _Observed(sdf_utils.ThreadsafeRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """Reports the first claim to the splitter of its thread, and keeps each restriction that is deferred."""

    _deferred_residual: Any

    def __init__(self, restriction_tracker: Any) -> None:
        super().__init__(restriction_tracker)
        self._splitter: Splitter | None = getattr(_claiming, "splitter", None)
        if self._splitter is not None:
            self._splitter.tracker = self

    def try_claim(self, position: Any) -> Any:
        with self._lock:
            claimed = self._restriction_tracker.try_claim(position)
        if claimed and self._splitter is not None:
            self._splitter.claimed = True
            self._splitter = None
        return claimed

    def deferred_status(self) -> Any:
        rest = self._deferred_residual
        if rest is None:
            return None
        # SUBTLE: the original tests whether the restriction is true, so it would lose an empty tuple, or 0.
        self._deferred_residual = _PRESENT
        try:
            _, delay = super().deferred_status()
        finally:
            self._deferred_residual = rest
        return rest, delay


def register() -> None:
    """Replace the SDK's tracker by ours. Idempotent."""
    common.ThreadsafeRestrictionTracker = _Observed


class Splitter:
    """Watches the restriction in process. After the deadline it takes back all that has not been claimed.

    The bundle's thread calls `begin` and `end` around each restriction. The splitter's own thread checks progress and
    requests splits. A restriction is not split before it has progressed: before its first claim, a split may return an
    empty primary and the whole restriction as residual, forever. Progress is any of: a claim since `begin`, an output
    (no output may precede the first claim), a remainder smaller than at the first check.

    No thread can end a running `process`. A process that continues although it was requested to stop, that cannot be
    split, or that has claimed nothing, continues to run. With `patience` a warning names its transform. A bounded job
    needs none: nothing waits for its residuals.

    `_lock` guards all attributes that follow it in `__init__`. Splits are requested only while it is held. So a split
    always affects the restriction that was checked, and `end` returns only when no split is in progress.

    Args:
        op: the SDK's operation that processes restrictions.
        apply: creates a DelayedBundleApplication from the operation and a residual.
        seconds: time from entering the context to the deadline.
        pieces: returns into how many pieces to split the rest; called when it is split.
        exhausted: returns whether the time is up earlier; also called on the splitter's thread.
        interval: seconds between two checks; None: a twentieth of `seconds`.
        patience: seconds after the deadline until a warning about a running process. It is repeated when they double.

    Attributes:
        tracker: the tracker of the running restriction.
        claimed: whether there was a claim since `begin`.
    """

    def __init__(
        self,
        op: Any,
        apply: Callable[[Any, Any], Any],
        seconds: float,
        pieces: Callable[[], int],
        exhausted: Callable[[], bool] = lambda: False,
        interval: float | None = None,
        patience: float = math.inf,
    ) -> None:
        self._op, self._apply, self._seconds, self._pieces, self._exhausted = op, apply, seconds, pieces, exhausted
        self._interval = min(0.1, max(0.005, seconds / 20)) if interval is None else interval
        self._patience = patience
        self.tracker: Any = None
        self.claimed = False
        self._deadline = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="splitter", daemon=True)
        self._lock = threading.Lock()
        self._running = False
        self._outputs_before = 0
        self._first_look: tuple[float, float] | None = None
        self._progressed = False
        self._refuses = False
        self._stopped = False
        self._pieces_made = False
        self._backoff = 0.0
        self._next_try = 0.0
        self._overdue_since: float | None = None
        self._warn_after = patience
        self._split_off: list[Any] = []
        self._failure: Exception | None = None

    def __enter__(self) -> Splitter:
        self._deadline = time.monotonic() + self._seconds
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def overdue(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._deadline or self._exhausted()

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self._deadline - time.monotonic()

    def outputs(self) -> int:
        """Return how many elements the operation has output, from any origin. May be called while it processes."""
        if isinstance(self._op, RestrictionOperation):
            return self._op.outputs()
        return sum(receiver.opcounter.element_counter.value() for receiver in self._op.receivers)

    def begin(self) -> None:
        """Start watching the restriction that is processed next on this thread."""
        _claiming.splitter = self
        with self._lock:
            self.tracker, self.claimed = None, False
            self._outputs_before = self.outputs()
            self._first_look = None
            self._progressed = self._refuses = self._stopped = self._pieces_made = False
            self._backoff, self._next_try = self._interval, 0.0
            self._overdue_since, self._warn_after = None, self._patience
            self._running = True

    def end(self) -> list[Any]:
        """Stop watching after `process` has returned. No split is requested any more.

        Returns:
            The residuals of splits: `DelayedBundleApplication`s.

        Raises:
            RuntimeError: a split has failed halfway, so that a part of the restriction may be lost.
        """
        with self._lock:
            self._running = False
            split_off, self._split_off = self._split_off, []
            failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError(f"{type(failure).__name__} in a split: {failure}") from failure
        return split_off

    def abandon(self) -> None:
        """Stop watching after `process` has raised: the bundle fails, and the residuals with it."""
        with self._lock:
            self._running = False
            self._split_off, self._failure = [], None

    # Called on the splitter's own thread.

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            with self._lock:
                if self._running:
                    self._look()

    def _look(self) -> None:
        self._progressed = self._progressed or self._has_progressed()
        if not self.overdue:
            return
        now = time.monotonic()
        if self._overdue_since is None:
            self._overdue_since = now
        if self._progressed and not self._refuses and now >= self._next_try:
            self._take_the_rest()
        if now - self._overdue_since >= self._warn_after:
            self._warn_after = max(2 * self._warn_after, self._interval)
            self._warn(now - self._overdue_since)

    def _warn(self, seconds: float) -> None:
        """Log why the restriction's micro-batch cannot end."""
        if self._stopped:
            why = "was requested to stop: the rest was taken from it, so its next try_claim returns False"
        elif self._progressed:
            why = "cannot be stopped: its tracker's try_split returns no residual"
        else:
            why = "has claimed nothing: a process that waits for data should call defer_remainder and return"
        step = self._op.name_context.step_name.removesuffix("/Process")
        _LOG.warning(
            "%r has exceeded its time for a restriction by %.0f s and %s. Everything that depends on it waits until it "
            "returns",
            step,
            seconds,
            why,
        )

    def _has_progressed(self) -> bool:
        if self.claimed or self.outputs() > self._outputs_before:
            return True
        try:
            progress = self._op.current_element_progress()
            if progress is None:
                return False
            look = (progress.fraction_remaining, progress.remaining_work)
        except Exception:
            # A tracker need not know its progress, and a bug in its progress must not fail the task.
            _LOG.debug("no progress of %s", self._op.name_context.step_name, exc_info=True)
            return False
        if self._first_look is None:
            self._first_look = look
        return bool(look[0] < self._first_look[0] or look[1] < self._first_look[1])

    def _take_the_rest(self) -> None:
        """Split the rest into equal pieces, and stop the running process after what it has claimed."""
        try:
            if not self._pieces_made:
                for pieces in range(min(self._pieces(), PIECES_MAX) if self._has_an_end() else 1, 1, -1):
                    if not self._split((pieces - 1) / pieces):
                        break
                self._pieces_made = True
            kept = next((fraction for fraction in _NUDGES if self._split(fraction)), None)
            if kept == 0.0:
                self._refuses = self._stopped = True  # there is nothing left to split off
        except Exception as e:
            self._refuses = True
            innermost = traceback.extract_tb(e.__traceback__)[-1].name
            if not isinstance(e, NotImplementedError) or innermost != "try_split":
                self._failure = e
        self._next_try = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, max(_BACKOFF_SECONDS_MAX, self._interval))

    def _has_an_end(self) -> bool:
        """Return whether the rest can be split into equal pieces: an unbounded rest cannot."""
        try:
            return self.tracker is None or bool(self.tracker.is_bounded())
        except Exception:
            return True  # a tracker need not know

    def _split(self, fraction: float) -> bool:
        """Request one split of the running restriction; False if it cannot be split there, or is done."""
        split = self._op.try_split(fraction)
        if not split:
            return False
        _, residuals = split
        self._split_off += [self._apply(op, residual) for op, residual in residuals]
        return True
