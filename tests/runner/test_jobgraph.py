"""What a job keeps of its pipeline, and what is refused to go on with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from arcbeam.errors import EnvironmentMismatchError, InvalidPipelineError
from arcbeam.model.timestamps import Timestamp
from arcbeam.runner.jobgraph import job_graph_to_store, newest_name, stored_job_graph
from arcbeam.runner.resume import resume
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")


def program(name: str = "words") -> JobGraph:
    options = {"shards": 3, "runner": "x", "checkpoint_dir": "s3://key:secret@b/job", "made": object()}
    return job_graph_to_store(name, b"", options, WorkerSetup()).program


def test_what_says_how_a_run_begins_is_not_kept() -> None:
    assert program().options == {"shards": 3}


def test_the_program_is_that_of_the_savepoint() -> None:
    blobs = MemoryBlobs()
    log = opened(blobs, program=partial(jobgraphs.keep, blobs, program("old"), {}))
    log.propose(pinned(log.draft(Timestamp(1)), "safe"))
    opened(blobs, program=partial(jobgraphs.keep, blobs, program("new"), {}))
    assert stored_job_graph(blobs).name == "new"
    assert stored_job_graph(blobs, "safe").name == "old"
    assert newest_name(blobs) == "new", "to go back to a savepoint does not rename the job"
    with pytest.raises(StoreError, match="no savepoint 'other'"):
        stored_job_graph(blobs, "other")


def test_a_folder_without_a_job_or_a_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no job in"):
        resume(str(tmp_path))
    opened(FolderBlobs(tmp_path))
    with pytest.raises(StoreError, match="has kept no program to be resumed with"):
        resume(str(tmp_path))


def test_what_was_pickled_by_others_is_refused() -> None:
    blobs = MemoryBlobs()
    strange = replace(program(), versions={"python": "2.7", "beam": "2.0", "arcbeam": "9"})
    opened(blobs, program=partial(jobgraphs.keep, blobs, strange, {}))
    with pytest.raises(EnvironmentMismatchError, match=r"submitted with Python 2\.7 and Beam 2\.0; this is"):
        stored_job_graph(blobs)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shardz=3"], "no such pipeline options: --shardz"),
        (["--checkpoint_dir=/x"], "not for a job that is resumed from its folder: --checkpoint_dir"),
        (["--from_savepoint=b"], "from its folder: --from_savepoint\n.*name a savepoint with --savepoint"),
    ],
)
def test_options_that_have_no_place_are_refused(tmp_path: Path, options: list[str], why: str) -> None:
    blobs = FolderBlobs(tmp_path)
    opened(blobs, program=partial(jobgraphs.keep, blobs, program(), {}))
    with pytest.raises(InvalidPipelineError, match=why):
        resume(str(tmp_path), options)


def test_one_savepoint_is_named() -> None:
    with pytest.raises(InvalidPipelineError, match="is savepoint 'a', and 'b' is asked for"):
        resume("/job/savepoints/a", savepoint="b")
