"""Calls of publishers: every committable is in exactly one call, and each call knows whether it is the first."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from arcbeam.io import Publish, Publisher
from arcbeam.model.plan import Stage
from arcbeam.spark.tasks import jobproperties
from arcbeam.spark.tasks.ending import publishing
from arcbeam.spark.tasks.ending.publishing import Call, Publishers, PublishOrder, PublishTask
from arcbeam.store.jobtemp.location import JobLocation
from tests.harness.drive import Driven
from tests.notes import note, noted


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_each_committable_is_in_one_call_in_order(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(publishing, "_COMMITTABLES_MAX", 3)
    given = {"a": [b"%d" % n for n in range(count)], "b": [b"0", b"1"]}
    for again in (True, False):
        calls = publishing.calls_of(given, again=again)
        for name, committables in given.items():
            of = [call for call in calls if call.publisher == name]
            assert [each for call in of for each in call.committables] == committables
            assert all(0 < len(call.committables) <= 3 for call in of)
        assert all(call.again == again and call.sweep is None for call in calls)


class Noting(Publisher):
    """Notes each call."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def publish(self, committables: Sequence[Any]) -> None:
        note((sorted(committables), self.again), self._folder)


def _staged(folder: Path) -> tuple[Driven, Stage, str, tuple[bytes, ...]]:
    """Return a run pipeline that publishes, its stage, its publisher, and what is to be published."""
    (folder / "notes").mkdir()
    with Driven() as p:
        _ = p | beam.Create([1, 2]) | Publish(Noting(str(folder / "notes")))
    (stage,) = (stage for stage in p.plan.stages if stage.publishers)
    (name,) = stage.publishers
    return p, stage, name, tuple(each for report in p.reports for each in report.committables.get(name, ()))


@pytest.mark.contract("END-01")
@pytest.mark.parametrize(
    ("attempt", "again", "expected"),
    [(None, False, False), (None, True, True), (0, False, False), (0, True, True), (1, False, True), (2, True, True)],
)
def test_second_attempt_of_a_task_publishes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int | None, again: bool, expected: bool
) -> None:
    """Spark runs a task that failed again without a word to the driver."""
    _, stage, name, committables = _staged(tmp_path)
    location = JobLocation(str(tmp_path / "temp"))
    location.put_bytes("publishers", pickle.dumps(Publishers("job", {name: stage}, quick=False, worker_setup=None)))
    context = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(publishing, "TaskContext", SimpleNamespace(get=lambda: context))
    task = PublishTask(location, PublishOrder((Call(name, committables, again),), "publish-0", last=True))
    (answer,) = task(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert answer.to_pydict() == {"warnings": [[]], "holder": [None]}
    assert noted(tmp_path / "notes") == [([1, 2], expected)]


def test_micro_batches_publish_with_one_plan_unless_data_is_large(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[PublishOrder | None] = []

    def planned(location: JobLocation, order: PublishOrder | None) -> PublishTask:
        plans.append(order)
        return PublishTask(location, order)

    monkeypatch.setattr(publishing, "PublishTask", planned)
    p, _, name, committables = _staged(tmp_path)
    of = publishing.SparkPublishing(
        spark, p.plan, "job", JobLocation(str(tmp_path / "temp")), 2, quick=False, worker_setup=None
    )
    for again in (False, True, False):
        of.publish([(name, each) for each in committables], again=again)
    assert plans == [None]
    assert spark.sparkContext.getLocalProperty("arcbeam.publish") is None, "the thread's later jobs are not publishing"
    monkeypatch.setattr(jobproperties, "PROPERTY_BYTES_MAX", 1)
    of.publish([(name, each) for each in committables], again=False)
    assert plans == [None, PublishOrder((Call(name, committables),), "publish-3", last=False)]
    # Each process has notes of its own, so their order is not that of the calls.
    assert sorted(noted(tmp_path / "notes")) == [([1, 2], again) for again in (False, False, False, True)]
