"""The page as a browser without JavaScript gets it."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.cli.status import cause_lines
from arcbeam.engine.watermarks.clocks import Local, OutputTime
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.page.access.security import COOKIE
from arcbeam.page.app import ENDED_SHOWN, app_of
from arcbeam.page.sources import FolderSource, Listed, Several, Source
from arcbeam.page.views import row_of, stage_rows
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.endnote import EndNote, record_end
from arcbeam.store.log.historyfile import HISTORY
from arcbeam.store.log.troublenote import TroubleNote, record_trouble
from arcbeam.streaming.driver.proposals import draft
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.reasons import CauseKind
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import as_record
from arcbeam.streaming.status.words import without_since
from tests.page import samples
from tests.streaming.jobs import JOIN, LAYOUT, RATES, READ, READERS, opened, proposal, reported, staged

_TIMES = WatermarkTimes(
    {"read": MIN_TIMESTAMP, "rates": MAX_TIMESTAMP, "join": MIN_TIMESTAMP},
    {READ: MIN_TIMESTAMP, RATES: MAX_TIMESTAMP, JOIN: MIN_TIMESTAMP},
)

EVIL = "<script>alert(1)</script>"
OURS = re.compile(r'<script src="/static/[\w/.]+" defer></script>')
BASE = "http://127.0.0.1:8081"


@pytest.fixture
def job(tmp_path: Path) -> FolderBlobs:
    folder = FolderBlobs(tmp_path / "job", sync=False)
    log = opened(folder)
    silent = Hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "1.0.0~ab")
    local = Local(silent, {"main": OutputTime(silent)})
    held = replace(staged("read", 0, 0), local=local)
    reports = (
        reported(
            held,
            staged("read", 1, 0),
            staged("rates", 0, 0),
            staged("rates", 1, 0),
            level=0,
        ),
        reported(staged("join", 0, 0), staged("join", 1, 0)),
    )
    command = replace(proposal(1, 0, *reports), times=_TIMES)
    log.propose(draft(log, LAYOUT, READERS, {"read": 1, "rates": 2, "join": 3}, command, {}))
    return folder


def client(source: Source, token: str = "") -> TestClient:
    return TestClient(app_of(source, token), base_url=BASE, follow_redirects=False)


class Fixed(Source):
    """Jobs with given records."""

    def __init__(self, *found: Listed) -> None:
        self._found = {each.id: each for each in found}

    @override
    def jobs(self) -> Iterator[Listed]:
        yield from self._found.values()

    @override
    def job(self, id: str) -> Listed | None:
        return self._found.get(id)

    @override
    def history(self, id: str) -> dict[str, Any] | None:
        return None


@pytest.mark.contract("PAGE-01")
def test_list_links_to_the_page_of_each_job(job: FolderBlobs) -> None:
    source = FolderSource([job])
    (listed,) = source.jobs()
    page = client(source)
    assert f'href="/job/{listed.id}"' in page.get("/").text
    text = page.get(f"/job/{listed.id}").text
    assert all(f">{stage}</a></th>" in text for stage in ("read", "rates", "join"))
    assert "<script" not in OURS.sub("", text)


@pytest.mark.contract("PAGE-01")
def test_job_whose_watermark_advances_is_not_waiting(job: FolderBlobs) -> None:
    (listed,) = FolderSource([job]).jobs()
    assert listed.status is not None
    (cause, *_) = [each for each in listed.status.causes if each.decides]
    # A TestStream's clock, because the real one does not stand still.
    running = replace(listed.status, due=None, scripted=True, time=Timestamp(100_000_000))

    def level(seconds: int, **change: Any) -> str:
        since = Since(1, Timestamp(100_000_000 - seconds * 1_000_000))
        return headline(replace(running, causes=(replace(cause, since=since, **change),))).level

    assert [level(0), level(59), level(60)] == ["good", "good", "warning"]
    assert level(0, kind=CauseKind.FAILURE) == "error"


@pytest.mark.contract("PAGE-01")
def test_headline_has_the_words_of_status(job: FolderBlobs) -> None:
    source = FolderSource([job])
    (listed,) = source.jobs()
    assert listed.status is not None
    cause = next(each for each in listed.status.causes if each.decides)
    assert cause.kind == "restriction"
    # The clock of the fixture is at 0, so that work seems overdue.
    running = replace(listed.status, due=None)
    line = headline(running)
    assert (line.text, line.released_when, line.level) == (without_since(cause), cause.released_when, "warning")
    assert "since micro-batch" in cause.text
    assert "since" not in line.text
    printed = list(cause_lines(listed.status))
    assert f"  - {cause.text}" in printed
    assert f"    released when: {line.released_when}" in printed
    shown = html.unescape(client(Fixed(Listed("a", "/a", running))).get("/job/a").text)
    assert shown.index(line.text) < shown.index("<h2>Stages")
    assert line.released_when in shown


@pytest.mark.contract("PAGE-01")
def test_failing_micro_batch_is_the_headline(job: FolderBlobs) -> None:
    record_trouble(
        job,
        TroubleNote(epoch=record_epoch(job), micro_batch=2, stage="read", why="try 2 of 14: oh", time=MIN_TIMESTAMP),
    )
    line = headline(replace(status_in(job), due=None))
    assert "try 2 of 14: oh" in line.text
    assert line.level == "error"


def record_epoch(job: FolderBlobs) -> int:
    from arcbeam.store.log.chain import known, read_newest

    newest = read_newest(job)
    assert newest is not None
    return known(newest).epoch


@pytest.mark.contract("PAGE-01")
def test_job_without_its_driver_is_never_well(job: FolderBlobs) -> None:
    status = status_in(job)
    hour_ago = Timestamp(int((time.time() - 3600) * 1e6))
    late = replace(status, due=hour_ago, driver=None)
    assert headline(late).level == "error"
    assert headline(replace(status, driver=samples.driver(hour_ago))).level == "error"
    assert headline(replace(status, ended=EndNote(0, "FAILED", "oh"))).level == "error"


@pytest.mark.contract("PAGE-01")
@pytest.mark.parametrize("change", [{"ended": EndNote(0, "FAILED", "x")}, {"mode": CommitMode.DONE}])
def test_page_of_an_ended_job_is_not_loaded_again(job: FolderBlobs, change: dict[str, Any]) -> None:
    status = status_in(job)
    page = client(Fixed(Listed("a", "/a", replace(status, **change)), Listed("b", "/b", status)))
    assert "refresh" not in page.get("/job/a").text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page.get("/job/b").text


@pytest.mark.contract("PAGE-01")
def test_unreadable_job_hides_no_other(job: FolderBlobs, tmp_path: Path) -> None:
    source = FolderSource([FolderBlobs(tmp_path / "none", sync=False), job])
    none, there = source.jobs()
    assert none.status is None
    assert row_of(none).state.text == "unreadable"
    page = client(source)
    assert page.get(f"/job/{none.id}").status_code == 503
    assert f"/job/{there.id}" in page.get("/").text
    assert page.get("/job/other").status_code == 404
    assert source.tasks("other") is None


@pytest.mark.contract("PAGE-01")
def test_unreadable_figures_over_time_hide_no_job(job: FolderBlobs, tmp_path: Path) -> None:
    (tmp_path / "job" / HISTORY).mkdir()
    source = FolderSource([job])
    (listed,) = source.jobs()
    assert source.history(listed.id) is None
    assert client(source).get(f"/job/{listed.id}").status_code == 200


@pytest.mark.contract("PAGE-01")
def test_of_many_ended_jobs_the_list_shows_some(job: FolderBlobs) -> None:
    ended = replace(status_in(job), ended=EndNote(0, "DONE", ""))
    page = client(Fixed(*(Listed(f"{number}", "/a", ended) for number in range(ENDED_SHOWN + 2))))
    some, every = (page.get(path).text for path in ("/", "/?all=1"))
    assert (some.count('href="/job/'), every.count('href="/job/')) == (ENDED_SHOWN, ENDED_SHOWN + 2)
    assert "2 more jobs have ended" in some
    assert "more jobs have ended" not in every


@pytest.mark.contract("PAGE-01")
def test_filter_and_newest_first(job: FolderBlobs) -> None:
    status = status_in(job)
    old, new = replace(status, name="old"), replace(status, name="new", committed=status.committed + 1)
    page = client(Fixed(Listed("a", "/a", old), Listed("b", "/b", new)))
    text = page.get("/").text
    assert text.index("/job/b") < text.index("/job/a")
    assert "/job/b" not in page.get("/?q=OLD").text
    failed = replace(old, ended=EndNote(0, "FAILED", "KeyError: 'user'"))
    text = client(Fixed(Listed("a", "/a", failed), Listed("b", "/b", new))).get("/?q=keyerror").text
    assert "/job/a" in text
    assert "/job/b" not in text


@pytest.mark.contract("PAGE-01")
def test_failed_jobs_come_first_and_states_are_filtered(job: FolderBlobs) -> None:
    status = replace(status_in(job), due=None, causes=())
    failed = replace(status, ended=EndNote(0, "FAILED", "KeyError: 'user'"))
    page = client(
        Fixed(
            Listed("a", "/a", replace(status, mode=CommitMode.DONE)),
            Listed("b", "/b", status),
            Listed("c", "/c", failed),
        )
    )
    found = re.findall(r'href="/job/(\w)"', page.get("/").text)
    assert found == ["c", "b", "a"]
    for state, id in (("failed", "c"), ("running", "b"), ("done", "a")):
        text = page.get(f"/?state={state}").text
        assert re.findall(r'href="/job/(\w)"', text) == [id]
        assert f"<option selected>{state}</option>" in text
        assert [each["id"] for each in page.get(f"/json?state={state}").json()] == [id]
    assert "No job of 3 is running and has “zzz” in its name" in page.get("/?state=running&q=zzz").text


@pytest.mark.contract("PAGE-01")
def test_title_and_icon_have_the_state(job: FolderBlobs) -> None:
    status = replace(status_in(job), due=None, causes=())
    failed = replace(status, ended=EndNote(0, "FAILED", "KeyError: 'user'"))
    page = client(
        Fixed(Listed("a", "/a", replace(status, name="words")), Listed("b", "/b", replace(failed, name="words")))
    )
    good, bad = page.get("/job/a").text, page.get("/job/b").text
    assert "<title>OK: words – arcbeam</title>" in good
    assert 'href="/static/icon.svg"' in good
    assert "<title>Failed: words – arcbeam</title>" in bad
    assert 'href="/static/icon-error.svg"' in bad
    assert page.get("/static/icon-error.svg").status_code == page.get("/static/icon-warning.svg").status_code == 200


@pytest.mark.contract("PAGE-01")
def test_each_page_leads_to_its_data_as_json(job: FolderBlobs) -> None:
    status = samples.status(2, samples.now(), backlog=float("inf"))
    jobs = samples.Jobs(Listed("a", "/a", status), histories={"a": samples.history()}, details={"a": {"options": {}}})
    page = client(jobs, "secret")
    assert page.get("/job/a/json").status_code == 401
    page.get("/?token=secret")
    for path in ("/", "/job/a", "/job/a/stage/1", "/job/a/details", "/job/a/history?span=1"):
        (address,) = re.findall('href="([^"]+)">The same data as JSON', page.get(path).text)
        assert page.get(html.unescape(address)).status_code == 200
    found = page.get("/job/a/json").json()
    # JSON has no infinite numbers.
    record = json.loads(json.dumps(as_record(status)))
    assert found["record"] == {**record, "backlog": None}
    assert page.get("/job/a/stage/1/json").json()["stage"] == record["stages"][1]
    assert page.get("/job/a/details/json").json() == {"options": {}}
    assert page.get("/job/z/json").status_code == page.get("/job/a/control/drain/json").status_code == 404


@pytest.mark.contract("PAGE-14")
def test_list_says_how_many_jobs_are_loaded(job: FolderBlobs) -> None:
    class Slow(Fixed):
        unread_jobs = 2_019

        @override
        def unread(self) -> int:
            return self.unread_jobs

    slow = Slow(Listed("a", "/a", status_in(job)))
    page = client(Several(slow, Fixed()))
    assert "1 of 2,020 jobs are loaded." in page.get("/").text
    assert "1 of 2,020 jobs are loaded." in page.get("/?q=nothing").text
    slow.unread_jobs = 0
    assert "are loaded" not in page.get("/").text
    folders = FolderSource([job])
    assert folders.unread() == 1
    assert len(list(folders.jobs())) == 1
    assert folders.unread() == 0


@pytest.mark.contract("PAGE-02")
def test_text_of_users_is_inert(job: FolderBlobs) -> None:
    status = samples.with_cause(
        status_in(job), text=EVIL, released_when=EVIL, since=None, stage=EVIL, name=EVIL, key=EVIL
    )
    stages = tuple(replace(stage, stage=EVIL, why=f'"{EVIL}', blocked=(EVIL,)) for stage in status.stages)
    status = replace(status, name=EVIL, folder=EVIL, due=None, stages=stages)
    failed = replace(status, ended=EndNote(0, "FAILED", EVIL))
    page = client(Fixed(Listed("a", EVIL, status), Listed("b", EVIL, failed), Listed("c", EVIL, None, EVIL)))
    for path in ("/", "/job/a", "/job/b", "/job/c", f"/?q={EVIL}", f"/job/{EVIL}"):
        text = page.get(path).text
        assert "<script" not in OURS.sub("", text)
    assert "&lt;script&gt;" in page.get("/job/a").text


@pytest.mark.contract("PAGE-02")
@pytest.mark.parametrize("path", ["/", "/job/a", "/static/page.css", "/nothing"])
def test_nothing_without_the_token(path: str) -> None:
    page = client(Fixed(), "secret")
    assert page.get(path).status_code == 401
    assert page.get(f"{path}?token=wrong").status_code == 401
    assert page.get(path, headers={"Cookie": f"{COOKIE}-8081=secret"}).status_code == 401


@pytest.mark.contract("PAGE-02")
def test_token_is_given_once() -> None:
    page = client(Fixed(), "secret")
    answer = page.get(f"{BASE}//evil.example/?q=x&token=secret")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/evil.example/?q=x"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secret" not in cookie
    assert page.get("/").status_code == 200


@pytest.mark.contract("PAGE-02")
def test_only_names_of_this_machine_and_only_reading() -> None:
    page = client(Fixed())
    assert page.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert page.get("/", headers={"Host": "localhost:8081"}).status_code == 200
    assert page.put("/").status_code == 405
    assert page.post("/").status_code == 403
    assert page.post("/", headers={"Origin": BASE}).status_code == 405


@pytest.mark.contract("PAGE-02")
@pytest.mark.parametrize("path", ["/", "/static/page.css", "/nothing"])
def test_browser_loads_nothing_from_other_hosts(path: str) -> None:
    answer = client(Fixed()).get(path)
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "http://" not in answer.text
    assert "https://" not in answer.text


@pytest.mark.contract("PAGE-01")
def test_ended_driver_is_the_headline(job: FolderBlobs) -> None:
    record_end(job, EndNote(record_epoch(job), "FAILED", "no such key"))
    line = headline(status_in(job))
    assert "no such key" in line.text
    assert replace(line, text="").level == "error"


@pytest.mark.contract("PAGE-01")
def test_stage_held_by_one_above_names_it() -> None:
    status = samples.status(4, samples.now())
    first, *others = (row.why for row in stage_rows(status))
    held = status.causes[0]
    assert first.text.startswith("restriction of element 'EWR' in shard 3")
    assert first.hint == held.text
    assert {why.text for why in others} == {"by Read/Poll/Process"}
    status = samples.with_cause(status, text=f"{held.text.partition(': ')[0]}: state 'a\n{'b' * 500}'")
    text = next(stage_rows(status)).why.text
    assert (len(text), text[:11], text[-1]) == (160, "state 'a bb", "…")
    status = replace(status, causes=())
    assert next(stage_rows(status)).why.text == status.stages[0].why
    assert client(Fixed(Listed("a", "/a", status))).get("/job/a").text.count(">held: <") == 4


@pytest.mark.contract("PAGE-01")
@pytest.mark.parametrize(("seconds", "ahead"), [(20, 0), (300, 3_600)])
def test_stage_whose_watermark_moves_is_not_shown_as_held(seconds: int, ahead: int) -> None:
    now = samples.now()
    moved = Since(40, Timestamp(now - seconds * 1_000_000))
    status = samples.with_cause(samples.status(4, now), since=moved, time=now + (ahead - 90) * 1_000_000)
    assert not any(row.is_held for row in stage_rows(status))
    text = client(Fixed(Listed("a", "/a", status))).get("/job/a").text
    assert (text.count(">OK, limited: <"), text.count(">held: <")) == (4, 0)
    # If it has not moved for long and is due, it holds the stages below, too.
    late = Since(40, Timestamp(now - 300_000_000))
    status = samples.with_cause(status, since=late, time=now - 310_000_000)
    assert all(row.is_held for row in stage_rows(status))
