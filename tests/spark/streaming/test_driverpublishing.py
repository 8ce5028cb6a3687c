"""What the driver publishes itself, and what it leaves to workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from pyspark.sql import SparkSession

from arcbeam import ArcbeamRunner
from arcbeam.io import Publish, Publisher
from arcbeam.spark.streaming import driverpublishing
from arcbeam.spark.streaming.driverpublishing import DriverPublishing, Rest
from arcbeam.spark.tasks.ending.publishing import Sweep
from tests.harness.drive import Driven
from tests.notes import note, noted
from tests.waiting import until

pytestmark = pytest.mark.contract("END-01")

_FEW = 3
"""Committables that are published quickly."""


class Noting(Publisher):
    """Notes each call with what makes it fail: the folder has a file of that name."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def publish(self, committables: Sequence[Any]) -> None:
        self._fail("publish")
        note(("publish", len(committables), self.again, os.getpid()), self._folder)
        self.warn(f"{len(committables)} published")

    def sweep(self, job: str, micro_batch: int) -> None:
        self._fail("sweep")
        note(("sweep", job, micro_batch), self._folder)

    def teardown(self) -> None:
        note(("teardown",), self._folder)

    def _fail(self, name: str) -> None:
        if Path(self._folder, "..", name).exists():
            raise OSError(f"{name} does not work")


class Quick(Noting):
    """Notes that it is prepared."""

    def prepare_in_driver(self) -> None:
        self._fail("prepare")
        note(("prepared",), self._folder)

    def is_quick(self, committables: Sequence[Any]) -> bool:
        return len(committables) <= _FEW


class Trial:
    """A driver's publishing of one publisher.

    Attributes:
        name: of the publisher.
        of: the publishing.
    """

    def __init__(self, folder: Path, publisher: type[Noting], *, on: bool = True) -> None:
        self.folder = folder
        (folder / "notes").mkdir()
        with Driven() as p:
            _ = p | beam.Create(list(range(9))) | Publish(publisher(str(folder / "notes")))
        (self.name,) = (name for stage in p.plan.stages for name in stage.publishers)
        self._encoded = [each for report in p.reports for each in report.committables.get(self.name, ())]
        self.of = DriverPublishing(p.plan, on=on)

    def publish(self, count: int, *, again: bool = False) -> Rest:
        """Publish as many committables, when nothing is being prepared any more."""
        rest = self.of.publish([(self.name, each) for each in self._encoded[:count]], again=again)
        for thread in threading.enumerate():
            if thread.name == "publisher-prepares":
                thread.join(60)
        return rest

    def are_left(self, *counts: int) -> list[int]:
        """Publish, and return how many committables are left to workers each time."""
        return [len(self.publish(count).committables) for count in counts]

    def notes(self) -> list[tuple[Any, ...]]:
        """Return the notes without processes."""
        return [text[:3] for text in noted(self.folder / "notes")]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A publishing after which the third quick call is made by the driver."""
    monkeypatch.setattr(driverpublishing, "_QUICK_ONES", 2)
    return Trial(tmp_path, Quick)


def test_publishers_of_users_are_not_even_opened(tmp_path: Path) -> None:
    trial = Trial(tmp_path, Noting)
    assert trial.are_left(*[1] * 20) == [1] * 20
    assert trial.notes() == []


def test_driver_does_not_publish_if_that_is_switched_off(tmp_path: Path) -> None:
    trial = Trial(tmp_path, Quick, on=False)
    assert trial.are_left(*[1] * 20) == [1] * 20
    assert trial.notes() == []


def test_driver_publishes_after_several_quick_calls(quick: Trial) -> None:
    # While it is prepared, workers publish; so they do while quick calls may be an exception.
    assert quick.are_left(1, 1, 1, 1, 3, 2) == [1, 1, 1, 0, 0, 0]
    assert quick.notes() == [("prepared",), *(("publish", count, False) for count in (1, 3, 2))]
    assert quick.are_left(4, 1, 1, 1) == [4, 1, 1, 0]


def test_rest_says_what_workers_need_to_know(quick: Trial) -> None:
    rest = quick.publish(2, again=True)
    assert ([name for name, _ in rest.committables], rest.again, rest.warnings) == ([quick.name] * 2, True, [])
    quick.are_left(1, 1, 1)
    assert quick.publish(2, again=True) == Rest([], True, [f"{quick.name}: 2 published"])
    assert quick.publish(2) == Rest([], False, [f"{quick.name}: 2 published"])
    assert quick.notes()[-2:] == [("publish", 2, True), ("publish", 2, False)]


def test_workers_repeat_what_has_failed_in_the_driver(quick: Trial, tmp_path: Path) -> None:
    quick.are_left(1, 1, 1, 1)
    (tmp_path / "publish").touch()
    rest = quick.publish(2)
    assert (len(rest.committables), rest.again) == (2, True), "perhaps it is published"
    (tmp_path / "publish").unlink()
    assert quick.are_left(1, 1, 1, 1) == [1, 1, 1, 0], "it is prepared and counted again"
    assert [text[0] for text in quick.notes()] == ["prepared", "publish", "teardown", "prepared", "publish"]


def test_what_always_fails_is_left_to_workers(quick: Trial, tmp_path: Path) -> None:
    (tmp_path / "prepare").touch()
    assert quick.are_left(*[1] * 10) == [1] * 10
    (tmp_path / "prepare").unlink()
    assert quick.are_left(*[1] * 10) == [1] * 10
    assert quick.notes() == [("teardown",)] * 3


def test_only_what_publishes_here_is_swept_here(quick: Trial, tmp_path: Path) -> None:
    assert quick.of.sweep(Sweep("job", 1)) == (set(), [])
    quick.are_left(1, 1, 1)
    assert quick.of.sweep(Sweep("job", 2)) == (set(), []), "it is open, but workers publish"
    quick.are_left(1)
    assert quick.of.sweep(Sweep("job", 3)) == ({quick.name}, [])
    (tmp_path / "sweep").touch()
    found, (text,) = quick.of.sweep(Sweep("job", 4))
    assert (found, quick.notes()[-1]) == ({quick.name}, ("sweep", "job", 3))
    assert text == f"{quick.name}: could not remove all leftover files: OSError('sweep does not work')"


def test_publishers_are_torn_down_once(quick: Trial) -> None:
    quick.are_left(1, 1)
    assert quick.of.close() == []
    assert quick.of.close() == []
    assert quick.notes() == [("prepared",), ("teardown",)]


class Stuck(Quick):
    """Waits forever, like a client whose server is away."""

    def publish(self, committables: Sequence[Any]) -> None:
        note(("stuck",), self._folder)
        threading.Event().wait()

    def teardown(self) -> None:
        threading.Event().wait()


def test_cancelled_job_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driverpublishing, "_QUICK_ONES", 0)
    trial = Trial(tmp_path, Stuck)
    trial.publish(1)
    found: list[Rest] = []
    thread = threading.Thread(target=lambda: found.append(trial.publish(1)), daemon=True)
    thread.start()
    until(lambda: ("stuck",) in trial.notes(), "the call of the publisher")
    trial.of.give_up()
    assert trial.of.close(0.1) == [f"{trial.name}: its teardown has not returned within 0 s"]
    thread.join(60)
    assert [(len(rest.committables), rest.again) for rest in found] == [(1, True)]


class Always(Publisher):
    """Notes what it publishes, and where."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def publish(self, committables: Sequence[Any]) -> None:
        note((os.getpid(), [*committables]), self._folder)

    def is_quick(self, committables: Sequence[Any]) -> bool:
        return True


def test_stream_publishes_each_committable_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First workers publish, then the driver."""
    monkeypatch.setattr(driverpublishing, "_QUICK_ONES", 1)
    options = PipelineOptions(["--streaming", "--micro_batch_seconds=0.05", "--shards=2"])
    begin = int(time.time()) + 2
    with beam.Pipeline(runner=ArcbeamRunner(), options=options) as p:
        _ = (
            p
            | PeriodicImpulse(begin, begin + 4, fire_interval=0.0625, apply_windowing=False)
            | beam.Map(lambda at: float(at) - begin)
            | Publish(Always(str(tmp_path)))
        )
    calls = noted(tmp_path)
    assert sorted(each for _, all in calls for each in all) == [number / 16 for number in range(64)]
    assert {process == os.getpid() for process, _ in calls} == {False, True}
