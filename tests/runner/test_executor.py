"""What a job server runs pipelines with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest

from arcbeam.jobs.execution import JobState, Level, Submission
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.runner.executor import SparkExecutor, clear, is_suspended, start
from arcbeam.runner.jobgraph import stored_job_graph
from arcbeam.store.blobs.errors import IncompatibleStateError, StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.savepoints import pinned
from arcbeam.translate.proto import pipeline_proto
from tests.store.samples import opened

pytestmark = pytest.mark.contract("API-02")


class Heard:
    """The events of a job."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.runs = False

    def running(self) -> None:
        self.runs = True

    def turned(self, state: JobState) -> None: ...

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None: ...

    def message(self, level: Level, text: str) -> None:
        if level is Level.WARNING:
            self.warnings.append(text)


@pytest.mark.usefixtures("spark")
def test_a_start_runs_an_empty_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "arcbeam"):
        start({})
    assert [r.getMessage().partition(":")[0] for r in caplog.records if " done in " in r.getMessage()] == ["start"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("spark")
def test_options_of_a_session_that_is_there_already() -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    pipeline = pipeline_proto(p).SerializeToString()
    for options, told in [({}, []), ({"spark_master": "local[7]", "shards": 3}, ["--spark_master=local[7]"])]:
        heard = Heard()
        SparkExecutor().run(Submission("j-1", "job", pipeline, options), heard)
        assert len(heard.warnings) == len(told)
        assert all(name in text for name, text in zip(told, heard.warnings, strict=True))


@pytest.mark.contract("STORE-05")
def test_a_job_that_is_done_leaves_its_savepoints_and_else_nothing(tmp_path: Path) -> None:
    for names in ([], ["safe"]):
        home = tmp_path / "-".join(["home", *names])
        log = opened(FolderBlobs(home, sync=False))
        for name in names:
            log.propose(pinned(log.draft(Timestamp(1)), name))
        log.propose(log.draft(Timestamp(2)))
        clear(home)
        assert home.exists() == bool(names)
    clear(tmp_path / "none")
    damaged = tmp_path / "damaged"
    opened(FolderBlobs(damaged, sync=False))
    next((damaged / "manifests").iterdir()).write_bytes(b"")
    clear(damaged)
    assert damaged.exists(), "what cannot be read may have savepoints"


@pytest.mark.contract("END-03")
def test_a_job_that_was_suspended_under_a_name_is_to_stay_so(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path, sync=False)
    assert not is_suspended(blobs)
    log = opened(blobs)
    log.propose(pinned(log.draft(Timestamp(1)), "before"))
    assert not is_suspended(blobs)
    log.propose(replace(log.draft(Timestamp(2)), mode=CommitMode.SUSPENDED))
    assert not is_suspended(blobs), "by a process that was told to end"
    log.propose(pinned(replace(log.draft(Timestamp(3)), mode=CommitMode.SUSPENDED), "last"))
    assert is_suspended(blobs)


def without_its_end(job: Path) -> None:
    """Leave a job as if its driver had died before the last commit: nothing is written into an ended job's folder."""
    max((job / "manifests").iterdir()).unlink()


@pytest.mark.contract("STORE-04", "STORE-05")
@pytest.mark.usefixtures("spark")
def test_a_job_in_micro_batches_runs_when_it_is_taken_over_and_not_before(tmp_path: Path) -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    pipeline = pipeline_proto(p).SerializeToString()
    options = {"streaming": True, "checkpoint_dir": str(tmp_path / "job"), "shards": 2}
    heard = Heard()
    with pytest.raises(StoreError, match="no savepoint 'safe'"):
        SparkExecutor().run(Submission("j-1", "job", pipeline, {**options, "from_savepoint": "safe"}), heard)
    assert not heard.runs, "the next start has to go back to the savepoint, too"
    assert SparkExecutor().run(Submission("j-2", "job", pipeline, options), heard) is JobState.DONE
    assert heard.runs

    # The server says something else today, which is not what the job was submitted with.
    submission = Submission("j-3", "job", pipeline, {**options, "shards": 3, "bundle_elements": 7})
    without_its_end(tmp_path / "job")
    with pytest.raises(IncompatibleStateError, match="has 2 shards"):
        SparkExecutor().run(submission, heard)
    server = replace(submission, defaults=frozenset({"shards", "bundle_elements"}))
    assert SparkExecutor().run(server, heard) is JobState.DONE
    without_its_end(tmp_path / "job")
    assert SparkExecutor().run(replace(submission, again=True, defaults=frozenset()), heard) is JobState.DONE
    assert stored_job_graph(FolderBlobs(tmp_path / "job")).options["shards"] == 3
    without_its_end(tmp_path / "job")
    SparkExecutor().run(server, heard)
    kept = stored_job_graph(FolderBlobs(tmp_path / "job")).options
    assert not kept.keys() & {"shards", "bundle_elements"}, "elsewhere that does not count"
