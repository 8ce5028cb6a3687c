"""A large job's state is set aside of the garbage collector; cycles of objects are still freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence

import pytest

from arcbeam.engine.coordinator import Command, Event
from arcbeam.streaming.driver import garbage
from arcbeam.streaming.driver.garbage import StateAside
from tests.streaming.driver.test_driver import World


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def aside() -> Iterator[StateAside]:
    aside = StateAside()
    yield aside
    aside.release()


def test_small_job_sets_nothing_aside(aside: StateAside) -> None:
    before = gc.get_freeze_count()
    aside.committed(0)
    assert gc.get_freeze_count() == before


def test_large_job_sets_its_objects_aside_until_its_end(aside: StateAside) -> None:
    before = gc.get_threshold()
    aside.committed(10_000)
    aside.committed(10_000)
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[0] >= 100_000
    aside.release()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_cycles_among_objects_set_aside_are_freed_after_some_micro_batches(aside: StateAside) -> None:
    cycle = Cycle()
    aside.committed(10_000)
    kept = weakref.ref(cycle)
    del cycle
    for _ in range(32):
        aside.committed(10_000)
    assert kept() is None


def test_collector_that_the_user_turned_off_stays_off(aside: StateAside) -> None:
    before = gc.get_freeze_count()
    gc.disable()
    try:
        aside.committed(10_000)
    finally:
        gc.enable()
    assert gc.get_freeze_count() == before


def test_driver_returns_all_objects_when_its_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_LARGE", 1)
    set_aside: list[int] = []

    class Watching(World):
        def handled(self, event: Event, commands: Sequence[Command]) -> None:
            set_aside.append(gc.get_freeze_count())

    Watching("more", "nothing left").play()
    assert max(set_aside) > 10_000
    assert gc.get_freeze_count() == 0
