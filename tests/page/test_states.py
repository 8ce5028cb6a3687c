"""Jobs without a status: bounded ones, ended ones, and those whose service does not answer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from arcbeam.console.progressline import BatchProgress, StageProgress, StageState
from arcbeam.model.commits import CommitMode
from arcbeam.page import states
from arcbeam.page.graph import graph_of
from arcbeam.page.sources import Listed
from arcbeam.page.views import gap
from arcbeam.store.log.endnote import EndNote
from tests.page import samples
from tests.page.test_app import EVIL, OURS, Fixed, client

pytestmark = pytest.mark.contract("PAGE-03")

STAGES = (
    StageProgress("Read", StageState.DONE, 1, 1, 0, 10, 2.5),
    StageProgress("Count", StageState.RUNNING, 3, 8, 2, 70, 11.0),
    StageProgress("Write"),
)


def batch(*stages: StageProgress, state: str = "RUNNING", **more: Any) -> Listed:
    return Listed("a", "a at h", None, state=state, progress=BatchProgress(stages), **more)


def test_bounded_job_shows_its_stages() -> None:
    text = client(Fixed(batch(*STAGES))).get("/job/a").text
    assert "1 of 3 stages are done. Now: Count." in text
    assert all(figure in text for figure in ("3 of 8", "2.50 s", ">70<", ">2<"))
    assert "none of its tasks has begun" in text
    assert "how many tasks it has is known when its input is" in text


def test_bounded_job_has_a_graph_with_its_progress() -> None:
    plan = samples.plan_of(3)
    job = batch(StageProgress("Read", StageState.DONE, 1, 1, 0, 10, 2.5), *STAGES[1:])
    text = client(Fixed(replace(job, progress=BatchProgress(STAGES, plan)))).get("/job/a").text
    lines = dict(re.findall(r'id="g-(s\d-\w+)"[^>]*>([^<]*)</text>', text))
    assert [lines[f"s{at}-live"] for at in range(3)] == ["done · 1 of 1 tasks", "running · 3 of 8 tasks", "waiting"]
    assert [lines[f"s{at}-more"] for at in range(3)] == [
        "19% of the time · 10 elements",
        "81% of the time · 70 elements",
        "",
    ]
    assert 'class="live busy-3" id="g-s1-more"' in text
    # A job that starts has no plan yet.
    assert "No graph" in client(Fixed(job)).get("/job/a").text


def test_stages_of_ended_job_keep_their_figures() -> None:
    ended = (
        StageProgress("Read", StageState.DONE, 1, 1, 0, 10, 2.5),
        StageProgress("Parse", StageState.FAILED, 3, 8, 1, 70, 11.0),
        StageProgress("Count", StageState.STOPPED, 1, 8, 0, 4, 1.0),
        StageProgress("Write", StageState.NOT_RUN, of=8),
    )
    text = client(Fixed(batch(*ended, state="FAILED", why="KeyError: 3\nat line 7"))).get("/job/a").text
    for shown in ("its error ended the job", "the job ended while it ran", "the job ended before it", ">KeyError: 3"):
        assert shown in text, shown
    assert all(figure in text for figure in ("3 of 8", "11 s", ">70<", "0 of 8"))
    # The server was killed: the record is of before.
    rows = [*states.batch_rows(BatchProgress(STAGES), live=False)]
    assert [row.state.text for row in rows] == ["done", "stopped", "not run"]


def test_bounded_job_has_the_log_of_its_tasks_and_links_to_spark() -> None:
    log = [{"time": 5, "level": "WARNING", "stage": "Count", "worker": "host:7", "text": f"odd {EVIL}"}]
    stages = tuple(replace(stage, spark_stage=3 * number) for number, stage in enumerate(STAGES))
    progress = BatchProgress(stages, None, log, "http://127.0.0.1:4040")
    job = Listed("a", "a at h", None, state="RUNNING", progress=progress)
    text = client(Fixed(job)).get("/job/a").text
    assert "<td>WARNING</td><td>Count, host:7</td><td><pre>odd &lt;script" in text
    assert re.findall(r"stages/stage/\?id=(\d+)", text) == ["0", "3", "6"]
    # Spark's page may have ended with the job. Only an address of the web is a link.
    for other in (replace(job, state="DONE"), replace(job, progress=replace(progress, spark="javascript:alert(1)//"))):
        page = client(Fixed(other)).get("/job/a").text
        assert "odd &lt;script" in page
        assert "stages/stage" not in page
    assert "no task that has ended has logged anything" in client(Fixed(batch(*STAGES))).get("/job/a").text


def test_unknown_figures_of_running_stage_say_why() -> None:
    (row,) = states.batch_rows(BatchProgress((StageProgress("Read", StageState.RUNNING, of=8, live=False),)), live=True)
    assert (row.tasks.text, row.elements.text, row.retries.text, row.seconds.text) == ("? of 8", "–", "–", "–")
    assert "when its Spark job ends" in row.elements.hint


def test_running_stage_before_its_first_element_has_no_number() -> None:
    stages = tuple(StageProgress("Read", state, 0, 1, 0, 0, 9.0) for state in (StageState.RUNNING, StageState.DONE))
    running, done = states.batch_rows(BatchProgress(stages), live=True)
    assert (running.elements.text, running.seconds.text, done.elements.text) == ("–", "9.00 s", "0")
    assert "counts when it is processed" in running.elements.hint


@pytest.mark.parametrize(
    ("state", "level", "live"),
    [
        ("FAILED", "error", False),
        ("CANCELLED", "warning", False),
        ("DONE", "good", False),
        ("DRAINED", "good", False),
        ("STOPPED", "warning", True),
        ("STARTING", "good", True),
        ("CANCELLING", "warning", True),
    ],
)
def test_states_have_their_words(state: str, level: str, live: bool) -> None:
    job = Listed("a", "a at h", None, state=state, since=1, why="KeyError: 3\nat line 7")
    assert (states.headline(job).level, states.is_live(job)) == (level, live)
    assert ("KeyError: 3" in states.headline(job).text) == (state == "FAILED")
    text = client(Fixed(job)).get("/job/a")
    assert text.status_code == 200
    assert ('http-equiv="refresh"' in text.text) == live


@pytest.mark.parametrize("progress", [None, BatchProgress(STAGES[:1])])
def test_lost_contact_is_never_well(progress: Any) -> None:
    job = Listed("a", "a at h", None, state="RUNNING", progress=progress, silent=12.0)
    row = states.row_of(job)
    assert row.headline.level == "error"
    assert "12 s ago" in row.state.text
    for path in ("/", "/job/a"):
        answer = client(Fixed(job)).get(path)
        assert "<strong>No contact</strong> for 12 s" in answer.text
        assert 'http-equiv="refresh"' in answer.text


def test_texts_of_services_are_inert() -> None:
    evil = BatchProgress((StageProgress(EVIL, StageState.RUNNING),))
    found = [
        Listed("a", EVIL, None, name=EVIL, state=state, why=EVIL, progress=evil)
        for state in ("RUNNING", "FAILED", EVIL)
    ]
    for each in found:
        page = client(Fixed(each))
        assert all("<script" not in OURS.sub("", page.get(path).text) for path in ("/", "/job/a"))


def test_cancelled_job_is_calm_in_its_folder_and_at_its_service() -> None:
    of_folder = Listed("a", "/a", samples.status(2, samples.now(), ended=EndNote(0, "CANCELLED", "by its user")))
    of_service = Listed("b", "b at h", None, state="CANCELLED", since=1)
    rows = [states.row_of(each) for each in (of_folder, of_service)]
    assert {(row.headline.level, row.headline.word, row.headline.text) for row in rows} == {
        ("warning", "Ended", "The job was cancelled.")
    }
    assert "by its user" in client(Fixed(of_folder)).get("/job/a/stage/0").text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ended": EndNote(0, "FAILED", "oh")}, "the job has ended"),
        ({"mode": CommitMode.SUSPENDED, "driver": None}, "the job is suspended"),
        ({"driver": replace(samples.driver(), time=samples.now() - 99_000_000)}, "no driver seems"),
        ({"driver": None, "due": samples.now() - 99_000_000}, "no driver seems to be running the job"),
    ],
)
def test_job_without_driver_has_no_rate(change: dict[str, Any], why: str) -> None:
    status = samples.status(2, samples.now())
    row = states.row_of(Listed("a", "/a", status))
    assert row.rate.text == "1,234 elements/s"
    assert row.behind == gap(status, status.watermark)
    row = states.row_of(Listed("a", "/a", replace(status, **change)))
    assert (row.rate.text, row.behind.text) == ("–", gap(replace(status, **change), status.watermark).text)
    assert why in row.rate.hint
    assert why in row.behind.hint
    assert "the watermark is at: 20" in row.behind.hint
    text = client(Fixed(Listed("a", "/a", replace(status, **change)))).get("/job/a").text
    assert 'data-driver="none"' in text
    assert "elements/s" not in text
    assert text.count("its last note") <= 1
    text = client(Fixed(Listed("a", "/a", replace(status, **change)))).get("/job/a/stage/0").text
    assert 'data-driver="none"' in text
    assert not re.search(r"\d/s\b", text)
    assert re.search(r"\d/s\b", client(Fixed(Listed("a", "/a", status))).get("/job/a/stage/0").text)
    graph = graph_of(samples.plan_of(2), {})
    assert re.search(r"\d/s\b", graph.shown(status)[0])
    assert not re.search(r"\d/s\b", graph.shown(replace(status, **change))[0])
    assert 'data-driver="none"' not in client(Fixed(Listed("a", "/a", status))).get("/job/a").text


def test_list_follows_ended_job_that_is_resumed() -> None:
    now = samples.now()
    jobs = samples.Jobs(Listed("a", "/a", samples.status(2, now, mode=CommitMode.SUSPENDED)))
    page = client(jobs)
    for mode in ("drained", "drained", "running"):
        jobs.found["a"] = Listed("a", "/a", samples.status(2, now, mode=mode))
        assert f">{mode}" in page.get("/").text.partition("<tbody>")[2]
        assert f">{mode}" in page.get("/").text.partition("<tbody>")[2]
