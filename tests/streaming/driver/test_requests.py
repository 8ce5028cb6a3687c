"""Requests: the driver that runs the job settles each exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arcbeam.engine.coordinator import Command, End, EndState, Event, JobMachine, MicroBatchFailed, Mode
from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.log import requests as files
from arcbeam.store.log.requests import Answer, AnswerKind, Request, RequestKind
from arcbeam.store.log.savepoints import named_now
from arcbeam.streaming.assignment import TaskAssignment
from arcbeam.streaming.driver.driver import JobDriver
from arcbeam.streaming.driver.requests import RequestQueue
from arcbeam.testing.blobs import MemoryBlobs
from tests.engine.coordinator.script import SETTINGS
from tests.golden import check_message
from tests.streaming.driver.test_driver import World
from tests.streaming.jobs import LAYOUT

NOW = Timestamp(1_000)
RESUME = "resume it first: run its script again with its --checkpoint_dir"


class Steered(World):
    """A driver with its requests. `at` has the requests at each micro-batch: a name, and after a space a new one."""

    def __init__(self, *reports: str, blobs: MemoryBlobs | None = None) -> None:
        super().__init__(*reports, blobs=blobs)
        self.requests = RequestQueue(self, self)
        self.requests.opened(self.blobs, self.log.head)
        self.at: dict[int, list[tuple[RequestKind, str]]] = {}
        self.requested: list[Request] = []
        self.fails = 0
        self.driver = JobDriver(JobMachine(LAYOUT, SETTINGS), self.commits, self, self, self, self, self)

    def play(self) -> list[str]:
        super().play()
        self.requests.close(self.driver.end)
        return self.event_log

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        super().handled(event, commands)
        self.requests.handled(event, commands, self.log.head)

    def run(self, order: TaskAssignment) -> None:
        micro_batch = order.plan.micro_batch
        for what, name in self.at.pop(micro_batch, []):
            name, _, new = name.partition(" ")
            self.requested.append(files.ask(self.blobs, what, name, Timestamp(NOW + len(self.requested)), new))
        self.requests.look()
        if micro_batch == self.fails:
            self.put(MicroBatchFailed(Timestamp(0), micro_batch, order.plan.attempt, "user error", again=False))
        else:
            super().run(order)

    def answers(self) -> list[Answer | None]:
        return [files.answer_to(self.blobs, request) for request in self.requested]

    @property
    def pins(self) -> list[tuple[str, int]]:
        return [(pin.name, pin.micro_batch) for pin in self.log.head.pins]


@pytest.mark.contract("STORE-05")
def test_next_commit_makes_savepoint_and_answers() -> None:
    world = Steered("more", "more")
    world.at = {2: [(RequestKind.SAVEPOINT, "here")]}
    world.play()
    assert world.pins == [("here", 2)]
    assert world.answers() == [Answer(AnswerKind.DONE, "savepoint 'here' is micro-batch 2", 2)]
    assert files.waiting(world.blobs) == []
    assert world.answers() == [None], "the last answer is read once"


@pytest.mark.contract("STORE-05", "OPS-02")
def test_next_commit_renames_and_deletes_savepoints_in_order() -> None:
    world = Steered("more", "more", "more", "more")
    world.at = {
        1: [(RequestKind.SAVEPOINT, "a"), (RequestKind.SAVEPOINT, "b")],
        2: [(RequestKind.RENAME, "a c"), (RequestKind.DELETE, "b")],
        3: [(RequestKind.RENAME, "c a"), (RequestKind.RENAME, "c b")],
    }
    world.play()
    assert world.pins == [("a", 1)]
    *made, renamed, deleted, back, late = world.answers()
    assert [answer and answer.kind for answer in made] == [AnswerKind.DONE] * 2
    assert renamed == Answer(AnswerKind.DONE, "savepoint 'c' is micro-batch 1", 1)
    assert deleted == Answer(AnswerKind.DONE, "savepoint 'b' does not exist any more", 2)
    assert back == Answer(AnswerKind.DONE, "savepoint 'a' is micro-batch 1", 1)
    assert late is not None
    assert late.kind is AnswerKind.REFUSED
    check_message("savepoint-not-renamed", late.text)
    assert "micro-batch 3 could not be named savepoint 'rename c b'" in " ".join(world.event_log)


@pytest.mark.contract("STORE-04", "STORE-05")
def test_next_driver_answers_completed_rename() -> None:
    blobs = MemoryBlobs()
    world = Steered("more", "more", "more", blobs=blobs)
    world.at = {
        1: [(RequestKind.SAVEPOINT, "a"), (RequestKind.SAVEPOINT, "b")],
        2: [(RequestKind.RENAME, "a c"), (RequestKind.DELETE, "b")],
    }
    while world.pins != [("c", 1)]:
        world.driver.handle(world.todo.pop(0))
    following = Steered("nothing left", blobs=blobs)
    following.requested = world.requested[2:]
    following.play()
    assert [answer and answer.kind for answer in following.answers()] == [AnswerKind.DONE] * 2
    assert following.pins == [("c", 1)]


@pytest.mark.contract("END-02", "STORE-05")
def test_savepoint_with_name_of_drain_is_refused() -> None:
    world = Steered("more", "more", "more", "more")
    world.at = {
        1: [(RequestKind.SAVEPOINT, "a")],
        2: [(RequestKind.DRAIN, "last")],
        3: [(RequestKind.RENAME, "a last")],
    }
    world.play()
    *_, refused = world.answers()
    why = "the job is draining, and its last micro-batch will be savepoint 'last'; choose another name"
    assert refused == Answer(AnswerKind.REFUSED, why)
    assert [name for name, _ in world.pins] == ["a", "last"]


@pytest.mark.contract("END-02", "STORE-05")
def test_savepoint_and_drain_of_same_name_conflict() -> None:
    rename, drain = (RequestKind.RENAME, "a last"), (RequestKind.DRAIN, "last")
    for first, second in ((rename, drain), (drain, rename)):
        world = Steered("more", "more", "more")
        world.at = {1: [(RequestKind.SAVEPOINT, "a")], 2: [first, second]}
        world.play()
        assert [answer and answer.kind for answer in world.answers()] == [
            AnswerKind.DONE,
            AnswerKind.DONE,
            AnswerKind.REFUSED,
        ]
        assert [name for name, _ in world.pins] == (["last"] if first is rename else ["a", "last"])
        assert (world.driver.end == End(EndState.DRAINED)) == (first is drain)


@pytest.mark.contract("END-02", "STORE-05")
def test_deleted_name_is_free_for_drain() -> None:
    for change in ((RequestKind.DELETE, "a"), (RequestKind.RENAME, "a b")):
        world = Steered("more", "more", "more", "more")
        world.at = {1: [(RequestKind.SAVEPOINT, "a")], 2: [change], 3: [(RequestKind.DRAIN, "a")]}
        world.play()
        assert [answer and answer.kind for answer in world.answers()] == [AnswerKind.DONE] * 3
        assert world.driver.end == End(EndState.DRAINED)
        assert world.log.head.pin("a")


@pytest.mark.parametrize("name", ["delete a", "rename a b"])
def test_request_to_change_name_is_invalid_name(name: str) -> None:
    world = Steered("more", "more", "more")
    world.at = {1: [(RequestKind.SAVEPOINT, "a")]}
    while not world.pins:
        world.driver.handle(world.todo.pop(0))
    with pytest.raises(RequestRefusedError, match=name):
        files.ask(world.blobs, RequestKind.SAVEPOINT, name, NOW)
    with pytest.raises(RequestRefusedError, match=name):
        world.requests.ask(RequestKind.SAVEPOINT, name)


def test_two_concurrent_requests_for_one_name() -> None:
    world = Steered("more", "more")
    world.at = {2: [(RequestKind.SAVEPOINT, "a"), (RequestKind.SAVEPOINT, "b"), (RequestKind.SAVEPOINT, "a")]}
    world.play()
    assert [answer and answer.kind for answer in world.answers()] == [AnswerKind.DONE] * 3
    assert world.pins == [("a", 2), ("b", 2)]


def test_taken_or_invalid_name_is_refused_at_once() -> None:
    world = Steered("more", "more", "more")
    world.at = {1: [(RequestKind.SAVEPOINT, "a")]}
    while not world.pins:
        world.driver.handle(world.todo.pop(0))
    with pytest.raises(RequestRefusedError, match="'a' exists already, of micro-batch 1"):
        files.ask(world.blobs, RequestKind.DRAIN, "a", NOW)
    with pytest.raises(RequestRefusedError, match="a/b"):
        world.requests.ask(RequestKind.SUSPEND, "a/b")


@pytest.mark.contract("END-02")
def test_drain_is_done_when_committed_and_blocks_suspension() -> None:
    world = Steered("more", "more", "more")
    world.at = {2: [(RequestKind.DRAIN, "last"), (RequestKind.SUSPEND, "other"), (RequestKind.DRAIN, "another")]}
    world.play()
    done, *refused = world.answers()
    assert done is not None
    assert (done.kind, done.micro_batch) == (AnswerKind.DONE, 2)
    for answer, name in zip(refused, ("other", "another"), strict=True):
        assert answer is not None
        assert answer.kind is AnswerKind.REFUSED
        assert all(each in answer.text for each in ("'last'", f"'{name}'"))
    assert world.log.head.mode is CommitMode.DRAINED
    assert [name for name, _ in world.pins] == ["last"]


@pytest.mark.contract("END-02")
def test_repeated_drain_waits_for_commit() -> None:
    world = Steered("more", "more", "more")
    assert world.requests.draining() is None
    first = world.requests.ask(RequestKind.DRAIN, "last")
    while world.driver.machine.mode is not Mode.DRAINING:
        world.driver.handle(world.todo.pop(0))
    assert world.requests.draining() is first
    assert not first.settled.is_set(), "it drains, but would not if its driver died now"
    while world.log.head.mode is not CommitMode.DRAINING:
        world.driver.handle(world.todo.pop(0))
    world.driver.handle(world.todo.pop(0))
    again = world.requests.draining()
    assert again is not None
    assert again.settled.is_set()
    world.play()
    assert world.requests.draining() is None


@pytest.mark.contract("END-02", "STORE-04")
def test_next_driver_continues_drain_to_same_savepoint() -> None:
    blobs = MemoryBlobs()
    world = Steered("more", "more", blobs=blobs)
    world.at = {1: [(RequestKind.DRAIN, "last")]}
    while world.log.head.mode is not CommitMode.DRAINING:
        world.driver.handle(world.todo.pop(0))
    following = Steered("more", "nothing left", blobs=blobs)
    following.requested = world.requested
    following.at = {3: [(RequestKind.SUSPEND, "pause")]}
    drains = following.requests.draining()
    assert drains is not None
    assert drains.settled.is_set()
    following.play()
    assert following.driver.end == End(EndState.DRAINED)
    assert (following.log.head.mode, [name for name, _ in following.pins]) == (CommitMode.DRAINED, ["last"])
    done, refused = following.answers()
    assert done is not None
    assert done.kind is AnswerKind.DONE, "the next driver answers the request to the dead one"
    assert refused is not None
    assert "the job is draining already, to savepoint 'last'" in refused.text


@pytest.mark.contract("END-02", "STORE-05")
def test_name_of_drain_is_refused_for_savepoint() -> None:
    world = Steered("more", "more", "more")
    world.at = {2: [(RequestKind.DRAIN, "last"), (RequestKind.SAVEPOINT, "last")], 3: [(RequestKind.SAVEPOINT, "last")]}
    world.play()
    assert [answer and answer.kind for answer in world.answers()] == [
        AnswerKind.DONE,
        AnswerKind.REFUSED,
        AnswerKind.REFUSED,
    ]
    assert world.pins == [("last", world.log.head.micro_batch)]
    world = Steered("more", "more")
    world.at = {2: [(RequestKind.SAVEPOINT, "a"), (RequestKind.DRAIN, "a")]}
    world.play()
    assert [answer and answer.kind for answer in world.answers()] == [AnswerKind.DONE, AnswerKind.REFUSED]
    assert world.driver.end == End(EndState.DONE)


@pytest.mark.contract("END-03")
def test_suspended_job_has_savepoint_and_refuses_requests() -> None:
    world = Steered("more", "more", "more")
    world.at = {2: [(RequestKind.SUSPEND, "pause")]}
    world.play()
    assert world.driver.end == End(EndState.STOPPED)
    (answer,) = world.answers()
    assert answer == Answer(AnswerKind.DONE, "savepoint 'pause' is micro-batch 2", 2)
    with pytest.raises(RequestRefusedError, match="is suspended at micro-batch 2"):
        files.ask(world.blobs, RequestKind.DRAIN, "late", NOW)
    for what in (RequestKind.CANCEL, RequestKind.DRAIN):
        with pytest.raises(RequestRefusedError) as caught:
            world.requests.ask(what)
        check_message(f"driver-refuses-{what}-suspended", str(caught.value), folder=str(world.blobs))


@pytest.mark.contract("END-03")
def test_signal_suspends_job_without_savepoint() -> None:
    world = Steered("more", "more", "more")
    pending = world.requests.ask(RequestKind.SUSPEND)
    world.play()
    assert world.driver.end == End(EndState.STOPPED)
    assert world.log.head.mode is CommitMode.SUSPENDED
    assert pending.answer == Answer(AnswerKind.DONE, "the job is suspended with micro-batch 1", 1)
    assert world.pins == []


@pytest.mark.contract("END-02", "END-03")
def test_drain_after_suspension_is_refused() -> None:
    world = Steered("more", "more", "more")
    world.at = {2: [(RequestKind.SUSPEND, "pause"), (RequestKind.DRAIN, "last"), (RequestKind.SUSPEND, "other")]}
    world.play()
    done, *refused = world.answers()
    assert done == Answer(AnswerKind.DONE, "savepoint 'pause' is micro-batch 2", 2)
    for answer, name in zip(refused, ("last", "other"), strict=True):
        assert answer is not None
        assert answer.kind is AnswerKind.REFUSED
        assert all(each in answer.text for each in ("'pause'", f"'{name}'"))
    assert world.driver.end == End(EndState.STOPPED)
    with pytest.raises(RequestRefusedError, match=r"is suspended at micro-batch 2\n.*resume it first"):
        files.ask(world.blobs, RequestKind.DRAIN, "late", NOW)


@pytest.mark.contract("END-02")
def test_repeated_drain_with_other_name_is_refused() -> None:
    world = Steered("more", "more", "more")
    first, second = named_now(RequestKind.DRAIN), named_now(RequestKind.DRAIN)
    world.at = {
        1: [(RequestKind.DRAIN, first), (RequestKind.DRAIN, second)],
        3: [(RequestKind.DRAIN, second), (RequestKind.DRAIN, "other")],
    }
    world.play()
    *drained, other = world.answers()
    assert {answer and answer.kind for answer in drained} == {AnswerKind.DONE}
    assert other is not None
    assert other.kind is AnswerKind.REFUSED
    assert [name for name, _ in world.pins] == [first]


def test_request_to_finished_job_is_answered() -> None:
    world = Steered("nothing left")
    world.at = {1: [(RequestKind.DRAIN, "a"), (RequestKind.SAVEPOINT, "b")]}
    world.play()
    assert world.log.head.mode is CommitMode.DRAINED, "requests during the last micro-batch are in its commit"
    with pytest.raises(RequestRefusedError, match="is drained at micro-batch 1"):
        files.ask(world.blobs, RequestKind.SAVEPOINT, "c", NOW)


@pytest.mark.contract("STORE-04")
@pytest.mark.parametrize("what", [RequestKind.SAVEPOINT, RequestKind.SUSPEND])
def test_completed_request_of_dead_driver_is_not_repeated(what: RequestKind) -> None:
    blobs = MemoryBlobs()
    world = Steered("more", "more", blobs=blobs)
    world.at = {2: [(what, "here")]}
    while not world.pins:
        world.driver.handle(world.todo.pop(0))
    following = Steered("nothing left", blobs=blobs)
    following.requested = world.requested
    following.play()
    assert following.answers() == [Answer(AnswerKind.DONE, "savepoint 'here' is micro-batch 2", 2)]
    assert following.driver.end == End(EndState.DONE)
    assert following.pins == [("here", 2)]


@pytest.mark.contract("STORE-04", "END-02")
def test_next_driver_handles_unsettled_request() -> None:
    blobs = MemoryBlobs()
    world = Steered("more", "more", blobs=blobs)
    world.at = {2: [(RequestKind.DRAIN, "last"), (RequestKind.CANCEL, "")]}
    while not world.requested:
        world.driver.handle(world.todo.pop(0))
    following = Steered("nothing left", blobs=blobs)
    following.requested = world.requested
    following.play()
    drained, cancelled = following.answers()
    assert drained is not None
    assert drained.kind is AnswerKind.DONE
    assert following.log.head.mode is CommitMode.DRAINED
    assert cancelled is not None
    assert cancelled.kind is AnswerKind.REFUSED
    check_message("cancel-refused-taken-over", cancelled.text)


@pytest.mark.contract("STORE-03")
def test_fenced_driver_leaves_requests_to_other_driver() -> None:
    blobs = MemoryBlobs()
    world = Steered("more", "more", blobs=blobs)
    world.at = {2: [(RequestKind.SAVEPOINT, "here")]}
    while not world.requested:
        world.driver.handle(world.todo.pop(0))
    following = Steered("nothing left", blobs=blobs)
    following.requested = world.requested
    world.play()
    assert world.driver.end is not None
    assert world.driver.end.state is EndState.FAILED
    following.play()
    assert [answer and answer.kind for answer in following.answers()] == [AnswerKind.DONE]


@pytest.mark.contract("STORE-03")
def test_idle_fenced_driver_leaves_requests() -> None:
    blobs = MemoryBlobs()
    world = Steered("due 3600000000", blobs=blobs)
    while world.log.head.micro_batch == 0 or world.todo:
        world.driver.handle(world.todo.pop(0))
    following = Steered("nothing left", blobs=blobs)
    world.play()
    requested = files.ask(blobs, RequestKind.CANCEL, "", NOW)
    world.requests.look()
    assert files.waiting(blobs) == [requested.id]
    following.play()


def test_invalid_request_is_refused_and_withdrawn_one_ignored() -> None:
    world = Steered("more", "more")
    world.blobs.put("requests/1-bad", b'{"version": 1}')
    world.blobs.put("requests/2-new", b'{"version": 2}')
    request = files.ask(world.blobs, RequestKind.SUSPEND, "no", NOW)
    files.withdraw(world.blobs, request)
    world.play()
    assert world.driver.end == End(EndState.DONE)
    for id, why in (("1-bad", "it is not a request"), ("2-new", "a request has format 2")):
        answer = files.answer_to(world.blobs, Request(id, RequestKind.CANCEL, "", 0, 0))
        assert answer is not None
        assert why in answer.text


def test_request_from_same_process_is_answered() -> None:
    world = Steered("more", "more")
    pending = world.requests.ask(RequestKind.DRAIN, "last")
    world.play()
    assert pending.heard.is_set()
    assert pending.settled.is_set()
    assert pending.answer is not None
    assert (pending.answer.kind, pending.filed) == (AnswerKind.DONE, False)
    assert files.waiting(world.blobs) == []


def test_request_before_takeover_is_handled_afterwards() -> None:
    blobs = MemoryBlobs()
    before = Steered("more", blobs=blobs)
    before.at = {1: [(RequestKind.SAVEPOINT, "there")]}
    while not before.pins:
        before.driver.handle(before.todo.pop(0))
    world = Steered("more", "more", blobs=blobs)
    world.requests = RequestQueue(world, world)
    new, taken = world.requests.ask(RequestKind.SAVEPOINT, "new"), world.requests.ask(RequestKind.DRAIN, "there")
    assert not new.heard.is_set()
    world.requests.opened(world.blobs, world.log.head)
    world.play()
    assert taken.answer is not None
    assert "'there' exists already" in taken.answer.text
    assert world.driver.end == End(EndState.DONE), "a refused request has no effect"
    assert new.answer is not None
    assert new.answer.kind is AnswerKind.DONE


def test_driver_forgets_answered_requests() -> None:
    world = Steered("more", "more")
    world.at = {2: [(RequestKind.SAVEPOINT, "a"), (RequestKind.SAVEPOINT, "b")]}
    world.play()
    assert [answer and answer.kind for answer in world.answers()] == [AnswerKind.DONE] * 2
    world.requests.look()
    assert not world.requests._answered
    assert not world.requests._requests


def test_unread_answers_are_removed_after_a_day() -> None:
    world = Steered()
    day = 24 * 3600 * 1_000_000
    for at in (5, 5 + day):
        files.answer(world.blobs, f"{at:016d}-x", Answer(AnswerKind.DONE))
    world.time = Timestamp(6 + day)
    world.requests.forget_old()
    assert [info.name for info in world.blobs.list("answers")] == [f"answers/{5 + day:016d}-x"]
