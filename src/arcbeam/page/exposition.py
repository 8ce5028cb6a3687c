"""The metrics of all jobs of the page, for Prometheus.

Owns which jobs have metrics, and their labels. `arcbeam.monitoring.prometheus` owns names and values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from arcbeam.console.progressline import summed
from arcbeam.monitoring.prometheus import Counter, MonitoredJob, exposed, label_of
from arcbeam.page.sources import Listed, Source
from arcbeam.page.states import is_live
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.words import overdue, silent

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_FAILED_SECONDS: Final = 3600.0
"""So long a job that failed at its service has the metric of a job without a driver."""


def exposition(source: Source) -> str:
    """Return the metrics of all jobs that run or should run, in Prometheus' text form.

    The label `job` is the name of the job, and its folder or its id at a job server.
    """
    return exposed(_jobs(source))


def _jobs(source: Source) -> Iterator[MonitoredJob]:
    for each in [job for job in source.jobs() if _wanted(job)]:
        name = each.name or (each.status.name if each.status else "")
        # SUBTLE: the label of a job with a service gets the job's folder later.
        place = (each.id if each.state else each.label) if each.where is None else each.where
        label, up = label_of(name, place), _is_up(each)
        # The list has no stages. Without a driver, old figures would look like present ones.
        if not up or (found := source.job(each.id)) is None:
            yield MonitoredJob(label, up=up)
            continue
        progress = summed(found.progress.stages) if found.progress else None
        yield MonitoredJob(label, found.status, progress, list(_counters(source.details(each.id))), up)


def _wanted(job: Listed) -> bool:
    """Return whether a driver runs the job, or should run it."""
    status = job.status
    if status is not None and status.ended:
        return status.ended.state == "FAILED"
    if job.state == "FAILED":
        return time.time() - job.since / 1e6 < _FAILED_SECONDS
    suspended = job.state == "STOPPED" or (status is not None and status.is_suspended)
    return is_live(job) and not suspended


def _is_up(job: Listed) -> bool:
    if job.silent is not None or job.state == "FAILED":
        return False
    if (status := job.status) is None:
        return bool(job.state)
    return not status.ended and silent(status) is None and overdue(status) is None


def _counters(details: Record | None) -> Iterator[Counter]:
    for each in (details or {}).get("metrics", ()):
        if each["kind"] == "counters" and isinstance(each["value"], int):
            yield Counter(each["step"], each["namespace"], each["name"], each["value"])
