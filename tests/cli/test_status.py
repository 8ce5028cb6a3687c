"""`arcbeam status`, for people and for programs."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from arcbeam.cli import main
from arcbeam.cli.status import _cells, _show, _table
from arcbeam.console.output import TextOutput
from arcbeam.engine.protocol.reports import Counts, Restrictions
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.files import Owned, Shard, TaskFiles
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.drivernote import DriverNote, record_driver
from arcbeam.store.log.troublenote import TroubleNote, record_trouble
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.status import words
from arcbeam.streaming.status.folder import status_in
from tests.golden.texts import check_message
from tests.store.samples import delta
from tests.streaming.jobs import JOIN, LAYOUT, RATES, READ, READERS, opened, proposal, reported, staged

pytestmark = pytest.mark.contract("OPS-02", "WM-06")

_TIMES = WatermarkTimes(
    {"read": MIN_TIMESTAMP, "rates": MAX_TIMESTAMP, "join": MIN_TIMESTAMP},
    {READ: MIN_TIMESTAMP, RATES: MAX_TIMESTAMP, JOIN: MIN_TIMESTAMP},
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, ["status", *arguments])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    log = opened(FolderBlobs(folder, sync=False))
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "1.0.0~ab")
    local = Local(silent, {"main": OutputTime(silent)})
    read = staged("read", 0, 0, counts=Counts(1, 1200, resumed=1, made=1200), restrictions=Restrictions(1, 40.0))
    rates = staged("rates", 1, 0, kept=StateMetrics(3, {"seen": 9}, 2, 1, 4, 0, 1500))
    owned = (Owned(b"", 1, 3), Owned((2).to_bytes(2, "big"), 50, 700), Owned((9).to_bytes(2, "big"), 1, 9))
    file = replace(delta(1, 1), owned=owned)
    reports = (
        reported(replace(read, local=local), staged("read", 1, 0), staged("rates", 0, 0), rates, level=0),
        reported(staged("join", 0, 0), staged("join", 1, 0), files=TaskFiles((Shard(1, 0, (file,)),))),
    )
    command = replace(proposal(1, 0, *reports), times=_TIMES, time=Timestamp(1_700_000_000_000_000))
    figures = {
        "seconds": 0.5,
        "plan": 0.01,
        "spark": 0.3,
        "user": 0.19,
        "commit": 0.02,
        "outputs": {"read": {"main": [1200, 90_000, 0, 9_000_000, 5_000_000]}},
    }
    log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, command, figures))
    return folder


def test_status_prints_stages_and_causes(job: Path) -> None:
    result = invoke(str(job))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert re.match(
        r"job: running; last micro-batch: 1, committed at 2023-11-14 22:13:20.000Z \([\d,]+ days ago\); "
        r"watermark at the beginning of time",
        lines[2],
    )
    assert lines[1] == f"the job in '{job}'", "the job has no name"
    assert lines[3].startswith("nothing is due; ")
    assert lines[4].startswith(
        "the micro-batch took 0.50 s: plan 0.01 s, Spark 0.30 s, transforms 0.19 s, previous commit 0.02 s"
    )
    assert "backlog: 1 restriction(s) of size 40" in lines[5]
    (read,) = (line for line in lines if line.startswith("read "))
    assert "1,200 (90 kB)" in read
    assert "1970-01-01 00:00:00.000Z / 1970-01-01 00:00:05.000Z / 1970-01-01 00:00:09.000Z" in read
    (join,) = (line for line in lines if line.startswith("join "))
    assert "(90 kB)" in join
    (rates,) = (line for line in lines if line.startswith("rates "))
    assert "12 keys" in rates
    assert "50 rows (700 B)" in result.stdout
    assert "2 timer(s) for the watermark" in rates
    assert "1 timer(s) for the clock" in result.stdout
    assert "4 blocked element(s) (1.5 kB)" in result.stdout
    assert "0 rows (0 B)" in join
    first = next(index for index, line in enumerate(lines) if line.startswith("  - the watermark"))
    check_message("status-cause", "\n".join(lines[first : first + 3]))


def test_narrow_terminal_shows_fewer_columns(job: Path) -> None:
    status = status_in(FolderBlobs(job, sync=False))
    shown = {width: io.StringIO() for width in (70, 200)}
    for width, text in shown.items():
        Console(file=text, width=width).print(_table(status, width))
    narrow, wide = (text.getvalue() for text in shown.values())
    assert max(map(len, narrow.splitlines())) <= 70
    assert "waits" in wide
    assert "waits" not in narrow
    assert "output at" in narrow
    stage = replace(status.stages[0], input=Timestamp(65_000_000))
    assert "1970" not in "".join(_cells(replace(status, time=Timestamp(5_000_000)), stage)[1].splitlines()[0])


@pytest.mark.parametrize(
    ("input", "gap"),
    [
        (95_000_000, ["5.0 s behind"]),
        (99_950_000, ["0.1 s behind"]),
        (100_000_000, ["0.0 s behind"]),
        (160_000_000, ["0.0 s behind"]),
        (161_000_000, ["61 s ahead of the clock"]),
        (MIN_TIMESTAMP, []),
        (MAX_TIMESTAMP, []),
    ],
)
def test_gap_of_a_stage_is_below_its_watermark(job: Path, input: int, gap: list[str]) -> None:
    status = replace(status_in(FolderBlobs(job, sync=False)), scripted=True, time=Timestamp(100_000_000))
    _, *lines = _cells(status, replace(status.stages[0], input=Timestamp(input)))[1].splitlines()
    assert lines == gap


def test_watch_leaves_last_status_on_screen(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    status = status_in(FolderBlobs(job, sync=False))
    monkeypatch.setattr("arcbeam.cli.status.time.sleep", interrupted)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    # The lines above the table are wrapped; the job's folder has a long path in some runs.
    monkeypatch.setenv("LINES", "50")
    with pytest.raises(KeyboardInterrupt):
        _show(TextOutput(), lambda: status, watch=True, every=1)
    screen, _, left = capsys.readouterr().out.partition("\x1b[?1049l")
    assert screen.index("restriction 1.0.0~ab") < screen.index("input at"), "the table may be cut off"
    assert "restriction 1.0.0~ab" in left
    assert "input at" in left


def test_status_prints_json_with_microseconds(job: Path) -> None:
    record = json.loads(invoke(str(job), "--json").stdout)
    assert record["micro_batch"] == 1
    assert record["overdue"] is None
    assert record["time"] == 1_700_000_000_000_000
    assert [stage["stage"] for stage in record["stages"]] == ["read", "rates", "join"]
    assert record["stages"][1]["kept"] == {
        "keys": 12,
        "windows": 3,
        "cells": {"seen": 9},
        "event_timers": 2,
        "clock_timers": 1,
        "blocked": 4,
        "ordered": 0,
        "waiting_bytes": 1500,
    }
    (cause,) = record["causes"]
    assert (cause["kind"], cause["stages"]) == ("restriction", ["read", "join"])


def test_overdue_work_suggests_missing_driver(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro_batch = 1_700_000_000.0
    assert "job: running;" in invoke(str(job)).stdout, "nothing is due: the job may wait for input"
    log = opened(FolderBlobs(job, sync=False), 1)
    due = Timestamp(round((micro_batch + 100) * 1e6))
    reports = (
        reported(staged("read", 0, 0, next_due=due), staged("rates", 0, 0), level=0),
        reported(staged("join", 0, 0), staged("join", 1, 0)),
    )
    number = log.head.micro_batch + 1
    command = replace(proposal(number, 0, *reports), times=_TIMES, time=Timestamp(round(micro_batch * 1e6)))
    log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, command, {}))
    monkeypatch.setattr(time, "time", lambda: micro_batch + 159)
    lines = invoke(str(job)).stdout.splitlines()
    assert "(3 min ago)" in lines[2]
    assert "job: running;" in lines[2]
    check_message("status-not-due", lines[3], folder=job)
    monkeypatch.setattr(time, "time", lambda: micro_batch + 160)
    overdue = invoke(str(job)).stdout.splitlines()[0]
    check_message("status-overdue", overdue)
    record = json.loads(invoke(str(job), "--json").stdout)
    assert (record["due"], record["overdue"]) == (due, 60.0)
    assert "job: running, perhaps;" in invoke(str(job)).stdout
    suspended = replace(status_in(FolderBlobs(job, sync=False)), mode=CommitMode.SUSPENDED)
    assert words.overdue(suspended) is None, "no driver has to run it"
    inspected = CliRunner().invoke(main.main, ["inspect", str(job)]).stdout
    assert overdue in inspected.splitlines()
    earlier = CliRunner().invoke(main.main, ["inspect", str(job), f"--micro-batch={number}"]).stdout
    assert overdue not in earlier.splitlines(), "a later micro-batch may exist"


def test_job_is_shown_by_its_newest_name_and_folder(job: Path) -> None:
    blobs = FolderBlobs(job, sync=False)
    assert json.loads(invoke(str(job), "--json").stdout)["name"] == ""
    for name in ("words", "words-v2"):
        log = opened(blobs, job_graph=partial(jobgraphs.keep, blobs, JobGraph(name, b"proto"), {}))
        assert log.head.job_graph
    record = json.loads(invoke(str(job), "--json").stdout)
    assert (record["name"], record["folder"]) == ("words-v2", str(job))
    assert invoke(str(job)).stdout.splitlines()[1] == f"job 'words-v2' in '{job}'"


def test_teststream_job_shows_commit_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(FolderBlobs(job, sync=False), 1)
    due = Timestamp(1_700_000_100_000_000)
    reports = (
        reported(staged("read", 0, 0, next_due=due), staged("rates", 0, 0), level=0),
        reported(staged("join", 0, 0), staged("join", 1, 0)),
    )
    command = replace(proposal(3, 0, *reports), times=_TIMES, time=Timestamp(1_700_000_000_000_000))
    figures = {"committed": 1_800_000_000_000_000, "scripted": True}
    log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, command, figures))
    monkeypatch.setattr(time, "time", lambda: 1_800_000_090.0)
    record = json.loads(invoke(str(job), "--json").stdout)
    assert (record["committed"], record["overdue"]) == (1_800_000_000_000_000, None)
    check_message("status-of-a-script", "\n".join(invoke(str(job)).stdout.splitlines()[2:4]), folder=job)
    inspected = CliRunner().invoke(main.main, ["inspect", str(job)]).stdout
    check_message(
        "inspect-of-a-script", " ".join(next(line for line in inspected.splitlines() if "2027" in line).split())
    )


def test_status_shows_driver_or_its_silence(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 1_700_000_100
    trouble = "no task of micro-batch 2 has run for 31 s"
    note = DriverNote(
        1, "host:job", 77, Timestamp(0), Timestamp(written * 1_000_000), 10.0, "running micro-batch 2 for 42 s", trouble
    )
    record_driver(FolderBlobs(job, sync=False), note)
    monkeypatch.setattr(time, "time", lambda: written + 25.0)
    lines = invoke(str(job)).stdout.splitlines()
    check_message("status-driver", lines[3])
    assert f"  - {trouble}" in lines
    record = json.loads(invoke(str(job), "--json").stdout)
    assert (record["silent"], record["overdue"], record["driver"]["pid"]) == (None, None, 77)
    assert record["causes"][0]["kind"] == "driver"

    monkeypatch.setattr(time, "time", lambda: written + 300.0)
    lines = invoke(str(job)).stdout.splitlines()
    check_message("status-driver-silent", lines[0])
    assert "job: running, perhaps;" in lines[2]
    assert json.loads(invoke(str(job), "--json").stdout)["silent"] == 300.0

    opened(FolderBlobs(job, sync=False))
    assert json.loads(invoke(str(job), "--json").stdout)["driver"] is None, "the note is another driver's"


@pytest.mark.parametrize("form", [["--json"], []])
def test_watch_ends_with_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    log = opened(FolderBlobs(tmp_path / "job", sync=False))
    done = replace(proposal(1, 0), mode=CommitMode.DONE)
    log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, done, {}))
    monkeypatch.setattr("arcbeam.cli.status.time.sleep", pytest.fail)
    result = invoke(str(tmp_path / "job"), "--watch", *form)
    assert result.exit_code == 0, result.output
    assert "done" in result.stdout


def test_watch_refreshes_until_interrupted(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = iter([None])

    def poll(seconds: float) -> None:
        assert seconds == 0.5
        if next(polls, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("arcbeam.cli.status.time.sleep", poll)
    result = invoke(str(job), "--watch", "--every=0.5", "--json")
    assert result.exit_code == 130
    assert [json.loads(line)["micro_batch"] for line in result.stdout.splitlines()] == [1, 1]
    polls = iter([None])
    result = invoke(str(job), "--watch", "--every=0.5")
    assert result.exit_code == 130
    assert "reports no watermark" in result.stdout


def test_driver_that_died_in_first_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = opened(FolderBlobs(tmp_path / "job", sync=False), 1_700_000_000_000_000).head.time / 1e6
    monkeypatch.setattr(time, "time", lambda: began + 30)
    lines = invoke(str(tmp_path / "job")).stdout.splitlines()
    assert lines[0] == "Starting: The first micro-batch has not been committed yet; the job began 30 s ago."
    assert lines[2].startswith("job: running; no micro-batch has been committed yet;")
    assert lines[-1] == "unknown: the first micro-batch has not been committed yet"
    monkeypatch.setattr(time, "time", lambda: began + 90)
    assert "job: running, perhaps;" in invoke(str(tmp_path / "job")).stdout


def test_folder_without_job_is_an_error(tmp_path: Path) -> None:
    result = invoke(str(tmp_path))
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    assert str(tmp_path / "none") in invoke(str(tmp_path / "none")).stderr


@pytest.mark.contract("BAT-06")
def test_status_shows_why_micro_batch_is_tried_again(job: Path) -> None:
    record = json.loads(invoke("--json", str(job)).stdout)
    assert all(cause["kind"] != "failure" for cause in record["causes"])
    why = "a worker died in try 2 of 3, in transform 'Parse', signal 9 (SIGKILL)"
    record_trouble(FolderBlobs(job, sync=False), TroubleNote(1, record["micro_batch"] + 1, "Parse", why, Timestamp(7)))
    cause = json.loads(invoke("--json", str(job)).stdout)["causes"][0]
    assert (cause["kind"], cause["stage"]) == ("failure", "Parse")
    shown = invoke(str(job)).stdout
    check_message("status-worker-died", shown[shown.index("  - micro-batch") :].partition("\n    also waiting")[0])
