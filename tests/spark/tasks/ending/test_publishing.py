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

from arcbeam.io import Publish, Publisher
from arcbeam.spark.tasks.ending import publishing
from arcbeam.spark.tasks.ending.publishing import Call, Publishers, PublishTask
from arcbeam.store.jobtemp.location import JobLocation
from tests.harness.drive import Driven
from tests.notes import note, noted


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_each_committable_is_in_one_call_in_order(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(publishing, "_TOGETHER", 3)
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


@pytest.mark.contract("END-01")
@pytest.mark.parametrize(
    ("attempt", "again", "expected"),
    [(None, False, False), (None, True, True), (0, False, False), (0, True, True), (1, False, True), (2, True, True)],
)
def test_second_attempt_of_a_task_publishes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int | None, again: bool, expected: bool
) -> None:
    """Spark runs a task that failed again without a word to the driver."""
    (tmp_path / "notes").mkdir()
    with Driven() as p:
        _ = p | beam.Create([1, 2]) | Publish(Noting(str(tmp_path / "notes")))
    (stage,) = (stage for stage in p.plan.stages if stage.publishers)
    (name,) = stage.publishers
    committables = tuple(each for report in p.reports for each in report.committables.get(name, ()))
    location = JobLocation(str(tmp_path / "temp"))
    location.put_bytes("publishers", pickle.dumps(Publishers("job", {name: stage}, quick=False, worker_setup=None)))
    context = None if attempt is None else SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(publishing, "TaskContext", SimpleNamespace(get=lambda: context))
    task = PublishTask(location, (Call(name, committables, again),), "publish-0", last=True)
    (answer,) = task(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert answer.to_pydict() == {"warnings": [[]], "holder": [None]}
    assert noted(tmp_path / "notes") == [([1, 2], expected)]
