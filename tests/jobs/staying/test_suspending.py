"""Requests that reach a job while it suspends."""

from __future__ import annotations

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.store.log import requests as files
from arcbeam.store.log.endnote import note_of
from arcbeam.store.log.requests import Asked, Said
from tests.streaming.driver.test_requests import Steered


@pytest.mark.contract("END-03", "END-04", "STORE-05")
@pytest.mark.parametrize(
    ("what", "name", "pins", "note"),
    [
        (Asked.SAVEPOINT, "b", [("a", 1), ("b", 2), ("pause", 2)], None),
        (Asked.DELETE, "a", [("pause", 2)], None),
        (Asked.RENAME, "a b", [("b", 1), ("pause", 2)], None),
        (Asked.CANCEL, "", [("a", 1)], "CANCELLED"),
    ],
)
def test_request_to_a_suspending_job_is_settled(
    what: Asked, name: str, pins: list[tuple[str, int]], note: str | None
) -> None:
    world = Steered("more", "more", "more")
    world.at = {1: [(Asked.SAVEPOINT, "a")], 2: [(Asked.SUSPEND, "pause"), (what, name)]}
    world.play()
    _, suspended, other = world.answers()
    assert sorted(world.pins) == pins
    assert [answer and answer.said for answer in (suspended, other)] == [
        Said.DONE if note is None else Said.REFUSED,
        Said.DONE,
    ]
    assert world.log.head.mode is (CommitMode.SUSPENDED if note is None else CommitMode.RUNNING)
    left = note_of(world.blobs, world.log.head)
    assert (left and left.state) == note
    assert files.waiting(world.blobs) == []
