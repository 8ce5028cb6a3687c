"""Metrics of a job in Prometheus' text form, and the server of the page."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from arcbeam.console.progressline import JobProgress
from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.monitoring.prometheus import Counter, exposed, exposing
from arcbeam.options import ArcbeamOptions
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.streaming.status.reasons import Cause
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status

pytestmark = pytest.mark.contract("OPS-04")

_OUT = OutputStatus(
    "out",
    Timestamp(int(f"{MAX_TIMESTAMP}")),
    None,
    4,
    900,
    Timestamp(1_000_000),
    Timestamp(3_000_000),
    Timestamp(2_000_000),
)
_STAGE = StageStatus(
    'a "stage"\\',
    0,
    MAX_TIMESTAMP,
    Timestamp(5_000_000),
    Since(3, Timestamp(7_000_000)),
    (_OUT,),
    total={"read": 5, "written": 4, "late": 1, "made": 3},
    bytes_in=800,
    restrictions=2,
    backlog=1.5,
    state_rows=11,
    state_bytes=700,
    next_due=Timestamp(8_500_000),
    recent={"read": 1200, "written": 930, "made": 750},
    kept={
        "keys": 6,
        "windows": 2,
        "cells": {"seen": 4},
        "event_timers": 3,
        "clock_timers": 1,
        "blocked": 8,
        "ordered": 0,
        "waiting_bytes": 90,
    },
)
_CAUSE = Cause("timer", _STAGE.stage, 0, "flush", None, Timestamp(0), None, None, False, "", "", ("a", "b"))
_STATUS = Status(
    3,
    "running",
    Timestamp(9_000_000),
    Timestamp(0),
    None,
    Duration(1),
    None,
    2,
    1.5,
    {"seconds": 0.5, "commit": 0.01},
    (_STAGE,),
    (_CAUSE,),
    {1: 77},
    {1: 2},
    window=Duration(60_000_000),
    driver=DriverNote(1, "host:run", 7, Timestamp(0), Timestamp(9_000_000), 10.0, "waiting", failures=2),
)


def test_missing_figures_have_no_sample() -> None:
    stage = replace(_STAGE, total={})
    quiet = replace(_STATUS, stages=(stage,), window=None, watermark=MIN_TIMESTAMP)
    lines = exposed("job-1", quiet, None).splitlines()
    assert 'arcbeam_source_elements_total{job="job-1"} 0' in lines
    for family in ("elements", "source_rate", "behind_seconds"):
        assert not [line for line in lines if line.startswith(f"arcbeam_{family}")], family


def test_page_has_all_metrics_with_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    # The page is requested long after the micro-batch: lags refer to the clock now.
    monkeypatch.setattr(time, "time", lambda: 60.0)
    counters = [Counter("Parse", "lines", "bad", 7)]
    lines = exposed("job-1", _STATUS, JobProgress((), 10, 3), counters).splitlines()
    of = r'job="job-1",stage="a \"stage\"\\"'
    assert {
        'arcbeam_elements_total{job="job-1"} 10',
        'arcbeam_micro_batch_total{job="job-1"} 3',
        'arcbeam_source_elements_total{job="job-1"} 3',
        'arcbeam_source_rate{job="job-1"} 12.5',
        'arcbeam_user_total{job="job-1",step="Parse",namespace="lines",name="bad"} 7',
        'arcbeam_up{job="job-1"} 1',
        'arcbeam_micro_batch_seconds{job="job-1"} 0.5',
        'arcbeam_micro_batch_part_seconds{job="job-1",part="commit"} 0.01',
        'arcbeam_failed_tries_total{job="job-1"} 2',
        'arcbeam_behind_seconds{job="job-1"} 60.0',
        'arcbeam_state_bytes{job="job-1",level="1"} 77',
        f"arcbeam_input_watermark_seconds{{{of}}} 5.0",
        f'arcbeam_output_watermark_seconds{{{of},output="out"}} +Inf',
        f'arcbeam_event_time_seconds{{{of},output="out",which="mean"}} 2.0',
        f'arcbeam_stage_elements_total{{{of},direction="in"}} 5',
        f"arcbeam_stage_late_total{{{of}}} 1",
        f'arcbeam_stage_bytes{{{of},direction="out"}} 900',
        f"arcbeam_restrictions{{{of}}} 2",
        f'arcbeam_held{{{of},by="timer"}} 2',
        f"arcbeam_stage_state_rows{{{of}}} 11",
        f"arcbeam_stage_state_bytes{{{of}}} 700",
        f'arcbeam_timers{{{of},domain="event"}} 3',
        f'arcbeam_timers{{{of},domain="clock"}} 1',
        f'arcbeam_waiting_elements{{{of},why="blocked"}} 8',
        f"arcbeam_waiting_bytes{{{of}}} 90",
        f"arcbeam_stage_keys{{{of}}} 6",
        f'arcbeam_stage_cells{{{of},state="seen"}} 4',
        f'arcbeam_next_turn_seconds{{{of},domain="clock"}} 8.5',
        f'arcbeam_stage_rate{{{of},direction="in"}} 20.0',
        f'arcbeam_stage_rate{{{of},direction="out"}} 15.5',
        f"arcbeam_stage_behind_seconds{{{of}}} 55.0",
    } <= set(lines)
    assert f"arcbeam_watermark_stands_since_seconds{{{of}}} 7.0" in lines
    silent = replace(_STAGE, input=MIN_TIMESTAMP)
    at_the_beginning = exposed("job-1", replace(_STATUS, stages=(silent,)), None)
    assert f"arcbeam_input_watermark_seconds{{{of}}} -Inf" in at_the_beginning.splitlines()
    assert "stands_since_seconds{" not in at_the_beginning, "a watermark at the beginning of time does not stall"
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert sorted(set(described)) == sorted(described)
    for line in lines:
        if not line.startswith("#"):
            assert line.partition("{")[0] in described


def test_page_has_only_known_metrics() -> None:
    (versions, up) = [line for line in exposed("job-1", None, None).splitlines() if not line.startswith("#")]
    labels = ",".join(f'{name}="[^"]+"' for name in ("python", "version", "beam", "spark"))
    assert re.fullmatch(rf"arcbeam_build_info\{{{labels}\}} 1", versions)
    assert up == 'arcbeam_up{job="job-1"} 1'
    assert "arcbeam_tasks_total" in exposed("job-1", None, JobProgress((), 10, 3))
    quiet = replace(_STATUS, watermark=MIN_TIMESTAMP, stages=(replace(_STAGE, input_since=None, total={}),))
    assert "arcbeam_behind" not in exposed("job-1", quiet, None)
    uncounted = replace(_STAGE, kept=None, input=MIN_TIMESTAMP)
    text = exposed("job-1", replace(_STATUS, window=None, stages=(uncounted,)), None)
    assert "source_rate" not in text
    assert not any(name in text for name in ("arcbeam_timers", "stage_keys", "waiting_", "stage_rate", "stage_behind"))


def test_page_is_served_while_job_runs() -> None:
    with exposing(("127.0.0.1", 0), lambda: "arcbeam_micro_batch_total 1\n") as at:
        assert at is not None
        host, port = at
        with urllib.request.urlopen(f"http://{host}:{port}/metrics") as page:
            assert page.read() == b"arcbeam_micro_batch_total 1\n"
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{host}:{port}/other")
        with pytest.raises(SetupError, match=f"--metrics_address={host}:{port}"), exposing(at, str):
            pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{host}:{port}/metrics")


@pytest.mark.contract("OPS-05")
def test_address_without_host_is_local() -> None:
    def endpoint(given: str) -> tuple[str, int] | None:
        return ArcbeamOptions([f"--metrics_address={given}"]).metrics_endpoint

    assert ArcbeamOptions([]).metrics_endpoint is None
    assert endpoint("9095") == endpoint(":9095") == ("127.0.0.1", 9095)
    assert endpoint("0.0.0.0:9095") == ("0.0.0.0", 9095)
    assert endpoint("[::1]:9095") == ("::1", 9095)
    for wrong in ("here", "here:", "here:x", ":70000"):
        with pytest.raises(InvalidPipelineError, match=f"--metrics_address={wrong} .*host:port"):
            ArcbeamOptions([f"--metrics_address={wrong}"]).check()
