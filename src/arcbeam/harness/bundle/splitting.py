"""Splitting the restriction that is being processed, from a second thread, when the task's time is up.

Owns when a split may be asked for and in which fractions. The SDK does the splitting. What becomes of the residuals is
decided by who processes it (`harness.batch.restrictions`, `harness.streaming.restrictions`). Must not know Spark.
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

MAX_PIECES = threshold(64, 2)
"""Into how many pieces one restriction is split at most, however many slots there are."""

_NUDGES = (0.0, 1 / 64, 1 / 8, 1 / 2)
"""Fractions of the remainder to keep, tried in turn when the rest is wanted back. SUBTLE: not every tracker can stop
right where it is (a BoundedSource never can); then it is asked to stop a little later."""

_MAX_BACKOFF = 5.0

_claiming = threading.local()


class _Observed(sdf_utils.ThreadsafeRestrictionTracker):  # type: ignore[misc]  # Beam is untyped
    """Tells the splitter of its thread of the first claim."""

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


def register() -> None:
    """Gives our tracker to the SDK. Idempotent."""
    common.ThreadsafeRestrictionTracker = _Observed


class Splitter:
    """Watches the restriction in process; past the deadline, takes from it all that has not been claimed.

    The bundle's thread calls `begin` and `end` around each restriction; this object's thread looks at progress and
    asks for splits. A restriction is left alone until it was seen to progress: before its first claim a split may give
    an empty primary and everything back, for ever. Progress is any of: a claim since `begin`, an output (nothing may be
    output before the first claim), a remainder smaller than at the first look.

    Nobody can end a process but itself: one that goes on though it was asked to stop, cannot be split, or has claimed
    nothing, is told of in the log, by the name of its step, and goes on; where patience is given, for in a bounded job
    nobody waits for what it leaves.

    `_lock` guards all that follows it in `__init__`; a split is only asked for while holding it. So a split always
    hits the restriction that was looked at, and `end` returns only when no split is under way.

    Args:
        op: the SDK's operation that processes restrictions.
        apply: makes a DelayedBundleApplication of the operation and a residual.
        seconds: from entering the context to the deadline.
        pieces: into how many pieces to split the rest, asked for at the time of a split.
        exhausted: whether the time is up earlier; asked on the splitter's thread, too.
        interval: seconds between two looks; None: a twentieth of `seconds`.
        patience: seconds past the deadline until a process that goes on is told of, and again when they have doubled.

    Attributes:
        tracker: of the restriction that runs.
        claimed: something was claimed since `begin`.
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
        self._told_after = patience
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
        """Until the deadline; negative past it."""
        return self._deadline - time.monotonic()

    def outputs(self) -> int:
        """Elements that the operation has output, counted from any time; callable while it processes."""
        if isinstance(self._op, RestrictionOperation):
            return self._op.outputs()
        return sum(receiver.opcounter.element_counter.value() for receiver in self._op.receivers)

    def begin(self) -> None:
        """The next restriction is about to be processed, on this thread."""
        _claiming.splitter = self
        with self._lock:
            self.tracker, self.claimed = None, False
            self._outputs_before = self.outputs()
            self._first_look = None
            self._progressed = self._refuses = self._stopped = self._pieces_made = False
            self._backoff, self._next_try = self._interval, 0.0
            self._overdue_since, self._told_after = None, self._patience
            self._running = True

    def end(self) -> list[Any]:
        """The restriction's process returned; no split of it is asked for any more.

        Returns:
            What was split off: `DelayedBundleApplication`s.

        Raises:
            RuntimeError: a split failed halfway, so that part of the restriction may be lost.
        """
        with self._lock:
            self._running = False
            split_off, self._split_off = self._split_off, []
            failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError(f"{type(failure).__name__} in a split: {failure}") from failure
        return split_off

    def abandon(self) -> None:
        """The restriction's process raised; its bundle fails, and what was split off with it."""
        with self._lock:
            self._running = False
            self._split_off, self._failure = [], None

    # On the splitter's own thread.

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
        if now - self._overdue_since >= self._told_after:
            self._told_after = max(2 * self._told_after, self._interval)
            self._tell(now - self._overdue_since)

    def _tell(self, seconds: float) -> None:
        """Says why nothing of what the process does becomes real."""
        if self._stopped:
            why = "was asked to stop: all that it has not claimed was taken from it, so its next try_claim gives False"
        elif self._progressed:
            why = "cannot be stopped: its tracker's try_split gives nothing back"
        else:
            why = (
                "has not claimed anything: a process that waits for what is to come should defer_remainder, and return"
            )
        step = self._op.name_context.step_name.removesuffix("/Process")
        _LOG.warning(
            "%r has processed a restriction for %.0f s more than it should and %s; nothing that depends on it goes on "
            "before it returns",
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
            # A tracker need not know its progress, and a bug in telling it is no reason to fail.
            _LOG.debug("no progress of %s", self._op.name_context.step_name, exc_info=True)
            return False
        if self._first_look is None:
            self._first_look = look
        return bool(look[0] < self._first_look[0] or look[1] < self._first_look[1])

    def _take_the_rest(self) -> None:
        """Splits the rest into equal pieces, and stops the running process behind what it has claimed."""
        try:
            if not self._pieces_made:
                for pieces in range(min(self._pieces(), MAX_PIECES) if self._has_an_end() else 1, 1, -1):
                    if not self._split((pieces - 1) / pieces):
                        break
                self._pieces_made = True
            kept = next((fraction for fraction in _NUDGES if self._split(fraction)), None)
            if kept == 0.0:
                self._refuses = self._stopped = True  # there is nothing left to take
        except Exception as e:
            self._refuses = True
            innermost = traceback.extract_tb(e.__traceback__)[-1].name
            if not isinstance(e, NotImplementedError) or innermost != "try_split":
                self._failure = e
        self._next_try = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, max(_MAX_BACKOFF, self._interval))

    def _has_an_end(self) -> bool:
        """Whether a part of the rest may be taken from behind: what has no end has no half."""
        try:
            return self.tracker is None or bool(self.tracker.is_bounded())
        except Exception:
            return True  # a tracker need not know

    def _split(self, fraction: float) -> bool:
        """One split of the running restriction; False if it cannot be split there (or is done)."""
        split = self._op.try_split(fraction)
        if not split:
            return False
        _, residuals = split
        self._split_off += [self._apply(op, residual) for op, residual in residuals]
        return True
