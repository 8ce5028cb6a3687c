"""The job graph that a job stores, and what is refused when the job is resumed with it."""

from __future__ import annotations

import uuid
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arcbeam.errors import EnvironmentMismatchError, InvalidPipelineError
from arcbeam.model.timestamps import Timestamp
from arcbeam.runner.jobgraph import job_graph_to_store, newest_name, restored_worker_setup, stored_job_graph
from arcbeam.runner.resume import resume
from arcbeam.spark.tasks.artifacts import archive_path
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden import check_message
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")


def job_graph(name: str = "words") -> JobGraph:
    options = {"shards": 3, "runner": "x", "checkpoint_dir": "s3://key:secret@b/job", "made": object()}
    return job_graph_to_store(name, b"", options, WorkerSetup()).job_graph


def test_options_of_a_run_are_not_stored() -> None:
    assert job_graph().options == {"shards": 3}


def test_savepoint_has_its_own_job_graph() -> None:
    blobs = MemoryBlobs()
    log = opened(blobs, job_graph=partial(jobgraphs.keep, blobs, job_graph("old"), {}))
    log.propose(pinned(log.draft(Timestamp(1)), "safe"))
    opened(blobs, job_graph=partial(jobgraphs.keep, blobs, job_graph("new"), {}))
    assert stored_job_graph(blobs).name == "new"
    assert stored_job_graph(blobs, "safe").name == "old"
    assert newest_name(blobs) == "new", "going back to a savepoint does not rename the job"
    with pytest.raises(StoreError, match="'other'"):
        stored_job_graph(blobs, "other")


def test_folder_without_job_or_job_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as no_job:
        resume(str(tmp_path))
    opened(FolderBlobs(tmp_path))
    with pytest.raises(StoreError) as no_job_graph:
        resume(str(tmp_path))
    check_message("resume-without-job", str(no_job.value), FOLDER=tmp_path)
    check_message("resume-without-job-graph", str(no_job_graph.value), FOLDER=tmp_path)


def test_job_graph_of_other_versions_is_refused() -> None:
    blobs = MemoryBlobs()
    strange = replace(job_graph(), versions={"python": "2.7", "beam": "2.0", "arcbeam": "9"})
    opened(blobs, job_graph=partial(jobgraphs.keep, blobs, strange, {}))
    with pytest.raises(EnvironmentMismatchError, match=r"Python 2\.7 and Beam 2\.0; .*\n.*script"):
        stored_job_graph(blobs)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shardz=3"], ": --shardz\n"),
        (["--checkpoint_dir=/x"], ": --checkpoint_dir\n"),
        (["--from_savepoint=b"], ": --from_savepoint\n.*--from-savepoint"),
        (["--environment_type=PROCESS"], r": --environment_type\n.*submit the pipeline's script again"),
        (["--extra_package=a.whl"], ": --extra_packages\n"),
        (["--shards=8193"], "--shards=8193: a job has at most 8192 shards"),
        (["--shards=x"], "--shards: invalid int value: 'x'"),
    ],
)
def test_invalid_options_of_resume_are_refused(tmp_path: Path, options: list[str], why: str) -> None:
    blobs = FolderBlobs(tmp_path)
    opened(blobs, job_graph=partial(jobgraphs.keep, blobs, job_graph(), {}))
    with pytest.raises(InvalidPipelineError, match=why):
        resume(str(tmp_path), options)


def test_files_of_a_job_graph_are_restored_where_workers_get_them(spark: SparkSession, tmp_path: Path) -> None:
    blobs, name = MemoryBlobs(), f"files-{uuid.uuid4().hex}.zip"
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("words.txt", "content")
    content = (tmp_path / name).read_bytes()
    described = replace(job_graph(), files=(jobgraphs.described(name, tmp_path / name),))
    stored = jobgraphs.read(blobs, jobgraphs.keep(blobs, described, {name: tmp_path / name}, 1, ""))
    blob = stored.files[0].blob
    blobs.delete(blob)
    blobs.put(blob, content[:-1])
    with pytest.raises(StoreError, match=blob):
        restored_worker_setup(spark, blobs, stored)
    assert not archive_path(name).exists(), "half a file is none"
    blobs.delete(blob)
    blobs.put(blob, content)
    for _ in range(2):
        restored_worker_setup(spark, blobs, stored)
        assert archive_path(name).read_bytes() == content
    blobs.delete(blob)
    restored_worker_setup(spark, blobs, stored)  # this process has it already


def test_two_savepoints_are_refused() -> None:
    with pytest.raises(InvalidPipelineError, match=r"'a'.*'b'"):
        resume("/job/savepoints/a", savepoint="b")
