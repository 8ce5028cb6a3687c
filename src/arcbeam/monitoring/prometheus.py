"""A job's figures in Prometheus' text form (version 0.0.4), on an address that was asked for.

Owns names, labels and the server. What there is to tell is `arcbeam.streaming.status.status`'s; it is asked for when
somebody scrapes, and costs a job nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from arcbeam.console.progressline import JobProgress
from arcbeam.errors import SetupError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.streaming.status.status import StageStatus, Status

_LOG = logging.getLogger("arcbeam")

FAMILIES: Final = {
    "elements": ("counter", "Elements that tasks have read."),
    "tasks": ("counter", "Tasks that have ended."),
    "micro_batch": ("counter", "The newest micro-batch that is committed."),
    "micro_batch_seconds": (
        "gauge",
        "How long parts of the newest micro-batch took; 'commit' is of the micro-batch before.",
    ),
    "source_elements": ("counter", "Elements that sources (splittable DoFns) have put out since the job began."),
    "source_rate": (
        "gauge",
        "Elements a second that sources (splittable DoFns) have put out, in the newest micro-batch.",
    ),
    "behind_seconds": ("gauge", "From the earliest output watermark to the clock."),
    "stage_behind_seconds": ("gauge", "From the input watermark of a stage to the clock."),
    "state_bytes": ("gauge", "Of all files of state of a level."),
    "stage_state_rows": ("gauge", "Rows of a stage's state; what was written again counts until files are merged."),
    "stage_state_bytes": ("gauge", "Bytes of these: their keys and values."),
    "input_watermark_seconds": ("gauge", "Input watermark of a stage, since 1970."),
    "output_watermark_seconds": ("gauge", "Output watermark of a stage, since 1970."),
    "watermark_stands_since_seconds": ("gauge", "When a stage's input watermark came to where it is; if it can move."),
    "held": ("gauge", "How many stages wait for what a stage holds, by its kind."),
    "stage_elements": ("counter", "Elements that a stage has read and written."),
    "stage_rate": ("gauge", "Elements a second that a stage has read and written, of the newest micro-batch."),
    "stage_late": ("counter", "Elements that a stage has dropped because they were too late."),
    "stage_bytes": ("gauge", "Bytes that came to a stage in the newest micro-batch, and left it."),
    "event_time_seconds": ("gauge", "Least, mean and most event time of what left a stage in the newest micro-batch."),
    "restrictions": ("gauge", "Restrictions of a stage that are not done."),
    "backlog": ("gauge", "The sum of their sizes, in the unit of their DoFn."),
    "stage_keys": ("gauge", "Keys with state of a stage, each once for each of its windows."),
    "stage_cells": ("gauge", "In how many keys a state of the global window has something."),
    "timers": ("gauge", "Timers of a stage that wait, by what they wait for: the watermark (event), or the clock."),
    "next_turn_seconds": ("gauge", "When the next of what waits in a stage has its turn, in its time, since 1970."),
    "waiting_elements": ("gauge", "Elements that are parked, or wait for their turn in order of time."),
    "waiting_bytes": ("gauge", "Bytes of these."),
    "user": ("counter", "Counters of the pipeline's own."),
}
"""Type and meaning of each metric, by what `name_of` takes."""


def name_of(family: str) -> str:
    """Return the full name of a metric, as Prometheus sees it."""
    kind, _ = FAMILIES[family]
    return f"arcbeam_{family}" + ("_total" if kind == "counter" else "")


class _Page:
    """What is written; the lines of a family together."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._lines: dict[str, list[str]] = {}

    def add(self, family: str, value: float, **labels: str) -> None:
        told = ",".join(f'{name}="{_escaped(text)}"' for name, text in {"job": self._job, **labels}.items())
        name = name_of(family)
        number = {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, repr(value))
        self._lines.setdefault(family, []).append(f"{name}{{{told}}} {number}\n")

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
    """A moment, since 1970; infinite at the beginning and the end of time."""
    if time <= MIN_TIMESTAMP:
        return float("-inf")
    return float("inf") if time >= MAX_TIMESTAMP else time / 1e6


class Counter(NamedTuple):
    """A counter of the user's: of which step of the pipeline, its namespace and name, and where it is."""

    step: str
    namespace: str
    name: str
    value: int


def exposed(job: str, status: Status | None, standing: JobProgress | None, counters: Iterable[Counter] = ()) -> str:
    """All figures of a job.

    Args:
        job: its id.
        status: of a streaming job.
        standing: of any job that has begun.
        counters: of the user's, as far as they count.
    """
    page = _Page(job)
    if standing is not None:
        page.add("elements", standing.elements)
        page.add("tasks", standing.tasks)
    if status is not None:
        _of_job(page, status)
        _of_stages(page, status)
    for step, namespace, name, value in counters:
        page.add("user", value, step=step, namespace=namespace, name=name)
    return page.text()


def _of_job(page: _Page, status: Status) -> None:
    page.add("micro_batch", status.micro_batch)
    for part, seconds in status.seconds.items():
        page.add("micro_batch_seconds", seconds, part="all" if part == "seconds" else part)
    page.add("source_elements", sum(stage.total.get("made", 0) for stage in status.stages))
    if status.rate is not None:
        page.add("source_rate", status.rate)
    if status.behind is not None:
        page.add("behind_seconds", _behind(status.watermark))
    for level, size in status.state_bytes.items():
        page.add("state_bytes", size, level=str(level))


def _of_stages(page: _Page, status: Status) -> None:
    for stage in status.stages:
        name = stage.stage
        page.add("input_watermark_seconds", _seconds(stage.input), stage=name)
        # One that has come to its end, or says nothing of time, stands for good, and nothing is wrong with it.
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


def _behind(watermark: Timestamp) -> float:
    """To the clock, when it is asked for: a job that waits has no micro-batch that would tell it anew."""
    return time.time() - watermark / 1e6


def _of_rates(page: _Page, stage: StageStatus) -> None:
    if stage.behind is not None:
        page.add("stage_behind_seconds", _behind(stage.input), stage=stage.stage)
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
        page.add("waiting_elements", kept["parked"], stage=name, why="parked")
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
    """Answers whoever asks for `/metrics` while the block runs.

    Args:
        endpoint: host and port; port 0 is a free one. None: nobody is answered.
        page: what to say; called on threads of the server.

    Raises:
        SetupError: it cannot be listened on.
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
            """Who scrapes does so every few seconds."""

    try:
        server = ThreadingHTTPServer(endpoint, Handler)
    except OSError as e:
        raise SetupError(
            f"cannot listen on --metrics_address={endpoint[0]}:{endpoint[1]}: {e}", "give a port that is free"
        ) from e
    server.daemon_threads = True
    at = str(server.server_address[0]), int(server.server_address[1])
    _LOG.info("figures for Prometheus at http://%s:%d/metrics", *at)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield at
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
