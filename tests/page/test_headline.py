"""The headline of a waiting job: for each reason, the stage, what holds it, since when, and what would release it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from arcbeam.cli.status import _job_lines, cause_lines
from arcbeam.engine.protocol.reports import Awaited, Counts
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.model.commits import CommitMode
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from arcbeam.page.app import app_of
from arcbeam.page.sources import Listed
from arcbeam.page.views import stage_rows
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.troublenote import TroubleNote
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.reasons import CauseKind
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import Status, status_of, with_driver, with_trouble
from arcbeam.streaming.status.words import driver_line, shown
from arcbeam.testing.blobs import MemoryBlobs
from tests.page import samples
from tests.page.test_app import BASE
from tests.streaming.jobs import RATES, opened
from tests.streaming.status.test_snapshot import all_of, at, committed, holding, observing

pytestmark = pytest.mark.contract("PAGE-01")

_HOUR = Timestamp(3_600_000_000)
_TABLE = Path(__file__).parents[2] / "docs" / "howto" / "waiting.md"


def _held(hold: Hold, input: Timestamp = MAX_TIMESTAMP) -> Status:
    """The status of a job whose last stage is held."""
    own = holding("join", 0, hold=hold)
    return status_of(committed(opened(MemoryBlobs()), at(input, MAX_TIMESTAMP, 6, 5), *all_of(own)))


def _source(hold: Hold) -> Status:
    """The status of a job whose source is held."""
    marks = at(MIN_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP)
    return status_of(committed(opened(MemoryBlobs()), marks, *all_of(holding("read", 0, hold))))


def _blocked() -> Status:
    """The status of a job whose elements wait for a side input."""
    blocked = Hold(Timestamp(7), HolderKind.BLOCKED, "rates@00")
    own = holding("join", 1, blocked, awaited=(Awaited(RATES, Timestamp(99)),), waits_for=RATES)
    marks = at(MAX_TIMESTAMP, 3, 7)
    silent = holding("rates", 0, Hold(Timestamp(3), HolderKind.RESIDUAL, "it"))
    status = status_of(committed(opened(MemoryBlobs()), marks, *all_of(silent, own)))
    # Both decide; here the blocked elements are the older cause.
    return replace(status, causes=tuple(sorted(status.causes, key=lambda cause: cause.kind != "side input")))


def _changed(**change: Any) -> Status:
    """The status of a job with a cause that only other versions, or no micro-batch, leave."""
    return samples.with_cause(_source(Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")), **change)


def _failing(transform: str = "read") -> Status:
    head = committed(opened(MemoryBlobs()), at(1, 1, 1), *all_of())
    trouble = TroubleNote(head.epoch, 2, transform, "a worker died in try 1 of 3", Timestamp(1))
    return with_trouble(status_of(head), trouble)


def _without_tasks() -> Status:
    head = committed(opened(MemoryBlobs()), at(1, 1, 1), *all_of())
    doing = "runs micro-batch 2"
    note = DriverNote(head.epoch, "host:job", 1, Timestamp(0), Timestamp(1), 60.0, doing, "no task has run", "a core")
    return with_driver(status_of(head), note)


def _cases() -> Iterator[Any]:
    timer = Hold(Timestamp(5), HolderKind.TIMER, "flush", key="a", release=Release(_HOUR, by_clock=True))
    residual = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "it")
    seen = {"seen": {"clicks": Timestamp(9)}}
    observed = observing(Observer("clicks", Duration(0)), 9, **seen)
    yield "restriction", _source(Hold(Timestamp(7), HolderKind.RESIDUAL, "it", release=Release(_HOUR, by_clock=True)))
    yield "restriction", _source(Hold(Timestamp(7), HolderKind.RESIDUAL, "it"))
    yield "restriction", _source(residual)
    yield "side input", _blocked()
    yield "timer", _held(timer)
    yield "elements", _held(Hold(Timestamp(5), HolderKind.BUFFERED, ""))
    yield "state", _held(Hold(Timestamp(5), HolderKind.STATE, "pane", key="a"))
    yield "script", _held(Hold(Timestamp(5), HolderKind.SCRIPT, ""))
    yield "shutdown", _held(Hold(Timestamp(5), HolderKind.UNPREPARED, ""))
    yield "observer", status_of(observed)
    yield "failure", _failing()
    yield "driver", _without_tasks()
    yield "not reported", _changed(kind=CauseKind.NOT_REPORTED, text="the watermark of the input of 'read': shard 0 …")


CASES = list(_cases())


def test_all_reasons_of_the_table_are_here() -> None:
    rows = re.findall(r"^\| ([a-z ,]+) \| ", _TABLE.read_text(), re.M)
    assert {kind for row in rows if row != "kind" for kind in row.split(", ")} == {kind for kind, _ in CASES}


@pytest.mark.parametrize(("kind", "status"), CASES)
def test_headline_of_each_reason_has_the_words_of_status(kind: str, status: Status) -> None:
    cause = next(each for each in status.causes if each.decides or each.kind == "driver")
    assert cause.kind == kind
    # The fixtures' clock is at 0, so that their work seems overdue.
    status = replace(status, due=None, driver=None, folder="/a", name="a")
    line = headline(status)
    assert line.level == ("error" if kind in ("failure", "driver") else "warning")
    printed = list(cause_lines(status))
    assert f"  - {cause.text}" in printed
    assert f"    released when: {line.released_when}" in printed
    assert cause.stage in line.text
    assert bool(cause.stage) == (kind != "driver")
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE).get("/job/a").text
    found = re.search(r'<p class="headline[^>]*>(.*?)</p>', page, re.S)
    assert found
    words = html.unescape(re.sub(r"<[^>]+>", "", found[1]))
    shortened = re.sub(r", since micro-batch \d+ \([^)]*\)", "", cause.text)
    assert words.startswith(f"{line.word} {shortened}")
    assert f"released when: {cause.released_when}" in words
    assert cause.since or kind in ("driver", "not reported")
    if cause.since:
        assert f"Since {shown(cause.since.time)}" in words


@pytest.mark.parametrize(("transform", "where"), [("read", "in transform 'read'"), ("", "in an unknown transform")])
def test_headline_of_failing_micro_batch_names_its_transform(transform: str, where: str) -> None:
    line = headline(replace(_failing(transform), due=None))
    assert line.text == f"micro-batch 2: a worker died in try 1 of 3, {where}"
    assert line.since == "1970-01-01 00:00:00.000Z"


def test_headline_of_silent_driver_says_how_to_resume() -> None:
    now = samples.now()
    killed = samples.status(3, now - 31_000_000)
    line = headline(killed)
    assert "no driver seems to be running this job" in line.text
    assert line.remedy.endswith("if it is dead, resume the job: arcbeam resume /data/flights")
    assert line.level == "error"
    assert headline(samples.status(3, now - 29_000_000)).level != "error"


@pytest.mark.parametrize("seconds", [0, 31])
def test_what_a_driver_did_before_the_newest_micro_batch_is_not_shown(seconds: int) -> None:
    time = samples.now() - seconds * 1_000_000
    status = samples.status(3, time)
    words = "running micro-batch 42 for 0 s"
    assert words in driver_line(status)
    for later in ({"micro_batch": 42}, {"committed": time + 1}):
        line = driver_line(replace(status, **later))
        assert "micro-batch" not in line
        assert "host-1:flights" in line
        assert ("has written nothing for 31 s" in line) == (seconds > 0)


def test_nothing_holds_a_stage_of_an_ended_job() -> None:
    assert all(row.why.text for row in stage_rows(samples.status()))
    for change in ({"ended": EndNote(0, "FAILED", "")}, {"mode": CommitMode.DRAINED}):
        assert not any(row.why.text for row in stage_rows(samples.status(**change)))


def test_counts_say_of_which_time_they_are() -> None:
    counts = {"micro_batch": Counts(read=10), "total": Counts(read=5_000, written=7_000)}
    status = samples.with_stage(samples.status(), 0, read_rate=20.0, **counts)
    row = next(stage_rows(status))
    assert (row.read.text, row.read.hint) == (
        "10",
        "in the last micro-batch; 20.0/s in the last minute; 5,000 since the job began",
    )
    assert row.written.hint.endswith("; 7,000 since the job began")
    page = TestClient(app_of(samples.Jobs(Listed("a", "a", status))), base_url=BASE)
    assert ">in, last micro-batch</th>" in page.get("/job/a").text


def test_job_before_its_first_commit_is_starting() -> None:
    now = samples.now()
    status = replace(samples.status(1, now, micro_batch=0, causes=(), time=now - 4_000_000), stages=())
    line = headline(status)
    assert (line.word, line.text) == ("Starting", "The first micro-batch has not been committed yet; the job began")
    text = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE).get("/job/a").text
    assert re.search(r"the job began <time[^>]*>4 s ago</time>\.", text)
    assert "unknown: the first micro-batch" in text.partition("<h2>Stages")[2].partition("</table>")[0]
    assert "No watermark waits" not in text
    script = headline(replace(status, time=0, committed=now, scripted=True))
    assert script.text == "The first micro-batch has not been committed yet."
    failing = replace(samples.status(1).causes[0], kind=CauseKind.FAILURE, text="micro-batch 1: KeyError")
    assert headline(replace(status, causes=(failing,))).level == "error"


def test_opening_by_a_second_driver_is_no_micro_batch() -> None:
    status = replace(samples.status(1, samples.now(), micro_batch=1, causes=(), elapsed=None, seconds={}), stages=())
    line = headline(status)
    assert (line.word, line.text, line.at) == ("Starting", "The first micro-batch has not been committed yet.", 0)
    text = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE).get("/job/a").text
    assert "no micro-batch has been committed yet" in text
    assert "unknown: the first micro-batch" in text.partition("<h2>What watermarks wait for")[2]
    printed = "\n".join([*_job_lines(status), *cause_lines(status)])
    assert "no micro-batch has been committed yet" in printed
    assert "no watermark waits" not in printed


def test_headline_of_failed_job_has_its_folder_and_the_first_line_of_its_error() -> None:
    why = "KeyError: 'user' in 'Sum'\n  File 'sums.py', line 7"
    status = samples.status(2, samples.now(), folder="/data/my flights", ended=EndNote(0, "FAILED", why))
    line = headline(status)
    assert (line.word, line.text, line.released_when) == ("Failed", "KeyError: 'user' in 'Sum'", "")
    assert line.remedy.startswith("correct the cause of the error; ")
    assert line.remedy.endswith("resume the job: arcbeam resume '/data/my flights'")
    text = html.unescape(TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE).get("/job/a").text)
    assert why in text.partition("<h2>Error</h2>")[2]
    # A command without the folder would not run.
    assert "arcbeam resume" not in headline(replace(status, folder="")).line


@pytest.mark.parametrize(
    ("change", "resumes", "waits"),
    [
        ({}, False, "the watermark of the input of"),
        ({"mode": CommitMode.DONE}, False, "Nothing: the job has ended."),
        ({"mode": CommitMode.SUSPENDED}, True, "the watermark of the input of"),
        ({"ended": EndNote(0, "FAILED", "oh")}, True, "When the job ended."),
    ],
)
def test_job_without_driver_says_how_to_resume_in_the_list(change: dict[str, Any], resumes: bool, waits: str) -> None:
    status = samples.status(2, samples.now(), folder="/data/flights", **change)
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE)
    assert ("arcbeam resume /data/flights" in page.get("/").text) == resumes
    for path in ("/job/a", "/job/a/stage/0"):
        listed = page.get(path).text.partition("watermarks wait for</h2>")[2].partition("<h2>")[0]
        assert ("released when" in listed) == (change != {"mode": CommitMode.DONE})
    assert waits in page.get("/job/a").text.partition("What watermarks wait for</h2>")[2]


def test_watermark_that_has_not_moved_is_not_said_to_advance() -> None:
    now = samples.now()
    status = samples.status(3, now)
    held = replace(status.causes[0], time=MIN_TIMESTAMP, since=Since(1, Timestamp(now - 20_000_000)))
    line = headline(replace(status, causes=(held,)))
    assert (line.level, line.word, line.at) == ("good", "Starting", now - 20_000_000)
    assert line.text == "The watermark that decides has not moved yet; the job started"
    script = headline(replace(status, time=now, scripted=True, causes=(held,)))
    assert script.text == "The watermark that decides has not moved yet; the job started 20 s ago."
    assert "advanced" in headline(replace(status, causes=(replace(held, time=now - 90_000_000),))).text
    late = replace(held, since=Since(1, Timestamp(now - 60_000_000)))
    assert headline(replace(status, causes=(late,))).level == "warning"


def test_causes_of_draining_job_need_nothing_else() -> None:
    hold = Hold(Timestamp(7), HolderKind.RESIDUAL, "it", release=Release(_HOUR, by_clock=True))
    marks = at(MIN_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP)
    head = committed(opened(MemoryBlobs()), marks, *all_of(holding("read", 0, hold)))
    runs, drains = (status_of(replace(head, mode=mode)).causes for mode in (CommitMode.RUNNING, CommitMode.DRAINING))
    assert [cause.text for cause in drains] == [cause.text for cause in runs]
    assert {cause.released_when for cause in drains} == {"the drain has finished what is left"}


def test_headline_of_draining_job_says_what_is_left() -> None:
    draining = samples.status(3, samples.now(), mode=CommitMode.DRAINING)
    status = samples.with_stage(draining, 0, restrictions=2, backlog=5.0)
    line, cause = headline(status), status.causes[0]
    assert (line.word, line.stage, line.released_when) == ("Draining", cause.stage, "")
    assert line.text.startswith("the job drains, and then ends; left: 2 restriction(s) of 'Read/Poll/Process' not done")
    assert "restriction of element 'EWR'" in line.text
    assert next(_job_lines(status)) == line.line
    failing = replace(cause, kind=CauseKind.FAILURE, text="micro-batch 1: KeyError")
    assert headline(replace(status, causes=(failing,))).level == "error"


def test_watermark_ahead_of_the_clock_is_not_waiting() -> None:
    now = samples.now()
    status = samples.status(3, now)
    held = replace(status.causes[0], time=now - 200_000_000, since=Since(1, Timestamp(now - 190_000_000)))
    ahead = replace(held, kind=CauseKind.SIDE_INPUT, time=now + 3_600_000_000, text="side input")
    assert headline(replace(status, causes=(ahead,))).level == "good"
    assert "ahead of the clock" in headline(replace(status, causes=(ahead,))).text
    assert headline(replace(status, causes=(ahead, held))).text == held.text
    assert headline(replace(status, causes=(replace(ahead, kind=CauseKind.FAILURE), held))).level == "error"
    assert headline(replace(status, scripted=True, time=now, causes=(ahead,))).text == "side input"
