"""Requests that a user makes in a browser, with and without JavaScript; in chromium, without a network."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import pytest

from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import Listed
from tests.page import samples
from tests.page.test_browser import (
    CHROMIUM,
    TITLES,
    api,
    assert_accessible_and_fits,
    browser,  # noqa: F401  # a fixture
)
from tests.page.test_control import EVERY, Controlled, Noted, Saved

pytestmark = [
    pytest.mark.contract("PAGE-04"),
    pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium: apt-get install chromium"),
]

_NARROW: Final = {"width": 320, "height": 700}


@pytest.mark.parametrize("javascript", [True, False])
def test_savepoints_are_renamed_and_their_commands_copied(browser: Any, javascript: bool) -> None:  # noqa: F811
    status = samples.status(3, samples.now(), job_graph=True)
    source = Saved(Listed("a", "/data/flights", status))
    with (
        PageServer(source, PageSettings(insecure=True)) as server,
        contextlib.closing(browser.new_context(java_script_enabled=javascript, viewport=_NARROW)) as context,
    ):
        page = context.new_page()
        page.goto(f"{server.address}job/a/details")
        copy = page.locator("text=Copy")
        if javascript:
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            copy.click()
            api.expect(page.locator(".copy")).to_have_text("Copied")
            assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#savepoints code")
        else:
            api.expect(copy).to_be_hidden()
        page.click("text=Rename")
        if javascript:
            assert_accessible_and_fits(page, 320)
        page.fill("#name", "after")
        page.click("button")
        api.expect(page.locator("#result")).to_contain_text("is renamed to 'after'", timeout=20_000)
    assert source.renamed.changes == [("before", "after")]


@pytest.mark.parametrize("javascript", [True, False])
def test_requests_are_made_by_clicks(browser: Any, javascript: bool) -> None:  # noqa: F811
    control = Noted()
    control.go.set()
    source = Controlled(control, Listed("a", "/data/flights", samples.status(3, samples.now())))
    with PageServer(source, PageSettings(insecure=True)) as server:
        page = browser.new_page(java_script_enabled=javascript, viewport=_NARROW)
        for title, what in zip(TITLES, EVERY, strict=True):
            if not javascript and what != "drain":
                continue
            page.goto(f"{server.address}job/a")
            page.click(f"text={title}")
            page.click("text=Back, change nothing")
            page.click(f"text={title}")
            page.press("body", "Escape")
            if what == "savepoint":
                assert_accessible_and_fits(page, 320)
            assert what not in [each for each, _ in control.requested]
            page.locator("button").dblclick()
            # The second click may abort the navigation of the first one.
            api.expect(page).to_have_url(re.compile(r"/job/a/request/"))
            api.expect(page.locator("#result")).to_contain_text("The request is done", timeout=20_000)
        page.close()
    assert [what for what, _ in control.requested] == (list(EVERY) if javascript else ["drain"])
