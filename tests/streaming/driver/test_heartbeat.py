"""Notes and warnings of a running driver."""

from __future__ import annotations

import struct
from pathlib import Path

from arcbeam.engine.coordinator import MicroBatchFailed
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.drivernote import driver_note_of
from arcbeam.streaming.driver.heartbeat import SILENT_SECONDS, Heartbeat
from arcbeam.streaming.status.activity import Activity
from arcbeam.streaming.status.taskheartbeats import HeardTasks
from arcbeam.testing import Faults, UnreliableBlobs
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden.texts import check_message
from tests.streaming.jobs import opened


class Lived:
    """A driver's heartbeat, with a separate clock."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 1000.0
        self.inner = MemoryBlobs()
        self.blobs = UnreliableBlobs(self.inner, 0)
        self.head = opened(self.blobs).head
        self.activity, self.warned = Activity(14, 3), list[str]()
        self.location = JobLocation(str(folder))
        heard = HeardTasks(self.location, lambda: self.seconds)
        self.heart = Heartbeat(
            self.blobs, self.head, "host:job", self, self.activity, heard, self.warned.append, lambda: self.seconds
        )

    def now(self) -> Timestamp:
        return Timestamp(round(self.seconds * 1e6))

    def live(self, seconds: int) -> int:
        """Run for some seconds, and return the number of notes written."""
        written, last = 0, None
        for _ in range(seconds):
            self.heart.beat()
            note = driver_note_of(self.inner, self.head)
            written, last = written + (note is not None and note != last), note
            self.seconds += 1
        return written

    def run(self, micro_batch: int, attempt: int = 0) -> None:
        self.activity.running = micro_batch, attempt, self.now()

    def task_beats(self, micro_batch: int, attempt: int, number: int) -> None:
        self.location.put_bytes("beats/0-0", struct.pack("<qqq", micro_batch, attempt, number))


def test_idle_driver_writes_notes_less_often(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(1)
    assert lived.live(100) == 10
    lived.activity.running = None
    lived.live(10)
    assert lived.live(600) in (10, 11)


def test_failed_attempt_is_noted_at_once(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(1)
    lived.live(4)
    lived.activity.handled(MicroBatchFailed(lived.now(), 1, 0, "the store is away", True), [], lived.now())
    assert lived.live(1) == 1
    note = driver_note_of(lived.inner, lived.head)
    assert note is not None
    assert note.doing == "waiting for try 2 of 14 of a micro-batch (the last try failed: the store is away)"


def test_note_has_driver_and_activity(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(7)
    lived.live(12)
    note = driver_note_of(lived.inner, lived.head)
    assert note is not None
    assert (note.driver, note.doing, note.trouble) == ("host:job", "running micro-batch 7 for 10 s", "")
    assert note.since == Timestamp(1_000_000_000), "by its own clock: that of the job may be a script's"


def test_micro_batch_without_tasks_warns_repeatedly(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(7)
    lived.live(int(SILENT_SECONDS))
    assert lived.warned == []
    lived.live(2)
    (warning,) = lived.warned
    check_message("no-task-runs", warning)
    assert lived.heart.note().trouble
    lived.live(200)
    assert len(lived.warned) == 2
    lived.task_beats(7, 0, 1)
    lived.live(2)
    assert lived.heart.note().trouble == ""


def test_task_heartbeats_prevent_warning(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(7)
    for number in range(20):
        lived.task_beats(7, 0, number)
        lived.live(5)
    assert lived.warned == []
    lived.task_beats(7, 1, 99)  # of another run
    lived.live(int(SILENT_SECONDS) + 2)
    assert len(lived.warned) == 1


def test_next_micro_batch_restarts_silence(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    for micro_batch in range(10):
        lived.run(micro_batch)
        lived.live(20)
    assert lived.warned == []


def test_unavailable_store_does_not_stop_driver(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.run(1)
    lived.blobs.faults = Faults(refused=1.0)
    assert lived.live(30) == 0
    lived.blobs.faults = Faults()
    assert lived.live(15) >= 1


def test_job_without_folder_writes_nothing(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.heart.blobs = None
    assert lived.live(30) == 0
