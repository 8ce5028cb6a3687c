"""A streaming job with many tasks a level, as on a cluster, has the output of any other number."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.planfile import tasks_in
from tests.runner.test_steering import Job, expected
from tests.spark.streaming.fed import feed
from tests.spark.streaming.replay.running import slots
from tests.waiting import while_running


@pytest.mark.usefixtures("spark")
@pytest.mark.contract("STORE-05", "STORE-12")
@pytest.mark.parametrize("tasks", [16, pytest.param(256, marks=pytest.mark.long)])
def test_many_tasks_have_output_of_few(tasks: int, tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 15)
    with slots(tasks):
        result = job.submit(f"--shards={tasks}")
        while_running(result, lambda: len(job.panes()) == 3)
        feed(job.source, 40, end=True)
        assert result.wait_until_finish() == "DONE"
    assert job.panes() == expected(0, 40)
    ran = [of["tasks"] for of in tasks_in(FolderBlobs(job.state))["stages"].values()]
    assert ran == [tasks] * len(ran)
