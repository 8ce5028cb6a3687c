"""Traces of a streaming job for OpenTelemetry, sent to a collector by OTLP over HTTP: a span for each micro-batch.

Owns names and times of spans. `arcbeam.streaming.status.status` owns the values. OpenTelemetry's packages are imported
only if a job requests traces; without, this costs nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.streaming.status.status import PARTS, Status

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_LOG = logging.getLogger("arcbeam")

_NEEDED: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_PATH: Final = "/v1/traces"
_ALL, *_CHILDREN = PARTS
_TIMEOUT: Final = 5.0
"""Seconds to wait for a collector. When a job ends, its last spans have as long."""


class TracedRun(Protocol):
    """A run of a streaming job.

    Attributes:
        commit_seconds: how long the newest commit took; the status has the time of the commit before.
    """

    commit_seconds: float

    def status(self) -> Status | None:
        """Return the job's status after its newest micro-batch."""


Committed = Callable[[TracedRun], None]
"""Is called after each commit."""


def check(endpoint: str | None, bounded: bool) -> None:
    """Check, before a job starts, that it can be traced if it requests it.

    Args:
        endpoint: of `--otlp_endpoint`; None: no traces are requested.
        bounded: whether it is a batch job.

    Raises:
        InvalidPipelineError: it is a batch job, or the endpoint is no URL.
        SetupError: OpenTelemetry's packages are not installed.
    """
    if endpoint is None:
        return
    if bounded:
        raise InvalidPipelineError(
            "--otlp_endpoint traces the micro-batches of a streaming job, and this is a batch job",
            "omit the option, or submit the job with --streaming",
        )
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise InvalidPipelineError(
            f"--otlp_endpoint={endpoint} is not a URL", "give the collector's address, such as http://localhost:4318"
        )
    if not all(map(_installed, _NEEDED)):
        raise SetupError(
            f"--otlp_endpoint={endpoint}: OpenTelemetry is not installed", "pip install 'arcbeam[otel]' for the driver"
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


@contextmanager
def tracing(endpoint: str | None, name: str, id: str) -> Iterator[Committed]:
    """Send traces while the block runs. A collector that fails or is slow never harms the job; spans are then lost.

    Args:
        endpoint: URL of the collector; without a path, the usual one. None: send nothing.
        name: of the job: the spans' service.
        id: of the job's run: the service's instance.
    """
    if endpoint is None:
        yield nothing
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH
    with exported(OTLPSpanExporter(endpoint=url, timeout=_TIMEOUT), name, id) as committed:
        _LOG.info("%s: traces are sent to %s", name, url)
        yield committed


def nothing(run: TracedRun) -> None:
    """Trace nothing."""


@contextmanager
def exported(exporter: SpanExporter, name: str, id: str) -> Iterator[Committed]:
    """Pass spans to an exporter while the block runs, on a thread of OpenTelemetry's; see `tracing`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import set_span_in_context

    provider = TracerProvider(
        resource=Resource.create({"service.name": name, "service.instance.id": id}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=_TIMEOUT * 1000))
    tracer = provider.get_tracer("arcbeam")

    def committed(run: TracedRun) -> None:
        if (status := run.status()) is None:
            return
        parts = {**status.seconds, "commit": run.commit_seconds}
        end = time.time_ns()
        start = end - _nanos(parts.get(_ALL, 0.0) + run.commit_seconds)
        attributes = {
            "arcbeam.micro_batch": status.micro_batch,
            "arcbeam.mode": status.mode,
            "arcbeam.backlog": status.backlog,
            "arcbeam.restrictions": status.restrictions,
        }
        if status.rate is not None:
            attributes["arcbeam.rate"] = status.rate
        if status.behind is not None:
            attributes["arcbeam.behind_seconds"] = status.behind / 1e6
        span = tracer.start_span("micro-batch", start_time=start, attributes=attributes)
        within, at = set_span_in_context(span), start
        for part in _CHILDREN:
            until = at + _nanos(parts.get(part, 0.0))
            tracer.start_span(part, within, start_time=at).end(until)
            at = until
        span.end(end)

    try:
        yield committed
    finally:
        provider.shutdown()


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)
