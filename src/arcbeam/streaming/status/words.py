"""A status in words: times, sizes, and whether a driver seems to run the job.

Owns the wording that the command line and the page share.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import (
    END_OF_GLOBAL_WINDOW,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    Timestamp,
    behind_shown,
    long_shown,
)
from arcbeam.sizes import remembered
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.store.log.jobname import resume_command
from arcbeam.streaming.status.moment import watermark_gap
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.status import Status, late_of, total_state_metrics

LONG_OVERDUE = 60.0
"""Seconds by which due work may be late in a job with a driver: a micro-batch with a backlog takes several."""

_LATE_NOTE = 20.0
"""Seconds by which the next note of a live driver may be late: clocks differ, and stores are slow."""

COUNTERS: Final = {"late": "dropped"}
"""The counters of a stage since its job began that all views show, by their fields: what happened to the elements."""

_SHOWN: Final = 4
"""The maximum of items of remaining work in a line."""


def overdue(status: Status) -> float | None:
    """Return by how many seconds due work is late, if that suggests that no driver runs the job; else None."""
    # A driver's note is better evidence than its expected work.
    if status.due is None or status.is_stopped or status.driver is not None or status.scripted:
        return None
    late = time.time() - status.due / 1e6
    return None if late < LONG_OVERDUE else late


def silent(status: Status) -> float | None:
    """Return since how many seconds the driver has written no note, if one is due; else None."""
    driver = status.driver
    if driver is None or status.is_over:
        return None
    seconds = time.time() - driver.time / 1e6
    return seconds if seconds > driver.every + _LATE_NOTE else None


def state_of(status: Status) -> str:
    """Return a job's state, with a doubt if no driver seems to run it."""
    if status.ended is not None:
        return status.ended.state
    unsure = overdue(status) is not None or silent(status) is not None
    return f"{status.mode}, perhaps" if unsure else str(status.mode)


def has_job_graph(status: Status) -> bool:
    """Return whether a job graph is stored with a job. Only the status in a folder says that there is none."""
    return status.job_graph is not False


def resume_line(status: Status) -> str:
    """Return how to resume a job, as the end of a sentence."""
    # A job without a folder cannot be resumed by a command.
    return f"resume the job: {resume_command(status.folder, has_job_graph(status) and bool(status.folder))}"


def driver_line(status: Status) -> str:
    """Return what a job's driver does, or that it is silent; "" if it has written no note."""
    driver = status.driver
    if driver is None or status.is_over:
        return ""
    name = f"driver {driver.driver} (process {driver.pid}), since {shown(driver.since)}"
    doing = _doing(status, driver)
    if (seconds := silent(status)) is None:
        return f"{name}: {doing}" if doing else name
    last = f"; its last note: {doing}" if doing else ""
    return f"no driver seems to be running this job: {name}, has written nothing for {long_shown(seconds)}{last}"


_OF_MICRO_BATCH: Final = re.compile(r"(?:running|committing) micro-batch (\d+)")
_RUNNING: Final = re.compile(r"running micro-batch (\d+) for (\d+) s")


def running_for(status: Status) -> tuple[int, float] | None:
    """Return which micro-batch a job's driver runs, and for how many seconds; None if it runs none, or is silent."""
    driver = status.driver
    if driver is None or status.is_over or silent(status) is not None:
        return None
    found = _RUNNING.match(_doing(status, driver))
    return (int(found[1]), int(found[2]) + max(0.0, time.time() - driver.time / 1e6)) if found else None


def _doing(status: Status, driver: DriverNote) -> str:
    """Return what a driver's note says that it does; "" if the newest micro-batch was committed after the note."""
    if any(int(number) <= status.micro_batch for number in _OF_MICRO_BATCH.findall(driver.doing)):
        return ""
    return driver.doing if driver.time >= status.committed else ""


def without_driver(status: Status) -> str:
    """Return why no driver runs a job; "" if one seems to run it."""
    if status.is_over:
        return "the job has ended"
    if status.is_suspended:
        return "the job is suspended"
    return "no driver seems to be running the job" if silent(status) is not None or overdue_line(status) else ""


def overdue_line(status: Status) -> str:
    """Return the warning that no driver seems to run a job; "" if nothing is due, or the job has ended."""
    if (due := status.due) is None or overdue(status) is None:
        return ""
    return f"no driver seems to be running this job: the work due at {shown(due)} ({ago(due)}) has not run"


def without_since(cause: Cause) -> str:
    """Return the text of a cause without the micro-batch since which it holds, for views that show that elsewhere."""
    if (since := cause.since) is None:
        return cause.text
    return cause.text.replace(f", since micro-batch {since.micro_batch} ({shown_time(since.time)})", "", 1)


def undone(status: Status) -> str:
    """Return the remaining work of a draining job at its newest micro-batch, in a line; "" if it is unknown."""
    doing: list[str] = []
    for stage in status.stages:
        name = repr(stage.stage)
        if stage.restrictions:
            doing.append(
                f"{stage.restrictions} restriction(s) of {name} not done (size {backlog_shown(stage.backlog)})"
            )
        if stage.leftover:
            doing.append(f"{name} has more work than fits into a micro-batch, in {stage.leftover} shard(s)")
        if stage.micro_batch and stage.micro_batch.fired:
            doing.append(f"{stage.micro_batch.fired:,} timer(s) of {name} fired")
        elif waits := [at for at in (stage.next_event, stage.next_due) if at is not None]:
            doing.append(f"{name} waits until {shown_time(min(waits))}")
        if stage.blocked:
            doing.append(f"elements of {name} are blocked until {stage.blocked[0]}")
    more = [f"and {len(doing) - _SHOWN} more"] if len(doing) > _SHOWN else []
    # The cause of a watermark names the restriction or timer.
    cause = next((each.text.partition(": ")[2] for each in status.causes if each.text and each.decides), "")
    return "; ".join([*doing[:_SHOWN], *more, *([cause] if cause else [])])


def drain_line(status: Status) -> str:
    """Return that a job drains, and its remaining work; "" if it does not drain."""
    if status.mode is not CommitMode.DRAINING:
        return ""
    return f"the job drains, and then ends; left: {undone(status) or 'nothing but its end'}"


def in_words(status: Status) -> str:
    """Return the figures in the progress line of a micro-batch, other than its elements and watermark."""
    lag = "" if (micros := status.behind) is None else f", {behind_shown(micros / 1e6)}"
    rate = "" if status.rate is None else f", {status.rate:,.0f} elements/s"
    counts = {"late": late_of(status), **total_state_metrics(status)}
    there = "".join(f", {count:,} {name}" for name, count in counts.items() if count)
    return f"backlog {backlog_shown(status.backlog)}{rate}{lag}{there}"


def parts_in_words(status: Status) -> str:
    """Return the seconds of the parts of the newest micro-batch, as far as they were stored."""
    names = {"plan": "plan", "spark": "Spark", "user": "transforms", "commit": "previous commit"}
    return ", ".join(f"{names[part]} {status.seconds[part]:.2f} s" for part in names if part in status.seconds)


def clock(status: Status) -> int:
    """Return the time by a job's clock."""
    return status.clock(round(time.time() * 1e6))


def gap_of(status: Status, watermark: int) -> Duration | None:
    """Return the gap of a watermark of a job now; see `watermark_gap`."""
    return watermark_gap(watermark, clock(status))


def recorded(status: Status, shown: Callable[[Timestamp], str]) -> str:
    """Return when the newest micro-batch was committed, with the time of the job's TestStream if it has one."""
    text = f"committed at {shown(status.committed)} ({ago(status.committed)})"
    return f"{text}, TestStream's clock at {shown(status.time)}" if status.scripted else text


def ago(when: int) -> str:
    """Return how long ago a time is, for people."""
    return f"{long_shown(max(0.0, time.time() - when / 1e6))} ago"


@remembered(1024)
def shown(time: int) -> str:
    """Return a time for people, in UTC."""
    if time <= MIN_TIMESTAMP or time >= MAX_TIMESTAMP:
        return "beginning" if time <= MIN_TIMESTAMP else "end"
    if time == END_OF_GLOBAL_WINDOW:
        return "end of the global window"
    try:
        when = datetime.fromtimestamp(time // 1_000_000, UTC).replace(microsecond=time % 1_000_000)
    except (OverflowError, ValueError, OSError):
        return f"{time} µs"
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def backlog_shown(size: float) -> str:
    """Return the size of restrictions for people; its unit is that of their DoFns."""
    return f"{size:,.0f}" if 1_000 <= size < 1e15 else f"{size:g}"


def bytes_shown(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"
