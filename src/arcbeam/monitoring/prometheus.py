"""Metrics of a job in Prometheus' text form (version 0.0.4), served on an address.

Owns names, labels and the server. `arcbeam.streaming.status.status` owns the values. They are read when a page is
requested, so the server costs the job nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from arcbeam.console.progressline import JobProgress
from arcbeam.errors import SetupError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from arcbeam.streaming.status.status import StageStatus, Status, at_moment

_LOG = logging.getLogger("arcbeam")

FAMILIES: Final = {
    "build_info": ("gauge", "1; its labels are the versions of the process that answers. It has no label 'job'."),
    "up": ("gauge", "1; on the page 0 if the driver failed, seems dead, or there is no contact."),
    "elements": ("counter", "Elements that tasks have read."),
    "tasks": ("counter", "Tasks that have ended."),
    "micro_batch": ("counter", "The newest committed micro-batch."),
    "micro_batch_seconds": ("gauge", "Duration of the newest micro-batch, without its commit."),
    "micro_batch_part_seconds": (
        "gauge",
        "The measured parts of that duration; 'commit' is the commit of the previous micro-batch.",
    ),
    "failed_tries": ("counter", "Failed tries of micro-batches, commits and publishing, since the driver began."),
    "source_elements": ("counter", "Elements that sources (splittable DoFns) have produced since the job began."),
    "source_rate": (
        "gauge",
        "Elements per second that sources (splittable DoFns) produced, in the last minute.",
    ),
    "behind_seconds": ("gauge", "The clock minus the earliest output watermark; 0 if that is ahead."),
    "stage_behind_seconds": ("gauge", "The clock minus the input watermark of a stage; 0 if that is ahead."),
    "state_bytes": ("gauge", "Size of the state files of all stages at the same distance from the sources (level)."),
    "stage_state_rows": ("gauge", "Rows of a stage's state. Overwritten rows count until files are merged."),
    "stage_state_bytes": ("gauge", "Bytes of these rows: keys and values."),
    "input_watermark_seconds": ("gauge", "Input watermark of a stage, since 1970."),
    "output_watermark_seconds": ("gauge", "Output watermark of a stage, since 1970."),
    "watermark_stands_since_seconds": (
        "gauge",
        "Time of the last advance of a stage's input watermark; absent at the beginning and end of time.",
    ),
    "held": ("gauge", "Number of stages that a stage holds back, by the kind of the cause."),
    "stage_elements": ("counter", "Elements that a stage has read and written."),
    "stage_rate": ("gauge", "Elements per second that a stage has read and written, in the last minute."),
    "stage_late": ("counter", "Elements that a stage has dropped as late data."),
    "stage_bytes": ("gauge", "Bytes that a stage read and wrote in the newest micro-batch."),
    "event_time_seconds": (
        "gauge",
        "Earliest (least), mean and latest (most) event time of a stage's output in the newest micro-batch.",
    ),
    "restrictions": ("gauge", "Restrictions of a stage that are not done."),
    "backlog": ("gauge", "The sum of the restrictions' sizes, in the unit of their DoFn."),
    "stage_keys": ("gauge", "Keys with state in a stage; a key counts once for each of its windows."),
    "stage_cells": ("gauge", "Keys that have a value in a state (StateSpec) of the global window."),
    "timers": ("gauge", "Pending timers of a stage, by time domain: event time (event) or processing time (clock)."),
    "next_turn_seconds": ("gauge", "When the next timer or window of a stage is due, by time domain, since 1970."),
    "waiting_elements": ("gauge", "Elements that are blocked (blocked), or queued in order of time (order)."),
    "waiting_bytes": ("gauge", "Bytes of these elements."),
    "user": ("counter", "Counters of user code (Metrics.counter)."),
}
"""Type and meaning of each metric, by its family: see `name_of`."""

_DISTRIBUTIONS: Final = {"version": ("arcbeam",), "beam": ("apache-beam",), "spark": ("pyspark", "pyspark-client")}
"""Installed packages whose versions are labels of `build_info`."""


def name_of(family: str) -> str:
    """Return the full name of a metric in Prometheus."""
    kind, _ = FAMILIES[family]
    return f"arcbeam_{family}" + ("_total" if kind == "counter" else "")


class _Page:
    """A page of metrics; the lines of a family are together.

    Attributes:
        job: the label of the job whose metrics are added; "": they are of no job.
    """

    def __init__(self) -> None:
        self.job = ""
        self._lines: dict[str, list[str]] = {}

    def add(self, family: str, value: float, **labels: str) -> None:
        of_job = {"job": self.job} if self.job else {}
        described = ",".join(f'{name}="{_escaped(text)}"' for name, text in {**of_job, **labels}.items())
        name = name_of(family)
        number = {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))
        self._lines.setdefault(family, []).append(f"{name}{{{described}}} {number}\n")

    def text(self) -> str:
        written = []
        for family, lines in self._lines.items():
            kind, meaning = FAMILIES[family]
            name = name_of(family)
            written += [f"# HELP {name} {meaning}\n", f"# TYPE {name} {kind}\n", *lines]
        return "".join(written)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
class Exposed:
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


def exposed(job: str, status: Status | None, progress: JobProgress | None, counters: Iterable[Counter] = ()) -> str:
    """Return all metrics of a job; see `Exposed`."""
    return exposed_jobs([Exposed(job, status, progress, counters)])


def exposed_jobs(jobs: Iterable[Exposed]) -> str:
    """Return all metrics of some jobs."""
    page = _Page()
    page.add("build_info", 1, **_versions())
    for each in jobs:
        page.job = each.job
        page.add("up", int(each.up))
        if each.progress is not None:
            page.add("elements", each.progress.elements)
            page.add("tasks", each.progress.tasks)
        if each.status is not None:
            # An idle job has no micro-batch that would update its figures.
            now = at_moment(each.status, round(time.time() * 1e6))
            _of_job(page, now)
            _of_stages(page, now)
        for step, namespace, name, value in each.counters:
            page.add("user", value, step=step, namespace=namespace, name=name)
    return page.text()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for label, names in _DISTRIBUTIONS.items():
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.setdefault(label, importlib.metadata.version(name))
    return found


def _of_job(page: _Page, status: Status) -> None:
    page.add("micro_batch", status.micro_batch)
    for part, seconds in status.seconds.items():
        # The whole is a metric of its own: beside its parts it would double their sum.
        if part == "seconds":
            page.add("micro_batch_seconds", seconds)
        else:
            page.add("micro_batch_part_seconds", seconds, part=part)
    if status.driver is not None:
        page.add("failed_tries", status.driver.failures)
    page.add("source_elements", sum(stage.total.get("made", 0) for stage in status.stages))
    if status.rate is not None:
        page.add("source_rate", status.rate)
    if status.behind is not None:
        page.add("behind_seconds", status.behind / 1e6)
    for level, size in status.state_bytes.items():
        page.add("state_bytes", size, level=str(level))


def _of_stages(page: _Page, status: Status) -> None:
    for stage in status.stages:
        name = stage.stage
        page.add("input_watermark_seconds", _seconds(stage.input), stage=name)
        # A watermark at the end or the beginning of time stays there permanently; that is no problem.
        if stage.input_since is not None and MIN_TIMESTAMP < stage.input < MAX_TIMESTAMP:
            page.add("watermark_stands_since_seconds", stage.input_since.time / 1e6, stage=name)
        _of_counts(page, name, stage.total)
        page.add("stage_bytes", stage.bytes_in, stage=name, direction="in")
        page.add("stage_bytes", sum(out.bytes for out in stage.outputs), stage=name, direction="out")
        page.add("stage_state_rows", stage.state_rows, stage=name)
        page.add("stage_state_bytes", stage.state_bytes, stage=name)
        _of_rates(page, stage)
        _of_waiting(page, stage)
        page.add("restrictions", stage.restrictions, stage=name)
        page.add("backlog", stage.backlog, stage=name)
        for out in stage.outputs:
            page.add("output_watermark_seconds", _seconds(out.watermark), stage=name, output=out.output)
            for which, at in (("least", out.least), ("mean", out.mean), ("most", out.most)):
                if at is not None:
                    page.add("event_time_seconds", _seconds(at), stage=name, output=out.output, which=which)
    held: dict[tuple[str, str], int] = {}
    for cause in (each for each in status.causes if each.stage):
        known = cause.stage, cause.kind
        held[known] = held.get(known, 0) + len(cause.stages)
    for (name, kind), stages in held.items():
        page.add("held", stages, stage=name, by=kind)


def _of_rates(page: _Page, stage: StageStatus) -> None:
    if stage.behind is not None:
        page.add("stage_behind_seconds", stage.behind / 1e6, stage=stage.stage)
    for direction, rate in (("in", stage.read_rate), ("out", stage.written_rate)):
        if rate is not None:
            page.add("stage_rate", rate, stage=stage.stage, direction=direction)


def _of_waiting(page: _Page, stage: StageStatus) -> None:
    name, kept = stage.stage, stage.kept
    if kept is not None:
        page.add("stage_keys", kept["keys"], stage=name)
        for state, keys in kept["cells"].items():
            page.add("stage_cells", keys, stage=name, state=state)
        page.add("timers", kept["event_timers"], stage=name, domain="event")
        page.add("timers", kept["clock_timers"], stage=name, domain="clock")
        page.add("waiting_elements", kept["blocked"], stage=name, why="blocked")
        page.add("waiting_elements", kept["ordered"], stage=name, why="order")
        page.add("waiting_bytes", kept["waiting_bytes"], stage=name)
    for domain, at in (("event", stage.next_event), ("clock", stage.next_due)):
        if at is not None:
            page.add("next_turn_seconds", _seconds(at), stage=name, domain=domain)


def _of_counts(page: _Page, stage: str, total: Mapping[str, int]) -> None:
    if total:
        page.add("stage_elements", total["read"], stage=stage, direction="in")
        page.add("stage_elements", total["written"], stage=stage, direction="out")
        page.add("stage_late", total["late"], stage=stage)


@contextmanager
def exposing(endpoint: tuple[str, int] | None, page: Callable[[], str]) -> Iterator[tuple[str, int] | None]:
    """Serve `/metrics` while the block runs.

    Args:
        endpoint: host and port; port 0 is a free one. None: serve nothing.
        page: returns the page; called on threads of the server.

    Raises:
        SetupError: the address cannot be used.
    """
    if endpoint is None:
        yield None
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log no requests: there is one every few seconds."""

    try:
        server = ThreadingHTTPServer(endpoint, Handler)
    except OSError as e:
        raise SetupError(
            f"cannot listen on --metrics_address={endpoint[0]}:{endpoint[1]}: {e}", "give a free port"
        ) from e
    server.daemon_threads = True
    at = str(server.server_address[0]), int(server.server_address[1])
    _LOG.info("metrics for Prometheus at http://%s:%d/metrics", *at)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield at
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
