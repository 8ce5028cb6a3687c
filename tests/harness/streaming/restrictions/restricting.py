"""Micro-batches with restrictions, for tests. The budget is exhausted from the start, or when the DoFn under test calls
`stop`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from apache_beam.io.restriction_trackers import OffsetRestrictionTracker

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.engine.protocol.reports import StageReport
from arcbeam.model.timestamps import MAX_TIMESTAMP
from tests.harness.batch.splittables import Numbers, gates
from tests.harness.streaming.microbatches import MicroBatch, Shard

WAIT = 30
"""Maximum seconds to wait. The awaited event happens at once, or never."""


class FirstOf:
    """Runs micro-batches unchanged, and keeps the report of each."""

    def __init__(self, *micro_batches: Callable[[list[Any]], MicroBatch]) -> None:
        self.micro_batches = micro_batches
        self.reports: list[StageReport] = []

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        for micro_batch in self.micro_batches:
            self.reports.append(shard.run(micro_batch([(key, [one]) for key, one in arrived])))
            arrived = []


def exhausted(**more: Any) -> Callable[[list[Any]], MicroBatch]:
    return lambda arrived: MicroBatch(arrived, MAX_TIMESTAMP, looks=1, **more)


def exhausted_on_request(**more: Any) -> Callable[[list[Any]], MicroBatch]:
    def micro_batch(arrived: list[Any]) -> MicroBatch:
        gates["exhausted"], gates["split"] = threading.Event(), threading.Event()
        return MicroBatch(arrived, MAX_TIMESTAMP, until=gates["exhausted"], **more)

    return micro_batch


def stop() -> None:
    """Exhaust the budget; return after the rest was split off."""
    gates["exhausted"].set()
    assert gates["split"].wait(WAIT)


class UnsplitTracker(OffsetRestrictionTracker):  # type: ignore[misc]
    """Only its own DoFn splits it, by deferring. So the rest does not depend on the speed of the machine."""

    def try_split(self, fraction_of_remainder: float) -> Any:
        return None if threading.current_thread().name == "splitter" else super().try_split(fraction_of_remainder)


class Unsplit(Numbers):
    tracker = UnsplitTracker
