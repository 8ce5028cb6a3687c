"""Partitions, and what remains to be read of them, as Beam asks for them."""

from __future__ import annotations

import pytest
from apache_beam.coders import BytesCoder

from arcbeam.io.kafka.partitions import ENDLESS, Known, KnownTracker, Offsets, Partition, PartitionCoder, know_end

pytestmark = pytest.mark.contract("KAFKA-03")


def test_coder_restores_partitions_and_equals_its_like() -> None:
    for partition in (Partition("t", "a", 3), Partition("t", "a", 0, 5, 9)):
        assert PartitionCoder().decode(PartitionCoder().encode(partition)) == partition
    assert PartitionCoder() == PartitionCoder()
    assert hash(PartitionCoder()) == hash(PartitionCoder())
    assert PartitionCoder() != BytesCoder()


def test_search_has_something_left_until_it_is_over() -> None:
    tracker = KnownTracker(Known())
    assert tracker.try_claim([("t", "a", 0)])
    progress = tracker.current_progress()
    assert (progress.completed_work, progress.remaining_work) == (0, 1)
    assert tracker.try_split(0) == (None, Known((("t", "a", 0),), searched=True))
    progress = tracker.current_progress()
    assert (progress.completed_work, progress.remaining_work) == (0, 0)
    assert not tracker.try_claim([("t", "a", 1)])
    assert tracker.check_done()


@pytest.mark.parametrize(
    ("start", "stop", "end", "size"),
    [(5, ENDLESS, None, 1), (5, ENDLESS, 5, 0), (5, ENDLESS, 12, 7), (5, 9, 12, 4), (5, 9, 7, 2), (9, 9, 12, 0)],
)
def test_size_is_the_known_backlog(start: int, stop: int, end: int | None, size: int) -> None:
    partition = Partition("t", f"{start}-{stop}-{end}", 0, start, stop)
    if end is not None:
        know_end(partition, end)
    restriction = Offsets().initial_restriction(partition)
    assert Offsets().restriction_size(partition, restriction) == size
    assert Offsets().truncate(partition, restriction) == (None if stop == ENDLESS else restriction)
