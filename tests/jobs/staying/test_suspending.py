"""Requests that reach a job while it suspends."""

from __future__ import annotations

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.store.log import requests as files
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.requests import AnswerKind, RequestKind
from tests.streaming.driver.test_requests import Steered


@pytest.mark.contract("END-03", "END-04", "STORE-05")
@pytest.mark.parametrize(
    ("what", "name", "pins", "note"),
    [
        (RequestKind.SAVEPOINT, "b", [("a", 1), ("b", 2), ("pause", 2)], None),
        (RequestKind.DELETE, "a", [("pause", 2)], None),
        (RequestKind.RENAME, "a b", [("b", 1), ("pause", 2)], None),
        (RequestKind.CANCEL, "", [("a", 1)], "CANCELLED"),
    ],
)
def test_request_to_a_suspending_job_is_settled(
    what: RequestKind, name: str, pins: list[tuple[str, int]], note: str | None
) -> None:
    world = Steered("more", "more", "more")
    world.at = {1: [(RequestKind.SAVEPOINT, "a")], 2: [(RequestKind.SUSPEND, "pause"), (what, name)]}
    world.play()
    _, suspended, other = world.answers()
    assert sorted(world.pins) == pins
    assert [answer and answer.kind for answer in (suspended, other)] == [
        AnswerKind.DONE if note is None else AnswerKind.REFUSED,
        AnswerKind.DONE,
    ]
    assert world.log.head.mode is (CommitMode.SUSPENDED if note is None else CommitMode.RUNNING)
    left = note_of(world.blobs, world.log.head)
    assert (left and left.state) == note
    assert files.waiting(world.blobs) == []
