"""What a process keeps of a job from task to task: changed side inputs are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.files import SideFile
from arcbeam.model.timestamps import Timestamp
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.streaming.workerjob import StreamingJob, WorkerJob
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.manifest.names import Written
from arcbeam.streaming.task.sidefiles import SideFileWriter
from tests.streaming.test_physicalplan import at

LEVEL, CHANNEL = 2, 3
"""The level that reads the plan's side input, and its channel."""


@pytest.fixture
def here(tmp_path: Path) -> WorkerJob:
    (tmp_path / "store").mkdir()
    location = JobLocation(str(tmp_path / "temp"))
    return WorkerJob(StreamingJob("job", at(), TaskSettings(), location, str(tmp_path / "store"), Versions.here()))


def put(here: WorkerJob, folder: Path, micro_batch: int, content: bytes) -> SideFile:
    (number,) = here.job.physical.side_parts[CHANNEL]
    writer = SideFileWriter(folder, number, Port("the s2", "rates"))
    writer.append(b"w", content)
    data = writer.data(0, Timestamp(5))
    assert data is not None
    return here.files.side(Written(number, 0, micro_batch, 1, "attempt", "side"), data)


def test_changed_side_input_is_read_again(here: WorkerJob, tmp_path: Path) -> None:
    old, other, new = (put(here, tmp_path, micro_batch, b"%d" % micro_batch) for micro_batch in (1, 2, 3))
    assert old.size == new.size
    first = here.sides(LEVEL, (old, other))
    assert list(first.chunks(CHANNEL, b"w")) == [b"1", b"2"]
    assert here.sides(LEVEL, (old, other)) is first, "decoded values must be kept with the reader"
    for files, content in (((other, new), [b"2", b"3"]), ((old, new), [b"1", b"3"]), ((old,), [b"1"]), ((), [])):
        sides = here.sides(LEVEL, files)
        assert sides is not first
        assert list(sides.chunks(CHANNEL, b"w")) == content
    assert not list(here.sides(0, (old, other)).chunks(CHANNEL, b"w")), "no stage of that level reads it"
    assert list(here.sides(LEVEL, (old, other)).chunks(CHANNEL, b"w")) == [b"1", b"2"]
