"""The page of a stage: what it shows, and that nothing is empty without a reason."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.page.app import app_of
from arcbeam.page.live import UPDATE_BYTES
from arcbeam.page.sources import Listed
from arcbeam.page.stagepage import stage_of
from arcbeam.page.views import stage_with
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.reasons import CauseKind
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import StageStatus, Status
from tests.page import samples
from tests.page.test_app import BASE, EVIL

pytestmark = pytest.mark.contract("PAGE-12")


def text_of(status: Status, number: int = 0, plan: Any = None, **details: Any) -> str:
    jobs = samples.Jobs(Listed("a", "/a", status), plans={} if plan is None else {"a": plan}, details={"a": details})
    answer = TestClient(app_of(jobs), base_url=BASE).get(f"/job/a/stage/{number}")
    assert answer.status_code == 200
    # Times are marked for browsers.
    return html.unescape(re.sub("</?time[^>]*>", "", answer.text))


def test_stage_page_has_all_that_status_knows() -> None:
    status, plan = samples.status(4), samples.plan_of(4)
    status = samples.with_stage(
        samples.with_cause(status, about="'EWR' and all the rest"),
        0,
        restrictions=2,
        backlog=5.0,
        blocked=("Rates.main has output for them",),
        leftover=1,
        kept=StateMetrics(windows=4, event_timers=3, clock_timers=2, blocked=7, ordered=6),
        state_rows=10,
        state_bytes=400,
        state_shards=20,
        state_median=10,
        state_largest=((5, 300), (2, 20)),
    )
    text = text_of(status, 0, plan)
    for words in (
        plan["stages"][0]["transforms"][0]["name"],
        plan["stages"][0]["transforms"][0]["urn"],
        "2 not done, of size 5",
        "3 for event time, 2 for the clock",
        "7 wait until Rates.main has output for them",
        "6 wait for the watermark",
        "in 1 shard(s)",
        "20 with state: median 10 B, mean 20 B, most 300 B, 15.0 times the mean",
        "<dt>shard 5</dt><dd>300 B, 75.0% of it</dd><dt>shard 2</dt><dd>20 B, 5.0% of it</dd>",
        "<dt>other shards</dt><dd>18, with at most 20 B each</dd>",
        status.causes[0].text,
        status.causes[0].released_when,
        "the element: 'EWR' and all the rest",
    ):
        assert words in text


def test_error_of_the_job_is_that_of_one_stage() -> None:
    status, plan = samples.status(3), samples.plan_of(3)
    # An apostrophe does not end the name.
    name = plan["stages"][1]["transforms"][0]["name"] = "Tag/it's 'so'"
    note = EndNote(0, "FAILED", f"ValueError: it's [while running '{name}']\nTraceback")
    status = replace(status, ended=note)
    assert "ValueError: it's" in text_of(status, 1, plan).partition("<h2>Errors</h2>")[2]
    other = text_of(status, 2, plan).partition("<h2>Errors</h2>")[2]
    assert f"none in this stage: the job is FAILED in '{name}'" in other
    assert "ValueError" not in other


def test_missing_figures_have_a_reason() -> None:
    status = samples.status(3, samples.now())
    of = status.stages[2]
    bare = StageStatus(of.stage, of.level, of.upstream, of.input, None, ())
    status = replace(status, stages=(*status.stages[:2], bare), causes=(), seconds={})
    page = stage_of(status, None, 2)
    assert page.no_transforms
    assert page.headline.level == "good"
    assert all(cell.text != "–" or cell.hint for _, cell in page.figures)
    facts = [*page.waiting, *page.state, *page.tasks]
    assert all(text.strip() for _, text in facts)
    assert "None: no other stage reads from this one." in text_of(status, 2)


def test_tasks_and_their_skew() -> None:
    status = samples.status(3)
    slow = {"task": 3, "shards": [6, 7], "seconds": 0.9, "elements": 5000, "worker": "host:7"}
    of = {"tasks": 4, "seconds": [0.1, 0.2, 0.9], "elements": [10, 12.5, 5000], "slowest": [slow]}
    tasks = {"micro_batch": 41, "time": samples.NOW, "stages": {status.stages[1].stage: of}}
    facts = dict(stage_of(status, None, 1, tasks).tasks)
    assert facts["time of a task"] == "0.10 to 0.90, median 0.20 s; the greatest is 4.5 times the median"
    assert facts["elements of a task"] == "10 to 5,000, median 12.5; the greatest is 400.0 times the median"
    assert facts["task 3"] == "0.90 s, 5,000 elements, in shards 6 to 7, on host:7"
    even = {**of, "seconds": [0.2, 0.2, 0.2], "elements": [1, 1, 1], "slowest": [{**slow, "elements": 1}]}
    facts = dict(stage_of(status, None, 1, {**tasks, "stages": {status.stages[1].stage: even}}).tasks)
    assert (facts["time of a task"], facts["elements of a task"]) == ("0.20 s", "1")
    assert facts["task 3"].startswith("0.90 s, 1 element, in")
    assert "none ran this stage" in dict(stage_of(status, None, 2, tasks).tasks)["single tasks"]


def test_log_has_lines_of_the_stage_and_warnings_about_it() -> None:
    status, plan = samples.status(3), samples.plan_of(3)
    stage, transform = plan["stages"][1]["name"], plan["stages"][1]["transforms"][0]["name"]

    def line(time: int, text: str, of: str = stage) -> dict[str, Any]:
        return {"time": time, "level": "INFO", "stage": of, "worker": "host:7", "text": text}

    log = [line(1, "first"), line(4, f"newest {EVIL}"), line(2, "of another stage", plan["stages"][0]["name"])]
    warned = [
        {"time": 3, "level": "WARNING", "text": f"try 1 failed [while running '{transform}']"},
        {"time": 5, "level": "WARNING", "text": f"try 1 failed [while running '{transform} too']"},
        {"time": 6, "level": "BASIC", "text": f"micro-batch 7 of '{transform}'"},
    ]
    text = text_of(status, 1, plan, log=log, messages=warned).partition("<h2>Log</h2>")[2].partition("<h2>")[0]
    assert re.findall(r"<td>(driver|host:7)</td><td><pre>(\w+ ?\d?)", text) == [
        ("host:7", "newest "),
        ("driver", "try 1"),
        ("host:7", "first"),
    ]
    assert "None: its tasks have logged nothing" in text_of(status, 2, plan, log=log)


def test_long_log_is_followed_in_part() -> None:
    status = samples.status(3)
    stage = status.stages[1].stage
    log = [
        {"time": at, "level": "INFO", "stage": stage, "worker": "h:1", "text": f"{at} {'x' * 500}"} for at in range(40)
    ]
    text = text_of(status, 1, log=log)
    followed, _, before = text.partition("<h2>Log</h2>")[2].partition("<details>")
    assert 10_000 < len(followed) < UPDATE_BYTES
    assert followed.count("<pre>") + before.count("<pre>") == 40


def test_link_to_spark_is_that_of_the_newest_tasks() -> None:
    status = samples.status(3, samples.now())
    of = {"tasks": 1, "seconds": [0.1] * 3, "elements": [1] * 3, "slowest": [], "spark_stage": 81}
    tasks = {"micro_batch": 41, "time": samples.NOW, "stages": {status.stages[1].stage: of}}
    address = "http://127.0.0.1:4040"
    assert stage_of(status, None, 1, tasks, address).spark == f"{address}/stages/stage/?id=81&attempt=0"
    ended = replace(status, ended=EndNote(0, "DONE", ""))
    for other in (
        stage_of(status, None, 2, tasks, address),
        stage_of(status, None, 1, None, address),
        stage_of(status, None, 1, tasks, ""),
        stage_of(status, None, 1, {**tasks, "stages": {status.stages[1].stage: {**of, "spark_stage": None}}}, address),
        stage_of(ended, None, 1, tasks, address),
    ):
        assert other.spark == ""


def test_missing_link_to_spark_has_a_reason() -> None:
    status = samples.status(3, samples.now())
    assert "Turn it on with" in text_of(status, 1)
    ended = text_of(replace(status, ended=EndNote(0, "FAILED", "")), 1)
    assert "No link to Spark's page: no driver runs the job." in ended


def test_failing_stage_shows_its_error() -> None:
    status = samples.status(3)
    name = status.stages[1].stage
    text = "micro-batch 42: try 2 of 14: KeyError"
    page = stage_of(samples.with_cause(status, kind=CauseKind.FAILURE, stage=name, text=text), None, 1)
    assert "KeyError" in page.errors[0]
    assert page.headline.level == "error"


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"ended": EndNote(0, "FAILED", "KeyError: 'user'\nin 'Sum'")}, "error", "KeyError: 'user'"),
        ({"ended": EndNote(0, "CANCELLED", "")}, "warning", "The job was cancelled."),
        ({"mode": CommitMode.SUSPENDED, "driver": None}, "warning", "The job is suspended."),
        (
            {"committed": Timestamp(0), "driver": samples.driver(0)},
            "error",
            "no driver seems to be running this job",
        ),
        ({"mode": CommitMode.DRAINED, "driver": None}, "good", "The job has ended"),
    ],
)
def test_stage_of_job_without_driver_is_not_running(change: dict[str, Any], level: str, words: str) -> None:
    since = Since(41, Timestamp(samples.now()))
    status = samples.with_cause(samples.status(3, samples.now()), since=since)
    assert stage_of(status, None, 0).headline.text.startswith("The job is running.")
    page = stage_of(replace(status, **change), None, 0)
    assert words in page.headline.text
    assert page.headline == headline(replace(status, **change))
    assert level == page.headline.level
    assert ("KeyError" in "".join(page.errors)) == ("KeyError" in words)
    jobs = samples.Jobs(Listed("a", "/a", status, silent=12.0))
    text = TestClient(app_of(jobs), base_url=BASE).get("/job/a/stage/0").text
    assert "The job is running." not in text
    assert "No contact" in text


def test_unknown_stage_is_not_found() -> None:
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", samples.status(3)))), base_url=BASE)
    assert page.get("/job/a/stage/3").status_code == 404
    assert page.get("/job/b/stage/0").status_code == 404
    assert page.get("/job/a/stage/x").status_code == 404


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("Count", "s2"),
        ("Count/Group", "s2"),
        ("Count/Group/Read", "s2"),
        ("Counter", "s1"),
        ("Counter/Read/Split", "s1"),
        ("Coun", ""),
        ("Count/Grou", ""),
        ("Counters", ""),
        ("", ""),
    ],
)
def test_transform_is_found_by_whole_names(name: str, stage: str) -> None:
    assert stage_with(name, {"Counter": "s1", "Counter/Read": "s1", "Count/Group": "s2"}) == stage
