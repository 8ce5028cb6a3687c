"""Requests as files: made, answered, withdrawn, in every store."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from arcbeam.errors import JobFailedError, RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log import requests
from arcbeam.store.log.chain import known, read_newest
from arcbeam.store.log.jobname import has_job_graph
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
from arcbeam.store.log.savepoints import pinned
from arcbeam.testing.blobs import MemoryBlobs
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")


@pytest.mark.contract("STORE-07")
def test_request_stays_until_settled(blobs: DurableBlobs) -> None:
    log = opened(blobs)
    assert requests.waiting(blobs) == []
    later = requests.ask(blobs, RequestKind.CANCEL, "", Timestamp(10_000_000))
    first = requests.ask(blobs, RequestKind.SAVEPOINT, "safe", Timestamp(9_000_000))
    assert requests.waiting(blobs) == [first.id, later.id], "in the order of time"
    assert requests.read(blobs, first.id) == first
    assert (first.micro_batch, first.epoch) == (log.head.micro_batch, log.epoch)
    assert requests.answer_to(blobs, first) is None
    for reported in (Answer(AnswerKind.TAKEN, "at it"), Answer(AnswerKind.TAKEN, "at it")):
        requests.answer(blobs, first.id, reported)
        assert requests.answer_to(blobs, first) == reported
    assert first.id in requests.waiting(blobs)
    requests.answer(blobs, first.id, Answer(AnswerKind.DONE, "made", 7))
    assert requests.waiting(blobs) == [later.id]
    assert requests.answer_to(blobs, first) == Answer(AnswerKind.DONE, "made", 7)
    assert requests.answer_to(blobs, first) is None
    requests.withdraw(blobs, later)
    assert requests.read(blobs, later.id) is None


def test_name_is_changed_at_once_in_a_stopped_job_only(memory: DurableBlobs) -> None:
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1)), "a"))
    with pytest.raises(JobFailedError, match="no driver"):
        requests.change_name(memory, "a", "b", 0.0, driver="test")
    assert requests.waiting(memory) == []
    log.propose(pinned(log.draft(Timestamp(2), mode=CommitMode.SUSPENDED), "last"))
    requests.change_name(memory, "a", "b", 0.0, driver="test")
    requests.change_name(memory, "last", "", 0.0, driver="test")
    newest = read_newest(memory)
    assert newest is not None
    assert [pin.name for pin in known(newest).pins] == ["b"]
    with pytest.raises(StoreError, match="no savepoint 'a'"):
        requests.change_name(memory, "a", "", 0.0, driver="test")


def test_impossible_request_is_refused(memory: DurableBlobs) -> None:
    with pytest.raises(StoreError, match="'memory://'"):
        requests.ask(memory, RequestKind.DRAIN, "x", Timestamp(0))
    log = opened(memory)
    log.propose(pinned(log.draft(Timestamp(1)), "taken"))
    with pytest.raises(RequestRefusedError, match=r"'taken' .* 1\n"):
        requests.ask(memory, RequestKind.SAVEPOINT, "taken", Timestamp(0))
    log.propose(replace(log.draft(Timestamp(2)), mode=CommitMode.SUSPENDED))
    with pytest.raises(RequestRefusedError, match="suspended at micro-batch 2"):
        requests.ask(memory, RequestKind.CANCEL, "", Timestamp(0))
    opened(memory)
    assert requests.ask(memory, RequestKind.CANCEL, "", Timestamp(0)).epoch == 2
    assert len(requests.waiting(memory)) == 1


@pytest.mark.parametrize(
    ("job_graph", "how"),
    [("jobs/p", "arcbeam resume '/my job'"), ("", "run its script again with its --checkpoint_dir")],
)
def test_remedies_name_how_the_job_is_resumed(memory: DurableBlobs, job_graph: str, how: str) -> None:
    log = opened(memory)
    log.propose(replace(log.draft(Timestamp(1)), job_graph=job_graph))
    assert has_job_graph(memory) == bool(job_graph)
    assert requests.unanswered_remedy(memory, "/my job").endswith(f"if not, resume the job: {how}")
    remedies = [
        requests.stopped_remedy(what, "/my job", ended=False, job_graph=bool(job_graph))
        for what in (RequestKind.DRAIN, RequestKind.SUSPEND)
    ]
    assert remedies == [f"resume it first: {how}", f"to resume it: {how}"]


def test_malformed_answer_is_an_error(memory: DurableBlobs) -> None:
    opened(memory)
    request = requests.ask(memory, RequestKind.CANCEL, "", Timestamp(0))
    memory.put(f"answers/{request.id}", b"{}")
    with pytest.raises(StoreError, match="'answers/"):
        requests.answer_to(memory, request)


def test_malformed_request_is_an_error() -> None:
    blobs = MemoryBlobs()
    for record in (
        {"version": 1, "what": "drain", "savepoint": None, "micro_batch": 0, "epoch": 1},
        {"version": 1},
        [],
    ):
        blobs.put("requests/x", json.dumps(record).encode())
        with pytest.raises(ValueError, match="request"):
            requests.read(blobs, "x")
