"""The executor of a job server's pipelines."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import ExternalEnvironment
from pyspark.sql import SparkSession

from arcbeam.jobs.execution import JobState, Level, Submission
from arcbeam.jobs.metrics import JobMetrics
from arcbeam.jobs.option_forms import struct_of
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.runner import executor as executors
from arcbeam.runner.executor import SparkExecutor, clear, is_suspended, start
from arcbeam.runner.jobgraph import stored_job_graph
from arcbeam.spark.session import driver
from arcbeam.spark.tasks.artifacts import worker_setup_for
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.values import Manifest
from arcbeam.translate.proto import pipeline_proto
from tests.store.samples import opened

pytestmark = pytest.mark.contract("API-02")


class Recorded:
    """The events of a job."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.texts: list[str] = []
        self.runs = False
        self.stages: list[dict[str, Any]] = []

    def running(self) -> None:
        self.runs = True

    def turned(self, state: JobState) -> None: ...

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None: ...

    def progress(self, record: Mapping[str, Any]) -> None:
        self.stages = record["stages"]

    def message(self, level: Level, text: str) -> None:
        self.texts.append(text)
        if level is Level.WARNING:
            self.warnings.append(text)


class Fifths(beam.DoFn):
    """Yields each number with its rest of a division by five, and counts them."""

    def __init__(self) -> None:
        self._seen = Metrics.counter("test", "seen")

    def process(self, n: int) -> Iterator[tuple[int, int]]:
        self._seen.inc()
        yield n % 5, n


@pytest.mark.usefixtures("spark")
def test_start_runs_an_empty_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "arcbeam"):
        start({})
    assert [r.getMessage().partition(":")[0] for r in caplog.records if " done in " in r.getMessage()] == ["start"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_pipeline_is_accepted_after_the_death_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        """Of Spark's session, nothing can be called."""

    session = Dead()
    monkeypatch.setattr(SparkSession, "_instantiatedSession", session)
    monkeypatch.setitem(driver._dead, session, "killed")
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    SparkExecutor().check(Submission("j-1", "job", pipeline_proto(p).SerializeToString(), {}))


@pytest.mark.usefixtures("spark")
def test_ignored_session_options_cause_a_warning() -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    pipeline = pipeline_proto(p).SerializeToString()
    for options, ignored in [
        ({}, []),
        ({"spark_master": "local[7]", "shards": 3}, ["--spark_master=local[7]"]),
        # All its transforms are embedded, so none of them runs in the submitting program.
        ({"environment_type": "LOOPBACK"}, []),
    ]:
        events = Recorded()
        SparkExecutor().run(Submission("j-1", "job", pipeline, options), events)
        assert len(events.warnings) == len(ignored)
        assert all(name in text for name, text in zip(ignored, events.warnings, strict=True))


@pytest.mark.contract("API-08")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("environment", ["EMBEDDED", "EXTERNAL"])
def test_sdk_workers_get_options_of_job(monkeypatch: pytest.MonkeyPatch, environment: str) -> None:
    setups: list[WorkerSetup] = []

    def recorded(*around: Any) -> WorkerSetup:
        setups.append(worker_setup_for(*around))
        return setups[-1]

    monkeypatch.setattr(executors, "worker_setup_for", recorded)
    address, pool = BeamFnExternalWorkerPoolServicer.start()
    p = beam.Pipeline()
    _ = p | beam.Create([1]) | beam.Map(str)
    requested = PipelineOptions([f"--environment_type={environment}", f"--environment_config={address}"])
    default = (
        ExternalEnvironment.from_options(requested.view_as(PortableOptions)) if environment == "EXTERNAL" else None
    )
    pipeline = pipeline_proto(p, requested, default).SerializeToString()
    options = {"environment_type": environment, "shards": 3, "words": "to be"}
    submission = Submission("j-1", "job", pipeline, options, defaults=frozenset({"shards"}))
    assert SparkExecutor().run(submission, Recorded()) is JobState.DONE
    pool.stop(None)
    (setup,) = setups
    of_job = {"environment_type": environment, "words": "to be"}
    assert setup.sdk_options == (struct_of(of_job) if environment == "EXTERNAL" else b"")


@pytest.mark.contract("PAGE-03")
@pytest.mark.usefixtures("spark")
def test_bounded_job_reports_progress_of_its_stages() -> None:
    p = beam.Pipeline()
    keyed = p | beam.Create(range(40), reshuffle=False) | beam.ParDo(Fifths())
    _ = keyed | beam.GroupByKey() | beam.Map(len)
    events, executor = Recorded(), SparkExecutor()
    assert (executor.snapshot(), executor.metrics()) == ({}, None)
    pipeline = pipeline_proto(p).SerializeToString()
    executor.run(Submission("j-1", "job", pipeline, {"shards": 3}), events)
    assert events.runs
    assert [stage["state"] for stage in events.stages] == ["done"] * len(events.stages)
    assert all(stage["tasks"] == stage["of"] > 0 for stage in events.stages), events.stages
    assert all(stage["retries"] == 0 and stage["seconds"] > 0 for stage in events.stages)
    last = events.stages[-1]
    assert (last["of"], last["elements"]) == (3, 5)
    assert executor.snapshot(whole=False) == {"status": None, "progress": {"stages": events.stages}, "folder": ""}
    plan = executor.snapshot()["progress"]["plan"]
    assert [stage["name"] for stage in plan["stages"]] == [stage["stage"] for stage in events.stages]
    now = executor.metrics()
    assert now is not None
    (seen,) = JobMetrics(now.committed, True, now.attempted).query()["counters"]
    assert (seen.key.metric.name, seen.attempted, seen.committed) == ("seen", 40, 40)


@pytest.mark.contract("STORE-05")
def test_state_of_done_job_is_kept_for_savepoints(tmp_path: Path) -> None:
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
    assert damaged.exists(), "a damaged folder may have savepoints"


@pytest.mark.contract("END-03")
def test_job_with_savepoint_at_its_end_stays_suspended(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path, sync=False)
    assert not is_suspended(blobs)
    log = opened(blobs)
    log.propose(pinned(log.draft(Timestamp(1)), "before"))
    assert not is_suspended(blobs)
    log.propose(replace(log.draft(Timestamp(2)), mode=CommitMode.SUSPENDED))
    assert not is_suspended(blobs), "a SIGTERM suspended it"
    log.propose(pinned(replace(log.draft(Timestamp(3)), mode=CommitMode.SUSPENDED), "last"))
    assert is_suspended(blobs)


def without_its_end(job: Path) -> None:
    """Turn a job into one whose driver died before the last commit: an ended job's folder accepts no new driver."""
    max((job / "manifests").iterdir()).unlink()


def shards_of(job: Path) -> int:
    newest = read_newest(FolderBlobs(job))
    assert isinstance(newest, Manifest)
    assert newest.mode is CommitMode.DONE
    return newest.shape.shards


@pytest.mark.contract("STORE-05", "END-03")
@pytest.mark.parametrize("at", ["home", "checkpoint_dir"])
def test_streaming_job_with_state_is_resumable(tmp_path: Path, at: str) -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    folder = {"checkpoint_dir": str(tmp_path / "job")} if at == "checkpoint_dir" else {}
    home = tmp_path / "job" if at == "home" else tmp_path / "none"
    bounded = Submission("j-1", "job", pipeline_proto(p).SerializeToString(), folder, home=home)
    streaming = replace(bounded, options={**folder, "streaming": True})
    assert SparkExecutor().resumable_state(replace(bounded, options={"streaming": True}, home=None)) is None
    # A folder of the user's may be on another machine's disk, or be filled later.
    assert SparkExecutor().resumable_state(streaming) is (JobState.RUNNING if folder else None)
    log = opened(FolderBlobs(tmp_path / "job", sync=False))
    assert SparkExecutor().resumable_state(streaming) is JobState.RUNNING
    assert SparkExecutor().resumable_state(bounded) is None, "a batch job has no state"
    log.propose(pinned(replace(log.draft(Timestamp(1)), mode=CommitMode.SUSPENDED), "last"))
    assert SparkExecutor().resumable_state(streaming) is JobState.STOPPED


@pytest.mark.contract("STORE-05")
@pytest.mark.usefixtures("spark")
def test_streaming_job_without_folder_keeps_its_state_at_the_server(tmp_path: Path) -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    pipeline, home = pipeline_proto(p).SerializeToString(), tmp_path / "home"
    submission = Submission("j-1", "job", pipeline, {"streaming": True, "arcbeam_temp": str(tmp_path)}, home=home)
    events = Recorded()
    # A driver that was killed has left its temporary location.
    left = tmp_path / "j-1" / "left"
    left.parent.mkdir()
    left.touch()
    assert SparkExecutor().run(replace(submission, options={**submission.options, "keep_job_temp": True}), events) is (
        JobState.DONE
    )
    assert f"this job keeps its state in {home}" in events.texts
    assert not home.exists(), "there is nothing to resume"
    (own,) = {path.name for path in tmp_path.iterdir()} - {"j-1"}
    assert own.startswith("j-1-")
    assert left.exists()


@pytest.mark.contract("STORE-04", "STORE-05")
@pytest.mark.usefixtures("spark")
def test_streaming_job_runs_once_taken_over(tmp_path: Path) -> None:
    p = beam.Pipeline()
    _ = p | beam.Create([1])
    pipeline = pipeline_proto(p).SerializeToString()
    options = {"streaming": True, "checkpoint_dir": str(tmp_path / "job"), "shards": 2}
    events = Recorded()
    with pytest.raises(StoreError, match="'safe'"):
        SparkExecutor().run(Submission("j-1", "job", pipeline, {**options, "from_savepoint": "safe"}), events)
    assert not events.runs, "the next start must go back to the savepoint, too"
    assert SparkExecutor().run(Submission("j-2", "job", pipeline, options), events) is JobState.DONE
    assert events.runs
    # The status of a server's job names the folder, as that of the folder does.
    executor = SparkExecutor()
    without_its_end(tmp_path / "job")
    assert executor.run(Submission("j-2", "job", pipeline, options), events) is JobState.DONE
    assert executor.status()["folder"] == str(tmp_path / "job")

    # The server's present defaults differ from those of the submission. They are no request for other shards.
    submission = Submission("j-3", "job", pipeline, {**options, "shards": 3, "bundle_elements": 7})
    server = replace(submission, defaults=frozenset({"shards", "bundle_elements"}))
    without_its_end(tmp_path / "job")
    assert SparkExecutor().run(server, events) is JobState.DONE
    assert shards_of(tmp_path / "job") == 2
    without_its_end(tmp_path / "job")
    assert SparkExecutor().run(replace(submission, again=True), events) is JobState.DONE
    assert shards_of(tmp_path / "job") == 2, "stored options request nothing again"
    without_its_end(tmp_path / "job")
    assert SparkExecutor().run(submission, events) is JobState.DONE
    assert shards_of(tmp_path / "job") == 3
    assert stored_job_graph(FolderBlobs(tmp_path / "job")).options["shards"] == 3
    without_its_end(tmp_path / "job")
    SparkExecutor().run(server, events)
    kept = stored_job_graph(FolderBlobs(tmp_path / "job")).options
    assert not kept.keys() & {"shards", "bundle_elements"}, "defaults of a server are not options of the job"
