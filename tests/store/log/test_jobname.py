"""The name of a job in messages."""

from __future__ import annotations

from functools import partial

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.jobname import job_in, job_label, kept_name, resume_command
from arcbeam.store.log.requests import RequestKind, ask
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden.texts import check_message
from tests.store.samples import opened

pytestmark = pytest.mark.contract("OPS-02")


def named(blobs: DurableBlobs, name: str) -> CommitLog:
    return opened(blobs, job_graph=partial(jobgraphs.keep, blobs, JobGraph(name, b"proto"), {}))


def test_label_has_name_and_folder() -> None:
    assert job_label("orders", "/data/orders") == "job 'orders' in '/data/orders'"
    assert job_label("orders", "") == "job 'orders'"
    assert job_label("", "/data/orders") == "the job in '/data/orders'"
    assert job_label("", "") == "the job"


def test_an_end_is_resumed_by_force() -> None:
    assert resume_command("/data/my job/savepoints/last", job_graph=True, savepoint=True, ended=True) == (
        "arcbeam resume '/data/my job/savepoints/last' --force_resume"
    )
    assert resume_command("/x", job_graph=False, savepoint=True, ended=True) == (
        "run its script with --from_savepoint and --force_resume"
    )
    assert resume_command("/x", job_graph=False, savepoint=True, discards=True) == (
        "run its script with --from_savepoint and --discard_later_micro_batches"
    )
    assert resume_command("-x y", job_graph=True, discards=True) == (
        "arcbeam resume './-x y' --discard_later_micro_batches"
    )
    assert resume_command("/x", job_graph=False) == "run its script again with its --checkpoint_dir"


def test_name_is_that_of_newest_job_graph() -> None:
    blobs = MemoryBlobs()
    assert job_in(blobs) == "the job in 'memory'", "there is no job"
    opened(blobs)
    assert job_in(blobs) == "the job in 'memory'", "it has no job graph"
    named(blobs, "orders")
    renamed = named(blobs, "orders-v2")
    assert kept_name(blobs, renamed.head) == "orders-v2"
    assert job_in(blobs) == job_in(blobs, renamed.head) == "job 'orders-v2' in 'memory'"


def test_job_with_damaged_graph_has_folder_only() -> None:
    blobs = MemoryBlobs()
    head = named(blobs, "orders").head
    blobs.put(head.job_graph, b"something else")
    assert kept_name(blobs, head) == ""
    assert job_in(blobs) == "the job in 'memory'"


def test_refused_request_names_the_job() -> None:
    blobs = MemoryBlobs()
    log = named(blobs, "orders")
    log.propose(log.draft(Timestamp(1), mode=CommitMode.SUSPENDED))
    with pytest.raises(RequestRefusedError) as caught:
        ask(blobs, RequestKind.DRAIN, "last", Timestamp(2))
    check_message("drain-refused-of-a-named-job", str(caught.value))


@pytest.mark.contract("STORE-03")
def test_fenced_driver_names_the_job() -> None:
    blobs = MemoryBlobs()
    log = named(blobs, "orders")
    named(blobs, "orders")
    fenced = log.overtaken()
    assert fenced is not None
    assert "took over job 'orders' in 'memory'" in fenced.message
