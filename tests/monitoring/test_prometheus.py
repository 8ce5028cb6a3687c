"""Metrics of a job in Prometheus' text form, and the server of the page."""

from __future__ import annotations

import contextlib
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace

import pytest

from arcbeam.console.progressline import JobProgress
from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.monitoring.prometheus import FAMILIES, Counter, JobCollector, MonitoredJob, exposed, exposing, name_of
from arcbeam.options import ArcbeamOptions
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.streaming.status.reasons import Cause, CauseKind
from arcbeam.streaming.status.recentcounts import Mark
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
    total=Counts(5, 4, late=1, made=3),
    bytes_in=800,
    restrictions=2,
    backlog=1.5,
    state_rows=11,
    state_bytes=700,
    next_due=Timestamp(8_500_000),
    recent=Mark(1200, 930, 750),
    kept=StateMetrics(2, {"seen": 4}, 3, 1, 8, 0, 90),
)
_CAUSE = Cause(CauseKind.TIMER, _STAGE.stage, Timestamp(0), None, "", "", stages=("a", "b"))
_STATUS = Status(
    3,
    CommitMode.RUNNING,
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
    committed=Timestamp(9_000_000),
    window=Duration(60_000_000),
    driver=DriverNote(1, "host:run", 7, Timestamp(0), Timestamp(9_000_000), 10.0, "waiting", failures=2),
)


_NOT_BASE_UNITS = {
    *("milliseconds", "microseconds", "ms", "us", "minutes", "hours", "days", "since"),
    *("kilobytes", "megabytes", "kb", "mb", "kib", "mib", "bits", "percent", "rate"),
}


def _job(status: Status | None, progress: JobProgress | None, counters: Sequence[Counter]) -> MonitoredJob:
    return MonitoredJob("job-1", status, progress, counters)


def _exposed(
    status: Status | None = None, progress: JobProgress | None = None, counters: Sequence[Counter] = ()
) -> str:
    return exposed([_job(status, progress, counters)])


def test_missing_figures_have_no_sample() -> None:
    stage = replace(_STAGE, total=None)
    quiet = replace(_STATUS, stages=(stage,), window=None, watermark=MIN_TIMESTAMP)
    lines = _exposed(quiet).splitlines()
    assert 'arcbeam_source_elements_total{job="job-1"} 0.0' in lines
    for family in ("elements", "source_elements_per_second", "watermark_lag_seconds"):
        assert not [line for line in lines if line.startswith(f"arcbeam_{family}")], family


def test_page_has_all_metrics_with_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    # The page is requested long after the micro-batch: lags refer to the clock now.
    monkeypatch.setattr(time, "time", lambda: 60.0)
    counters = [Counter("Parse", "lines", "bad", 7)]
    lines = _exposed(_STATUS, JobProgress((), 10, 3), counters).splitlines()
    stage = r'stage="a \"stage\"\\"'
    of = f'job="job-1",{stage}'
    assert {
        'arcbeam_elements_total{job="job-1"} 10.0',
        'arcbeam_micro_batches_total{job="job-1"} 3.0',
        'arcbeam_source_elements_total{job="job-1"} 3.0',
        'arcbeam_source_elements_per_second{job="job-1"} 12.5',
        'arcbeam_user_metric_total{job="job-1",name="bad",namespace="lines",step="Parse"} 7.0',
        'arcbeam_up{job="job-1"} 1.0',
        'arcbeam_micro_batch_duration_seconds{job="job-1"} 0.5',
        'arcbeam_micro_batch_part_duration_seconds{job="job-1",part="commit"} 0.01',
        'arcbeam_failed_tries_total{job="job-1"} 2.0',
        'arcbeam_watermark_lag_seconds{job="job-1"} 60.0',
        'arcbeam_state_bytes{job="job-1",level="1"} 77.0',
        f"arcbeam_input_watermark_timestamp_seconds{{{of}}} 5.0",
        f'arcbeam_output_watermark_timestamp_seconds{{job="job-1",output="out",{stage}}} +Inf',
        f'arcbeam_stage_event_timestamp_seconds{{job="job-1",output="out",{stage},statistic="mean"}} 2.0',
        f'arcbeam_stage_elements_total{{direction="in",{of}}} 5.0',
        f"arcbeam_stage_late_elements_total{{{of}}} 1.0",
        f'arcbeam_stage_micro_batch_bytes{{direction="out",{of}}} 900.0',
        f"arcbeam_restrictions{{{of}}} 2.0",
        f'arcbeam_held_stages{{cause="timer",{of}}} 2.0',
        f"arcbeam_stage_state_rows{{{of}}} 11.0",
        f"arcbeam_stage_state_bytes{{{of}}} 700.0",
        f'arcbeam_timers{{domain="event_time",{of}}} 3.0',
        f'arcbeam_timers{{domain="processing_time",{of}}} 1.0',
        f'arcbeam_waiting_elements{{job="job-1",reason="blocked",{stage}}} 8.0',
        f"arcbeam_waiting_bytes{{{of}}} 90.0",
        f"arcbeam_stage_keys{{{of}}} 6.0",
        f'arcbeam_stage_state_keys{{{of},state="seen"}} 4.0',
        f'arcbeam_next_timer_timestamp_seconds{{domain="processing_time",{of}}} 8.5',
        f'arcbeam_stage_elements_per_second{{direction="in",{of}}} 20.0',
        f'arcbeam_stage_elements_per_second{{direction="out",{of}}} 15.5',
        f"arcbeam_stage_watermark_lag_seconds{{{of}}} 55.0",
        f"arcbeam_input_watermark_advance_timestamp_seconds{{{of}}} 7.0",
    } <= set(lines)
    silent = replace(_STAGE, input=MIN_TIMESTAMP)
    at_the_beginning = _exposed(replace(_STATUS, stages=(silent,)))
    assert f"arcbeam_input_watermark_timestamp_seconds{{{of}}} -Inf" in at_the_beginning.splitlines()
    assert "watermark_advance_" not in at_the_beginning, "a watermark at the beginning of time does not stall"
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert sorted(set(described)) == sorted(described)
    for line in lines:
        if not line.startswith("#"):
            assert line.partition("{")[0] in described


def test_page_has_only_known_metrics() -> None:
    (versions, up) = [line for line in _exposed().splitlines() if not line.startswith("#")]
    labels = ",".join(f'{name}="[^"]+"' for name in ("beam", "python", "spark", "version"))
    assert re.fullmatch(rf"arcbeam_build_info\{{{labels}\}} 1\.0", versions)
    assert up == 'arcbeam_up{job="job-1"} 1.0'
    assert "arcbeam_tasks_total" in _exposed(None, JobProgress((), 10, 3))
    quiet = replace(_STATUS, watermark=MIN_TIMESTAMP, stages=(replace(_STAGE, input_since=None, total=None),))
    assert "arcbeam_watermark_lag" not in _exposed(quiet)
    uncounted = replace(_STAGE, kept=None, input=MIN_TIMESTAMP)
    text = _exposed(replace(_STATUS, window=None, stages=(uncounted,)))
    assert "source_elements_per_second" not in text
    assert not any(
        name in text for name in ("_timers", "stage_keys", "waiting_", "stage_elements_per_second", "stage_watermark")
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_page_is_served_while_job_runs(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with exposing((host, 0), lambda: [MonitoredJob("job-1", up=False)]) as at:
        assert at is not None
        shown = f"{f'[{host}]' if ':' in host else host}:{at[1]}"
        address = f"http://{shown}/metrics"
        assert capsys.readouterr().err == f"arcbeam: metrics for Prometheus are at {address}\n"
        with urllib.request.urlopen(address) as page:
            assert 'arcbeam_up{job="job-1"} 0.0\n' in page.read().decode()
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(SetupError, match=re.escape(f"--metrics_address={shown}")), exposing(at, list):
            pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


def test_names_follow_the_conventions_of_prometheus() -> None:
    """The rules of `promtool check metrics`, and: a time has its own suffix, and a unit is a base unit at the end."""
    names = {name_of(family): kind for family, (kind, _) in FAMILIES.items()}
    for name, kind in names.items():
        words = name.split("_")
        assert re.fullmatch(r"arcbeam(_[a-z]+)+", name), name
        assert (kind == "counter") == (words[-1] == "total"), name
        assert not {"counter", "gauge", "histogram", "summary"} & set(words), name
        assert words[-1] not in ("count", "sum", "bucket", "ratio"), f"{name} is a part of another type, or unused"
        assert not _NOT_BASE_UNITS & set(words), name
        unit = words[-2] if kind == "counter" else words[-1]
        for base in ("seconds", "bytes"):
            assert base not in words or unit == base, f"the unit of {name} is not its end"
        assert "timestamp" not in words or name.endswith("_timestamp_seconds"), name
        meaning = FAMILIES[name.removeprefix("arcbeam_").removesuffix("_total")][1]
        is_time = re.match(r"(When|Input watermark|Output watermark|Earliest)\b", meaning) is not None
        assert is_time == name.endswith("_timestamp_seconds"), f"{name} is a time, or has the name of one"


def test_collected_families_are_those_described() -> None:
    families = {
        f"{each.name}{'_total' if each.type == 'counter' else ''}": (each.type, each.documentation)
        for each in JobCollector(lambda: [_job(_STATUS, JobProgress((), 10, 3), [Counter("a", "b", "c", 1)])]).collect()
    }
    assert families == {name_of(family): described for family, described in FAMILIES.items()}


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
