"""The real driver's environment for a whole job in memory: a clock, events, commits, a cluster, sinks.

All parts answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from arcbeam.engine.coordinator import (
    Command,
    CommitDecided,
    Event,
    Finalized,
    MicroBatchFailed,
    MicroBatchPlan,
    MicroBatchReported,
    Propose,
    Published,
    ScriptRead,
    ShutDown,
    TornDown,
    WaitUntil,
)
from arcbeam.model.commits import Committable
from arcbeam.model.script import ScriptOver
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.log.sweep import Swept
from arcbeam.streaming.assignment import TaskAssignment

if TYPE_CHECKING:
    from tests.engine.task.toy import Toy


class Around:
    """See `streaming.interfaces`."""

    def __init__(self, toy: Toy, request: Callable[[int], Event | None], start: Event) -> None:
        self.toy = toy
        self.request = request
        self.todo: list[Event] = [start]
        self.taken = 0
        self.decided: int | None = None

    def now(self) -> Timestamp:
        return self.toy.now

    def put(self, event: Event) -> None:
        self.todo.append(event)

    def next(self, until: Timestamp | None) -> Event | None:
        self.taken += 1
        if self.decided is not None:
            micro_batch, self.decided = self.decided, None
            if requested := self.request(micro_batch):
                return requested
        if self.todo:
            return self.todo.pop(0)
        assert until is not None, "the job waits without end"
        self.toy.now = max(self.toy.now, until)
        return None

    def handled(self, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, CommitDecided):
            self.decided = event.micro_batch

    def begins(self, command: Command) -> None:
        if not isinstance(command, WaitUntil):
            self.toy.now = Timestamp(self.toy.now + 1)

    def warn(self, text: str) -> None:
        self.toy.warnings.append(text)

    def swept(self, swept: Swept | StoreError) -> None:
        assert swept == Swept()

    def read(self, number: int) -> None:
        script = self.toy.script
        assert script is not None
        event = script[number] if number < len(script) else ScriptOver()
        self.put(ScriptRead(self.toy.now, number, event))

    def order(self, plan: MicroBatchPlan) -> TaskAssignment:
        assert plan.head == self.toy.head
        return TaskAssignment(plan, 0, "toy")

    def propose(self, command: Propose, now: Timestamp) -> CommitDecided:
        self.toy.commit(command)
        return CommitDecided(now, command.micro_batch)

    def resolve(self, micro_batch: int, now: Timestamp) -> CommitDecided:
        raise AssertionError("nothing is unclear")

    def overtaken(self) -> str:
        return ""

    def unpublished(self) -> Sequence[Committable]:
        return ()

    def sweep(self) -> Swept:
        return Swept()

    def run(self, order: TaskAssignment) -> None:
        toy, plan = self.toy, order.plan
        toy.micro_batches += 1
        if toy.chance.random() < toy.failures:
            toy.run_tasks(plan, levels=toy.chance.randrange(toy.levels))
            self.put(MicroBatchFailed(toy.now, plan.micro_batch, plan.attempt, "lost", True))
        else:
            self.put(MicroBatchReported(toy.now, plan.micro_batch, plan.attempt, Duration(1), toy.run_tasks(plan)))

    def abandon(self, micro_batch: int, attempt: int) -> None:
        self.toy.attempt = None

    def finalize(self, micro_batch: int, tokens: Sequence[bytes]) -> None:
        self.put(Finalized(self.toy.now, micro_batch))

    def publish(self, micro_batch: int, committables: Sequence[Committable]) -> None:
        self.toy.unpublished = False
        self.put(Published(self.toy.now, micro_batch))

    def shut_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self.toy.calls.append("shutdown")
        self.put(ShutDown(self.toy.now))

    def tear_down(self, stages: Sequence[str], deadline: Timestamp) -> None:
        self.toy.calls.append("teardown")
        self.put(TornDown(self.toy.now))
