"""Requests clicked in a real browser on a running job; what they do, and what they do not, is checked in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.model.commits import CommitMode
from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.endnote import note_of
from arcbeam.store.manifest.names import ANSWERS, REQUESTS
from tests.page.running.test_running_jobs import head
from tests.page.test_browser import CHROMIUM, api, browser  # noqa: F401  # a fixture
from tests.spark.streaming.fed import fed, feed
from tests.waiting import until

pytestmark = [
    pytest.mark.contract("PAGE-04", "PAGE-13"),
    pytest.mark.usefixtures("spark"),
    pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium: apt-get install chromium"),
]

_FORGED = "document.forms[0].outerHTML.replace('action=\"', 'action=\"' + location.origin)"


def _run(folder: Path) -> Any:
    """Run a small streaming job, and return its result once a micro-batch is committed."""
    options = ["--streaming", "--shards=1", f"--checkpoint_dir={folder / 'job'}"]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
    _ = fed(p, folder / "source") | "Keep" >> beam.Map(lambda n: n)
    job: Any = p.run()
    until(lambda: job.status() is not None and job.status().micro_batch > 0 and job.state == "RUNNING")
    return job


def _requested(folder: Path) -> list[str]:
    """The requests in the folder that no driver has settled, and the answers that were not read."""
    return [str(path) for name in (REQUESTS, ANSWERS) for path in (folder / "job" / name).glob("*") if path.is_file()]


def _open(page: Any, address: str, title: str) -> None:
    """Go to the job, and open the dialog of a request."""
    page.goto(address)
    page.click("tbody a")
    page.click(f"text={title}")
    api.expect(page.locator("h1")).to_contain_text(title)


def _click(page: Any, address: str, title: str) -> str:
    """Make a request by a double click, and return what the page says when it is done."""
    _open(page, address, title)
    page.locator("button.danger").dblclick()
    page.wait_for_url("**/request/*")
    api.expect(page.locator("#result")).to_contain_text("The request is done", timeout=60_000)
    return str(page.inner_text("#result"))


def test_clicks_save_and_suspend_a_running_job(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    feed(tmp_path / "source", 5)
    folder = tmp_path / "job"
    job = _run(tmp_path)
    with PageServer(FolderSource([FolderBlobs(folder, sync=False)]), PageSettings(insecure=True)) as server:
        page = browser.new_page()
        for title in ("Take a savepoint", "Suspend the job", "Drain the job", "Cancel the job"):
            _open(page, server.address, title)
            page.keyboard.press("Escape")
            forged = page.evaluate(_FORGED)
            page.click("text=Back, change nothing")
            page.goto("about:blank")
            page.set_content(forged)
            page.locator("button").click()
            api.expect(page.locator("body")).to_contain_text("nothing was done")
        before = head(folder)
        until(lambda: head(folder).micro_batch > before.micro_batch)
        assert (head(folder).pins, head(folder).mode, job.state) == ((), CommitMode.RUNNING, "RUNNING")
        assert _requested(tmp_path) == []

        reported = _click(page, server.address, "Take a savepoint")
        (pin,) = head(folder).pins
        assert f"arcbeam resume {folder}/savepoints/{pin.name} --discard_later_micro_batches" in reported
        assert (head(folder).mode, job.state) == (CommitMode.RUNNING, "RUNNING")

        reported = _click(page, server.address, "Suspend the job")
        assert job.wait_until_finish() == "STOPPED"
        assert head(folder).mode is CommitMode.SUSPENDED
        # What a second click had requested would be here, too.
        first, second = head(folder).pins
        assert (first.name, f"arcbeam resume {folder}/savepoints" in reported) == (pin.name, False)
        assert reported.endswith(f"To continue: arcbeam resume {folder}")
        assert second.micro_batch == head(folder).micro_batch
        page.close()


@pytest.mark.long
def test_click_drains_a_running_job(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    feed(tmp_path / "source", 5)
    job, blobs = _run(tmp_path), FolderBlobs(tmp_path / "job", sync=False)
    with PageServer(FolderSource([blobs]), PageSettings(insecure=True)) as server:
        page = browser.new_page()
        _click(page, server.address, "Drain the job")
        assert job.wait_until_finish() == "DRAINED"
        assert head(tmp_path / "job").mode is CommitMode.DRAINED
        page.goto(server.address)
        api.expect(page.locator("tbody")).to_contain_text("The job has ended: it is drained.")
        page.close()


@pytest.mark.long
def test_click_cancels_a_running_job(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    feed(tmp_path / "source", 5)
    job, blobs = _run(tmp_path), FolderBlobs(tmp_path / "job", sync=False)
    with PageServer(FolderSource([blobs]), PageSettings(insecure=True)) as server:
        page = browser.new_page()
        _click(page, server.address, "Cancel the job")
        assert job.wait_until_finish() == "CANCELLED"
        note = note_of(blobs, head(tmp_path / "job"))
        assert note is not None
        assert note.state == "CANCELLED"
        page.goto(server.address)
        api.expect(page.locator("tbody")).to_contain_text("The job was cancelled.")
        page.close()
    assert head(tmp_path / "job").mode is CommitMode.RUNNING
