"""What the page keeps of folders: how often each job is read, whatever the number of viewers and of ended jobs."""

from __future__ import annotations

from collections import Counter

import pytest

from arcbeam.page.memory import Memory, RecentReads
from arcbeam.page.sources import Listed
from arcbeam.page.states import is_live
from tests.page import samples

pytestmark = pytest.mark.contract("PAGE-14")


class World:
    """Jobs that count how often they are read, and a clock."""

    def __init__(self, running: int, ended: int) -> None:
        self.reads: Counter[str] = Counter()
        self.at = 0.0
        self.ids = [f"r{number}" for number in range(running)] + [f"e{number}" for number in range(ended)]
        self.resumed: set[str] = set()
        self.memory = Memory(self.ids, self.read, lambda job: not is_live(job), lambda: self.at)

    def read(self, id: str) -> Listed:
        self.reads[id] += 1
        mode = "running" if id[0] == "r" or id in self.resumed else "done"
        return Listed(id, f"/{id}", samples.status(2, mode=mode))

    def settled(self) -> int:
        """Return the number of jobs in the list, when all were read once."""
        while self.memory.unread():
            list(self.memory.all())
        found = len(list(self.memory.all()))
        self.reads.clear()
        return found


def test_running_job_is_read_once_a_second_for_all_viewers() -> None:
    world = World(2, 0)
    assert world.settled() == 2
    for at in (1.0, 2.0, 3.0):
        world.at = at
        for _ in range(5):
            list(world.memory.all())
            world.memory.one("r1")
    assert world.reads == {"r0": 3, "r1": 3}


def test_ended_jobs_are_hardly_read_again() -> None:
    world = World(1, 500)
    assert world.settled() == 501
    for at in range(1, 61):
        world.at = float(at)
        list(world.memory.all())
    assert world.reads.pop("r0") == 60
    # The five oldest, once a minute has passed.
    assert sum(world.reads.values()) == 5


def test_resumed_job_is_noticed() -> None:
    world = World(0, 20)
    world.settled()
    world.resumed.add("e7")
    world.at = 11.0
    noticed = world.memory.one("e7")
    assert noticed is not None
    assert is_live(noticed)
    world.resumed.add("e9")
    for at in range(70, 75):
        world.at = float(at)
        found = {job.id: job for job in world.memory.all()}
    assert is_live(found["e9"])


def test_unknown_job_is_not_read() -> None:
    world = World(1, 0)
    assert world.memory.one("x") is None
    assert not world.reads


def test_large_things_are_kept_for_few_jobs_and_some_time() -> None:
    seconds, reads = [0.0], []

    def read(id: str) -> str:
        reads.append(id)
        return id

    kept = RecentReads(read, 20.0, 2, lambda: seconds[0])
    for at in (0.0, 19.0, 20.0, 21.0):
        seconds[0] = at
        assert kept.get("a") == "a"
    assert reads == ["a", "a"]
    for id in ("b", "c", "a"):
        kept.get(id)
    assert reads == ["a", "a", "b", "c", "a"]
