"""The metrics of all jobs of the page, for Prometheus.

Owns which jobs have metrics, and their labels. `arcbeam.monitoring.prometheus` owns names and values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from arcbeam.console.progressline import JobProgress
from arcbeam.monitoring.prometheus import Counter, Exposed, exposed, label_of
from arcbeam.page.sources import Listed, Record, Source
from arcbeam.page.states import is_live
from arcbeam.streaming.status.records import status_from
from arcbeam.streaming.status.words import overdue, silent

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FAILED_SECONDS: Final = 3600.0
"""So long a job that failed at its service has the metric of a job without a driver."""


def exposition(source: Source) -> str:
    """Return the metrics of all jobs that run or should run, in Prometheus' text form.

    The label `job` is the name of the job, and its folder or its id at a job server.
    """
    return exposed(_jobs(source))


def _jobs(source: Source) -> Iterator[Exposed]:
    for each in [job for job in source.jobs() if _wanted(job)]:
        # SUBTLE: the label of a job with a service gets the job's folder later.
        label, up = label_of(_name(each), each.id if each.state else each.label), _is_up(each)
        # The list has no stages. Without a driver, old figures would look like present ones.
        if not up or (found := source.job(each.id)) is None:
            yield Exposed(label, up=up)
            continue
        status = None if found.record is None else status_from(found.record)
        yield Exposed(label, status, _progress(found), list(_counters(source.details(each.id))), up)


def _name(job: Listed) -> str:
    return job.name or (str(job.record.get("name") or "") if job.record is not None else "")


def _wanted(job: Listed) -> bool:
    """Return whether a driver runs the job, or should run it."""
    if job.record is not None and job.record.get("ended"):
        return bool(job.record["ended"]["state"] == "FAILED")
    if job.state == "FAILED":
        return time.time() - job.since / 1e6 < _FAILED_SECONDS
    suspended = job.state == "STOPPED" or (job.record is not None and job.record["mode"] == "suspended")
    return is_live(job) and not suspended


def _is_up(job: Listed) -> bool:
    if job.silent is not None or job.state == "FAILED":
        return False
    if job.record is None:
        return bool(job.state)
    return not bool(job.record.get("ended")) and silent(job.record) is None and overdue(job.record) is None


def _progress(job: Listed) -> JobProgress | None:
    if job.progress is None:
        return None
    stages = job.progress["stages"]
    running = tuple(stage["stage"] for stage in stages if stage["state"] == "running")
    return JobProgress(running, sum(each["elements"] for each in stages), sum(each["tasks"] for each in stages))


def _counters(details: Record | None) -> Iterator[Counter]:
    for each in (details or {}).get("metrics", ()):
        if each["kind"] == "counters" and isinstance(each["value"], int):
            yield Counter(each["step"], each["namespace"], each["name"], each["value"])
