"""Control of jobs: confirmations, forms, and what a forged or repeated form does."""

from __future__ import annotations

import re
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.page.app import app_of
from arcbeam.page.control import _KEPT, Operation, Operations, allowed, not_changeable, not_now
from arcbeam.page.sources import Control, FolderSource, Listed, Savepoints
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.inspection import SavepointReport
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
from arcbeam.streaming.status.folder import status_in
from tests.page import samples
from tests.page.test_app import BASE, EVIL, Fixed, client, job  # noqa: F401  # a fixture
from tests.waiting import until

pytestmark = pytest.mark.contract("PAGE-04")

ORIGIN = {"Origin": BASE}
EVERY = tuple(RequestKind(what) for what in ("savepoint", "suspend", "drain", "cancel"))


class Noted(Control):
    """Notes requests; answers when it may."""

    def __init__(self, refusal: str = "") -> None:
        self.requested: list[tuple[RequestKind, str]] = []
        self.go, self._refusal = threading.Event(), refusal

    @override
    def request(self, what: RequestKind, name: str, seconds: float, /) -> str:
        self.requested.append((what, name))
        assert self.go.wait(10)
        if self._refusal:
            raise RequestRefusedError(self._refusal, "wait")
        return f"/jobs/a/savepoints/{name}"


class Controlled(Fixed):
    def __init__(self, control: Control, *found: Listed) -> None:
        super().__init__(*found)
        self._control = control

    @override
    def control(self, id: str) -> Control | None:
        return self._control


class Renamed(Savepoints):
    """Notes changes of savepoints."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []

    @override
    def change(self, name: str, new: str, seconds: float, /) -> None:
        self.changes.append((name, new))


class Saved(Controlled):
    """A job with savepoints."""

    def __init__(self, *found: Listed) -> None:
        super().__init__(Noted(), *found)
        self.renamed = Renamed()

    @override
    def savepoints(self, id: str) -> Savepoints | None:
        return self.renamed if self.job(id) is not None else None

    @override
    def details(self, id: str) -> dict[str, Any]:
        saved = asdict(SavepointReport("before", 3, Timestamp(5), "running"))
        return {"savepoints": [{**saved, "job_graph": {"id": "g"}, "path": "/a/savepoints/before"}]}


def running(folder: FolderBlobs, **change: Any) -> Listed:
    usual = {"due": None, "mode": CommitMode.RUNNING, "job_graph": True}
    return Listed("a", "/a", replace(status_in(folder), **{**usual, **change}))


def fields(text: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))


def result(page: TestClient, address: str, expected: str) -> str:
    return until(lambda: text if expected in (text := page.get(address).text) else None, expected)


def ended_operation(operations: Operations, number: str) -> Operation:
    def found() -> Operation | None:
        of = operations.get(number)
        return None if of is None or of.state == "running" else of

    return until(found, f"the end of {number}")


@pytest.mark.parametrize("what", EVERY)
def test_confirmation_says_what_happens(job: FolderBlobs, what: RequestKind) -> None:  # noqa: F811
    control = Noted()
    page = client(Controlled(control, running(job)))
    assert f'href="/job/a/control/{what}"' in page.get("/job/a").text
    text = page.get(f"/job/a/control/{what}").text
    assert all(f"<dt>{name}</dt>" in text for name in ("windows and timers", "part files", "state"))
    assert "arcbeam " in text or "submit" in text
    # It is followed; without JavaScript it says from when it is, and what is typed stays.
    assert 'data-version="' in text
    assert "<noscript><p" in text
    assert "http-equiv" not in text
    assert control.requested == []


def test_request_that_a_page_shows_does_not_change() -> None:
    operations, go = Operations(), threading.Event()

    def call() -> str:
        assert go.wait(10)
        return "done so"

    operations.begin("1", "a", RequestKind.DRAIN, call)
    shown = operations.get("1")
    go.set()
    ended = ended_operation(operations, "1")
    assert (ended.state, ended.text) == ("done", "done so")
    assert shown is not None
    assert (shown.state, shown.text) == ("running", "")


@pytest.mark.parametrize("refused", [False, True])
def test_request_that_has_ended_does_not_begin_again(refused: bool) -> None:
    operations, calls = Operations(), list[str]()

    def call() -> str:
        calls.append("call")
        if refused:
            raise RequestRefusedError("the job drains")
        return "done so"

    operations.begin("1", "a", RequestKind.DRAIN, call)
    first = ended_operation(operations, "1")
    assert first.state == ("refused" if refused else "done")
    operations.begin("1", "a", RequestKind.DRAIN, call)
    assert operations.get("1") is first
    # Another form is another request, of the same kind, too.
    operations.begin("2", "a", RequestKind.DRAIN, call)
    assert ended_operation(operations, "2") == first
    assert calls == ["call", "call"]


def test_forgotten_request_does_not_begin_again() -> None:
    operations, calls = Operations(), list[str]()

    def call() -> str:
        calls.append("call")
        return "done so"

    numbers = [operations.new() for _ in range(2 * _KEPT + 2)]
    sent = [numbers[0], *numbers[2:]]
    for number in sent:
        operations.begin(number, "a", RequestKind.DRAIN, call)
        ended_operation(operations, number)
    assert operations.get(numbers[0]) is None
    # The second was never sent, but nothing can tell.
    for number in numbers[:2]:
        operations.begin(number, "a", RequestKind.DRAIN, call)
        refused = operations.get(number)
        assert refused is not None
        assert (refused.state, refused.remedy) == ("refused", "open it again")
    assert len(calls) == len(sent)
    newest = operations.new()
    operations.begin(newest, "a", RequestKind.DRAIN, call)
    assert operations.get(newest) is not None
    assert operations.get(newest) != refused


@pytest.mark.parametrize("what", EVERY)
def test_form_sent_again_after_its_end_asks_once(job: FolderBlobs, what: RequestKind) -> None:  # noqa: F811
    control = Noted()
    control.go.set()
    page = client(Controlled(control, running(job)))
    form = fields(page.get(f"/job/a/control/{what}").text) | {"name": "before"}
    for _ in range(2):
        answer = page.post(f"/job/a/control/{what}", data=form, headers=ORIGIN)
        assert answer.status_code == 303
        result(page, answer.headers["location"], "The request is done")
    assert control.requested == [(what, "before")]


@pytest.mark.parametrize("what", EVERY)
def test_form_sent_twice_asks_once(job: FolderBlobs, what: RequestKind) -> None:  # noqa: F811
    control = Noted()
    page = client(Controlled(control, running(job)))
    form = fields(page.get(f"/job/a/control/{what}").text) | {"name": "before"}
    answers = [page.post(f"/job/a/control/{what}", data=form, headers=ORIGIN) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {303}
    (address,) = {answer.headers["location"] for answer in answers}
    assert 'http-equiv="refresh"' in page.get(address).text
    control.go.set()
    text = result(page, address, "The request is done")
    assert "refresh" not in text
    assert control.requested == [(what, "before")]
    commands = {
        RequestKind.SAVEPOINT: "arcbeam resume /jobs/a/savepoints/before --discard_later_micro_batches",
        # Repeated after a later failure, it must not go back to the savepoint.
        RequestKind.SUSPEND: "arcbeam resume /jobs/a",
    }
    assert re.findall("arcbeam resume [^<]*", text) == [commands[each] for each in commands if each is what]


def test_refusal_shows_its_reason(job: FolderBlobs) -> None:  # noqa: F811
    control = Noted(f"cannot suspend the job: {EVIL}")
    control.go.set()
    page = client(Controlled(control, running(job)))
    form = fields(page.get("/job/a/control/suspend").text)
    address = page.post("/job/a/control/suspend", data=form, headers=ORIGIN).headers["location"]
    text = result(page, address, "The request is refused")
    assert "cannot suspend the job: &lt;script&gt;" in text
    assert "what to do: wait" in text
    assert page.get(address.replace("/a/", "/b/")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "change"),
    [
        ({}, {}),
        ({"Origin": "null"}, {}),
        ({"Origin": "http://evil.example"}, {}),
        ({"Origin": "http://127.0.0.1:9999"}, {}),
        (ORIGIN, {"form_token": "0"}),
        (ORIGIN, {"form_token": ""}),
        (ORIGIN, {"number": "another"}),
    ],
)
def test_forged_form_does_nothing(job: FolderBlobs, headers: dict[str, str], change: dict[str, str]) -> None:  # noqa: F811
    control = Noted()
    page = client(Controlled(control, running(job)))
    form = fields(page.get("/job/a/control/cancel").text) | change
    assert page.post("/job/a/control/cancel", data=form, headers=headers).status_code == 403
    other = fields(page.get("/job/a/control/savepoint").text)
    assert page.post("/job/a/control/cancel", data=other, headers=ORIGIN).status_code == 403
    assert page.post("/job/b/control/savepoint", data=other, headers=ORIGIN).status_code == 403
    assert control.requested == []


def test_form_of_another_session_does_nothing(job: FolderBlobs) -> None:  # noqa: F811
    control = Noted()
    app = app_of(Controlled(control, running(job)), "secret")
    mine = TestClient(app, base_url=BASE, follow_redirects=False)
    mine.get("/?token=secret")
    form = fields(mine.get("/job/a/control/cancel").text)
    other = TestClient(app, base_url=BASE, follow_redirects=False)
    assert other.post("/job/a/control/cancel", data=form, headers=ORIGIN).status_code == 401
    assert control.requested == []


def test_requests_fit_the_state(job: FolderBlobs) -> None:  # noqa: F811
    live = running(job)
    assert allowed(live) == EVERY
    assert allowed(running(job, mode=CommitMode.DRAINING)) == (RequestKind.CANCEL,)
    assert allowed(running(job, mode=CommitMode.SUSPENDED)) == allowed(running(job, mode=CommitMode.DONE)) == ()
    assert allowed(running(job, ended=EndNote(0, "FAILED", ""))) == ()
    assert allowed(Listed("a", "a", None, state="RUNNING")) == (RequestKind.CANCEL,)
    assert allowed(Listed("a", "a", live.status, state="RUNNING", silent=3.0)) == ()
    page = client(Controlled(Noted(), running(job, mode=CommitMode.DONE)))
    assert "No longer" in page.get("/job/a/control/drain").text
    assert page.get("/job/a/control/delete").status_code == 404
    assert "Draining" in client(Fixed(running(job, mode=CommitMode.DRAINING))).get("/job/a").text


def test_without_a_job_graph_nothing_names_a_resume(job: FolderBlobs) -> None:  # noqa: F811
    control = Noted()
    control.go.set()
    for change in (
        {},
        {"driver": samples.driver(0)},
        {"due": 1},
        {"mode": CommitMode.SUSPENDED},
        {"ended": EndNote(0, "FAILED", "")},
        {"ended": EndNote(0, "CANCELLED", "")},
    ):
        page = client(Controlled(control, running(job, job_graph=False, **change)))
        texts = [page.get("/job/a").text, *(page.get(f"/job/a/control/{what}").text for what in EVERY)]
        assert not any("arcbeam resume" in text for text in texts), change
        assert change == {} or "run its script again with its --checkpoint_dir" in texts[0], change
    page = client(Controlled(control, running(job, job_graph=False)))
    for what, words in (
        (RequestKind.SAVEPOINT, "with --from_savepoint"),
        (RequestKind.SUSPEND, "again with its --checkpoint_dir"),
    ):
        form = fields(page.get(f"/job/a/control/{what}").text)
        address = page.post(f"/job/a/control/{what}", data=form, headers=ORIGIN).headers["location"]
        assert f"run its script {words}" in result(page, address, "The request is done")
    # The fixture's driver stores none.
    assert status_in(job).job_graph is False


@pytest.mark.parametrize(
    ("change", "why", "waits"),
    [
        ({"ended": EndNote(0, "CANCELLED", "")}, "the job is cancelled", False),
        ({"ended": EndNote(0, "FAILED", "")}, "the job has failed", False),
        ({"mode": CommitMode.DRAINED}, "the job is drained", False),
        ({"mode": CommitMode.SUSPENDED}, "the job is suspended", True),
    ],
)
def test_dialog_says_why_a_job_cannot(
    job: FolderBlobs,  # noqa: F811
    change: dict[str, Any],
    why: str,
    waits: bool,
) -> None:
    listed = running(job, **change)
    for what in EVERY:
        text = client(Controlled(Noted(), listed)).get(f"/job/a/control/{what}").text
        assert f"in its present state: {why}.</p>" in text
        assert ("<strong>Not now</strong>" in text, "<strong>No longer</strong>" in text) == (waits, not waits)
    away = replace(running(job), state="RUNNING", silent=3.0)
    assert not_now(away) == "there is no contact with its service"
    assert not_now(Listed("a", "a", None, state="STOPPED")) == "the job is stopped"


def test_requests_that_would_be_refused_are_disabled(job: FolderBlobs) -> None:  # noqa: F811
    dead = running(job, driver=samples.driver(0))
    assert allowed(dead) == ()
    text = client(Fixed(dead)).get("/job/a").text
    assert text.count("<button disabled") == len(EVERY)
    assert "a request would get no answer</span>" in text
    assert "a request would get no answer" in client(Fixed(dead)).get("/job/a/control/drain").text
    # Its service can end its process.
    assert allowed(replace(dead, state="RUNNING")) == (RequestKind.CANCEL,)
    text = client(Fixed(running(job, mode=CommitMode.DRAINING))).get("/job/a").text
    assert text.count("<button disabled") == len(EVERY) - 1
    assert "the job drains already</span>" in text
    assert "<button disabled" not in client(Fixed(running(job))).get("/job/a").text
    assert "<button disabled" not in client(Fixed(running(job, mode=CommitMode.DONE))).get("/job/a").text


def test_request_to_folder_is_answered_by_its_driver(job: FolderBlobs) -> None:  # noqa: F811
    source = FolderSource([job])
    (listed,) = source.jobs()
    page = client(source)
    form = fields(page.get(f"/job/{listed.id}/control/savepoint").text) | {"name": "before"}
    address = page.post(f"/job/{listed.id}/control/savepoint", data=form, headers=ORIGIN).headers["location"]
    (waiting, *_) = until(lambda: requests.waiting(job), "the request")
    requested = requests.read(job, waiting)
    assert requested is not None
    assert (requested.what, requested.savepoint) == (RequestKind.SAVEPOINT, "before")
    requests.answer(job, requested.id, Answer(AnswerKind.REFUSED, "it has no state"))
    assert "it has no state" in result(page, address, "The request is refused")


@pytest.mark.parametrize(("what", "new"), [("rename", "after"), ("delete", "")])
def test_savepoint_is_changed_once_after_a_confirmation(job: FolderBlobs, what: str, new: str) -> None:  # noqa: F811
    source = Saved(running(job))
    page = client(source)
    path = f"/job/a/savepoint/before/{what}"
    assert f'href="{path}"' in page.get("/job/a/details").text
    text = page.get(path).text
    assert f"arcbeam savepoints {source.job('a').status.folder} {what} before" in text  # type: ignore[index, union-attr]
    assert ('name="name"' in text) == bool(new)
    form = fields(text) | ({"name": new} if new else {})
    assert source.renamed.changes == []
    for _ in range(2):
        address = page.post(path, data=form, headers=ORIGIN).headers["location"]
        text = result(page, address, "The request is done")
    assert source.renamed.changes == [("before", new)]
    assert (f"renamed to &#39;{new}&#39;" if new else "is deleted") in text


def test_forged_change_of_a_savepoint_does_nothing(job: FolderBlobs) -> None:  # noqa: F811
    source = Saved(running(job))
    page = client(source)
    form = fields(page.get("/job/a/savepoint/before/delete").text)
    for path, change, code in (
        ("before/delete", {"form_token": "0"}, 403),
        ("after/delete", {}, 403),
        ("before/rename", {"name": "x"}, 403),
        ("before/delete", {"name": "x"}, 400),
    ):
        assert page.post(f"/job/a/savepoint/{path}", data=form | change, headers=ORIGIN).status_code == code
    assert page.post("/job/a/savepoint/before/delete", data=form).status_code == 403
    rename = fields(page.get("/job/a/savepoint/before/rename").text)
    assert page.post("/job/a/savepoint/before/rename", data=rename, headers=ORIGIN).status_code == 400
    assert page.get("/job/a/savepoint/before/copy").status_code == 404
    assert EVIL not in page.get(f"/job/a/savepoint/{EVIL.replace('/', '')}/delete").text
    assert source.renamed.changes == []
    # A source that cannot reach the job's folder does not offer it.
    assert client(Fixed(running(job))).get("/job/a/savepoint/before/delete").status_code == 404


def test_savepoints_are_changed_while_a_driver_runs_or_the_job_is_stopped(job: FolderBlobs) -> None:  # noqa: F811
    for mode in set(CommitMode) - {CommitMode.DRAINING}:
        assert not_changeable(running(job, mode=mode)) == "", mode
    failed = running(job, ended=EndNote(0, "FAILED", ""))
    assert not_changeable(failed) == "the job has failed"
    assert (
        "in its present state: the job has failed.</p>" in client(Saved(failed)).get("/job/a/savepoint/b/delete").text
    )
    assert not_changeable(Listed("a", "a", None, state="RUNNING"))


def test_change_of_a_savepoint_is_a_request_to_the_driver(job: FolderBlobs) -> None:  # noqa: F811
    source = FolderSource([job])
    (listed,) = source.jobs()
    page, path = client(source), f"/job/{listed.id}/savepoint/nothing/delete"
    address = page.post(path, data=fields(page.get(path).text), headers=ORIGIN).headers["location"]
    assert "no savepoint &#39;nothing&#39;" in result(page, address, "The request is refused")


def test_without_token_only_the_login_answers(tmp_path: Path) -> None:
    app = app_of(Fixed(), "secret")
    page = TestClient(app, base_url=BASE, follow_redirects=False)
    paths = [
        re.sub(r"\{(\w+)(:\w+)?\}", "x", path).replace("/static", "/static/page.css")
        for route in app.routes
        if (path := getattr(route, "path", None)) is not None
    ]
    assert {"/", "/job/x", "/static/page.css", "/job/x/control/x"} <= set(paths)
    for path in [*paths, "/nothing", "/metrics"]:
        assert page.get(path).status_code == 401, path
        assert page.post(path, headers=ORIGIN).status_code == 401, path
    assert page.get("/login").status_code == 200
    style = page.get("/login?style")
    assert (style.status_code, style.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "color-scheme" in style.text
    assert page.post("/login", data={"token": "wrong"}, headers=ORIGIN).status_code == 401
    assert page.post("/login", data={"token": "secret"}).status_code == 403
    answer = page.post("/login", data={"token": "secret"}, headers=ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert page.get("/").status_code == 200
