"""Publishing of a bounded job: everything, once, at its end; nothing if the job fails."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import PublishRefusedError, UserCodeError
from arcbeam.io import Publish
from arcbeam.spark.batch import boundedjob
from tests.spark.publishing import Renames, Stage, left_over, lives, published

pytestmark = pytest.mark.usefixtures("spark")


class Warns(Renames):
    def publish(self, committables: Sequence[str]) -> None:
        super().publish(committables)
        warnings.warn(f"look here, again: {self.again}", stacklevel=1)


class Refuses(Renames):
    def publish(self, committables: Sequence[str]) -> None:
        assert not self.again
        raise PublishRefusedError("it never can")


def _run(folder: Path, *options: str, fails: int = 0, last: Any = None, publisher: type[Renames] = Renames) -> Any:
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([*options])) as p:
        staged = p | beam.Create(range(100)) | beam.Reshuffle() | beam.ParDo(Stage(folder))
        _ = staged | Publish(publisher(folder, fails))
        if last is not None:
            _ = staged | "Gather" >> beam.combiners.ToList() | beam.Map(last)
    return p


def _make_idle_workers(spark: Any) -> None:
    """Leave at least eight idle Python workers, so that later tasks run in different ones."""
    frame = spark.range(0, 2, 1, 2)
    for _ in range(4):
        frame = frame.mapInArrow(lambda batches: batches, "id long")
    frame.collect()


@pytest.mark.contract("END-01")
@pytest.mark.parametrize("options", [(), ("--streaming",)])
def test_staged_files_are_published_once_at_end(tmp_path: Path, options: tuple[str, ...], spark: Any) -> None:
    _make_idle_workers(spark)
    _run(tmp_path, *options)
    assert published(tmp_path) == sorted(map(str, range(100)))
    assert left_over(tmp_path) == []
    assert lives(tmp_path) == {"set up, torn down"}


@pytest.mark.parametrize("options", [(), ("--streaming",)])
def test_half_failed_publishing_is_retried(tmp_path: Path, options: tuple[str, ...]) -> None:
    _run(tmp_path, *options, fails=2)
    assert published(tmp_path) == sorted(map(str, range(100)))
    assert left_over(tmp_path) == []


def test_publishers_warning_is_logged_by_driver(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _run(tmp_path, publisher=Warns)
    assert "Publish(Warns)/Publish: look here, again: False" in caplog.text


@pytest.mark.parametrize("options", [(), ("--streaming",)])
def test_retried_publishing_is_a_repetition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[str, ...]
) -> None:
    _run(tmp_path, *options, fails=1, publisher=Warns)
    assert "look here, again: True" in caplog.text
    assert "look here, again: False" not in caplog.text


@pytest.mark.contract("END-04")
def test_failed_job_publishes_nothing(tmp_path: Path) -> None:
    def last(_: Any) -> None:
        raise ValueError("no")

    with pytest.raises(UserCodeError, match="no"):
        _run(tmp_path, last=last)
    assert published(tmp_path) == []
    assert left_over(tmp_path) == []


def test_refused_publishing_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(PublishRefusedError, match="it never can"):
        _run(tmp_path, publisher=Refuses)


def test_permanent_publishing_failure_keeps_staged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundedjob, "_PUBLISH_SECONDS_MAX", 1.0)
    with pytest.raises(UserCodeError, match=r"on fire[\s\S]*Publish\(Renames\)"):
        _run(tmp_path, fails=100)
    done = [line for name in left_over(tmp_path) for line in (tmp_path / "staged" / name).read_text().splitlines()]
    assert sorted(published(tmp_path) + done) == sorted(map(str, range(100)))
