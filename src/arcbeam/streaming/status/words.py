"""A status record in words: times, sizes, and whether a driver seems to run the job.

Owns the wording that the command line and the page share. Reads records only; those of other versions may lack fields.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, long_shown
from arcbeam.sizes import remembered
from arcbeam.store.log.jobname import resume_command
from arcbeam.store.manifest.values import ENDED
from arcbeam.streaming.status.moment import STOPPED, watermark_gap

Record = Mapping[str, Any]
"""A status, as in JSON."""

_ENDED = frozenset(map(str, ENDED))

LONG_OVERDUE = 60.0
"""Seconds by which due work may be late in a job with a driver: a micro-batch with a backlog takes several."""

_LATE_NOTE = 20.0
"""Seconds by which the next note of a live driver may be late: clocks differ, and stores are slow."""


def is_over(record: Record) -> bool:
    """Return whether the job has ended."""
    return bool(record.get("ended")) or record["mode"] in _ENDED


def overdue(record: Record) -> float | None:
    """Return by how many seconds due work is late, if that suggests that no driver runs the job; else None."""
    due = record.get("due")
    # A driver's note is better evidence than its expected work.
    if due is None or is_over(record) or record["mode"] == "suspended":
        return None
    if record.get("driver") or record.get("scripted"):
        return None
    late = time.time() - due / 1e6
    return None if late < LONG_OVERDUE else late


def silent(record: Record) -> float | None:
    """Return since how many seconds the driver has written no note, if one is due; else None."""
    driver = record.get("driver")
    if not driver or is_over(record):
        return None
    seconds = time.time() - driver["time"] / 1e6
    return seconds if seconds > driver["every"] + _LATE_NOTE else None


def state_of(record: Record) -> str:
    """Return a job's state, with a doubt if no driver seems to run it."""
    if ended := record.get("ended"):
        return str(ended["state"])
    unsure = overdue(record) is not None or silent(record) is not None
    return f"{record['mode']}, perhaps" if unsure else str(record["mode"])


def has_job_graph(record: Record) -> bool:
    """Return whether a job graph is stored with a job. Only the status in a folder says that there is none."""
    return record.get("job_graph") is not False


def resume_line(record: Record) -> str:
    """Return how to resume a job, as the end of a sentence."""
    # A job without a folder cannot be resumed by a command.
    folder = str(record.get("folder") or "")
    return f"resume the job: {resume_command(folder, has_job_graph(record) and bool(folder))}"


def driver_line(record: Record) -> str:
    """Return what a job's driver does, or that it is silent; "" if it has written no note."""
    driver = record.get("driver")
    if not driver or is_over(record):
        return ""
    name = f"driver {driver['driver']} (process {driver['pid']}), since {shown(driver['since'])}"
    doing = _doing(record, driver)
    if (seconds := silent(record)) is None:
        return f"{name}: {doing}" if doing else name
    last = f"; its last note: {doing}" if doing else ""
    return f"no driver seems to be running this job: {name}, has written nothing for {long_shown(seconds)}{last}"


_OF_MICRO_BATCH: Final = re.compile(r"(?:running|committing) micro-batch (\d+)")
_RUNNING: Final = re.compile(r"running micro-batch (\d+) for (\d+) s")


def running_for(record: Record) -> tuple[int, float] | None:
    """Return which micro-batch a job's driver runs, and for how many seconds; None if it runs none, or is silent."""
    driver = record.get("driver")
    if not driver or is_over(record) or silent(record) is not None:
        return None
    found = _RUNNING.match(_doing(record, driver))
    return (int(found[1]), int(found[2]) + max(0.0, time.time() - driver["time"] / 1e6)) if found else None


def _doing(record: Record, driver: Record) -> str:
    """Return what a driver's note says that it does; "" if the newest micro-batch was committed after the note."""
    doing = str(driver["doing"])
    if any(int(number) <= record.get("micro_batch", 0) for number in _OF_MICRO_BATCH.findall(doing)):
        return ""
    return doing if driver["time"] >= committed_at(record) else ""


def overdue_line(record: Record) -> str:
    """Return the warning that no driver seems to run a job; "" if nothing is due, or the job has ended."""
    if overdue(record) is None:
        return ""
    due = record["due"]
    return f"no driver seems to be running this job: the work due at {shown(due)} ({ago(due)}) has not run"


def without_since(cause: Record) -> str:
    """Return the text of a cause without the micro-batch since which it holds, for views that show that elsewhere."""
    text, since = str(cause["text"]), cause.get("since")
    if since is None:
        return text
    return text.replace(f", since micro-batch {since['micro_batch']} ({shown_time(since['time'])})", "", 1)


def has_begun(record: Record) -> bool:
    """Return whether a micro-batch of a job has been committed: a driver's opening of its folder is none."""
    return bool(record["micro_batch"]) and record.get("elapsed", 0) is not None


def committed_at(record: Record) -> int:
    """Return when the newest micro-batch was committed, by its driver's clock."""
    committed = record.get("committed")
    return int(record["time"] if committed is None else committed)


def clock(record: Record) -> int:
    """Return the time by a job's clock: that of a TestStream is its script's, that of a job without a driver stands."""
    if record.get("scripted"):
        return int(record["time"])
    return committed_at(record) if record.get("ended") or record["mode"] in STOPPED else round(time.time() * 1e6)


def gap_of(record: Record, watermark: int) -> Duration | None:
    """Return the gap of a watermark of a job now; see `watermark_gap`."""
    return watermark_gap(watermark, clock(record))


def recorded(record: Record, shown: Callable[[int], str]) -> str:
    """Return when the newest micro-batch was committed, with the time of the job's TestStream if it has one."""
    when = committed_at(record)
    text = f"committed at {shown(when)} ({ago(when)})"
    return f"{text}, TestStream's clock at {shown(record['time'])}" if record.get("scripted") else text


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
