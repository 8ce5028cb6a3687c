"""A driver that is killed with -9: the page reports soon after the next note of the driver is overdue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.streaming.status import words
from arcbeam.streaming.status.folder import status_in
from tests.waiting import until

LATEST = 5.0
"""Seconds, as the page promises."""

_DRIVER = """
import sys
from pathlib import Path
from arcbeam.streaming.interfaces import JobListener
from arcbeam.streaming.driver import heartbeat
from tests.spark.streaming.inprocess import run_of, without_spark
from tests.spark.streaming.test_stuck import grouped, numbers

heartbeat._BUSY_SECONDS = heartbeat._IDLE_SECONDS = 1.0
with without_spark():
    run_of(lambda p: grouped(numbers(p, "Meter")), Path(sys.argv[1]), JobListener()).run()
"""


@pytest.mark.contract("PAGE-01", "PAGE-11")
def test_killed_driver_is_reported_soon_after_it_is_overdue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_LATE_NOTE", 1.0)  # instead of 20 s
    blobs = FolderBlobs(tmp_path / "job", sync=False)
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)], stderr=subprocess.DEVNULL)
    stop = threading.Timer(60, driver.kill)
    stop.start()
    source = FolderSource([blobs])
    (job,) = source.jobs()
    with PageServer(source, PageSettings(insecure=True)) as server:
        until(
            lambda: (found := source.job(job.id)) and found.status and found.status.micro_batch,
            "the first micro-batch",
            process=driver,
        )
        address = f"{server.address}job/{job.id}"
        with urllib.request.urlopen(address, timeout=20) as page:
            text = page.read().decode()
        assert "no driver seems to be running this job" not in text
        version = text.partition('data-version="')[2].partition('"')[0]
        with urllib.request.urlopen(f"{address}/events?version={version}", timeout=20) as events:
            os.kill(driver.pid, signal.SIGKILL)
            for line in events:
                if b"no driver seems to be running this job" in line:
                    break
        heard = time.time()
    stop.cancel()
    driver.wait()
    (headline,) = (html for id, html in json.loads(line.partition(b": ")[2]) if id == "headline")
    # This driver stores no job graph.
    assert "if it is dead, resume the job: run its script again with its --checkpoint_dir" in headline
    note = status_in(blobs).driver
    assert note is not None
    overdue = note.time / 1e6 + note.every + 1.0
    # A busy machine is slow.
    assert overdue - 0.1 <= heard <= overdue + LATEST
