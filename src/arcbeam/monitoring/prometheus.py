"""Metrics of jobs for Prometheus, served on an address.

Owns names and labels; `prometheus_client` writes and serves the text. `arcbeam.streaming.status.status` owns the
values. They are read when a page is requested, so the server costs the job nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client import generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from arcbeam.console.progressline import JobProgress, announce
from arcbeam.errors import SetupError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.streaming.status.status import StageStatus, Status, at_moment

FAMILIES: Final = {
    "build_info": ("gauge", "1; its labels are the versions of the process that answers. It has no label 'job'."),
    "up": ("gauge", "1; on the page 0 if the driver failed, seems dead, or there is no contact."),
    "elements": ("counter", "Elements that tasks have read."),
    "tasks": ("counter", "Tasks that have ended."),
    "micro_batches": ("counter", "Committed micro-batches: the number of the newest one."),
    "micro_batch_duration_seconds": ("gauge", "Duration of the newest micro-batch, without its commit."),
    "micro_batch_part_duration_seconds": (
        "gauge",
        "The measured parts of that duration; 'commit' is the commit of the previous micro-batch.",
    ),
    "failed_tries": ("counter", "Failed tries of micro-batches, commits and publishing, since the driver began."),
    "source_elements": ("counter", "Elements that sources (splittable DoFns) have produced since the job began."),
    "source_elements_per_second": (
        "gauge",
        "Elements per second that sources (splittable DoFns) produced, in the last minute.",
    ),
    "watermark_lag_seconds": ("gauge", "The clock minus the earliest output watermark; 0 if that is ahead."),
    "stage_watermark_lag_seconds": ("gauge", "The clock minus the input watermark of a stage; 0 if that is ahead."),
    "state_bytes": ("gauge", "Size of the state files of all stages at the same distance from the sources (level)."),
    "stage_state_rows": ("gauge", "Rows of a stage's state. Overwritten rows count until files are merged."),
    "stage_state_bytes": ("gauge", "Bytes of these rows: keys and values."),
    "input_watermark_timestamp_seconds": ("gauge", "Input watermark of a stage."),
    "output_watermark_timestamp_seconds": ("gauge", "Output watermark of a stage."),
    "input_watermark_advance_timestamp_seconds": (
        "gauge",
        "When a stage's input watermark last advanced; absent at the beginning and end of time.",
    ),
    "held_stages": ("gauge", "Stages whose watermarks a stage holds, by the kind of the cause."),
    "stage_elements": ("counter", "Elements that a stage has read and written."),
    "stage_elements_per_second": (
        "gauge",
        "Elements per second that a stage has read and written, in the last minute.",
    ),
    "stage_late_elements": ("counter", "Elements that a stage has dropped as late data."),
    "stage_micro_batch_bytes": ("gauge", "Bytes that a stage read and wrote in the newest micro-batch."),
    "stage_event_timestamp_seconds": (
        "gauge",
        "Earliest (min), mean and latest (max) event time of a stage's output in the newest micro-batch.",
    ),
    "restrictions": ("gauge", "Restrictions of a stage that are not done."),
    "backlog": ("gauge", "The sum of the restrictions' sizes, in the unit of their DoFn."),
    "stage_keys": ("gauge", "Keys with state in a stage; a key counts once for each of its windows."),
    "stage_state_keys": ("gauge", "Keys that have a value in a state (StateSpec) of the global window."),
    "timers": ("gauge", "Pending timers of a stage, by time domain: event_time or processing_time."),
    "next_timer_timestamp_seconds": ("gauge", "When the next timer or window of a stage is due, by time domain."),
    "waiting_elements": (
        "gauge",
        "Elements that wait: blocked, or sorted by time (label reason: blocked, sorted).",
    ),
    "waiting_bytes": ("gauge", "Bytes of these elements."),
    "user_metric": ("counter", "Counters of user code (Metrics.counter)."),
}
"""Type and meaning of each metric, by its family: see `name_of`. Names follow Prometheus' conventions."""

_TYPES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

_DISTRIBUTIONS: Final = {"version": ("arcbeam",), "beam": ("apache-beam",), "spark": ("pyspark", "pyspark-client")}
"""Installed packages whose versions are labels of `build_info`."""


def name_of(family: str) -> str:
    """Return the full name of a metric in Prometheus."""
    kind, _ = FAMILIES[family]
    return f"arcbeam_{family}" + ("_total" if kind == "counter" else "")


class _Page:
    """A page of metrics; the samples of a family are together.

    Attributes:
        job: the label of the job whose metrics are added; "": they are of no job.
        families: by their names.
    """

    def __init__(self) -> None:
        self.job = ""
        self.families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}

    def add(self, family: str, value: float, **labels: str) -> None:
        labels = {**({"job": self.job} if self.job else {}), **labels}
        if (found := self.families.get(family)) is None:
            kind, meaning = FAMILIES[family]
            found = self.families[family] = _TYPES[kind](f"arcbeam_{family}", meaning, labels=tuple(labels))
        found.add_metric(tuple(labels.values()), value)


def _seconds(time: int) -> float:
    """Return a time in seconds since 1970; infinite at the beginning and the end of time."""
    if time <= MIN_TIMESTAMP:
        return float("-inf")
    return float("inf") if time >= MAX_TIMESTAMP else time / 1e6


class Counter(NamedTuple):
    """A user's counter: the step of the pipeline, its namespace and name, and its value."""

    step: str
    namespace: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class MonitoredJob:
    """A job with metrics.

    Attributes:
        job: its label; see `label_of`.
        status: of a streaming job.
        progress: of any job that has begun.
        counters: of the user; committed values.
        up: whether a driver runs it.
    """

    job: str
    status: Status | None = None
    progress: JobProgress | None = None
    counters: Iterable[Counter] = ()
    up: bool = True


def label_of(name: str, where: str) -> str:
    """Return the label of a job: it does not depend on other jobs, so it never changes.

    Args:
        name: of the job.
        where: its folder, or its id at its job server; "": the job keeps no state.
    """
    return f"{name} ({where})" if name and where else name or where


class JobCollector(Collector):
    """Collects all metrics of jobs, at each request.

    Args:
        jobs: returns the jobs; called on threads of the server.
        now: see `exposed`.
    """

    def __init__(self, jobs: Callable[[], Iterable[MonitoredJob]], now: int | None = None) -> None:
        self._jobs, self._now = jobs, now

    @override
    def collect(self) -> Iterable[Metric]:
        page = _Page()
        page.add("build_info", 1, **_versions())
        for each in self._jobs():
            page.job = each.job
            _of_exposed(page, each, round(time.time() * 1e6) if self._now is None else self._now)
        return page.families.values()


def exposed(jobs: Iterable[MonitoredJob], now: int | None = None) -> str:
    """Return all metrics of some jobs as text.

    Args:
        jobs: the jobs.
        now: the time for which to compute gaps and rates, in microseconds since the epoch; by default the clock's.
    """
    return generate_latest(JobCollector(lambda: jobs, now)).decode()


def _of_exposed(page: _Page, job: MonitoredJob, now: int) -> None:
    page.add("up", int(job.up))
    if job.progress is not None:
        page.add("elements", job.progress.elements)
        page.add("tasks", job.progress.tasks)
    if job.status is not None:
        # An idle job has no micro-batch that would update its figures.
        status = at_moment(job.status, now)
        _of_job(page, status)
        _of_stages(page, status)
    for step, namespace, name, value in job.counters:
        page.add("user_metric", value, step=step, namespace=namespace, name=name)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for label, names in _DISTRIBUTIONS.items():
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.setdefault(label, importlib.metadata.version(name))
    return found


def _of_job(page: _Page, status: Status) -> None:
    page.add("micro_batches", status.micro_batch)
    for part, seconds in status.seconds.items():
        # The whole is a metric of its own: beside its parts it would double their sum.
        if part == "seconds":
            page.add("micro_batch_duration_seconds", seconds)
        else:
            page.add("micro_batch_part_duration_seconds", seconds, part=part)
    if status.driver is not None:
        page.add("failed_tries", status.driver.failures)
    page.add("source_elements", sum(stage.total.made for stage in status.stages if stage.total))
    if status.rate is not None:
        page.add("source_elements_per_second", status.rate)
    if status.behind is not None:
        page.add("watermark_lag_seconds", status.behind / 1e6)
    for level, size in status.state_bytes.items():
        page.add("state_bytes", size, level=str(level))


def _of_stages(page: _Page, status: Status) -> None:
    for stage in status.stages:
        for family, value, labels in _of_stage(stage):
            if value is not None:
                page.add(family, value, stage=stage.stage, **labels)
    held: dict[tuple[str, str], int] = {}
    for cause in (each for each in status.causes if each.stage):
        known = cause.stage, cause.kind
        held[known] = held.get(known, 0) + len(cause.stages)
    for (name, kind), stages in held.items():
        page.add("held_stages", stages, stage=name, cause=kind)


def _of_stage(stage: StageStatus) -> Iterator[tuple[str, float | None, Mapping[str, str]]]:
    """Yield family, value and labels of a stage's metrics; the value is None if it is unknown."""
    yield "input_watermark_timestamp_seconds", _seconds(stage.input), {}
    # A watermark at the end or the beginning of time stays there permanently; that is no problem.
    if stage.input_since is not None and MIN_TIMESTAMP < stage.input < MAX_TIMESTAMP:
        yield "input_watermark_advance_timestamp_seconds", stage.input_since.time / 1e6, {}
    if (total := stage.total) is not None:
        yield "stage_elements", total.read, {"direction": "in"}
        yield "stage_elements", total.written, {"direction": "out"}
        yield "stage_late_elements", total.late, {}
    yield "stage_micro_batch_bytes", stage.bytes_in, {"direction": "in"}
    yield "stage_micro_batch_bytes", sum(out.bytes for out in stage.outputs), {"direction": "out"}
    yield "stage_state_rows", stage.state_rows, {}
    yield "stage_state_bytes", stage.state_bytes, {}
    yield "stage_watermark_lag_seconds", None if stage.behind is None else stage.behind / 1e6, {}
    yield "stage_elements_per_second", stage.read_rate, {"direction": "in"}
    yield "stage_elements_per_second", stage.written_rate, {"direction": "out"}
    if (kept := stage.kept) is not None:
        yield "stage_keys", kept.keys, {}
        for state, keys in kept.cells.items():
            yield "stage_state_keys", keys, {"state": state}
        yield "timers", kept.event_timers, {"domain": "event_time"}
        yield "timers", kept.clock_timers, {"domain": "processing_time"}
        yield "waiting_elements", kept.blocked, {"reason": "blocked"}
        yield "waiting_elements", kept.ordered, {"reason": "sorted"}
        yield "waiting_bytes", kept.waiting_bytes, {}
    for domain, due in (("event_time", stage.next_event), ("processing_time", stage.next_due)):
        yield "next_timer_timestamp_seconds", None if due is None else _seconds(due), {"domain": domain}
    yield "restrictions", stage.restrictions, {}
    yield "backlog", stage.backlog, {}
    for out in stage.outputs:
        yield "output_watermark_timestamp_seconds", _seconds(out.watermark), {"output": out.output}
        for statistic, at in (("min", out.least), ("mean", out.mean), ("max", out.most)):
            labels = {"output": out.output, "statistic": statistic}
            yield "stage_event_timestamp_seconds", None if at is None else _seconds(at), labels


@contextmanager
def exposing(
    endpoint: tuple[str, int] | None, jobs: Callable[[], Iterable[MonitoredJob]]
) -> Iterator[tuple[str, int] | None]:
    """Serve `/metrics` while the block runs.

    Args:
        endpoint: host and port; port 0 is a free one. None: serve nothing.
        jobs: returns the jobs with metrics; called on threads of the server.

    Raises:
        SetupError: the address cannot be used.
    """
    if endpoint is None:
        yield None
        return
    host, port = endpoint
    shown = f"[{host}]" if ":" in host else host
    try:
        server, thread = start_http_server(port, host, JobCollector(jobs))
    except OSError as e:
        raise SetupError(f"cannot listen on --metrics_address={shown}:{port}: {e}", "give a free port") from e
    at = str(server.server_address[0]), server.server_port
    announce(f"metrics for Prometheus are at http://{shown}:{at[1]}/metrics")
    try:
        yield at
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
