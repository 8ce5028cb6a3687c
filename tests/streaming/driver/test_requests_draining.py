"""Requests to a job that is draining already."""

from __future__ import annotations

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
from tests.streaming.driver.test_requests import Steered


@pytest.mark.contract("END-02", "STORE-05")
def test_savepoint_of_draining_job_has_its_own_answer() -> None:
    world = Steered("more", "more", "more", "more")
    world.at = {1: [(RequestKind.SAVEPOINT, "a")], 2: [(RequestKind.DRAIN, "last")], 3: [(RequestKind.RENAME, "a c")]}
    while world.log.head.mode is not CommitMode.DRAINING:
        world.driver.handle(world.todo.pop(0))
    world.play()
    _, drained, renamed = world.answers()
    assert drained is not None
    assert drained.kind is AnswerKind.DONE
    assert renamed == Answer(AnswerKind.DONE, "savepoint 'c' is micro-batch 1", 1)
