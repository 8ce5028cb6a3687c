"""The pages of samples: the form, the wait, the elements, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient
from typing_extensions import override

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.page.sources import Listed, Record
from tests.page import samples
from tests.page.test_app import EVIL, client
from tests.page.test_control import ORIGIN, fields, result

pytestmark = pytest.mark.contract("PAGE-15")

AT = "/job/a/stage/1/sample"


class Sampled(samples.Jobs):
    """Has samples when it may."""

    def __init__(self, refusal: str = "", **changes: Any) -> None:
        super().__init__(Listed("a", "/a", samples.status(3, samples.now(), **changes)))
        self.requested: list[tuple[str, str]] = []
        self.go, self._refusal = threading.Event(), refusal

    @override
    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        self.requested.append((id, stage))
        assert self.go.wait(10)
        if self._refusal:
            raise RequestRefusedError(self._refusal, "start it with --page_samples")
        element = {"value": EVIL, "time": 99_000_000, "windows": ["GlobalWindow"], "pane": "on time, number 0"}
        failure = {"transform": "Divide", "error": f"ValueError: {EVIL}", "value": "7"}
        return [{"output": "Sum", "elements": [element]}, {"output": "Divide", "failure": failure}]


def begun(page: TestClient) -> str:
    form = fields(page.get(AT).text)
    answers = [page.post(AT, data=form, headers=ORIGIN) for _ in range(2)]
    (address,) = {answer.headers["location"] for answer in answers}
    return str(address)


def test_elements_are_shown_when_they_are_there() -> None:
    jobs = Sampled()
    page = client(jobs)
    assert f'href="{AT}"' in page.get("/job/a/stage/1").text
    address = begun(page)
    waiting = page.get(address).text
    assert "Waiting for elements" in waiting
    version = waiting.partition('data-version="')[2].partition('"')[0]
    jobs.go.set()
    text = result(page, address, "Take samples again")
    assert jobs.requested == [("a", jobs.found["a"].status.stages[1].stage)]  # type: ignore[union-attr]
    assert "<script" not in text.partition("<main>")[2]
    assert "&lt;script&gt;" in text
    for words in ("1970-01-01 00:01:39.000Z", "GlobalWindow", "on time, number 0", "with element <code>7</code>"):
        assert words in text
    # An open page gets all of it in an update, too.
    assert "Take samples again" in page.get(f"{address}/events", params={"version": version}).text


def test_refusal_shows_its_reason() -> None:
    jobs = Sampled(f"cannot take samples: {EVIL}")
    jobs.go.set()
    page = client(jobs)
    text = result(page, begun(page), "No samples")
    assert "cannot take samples: &lt;script&gt;" in text
    assert "what to do: start it with --page_samples" in text


def test_forged_forms_and_unknown_stages_do_nothing() -> None:
    jobs = Sampled()
    page = client(jobs)
    form = fields(page.get(AT).text)
    assert page.post(AT, data=form).status_code == 403
    assert page.post(AT, data=form | {"form_token": "0"}, headers=ORIGIN).status_code == 403
    assert page.post(AT.replace("/1/", "/0/"), data=form, headers=ORIGIN).status_code == 403
    assert page.post(AT.replace("/1/", "/9/"), data=form, headers=ORIGIN).status_code == 404
    assert page.get(f"{AT}/none").status_code == 404
    assert jobs.requested == []


def test_job_that_has_ended_offers_none() -> None:
    page = client(Sampled(mode=CommitMode.DONE))
    assert "Take samples" not in page.get("/job/a/stage/1").text
    assert "Take samples" not in page.get(AT).text


def test_job_without_the_option_says_so() -> None:
    page = client(Sampled(driver=replace(samples.driver(samples.now()), samples=False)))
    for path in ("/job/a/stage/1", AT):
        text = page.get(path).text
        assert "--page_samples" in text
        assert "Take samples" not in text
