"""Parts of streaming jobs: when each begins and ends, and what is published after which micro-batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp

from arcbeam.engine.grouping.groupings import WindowedElement
from arcbeam.harness.operations.publishoperation import OpenPublisher
from arcbeam.io import Roll, StagedPart, WriteParts
from arcbeam.io.parts import keyed
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches, MicroBatch, Shard
from tests.io.parts import jobs
from tests.io.parts.jobs import attempt, left, published, successes

pytestmark = pytest.mark.contract("END-06")
SECOND = 1_000_000


class MicroBatches:
    """Divides the input of a stage into micro-batches; each is committed and published before the next.

    Args:
        folder: the folder of the parts.
        cut: for each micro-batch the number of chunks, and the lag of the watermark in seconds; None: the end.
        runs: number of runs of each micro-batch; the last one counts.
        clock: seconds of each micro-batch.
    """

    def __init__(self, folder: Path, *cut: tuple[int, float | None], runs: int = 1, clock: Sequence[int] = ()) -> None:
        self.folder, self.cut, self.runs, self.clock = folder, cut, runs, clock
        self.now = 0
        self.seen: list[dict[str, list[str]]] = []

    def __call__(self, shard: Shard, arrived: list[tuple[bytes, WindowedElement]]) -> None:
        if not shard.of.publishers:
            return
        over = any(name.endswith("Publish success/Publish") for name in shard.of.publishers)
        for number, (count, seconds) in enumerate(self.cut, 1):
            some, arrived = arrived[:count], arrived[count:]
            watermark = MAX_TIMESTAMP if seconds is None else Timestamp(int(seconds * SECOND))
            self.now = self.clock[number - 1] if self.clock else 0
            micro_batch = MicroBatch([(key, [one]) for key, one in some], watermark, Timestamp(SECOND * self.now))
            for run in range(self.runs):
                with attempt(number, (1, 0), f"{number}.{run}"):
                    committed = shard.view
                    shard.run(micro_batch)
                    if run < self.runs - 1:
                        shard.view, shard.micro_batches = committed, shard.micro_batches - 1
            for name in shard.of.publishers:
                publisher = OpenPublisher(shard.of, name)
                made = [each.payload for each in shard.closed[-1].committables if each.stage == name]
                publisher.publish(made, again=True)
                publisher.sweep(jobs.JOB, number)
                publisher.close()
            assert over or left(self.folder) == []
            self.seen.append(published(self.folder))
        assert not arrived
        assert not shard.left_over()


def stream(folder: Path, played: Any, lines: Any, size: int, records: int = 1, **arguments: Any) -> InMicroBatches:
    """Create a chunk for each line, or for several, with its second."""
    with pytest.MonkeyPatch.context() as patch, InMicroBatches(played) as p:
        patch.setattr(keyed, "_RECORDS", records)
        timed = p | beam.Create(lines, reshuffle=False)
        timed |= "Timed" >> beam.Map(lambda line: window.TimestampedValue(*line)).with_output_types(str)
        if size:
            timed |= "Windows" >> beam.WindowInto(window.FixedWindows(size), allowed_lateness=100)
        timed.is_bounded = False
        timed | WriteParts(str(folder), **arguments) | Collect()
    return p


LINES = [("a", 1), ("b", 2), ("c", 11), ("d", 3), ("e", 12), ("f", 13)]


WINDOW = "part-19700101T0000{}0Z-19700101T0000{}0Z-00000-0000{}.txt".format


@pytest.mark.parametrize("runs", [1, 2])
def test_window_end_writes_its_part(tmp_path: Path, runs: int) -> None:
    played = MicroBatches(tmp_path, (2, 1), (2, 5), (2, 10), (0, None), runs=runs)
    stream(tmp_path, played, LINES, 10)
    first, second = {WINDOW(0, 1, 0): ["a", "b", "d"]}, {WINDOW(1, 2, 0): ["c", "e", "f"]}
    assert played.seen == [{}, {}, first, first | second]


def test_late_records_make_further_parts(tmp_path: Path) -> None:
    played = MicroBatches(tmp_path, (2, 10), (1, 11), (1, 12), (2, 30), (0, None))
    stream(tmp_path, played, LINES, 10)
    late = {WINDOW(0, 1, 0): ["a", "b"], WINDOW(0, 1, 1): ["d"]}
    assert played.seen[1:4] == [{WINDOW(0, 1, 0): ["a", "b"]}, late, late | {WINDOW(1, 2, 0): ["c", "e", "f"]}]
    assert played.seen[4] == played.seen[3]


@pytest.mark.parametrize("cut", [[(6, None)], [(1, 0)] * 6 + [(0, None)]])
@pytest.mark.parametrize("roll", [Roll(elements=2), Roll(bytes=3)])
def test_full_parts_do_not_depend_on_micro_batches(
    tmp_path: Path, cut: list[tuple[int, float | None]], roll: Roll
) -> None:
    played = MicroBatches(tmp_path, *cut)
    stream(tmp_path, played, LINES, 0, roll=roll)
    names = [f"part-00000-0000{part}.txt" for part in range(3)]
    assert played.seen[-1] == dict(zip(names, (["a", "b"], ["c", "d"], ["e", "f"]), strict=True))
    if len(cut) > 1:
        assert [len(seen) for seen in played.seen] == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("roll", "lines"),
    [
        (Roll(seconds=100), [[], [], [], ["a", "b", "c", "d"]]),
        (Roll(idle_seconds=50), [[], [], ["a", "b", "c"], ["a", "b", "c"]]),
        (Roll(seconds=100, idle_seconds=50), [[], [], ["a", "b", "c"], ["a", "b", "c"]]),
    ],
)
def test_clock_closes_parts(tmp_path: Path, roll: Roll, lines: list[list[str]]) -> None:
    """By the clock of the process, when a record arrives; by the job's clock, when a timer is due."""
    now = int(time.time())
    played = MicroBatches(
        tmp_path, (2, 0), (1, 0), (0, 0), (1, 0), (2, None), clock=[now, now + 1, now + 60, now + 200, now]
    )
    stream(tmp_path, played, LINES, 0, roll=roll)
    assert [[line for part in seen.values() for line in part] for seen in played.seen[:3]] == lines[:3]
    assert sorted(line for part in played.seen[-1].values() for line in part) == list("abcdef")


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(
    ("elements", "parts", "counts"),
    [
        # Each second chunk fills a part, and begins the next one.
        (3, ["abc", "d", "ef"], [0, 1, 1, 2, 2, 2, 3, 3]),
        (5, ["abcd", "ef"], [0, 0, 1, 1, 1, 1, 2, 2]),
    ],
)
def test_age_of_a_part_counts_from_its_own_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, elements: int, parts: list[str], counts: list[int]
) -> None:
    """Chunks of two records, at 10, 90 and 200 seconds."""
    cut = [(1, 0), (1, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 0), (0, None)]
    played = MicroBatches(tmp_path, *cut, runs=runs, clock=[10, 90, 120, 195, 200, 290, 301, 302])

    class Now(SdkTimestamp):  # type: ignore[misc]
        @staticmethod
        def now() -> Any:
            return SdkTimestamp(played.now)

    monkeypatch.setattr(keyed, "Timestamp", Now)
    stream(tmp_path, played, LINES, 0, records=2, roll=Roll(elements=elements, seconds=100))
    files = [(f"part-00000-0000{n}.txt", list(lines)) for n, lines in enumerate(parts)]
    assert played.seen == [dict(files[:count]) for count in counts]


def test_shards_and_destinations_have_separate_state(tmp_path: Path) -> None:
    lines = [(str(n), n) for n in range(60)]
    played = MicroBatches(tmp_path, (30, 20), (30, 40), (0, None))
    p = stream(tmp_path, played, lines, 40, shards=3, destination=lambda line: f"d{line[-1]}", roll=Roll(elements=3))
    assert sorted((line for part in played.seen[-1].values() for line in part), key=int) == [line for line, _ in lines]
    parts: list[StagedPart] = p.values()
    assert {part.path.removeprefix(f"{tmp_path}/") for part in parts} == set(played.seen[-1])
    assert len(parts) == len(played.seen[-1])
    assert max(part.records for part in parts) == 3
    assert {part.destination for part in parts} == {f"d{n}" for n in range(10)}
    assert {part.shard for part in parts} == {(0,), (1,), (2,)}


def test_success_file_follows_window_end_and_late_records(tmp_path: Path) -> None:
    played = MicroBatches(tmp_path, (2, 10), (1, 11), (1, 12), (2, 30), (0, None))
    p = stream(tmp_path, played, LINES, 10, success="_DONE")
    over = successes(tmp_path)
    assert {name: success["records"] for name, success in over.items()} == {
        "_DONE-19700101T000000Z-19700101T000010Z": 3,
        "_DONE-19700101T000010Z-19700101T000020Z": 3,
    }
    assert [part.part for part in p.values()] == [0, 1, 0]
