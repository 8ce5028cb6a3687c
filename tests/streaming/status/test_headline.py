"""The headline of a job in each condition: `arcbeam status`, its JSON and the page begin with it."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from arcbeam.cli.status import _show
from arcbeam.console.output import JsonOutput, TextOutput
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.page.app import app_of
from arcbeam.page.sources import Listed
from arcbeam.store.log.endnote import EndNote
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.reasons import CauseKind
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import Status
from tests.golden.texts import check_message
from tests.page import samples
from tests.page.test_app import BASE

NOW = samples.NOW
_SECOND = 1_000_000
FOLDER = "/data/it's a job"


def _job(**changes: Any) -> Status:
    return samples.status(3, NOW, folder=FOLDER, **changes)


def _cause(seconds: int = 190, **changes: Any) -> dict[str, Any]:
    since = Since(40, Timestamp(NOW - seconds * _SECOND))
    return {"causes": samples.with_cause(samples.status(3, NOW), since=since, **changes).causes}


def _driver(**changes: Any) -> dict[str, Any]:
    return {"driver": samples.driver(NOW, **changes)}


def _conditions() -> Iterator[tuple[str, Status]]:
    why = "KeyError: 'user' [while running 'Sum/Map(total)']\n\nTraceback (most recent call last):\n  in total"
    failed = EndNote(0, "FAILED", why, NOW)
    yield "failed", _job(ended=failed)
    yield "failed-at-first", _job(ended=failed, micro_batch=0, causes=())
    yield "failed-with-transform-below", _job(ended=replace(failed, why="a task failed\nin transform 'Sum'"))
    yield "failed-without-job-graph", _job(ended=failed, job_graph=False)
    yield "failed-of-a-server", samples.status(3, NOW, folder="", ended=failed)
    yield "cancelled", _job(ended=EndNote(0, "CANCELLED"))
    yield "killed", _job(**_driver(time=NOW - 45 * _SECOND))
    yield "overdue", _job(driver=None, due=NOW - 90 * _SECOND)
    yield "suspended", _job(mode=CommitMode.SUSPENDED, driver=None)
    yield "drained", _job(mode=CommitMode.DRAINED, driver=None, causes=())
    yield "draining", _job(mode=CommitMode.DRAINING)
    yield "blocked", _job(**_cause())
    failing = "micro-batch 42: KeyError: 'user', in transform 'Sum'"
    released_when = "a try of the micro-batch succeeds; the job fails after the last try"
    yield "tries-again", _job(**_cause(kind=CauseKind.FAILURE, stage="Sum", text=failing, released_when=released_when))
    yield "slow", _job(**_driver(doing="running micro-batch 42 for 300 s"), **_cause(310))
    yield "healthy", _job(**_cause(3))
    yield "starting", _job(micro_batch=0, causes=(), time=NOW - 4 * _SECOND)


@pytest.mark.parametrize(("condition", "status"), list(_conditions()))
def test_status_json_and_page_begin_with_the_headline(
    condition: str, status: Status, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW / 1e6)
    line = headline(status)
    check_message(f"headline-{condition}", line.line)
    _show(TextOutput(), lambda: status, watch=False, every=1)
    assert capsys.readouterr().out.splitlines()[0] == line.line
    _show(JsonOutput(), lambda: status, watch=False, every=1)
    assert json.loads(capsys.readouterr().out)["headline"] == line.as_record()
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE)
    (shown,) = re.findall(r'<p class="headline[^>]*>(.*?)</p>', page.get("/job/a").text, re.S)
    # Times within the text are marked, for the viewer's time zone.
    words = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"</?time\b[^>]*>", "", shown)))
    for part in (line.word, line.text, line.since, line.released_when, line.remedy):
        assert part in words


def test_micro_batch_is_slow_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW / 1e6)
    doing = "running micro-batch 42 for {} s"
    assert headline(_job(**_driver(doing=doing.format(59)))).label != "Slow"
    assert headline(_job(**_driver(doing=doing.format(60)))).label == "Slow"
    note = _driver(doing=doing.format(50), time=NOW - 12 * _SECOND)
    assert headline(_job(**note, time=NOW - 60 * _SECOND)).label == "Slow"
    assert headline(_job(**_driver(doing=doing.format(99)), micro_batch=42)).label != "Slow", "it is committed"
    trouble = _cause(kind=CauseKind.DRIVER, text="no task has run", stage="")
    assert headline(_job(**_driver(doing=doing.format(99)), **trouble)).text == "no task has run"


HOSTILE = "\x1b[2J\u202egnirts"


def test_nothing_obeys_the_text_of_users(capsys: pytest.CaptureFixture[str]) -> None:
    status = _job(name=HOSTILE, ended=EndNote(0, "FAILED", f"KeyError: {HOSTILE}"), **_cause())
    status = samples.with_stage(status, 0, stage=f"[bold]{HOSTILE}")
    _show(TextOutput(), lambda: status, watch=False, every=1)
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE)
    printed = capsys.readouterr().out
    for text in (printed, *(page.get(path).text for path in ("/", "/job/a", "/job/a/stage/0"))):
        assert not {"\x1b", "\u202e"} & set(text)
        assert "\\x1b[2J\\u202egnirts" in text
    assert "[bold]" in printed


def test_long_error_is_short_in_the_list() -> None:
    status = _job(ended=EndNote(0, "FAILED", "KeyError: " + "x" * 2_000))
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status))), base_url=BASE)
    assert "x" * 140 in page.get("/").text
    assert "x" * 200 not in page.get("/").text
    assert "x" * 2_000 in page.get("/job/a").text
