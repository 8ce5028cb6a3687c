"""Requests to a driver that ends, or has ended."""

from __future__ import annotations

import pytest

from arcbeam.engine.coordinator import Mode
from arcbeam.errors import RequestRefusedError
from arcbeam.store.log import requests as files
from arcbeam.store.log.endnote import EndNote, note_of
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind
from arcbeam.streaming.driver.requests import RequestQueue
from tests.golden import check_message
from tests.streaming.driver.test_driver import World
from tests.streaming.driver.test_requests import NOW, RESUME, Steered
from tests.streaming.jobs import opened


def test_cancelled_job_answers_and_leaves_note() -> None:
    world = Steered("more", "more")
    world.at = {2: [(RequestKind.SAVEPOINT, "a"), (RequestKind.CANCEL, "")]}
    world.play()
    unmade, cancelled = world.answers()
    assert unmade == Answer(AnswerKind.REFUSED, "it was cancelled at micro-batch 1", remedy=RESUME)
    assert cancelled == Answer(AnswerKind.DONE, "the job is cancelled")
    assert world.pins == []
    assert note_of(world.blobs, world.log.head) == EndNote(1, "CANCELLED")


def test_failed_job_leaves_note() -> None:
    world = Steered("more")
    world.at, world.fails = {2: [(RequestKind.SAVEPOINT, "a")]}, 2
    world.play()
    (answer,) = world.answers()
    assert answer == Answer(AnswerKind.REFUSED, "it failed at micro-batch 1: user error", remedy=RESUME)
    assert note_of(world.blobs, world.log.head) == EndNote(1, "FAILED", "user error")
    with pytest.raises(RequestRefusedError, match=r"no driver is running it.* FAILED: user error\)\n.*resume it first"):
        files.ask(world.blobs, RequestKind.DRAIN, "late", NOW)
    again = Steered("more", blobs=world.blobs)
    assert note_of(again.blobs, again.log.head) is None, "a driver runs it"
    again.play()
    assert note_of(again.blobs, again.log.head) is None, "it is done"


@pytest.mark.contract("END-03")
def test_request_to_failing_job_names_its_end() -> None:
    world = Steered("more")
    world.fails = 2
    while world.driver.machine.mode is not Mode.FAILING:
        world.driver.handle(world.todo.pop(0))
    pending = world.requests.ask(RequestKind.SAVEPOINT, "late")
    world.play()
    assert pending.answer == Answer(AnswerKind.REFUSED, "it failed at micro-batch 1: user error", remedy=RESUME)


@pytest.mark.contract("STORE-03", "END-03")
def test_request_to_fenced_driver_names_other_driver() -> None:
    world = Steered("more", "more")
    while world.log.head.micro_batch < 1:
        world.driver.handle(world.todo.pop(0))
    opened(world.blobs, driver="host-b:words-7")
    world.play()
    with pytest.raises(RequestRefusedError) as caught:
        world.requests.ask(RequestKind.SUSPEND)
    check_message("suspend-refused-by-fenced-driver", str(caught.value))


def test_driver_that_could_not_begin_names_reason() -> None:
    queue = RequestQueue(World(), World())
    pending = queue.ask(RequestKind.SAVEPOINT, "a")
    queue.close(None, "no folder")
    assert pending.answer == Answer(AnswerKind.REFUSED, "no folder")
