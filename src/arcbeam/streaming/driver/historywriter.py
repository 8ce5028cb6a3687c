"""Writes for people what no commit needs: at the start a job's plan, every ten seconds figures and log of its tasks,
user metrics and messages, and its figures over time: in the first minute several times, then about once a minute.

Owns the intervals, and keeps the figures in memory. The files are outside the commit: if they are lost or cannot be
written, the job continues. Must not know what they mean.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from arcbeam.engine.coordinator import CommitDecided, Event, MicroBatchFailed
from arcbeam.engine.protocol.layout import Layout
from arcbeam.model.rows import BundleReport
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.historyfile import StoredHistory, history_in, record_history
from arcbeam.store.log.planfile import record_details, record_plan, record_tasks
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.interfaces import Clock
from arcbeam.streaming.status.history import History, sample_of, totals_of
from arcbeam.streaming.status.status import PARTS, Status, status_of
from arcbeam.streaming.status.taskfigures import task_record
from arcbeam.streaming.status.tries import ATTEMPT

_LOG = logging.getLogger("arcbeam.streaming")

_NO_TASKS: Final[tuple[int, Sequence[BundleReport]]] = 0, ()

_SAMPLE_SECONDS: Final = 1.0
_FIRST_SECONDS: Final = 4.0
"""A driver's first file is written so soon: one that is killed early leaves its start. Then the pauses double."""
_WRITE_SECONDS: Final = 60.0
_EVENT_SECONDS: Final = 5.0
"""After a failure or savepoint the file is written this soon, if that is cheap: people look for these."""
_TASKS_SECONDS: Final = 10.0
_WRITE_SHARE: Final = 0.005
"""The limit of the time for writing. With hundreds of stages a file takes long to make, and is written less often."""


def in_thread(function: Callable[[], None]) -> Callable[[], None]:
    """Start a function in a thread of its own. Return a function that waits for its end."""
    thread = threading.Thread(target=function, name="history", daemon=True)
    thread.start()
    return thread.join


def _nothing() -> None:
    """Wait for nothing."""


class HistoryWriter:
    """The history of one driver. Called on the driver's thread; files are written by another one.

    Args:
        blobs: the job's folder; None: nothing is read, kept or written.
        log: the driver's commit log.
        clock: the driver's clock.
        seconds: a monotonic clock, in seconds.
        aside: starts a function beside the driver's thread, and returns a function that waits for its end.
        plan: the record of the job's plan, which is written at once; None: none is written.
        layout: of the job; None: figures of tasks are not written.
        details: returns user metrics and messages, on any thread; None: they are not written.
        status: returns the job's status at a manifest.
    """

    def __init__(
        self,
        blobs: DurableBlobs | None,
        log: CommitLog,
        clock: Clock,
        seconds: Callable[[], float] = time.monotonic,
        plan: Mapping[str, Any] | None = None,
        aside: Callable[[Callable[[], None]], Callable[[], None]] = in_thread,
        layout: Layout | None = None,
        details: Callable[[], Mapping[str, Any]] | None = None,
        status: Callable[[Manifest], Status] = status_of,
    ) -> None:
        self._blobs, self._log, self._clock, self._seconds = blobs, log, clock, seconds
        self._measured: Mapping[str, Any] = {}
        self._parts: dict[str, float] = {}
        self._pause = _FIRST_SECONDS
        self._sampled, self._due = float("-inf"), seconds() + self._pause
        self._new, self._warned, self._earliest = False, False, float("-inf")
        self._aside, self._written, self._writing = aside, _nothing, False
        self._layout, self._tasks, self._tasks_written = layout, _NO_TASKS, _nothing
        self._tasks_due, self._details, self._status = float("-inf"), details, status
        if blobs is None:
            return
        if plan is not None:
            self._write_plan(blobs, plan)
        self._history = History.after(self._found(blobs))
        # SUBTLE: counters are differences of what is committed, so micro-batches without a sample are not lost.
        self._totals = totals_of(status(log.head))
        self._savepoints = {pin.name for pin in log.head.pins}
        self.event("restart" if log.head.micro_batch else "start", f"at micro-batch {log.head.micro_batch}")

    def measured(self, figures: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remember measurements of the micro-batch that is about to be proposed, and return them."""
        self._measured = figures
        return figures

    def handled(self, event: Event) -> None:
        """Note what an event says. The driver has handled it; see `interfaces.DriverObserver`."""
        if self._blobs is None:
            return
        if isinstance(event, CommitDecided):
            self._committed()
        elif isinstance(event, MicroBatchFailed):
            self.event("trouble", f"micro-batch {event.micro_batch} failed in try {event.attempt + 1}: {event.why}")

    def warned(self, text: str) -> None:
        """Note a warning, if it is about a failed attempt of a task."""
        if text.startswith(ATTEMPT):
            self.event("retry", text)

    def _committed(self) -> None:
        for name in ("micro_batches", *PARTS):
            gained = 1.0 if name == "micro_batches" else self._measured.get(name, 0.0)
            self._parts[name] = self._parts.get(name, 0.0) + gained
        if new := {pin.name for pin in self._log.head.pins} - self._savepoints:
            self._savepoints |= new
            self.event("savepoint", f"{', '.join(sorted(new))} at micro-batch {self._log.head.micro_batch}")
        # At most once a second: a status of many stages costs milliseconds.
        if self._seconds() - self._sampled >= _SAMPLE_SECONDS:
            self._sample()

    def event(self, kind: str, text: str) -> None:
        """Note an event."""
        if self._blobs is not None:
            self._history.event(self._clock.now(), kind, text)
            self._new = True
            if kind in ("trouble", "retry", "savepoint"):
                self._due = min(self._due, max(self._seconds() + _EVENT_SECONDS, self._earliest))

    def ran(self, micro_batch: int, reports: Sequence[BundleReport]) -> None:
        """Remember the reports of a micro-batch that is committed, if it had elements."""
        if self._blobs is not None and any(report.elements_in for report in reports):
            self._tasks = micro_batch, reports

    def beat(self) -> bool:
        """Write the files that are due.

        Returns:
            True.
        """
        if self._tasks[1] and self._seconds() >= self._tasks_due:
            self._write_tasks()
        if self._new and not self._writing and self._seconds() >= self._due:
            self._write()
        return True

    def close(self, how: str) -> None:
        """Write what is new, unless another driver has taken the job over: its file must not be replaced.

        Args:
            how: the end of the job, for people; "" if it is unknown.
        """
        if self._blobs is None or self._log.fenced() is not None:
            return
        self.event("end", how or "the driver failed")
        if self._parts:
            self._sample()
        if self._new:
            self._write()
        if self._tasks[1]:
            self._write_tasks()
        self._written()
        self._tasks_written()
        self._put_details(self._blobs)

    def _put_details(self, blobs: DurableBlobs) -> None:
        if self._details is None:
            return
        try:
            record_details(blobs, self._details())
        except StoreError as e:
            _LOG.debug("'details' in the job's folder is old: %s", e)

    def _write_tasks(self) -> None:
        blobs, layout = self._blobs, self._layout
        (micro_batch, reports), self._tasks = self._tasks, _NO_TASKS
        self._tasks_due, now = self._seconds() + _TASKS_SECONDS, self._clock.now()
        if blobs is None or layout is None:
            return

        def write() -> None:
            try:
                record_tasks(blobs, task_record(micro_batch, now, reports, layout))
            except StoreError as e:
                _LOG.debug("'tasks' in the job's folder is old: %s", e)
            self._put_details(blobs)

        # The previous one has most probably ended.
        self._tasks_written()
        self._tasks_written = self._aside(write)

    def _sample(self) -> None:
        status = self._status(self._log.head)
        self._history.add(sample_of(status, self._clock.now(), self._totals, self._parts))
        self._totals, self._parts = totals_of(status), {}
        self._sampled, self._new = self._seconds(), True

    def _write_plan(self, blobs: DurableBlobs, plan: Mapping[str, Any]) -> None:
        try:
            record_plan(blobs, plan)
        except StoreError as e:
            _LOG.warning("the page cannot show the job's graph: %s", e)

    def _found(self, blobs: DurableBlobs) -> StoredHistory:
        try:
            return history_in(blobs)
        except StoreError as e:
            _LOG.warning("figures over time begin again: %s", e)
            return StoredHistory()

    def _write(self) -> None:
        """Write the file beside the driver's thread: of hundreds of stages it takes most of a second."""
        self._written()
        stored, self._new, self._writing = self._history.stored(), False, True
        self._pause = min(2 * self._pause, _WRITE_SECONDS)
        self._due = self._seconds() + self._pause
        self._written = self._aside(lambda: self._put(stored))

    def _put(self, stored: StoredHistory) -> None:
        assert self._blobs is not None
        began = self._seconds()
        try:
            record_history(self._blobs, stored)
            self._warned = False
        except StoreError as e:
            _LOG.log(logging.DEBUG if self._warned else logging.WARNING, "'history' in the job's folder is old: %s", e)
            self._warned = True
        finally:
            self._writing = False
        self._put_details(self._blobs)
        self._earliest = began + (self._seconds() - began) / _WRITE_SHARE
        self._due = max(began + self._pause, self._earliest)
