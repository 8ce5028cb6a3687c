"""Publishers: what a task collects for them, and their behavior on runners without commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from arcbeam.harness.operations.publishoperation import OpenPublisher
from arcbeam.io import Publish, Publisher, attempt
from tests.harness.drive import Driven
from tests.notes import note, noted


class Notes(Publisher):
    def __init__(self, folder: str, what: str = "") -> None:
        self._folder, self._what = folder, what

    def setup(self) -> None:
        self._what += "!"

    def publish(self, committables: Sequence[Any]) -> None:
        for committable in committables:
            note((committable, self._what), self._folder)

    def sweep(self, job: str, micro_batch: int) -> None:
        note((job, micro_batch), self._folder)


def test_task_collects_committables_without_publishing(tmp_path: Any) -> None:
    with Driven(shards=3) as p:
        numbers = p | beam.Create(range(10)) | beam.Reshuffle()
        _ = numbers | Publish(Notes(str(tmp_path)))
        _ = numbers | beam.Map(lambda n: (n, "b")) | "Other" >> Publish(Notes(str(tmp_path)))
    assert noted(tmp_path) == []
    collected: dict[str, int] = {}
    for report in p.reports:
        for name, some in report.committables.items():
            collected[name] = collected.get(name, 0) + len(some)
    assert collected == {"Publish(Notes)/Publish": 10, "Other/Publish": 10}


def test_publishing_needs_only_plan_and_committables(tmp_path: Any) -> None:
    with Driven(shards=2) as p:
        _ = p | beam.Create([("a", 1), ("b", 2)]) | Publish(Notes(str(tmp_path)))
    reports = [report for report in p.reports if report.committables]
    (stage,) = (stage for stage in p.plan.stages if stage.publishers)
    (name,) = stage.publishers
    publisher = OpenPublisher(stage, name)
    publisher.publish([each for report in reports for each in report.committables[name]], again=True)
    publisher.sweep("job", 7)
    publisher.close()
    assert not publisher.needs_teardown()
    assert sorted(noted(tmp_path), key=lambda n: n[1] == "!") == [("job", 7), (("a", 1), "!"), (("b", 2), "!")]


def test_other_runners_publish_when_a_bundle_ends(tmp_path: Any) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as p:
        _ = p | beam.Create([1, 2, 3]) | Publish(Notes(str(tmp_path)))
    assert sorted(noted(tmp_path)) == [(1, "!"), (2, "!"), (3, "!")]


def test_other_classes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Publish\(.*DoFn.*\): .*arcbeam\.io\.Publisher"):
        Publish(beam.DoFn())


def test_attempt_outside_of_task_is_nameless() -> None:
    assert attempt().token == ""
    assert attempt().micro_batch == 0
