"""Spans of micro-batches, what a job that requests them needs, and a collector that fails."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.monitoring import tracing
from arcbeam.streaming.status.status import Status
from tests.monitoring.collector import collector, spans_of

pytestmark = pytest.mark.contract("OPS-09")

_STATUS = Status(
    3,
    CommitMode.RUNNING,
    Timestamp(9_000_000),
    Timestamp(0),
    Duration(9_000_000),
    Duration(1),
    12.5,
    2,
    1.5,
    {"seconds": 0.5, "plan": 0.1, "spark": 0.15, "user": 0.25, "commit": 7.0},
    (),
    (),
    {},
    {},
    committed=Timestamp(9_000_000),
)


@dataclass
class Run:
    """A run with one status."""

    of: Status | None = _STATUS
    commit_seconds: float = 0.125

    def status(self) -> Status | None:
        return self.of


def seconds(span: Any) -> float:
    return round((span.end_time - span.start_time) / 1e9, 6)


def test_span_of_micro_batch_has_its_parts_as_children() -> None:
    exporter = InMemorySpanExporter()
    with tracing.exported(exporter, "clicks", "clicks-1") as committed:
        committed(Run())
        committed(Run(None))
        committed(Run(replace(_STATUS, micro_batch=4, rate=None, behind=None, seconds={})))
    spans = exporter.get_finished_spans()
    roots = [span for span in spans if span.parent is None]
    assert [span.name for span in roots] == ["micro-batch", "micro-batch"]
    assert dict(roots[0].attributes or {}) == {
        "arcbeam.micro_batch": 3,
        "arcbeam.mode": "running",
        "arcbeam.backlog": 1.5,
        "arcbeam.restrictions": 2,
        "arcbeam.rate": 12.5,
        "arcbeam.behind_seconds": 9.0,
    }
    assert {"arcbeam.rate", "arcbeam.behind_seconds"}.isdisjoint(roots[1].attributes or {})
    missing = [span for span in spans if span.parent is not None and span.parent.span_id == roots[1].context.span_id]
    assert [seconds(span) for span in missing] == [0.0, 0.0, 0.0, 0.125]
    root = roots[0]
    assert root.resource.attributes["service.name"] == "clicks"
    assert root.resource.attributes["service.instance.id"] == "clicks-1"
    children = [span for span in spans if span.parent is not None and span.parent.span_id == root.context.span_id]
    assert [(span.name, seconds(span)) for span in children] == [
        ("plan", 0.1),
        ("spark", 0.15),
        ("user", 0.25),
        ("commit", 0.125),
    ]
    assert (children[0].start_time, children[-1].end_time) == (root.start_time, root.end_time)
    assert all(earlier.end_time == later.start_time for earlier, later in pairwise(children))


@pytest.mark.parametrize(("given", "path"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp/mine", "/otlp/mine")])
def test_collector_gets_spans(given: str, path: str) -> None:
    with collector(200) as (url, received):
        with tracing.tracing(url + given, "clicks", "clicks-1") as committed:
            committed(Run())
        ((at, body),) = received
    assert at == path
    assert sorted(span.name for span in spans_of(body)) == ["commit", "micro-batch", "plan", "spark", "user"]


def test_failing_collector_does_not_harm_job(caplog: pytest.LogCaptureFixture) -> None:
    with collector(400) as (url, received), caplog.at_level(logging.ERROR):
        with tracing.tracing(url, "clicks", "clicks-1") as committed:
            committed(Run())
        assert received
    assert any(record.name.startswith("opentelemetry") for record in caplog.records)


def test_job_without_endpoint_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing.check(None, bounded=True)
    with tracing.tracing(None, "clicks", "clicks-1") as committed:
        committed(Run())
    with pytest.raises(SetupError, match=r"--otlp_endpoint=http://here:4318: OpenTelemetry is not installed"):
        tracing.check("http://here:4318", bounded=False)


def test_endpoint_is_checked() -> None:
    tracing.check("http://localhost:4318", bounded=False)
    with pytest.raises(InvalidPipelineError, match="this is a batch job"):
        tracing.check("http://localhost:4318", bounded=True)
    for wrong in ("localhost:4318", "4318", "http://", ""):
        with pytest.raises(InvalidPipelineError, match=f"--otlp_endpoint={wrong} is not a URL"):
            tracing.check(wrong, bounded=False)
