"""Jobs with an observed watermark that are stopped and resumed at random: it never goes back, and nothing is lost.

They are resumed with other numbers of slots, after a suspension or a cancellation, and with a renamed observer.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import trigger, window

from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.io import LateElement, WithLate, WithWatermark
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from arcbeam.streaming.driverstate import times_of
from tests.notes import note, noted
from tests.spark.streaming.fed import fed, feed
from tests.spark.streaming.replay.running import slots
from tests.spark.streaming.timing.test_watermarks import pipeline

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.contract("WM-01", "WM-03", "STORE-05")]

_SOURCE = "Fed/Process"


class Chosen:
    """A random pipeline, and its input.

    Args:
        chance: the source of all random choices.
    """

    def __init__(self, chance: random.Random) -> None:
        self.delay = chance.choice((0, 3, 20))
        self.slide = chance.choice((5, 10))
        self.lateness = chance.choice((0, 15))
        self.quantile = chance.choice((None, None, 0.9))
        self.early = chance.random() < 0.5
        self.times = [n + chance.choice((0, 0, 0, 5, 9, -8, -30, -60)) for n in range(80)]

    def into(self) -> beam.WindowInto:
        """Return the windows, with their trigger."""
        once = trigger.AfterCount(1)
        fires = trigger.AfterWatermark(early=trigger.AfterCount(2) if self.early else None, late=once)
        return beam.WindowInto(
            window.SlidingWindows(10, self.slide),
            trigger=fires,
            accumulation_mode=trigger.AccumulationMode.DISCARDING,
            allowed_lateness=self.lateness,
        )

    def expected(self, until: int) -> Counter[tuple[int, int]]:
        """Return (end of the window, number) for the numbers below `until`."""
        windows = window.SlidingWindows(10, self.slide)
        context = window.WindowFn.AssignContext
        return Counter((int(w.end), n) for n in range(until) for w in windows.assign(context(self.times[n])))


class Job:
    """Runs it, part by part.

    Args:
        folder: an empty folder for all its output.
        chosen: the pipeline.
    """

    def __init__(self, folder: Path, chosen: Chosen) -> None:
        self.source, self.state, self.panes, self.late = (folder / n for n in ("source", "state", "panes", "late"))
        self.chosen, self.times, self.label = chosen, WatermarkTimes(), ""
        for each in (self.panes, self.late):
            each.mkdir()

    def begun(self, until: int, label: str, *options: str, end: bool = False) -> Any:
        """Submit the job, which reads the numbers below `until`; `label` is its observer's name."""
        feed(self.source, until, end=end)
        self.label = label
        p = pipeline(f"--checkpoint_dir={self.state}", "--shards=3", *options)
        read = fed(p, self.source, silently=True) | "Read" >> beam.Map(_row, self.chosen.times)
        rows = read | label >> WithWatermark("at", self.chosen.delay, quantile=self.chosen.quantile)
        keyed = rows | self.chosen.into() | beam.Map(lambda row: (row["n"] % 4, row["n"]))
        panes, late = keyed | "Group" >> WithLate(beam.GroupByKey())
        _ = panes | "Pane" >> beam.FlatMap(_pane) | "Note panes" >> beam.Map(note, str(self.panes))
        _ = late | "Late" >> beam.Map(_late) | "Note late" >> beam.Map(note, str(self.late))
        return p.run()

    def look(self) -> WatermarkTimes:
        """Return its watermarks; none may be earlier than at the last call."""
        newest = read_newest(FolderBlobs(self.state))
        if newest is not None:
            before, self.times = self.times, times_of(known(newest))
            self.times.check_after(before)
            for name, time in before.seen.items():
                assert self.times.seen.get(name, time) >= time
        return self.times

    def until_idle(self, result: Any, numbers: int) -> None:
        """Wait until it has committed this many numbers, and the grouping has received the observed watermark."""
        while True:
            assert result.wait_until_finish(20) == "RUNNING"
            times = self.look()
            (source,) = [port for port in times.outputs if port.stage == _SOURCE] or [None]
            (group,) = [stage for stage in times.inputs if stage.startswith("Group")] or [None]
            if source and group and _committed(result) == numbers and times.inputs[group] == times.outputs[source]:
                return


def _row(n: int, times: list[int]) -> dict[str, int]:
    beam.metrics.Metrics.counter("resuming", "read").inc()
    return {"n": n, "at": times[n]}


def _committed(result: Any) -> int:
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("read"))["counters"]
    return sum(counter.committed or 0 for counter in found)


def _pane(pair: Any, of: Any = beam.DoFn.WindowParam) -> list[tuple[int, int]]:
    return [(int(of.end), n) for n in pair[1]]


def _late(late: LateElement) -> tuple[int, int]:
    return int(late.window.end), late.value


@pytest.mark.long
@pytest.mark.contract("WM-09", "ENG-10")
@pytest.mark.parametrize("seed", range(4))
def test_input_is_in_panes_or_late_after_resumptions(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    chosen = Chosen(chance)
    job, read = Job(tmp_path, chosen), 0
    for part in range(3):
        until = read + chance.randint(10, 25)
        # A micro-batch that a cancelled driver has begun leaves no notes, because it had no input.
        with slots(chance.randint(1, 4)):
            mapped = [f"--stage_mapping={job.label}=Seen {part}"] if part else []
            result = job.begun(until, f"Seen {part}", *mapped)
            job.until_idle(result, until - read)
            read = until
            result.suspend() if chance.random() < 0.5 else result.cancel()
        assert set(job.look().seen) <= {f"Seen {part}"}
    result = job.begun(read + 5, "Seen 2", end=True)
    assert result.wait_until_finish() == "DONE"
    job.look()
    panes, late = Counter(noted(job.panes)), Counter(noted(job.late))
    assert panes + late == chosen.expected(read + 5)
    assert not panes & late


@pytest.mark.contract("WM-03")
def test_renamed_observer_keeps_its_watermark_if_mapped(tmp_path: Path) -> None:
    chosen = Chosen(random.Random(0))
    chosen.delay, chosen.quantile, chosen.times = 0, None, [100, 50, 60, 70]
    job = Job(tmp_path, chosen)

    def runs(until: int, label: str, *options: str) -> tuple[int, dict[str, int]]:
        """Return the watermark then, and what each observer has seen, in seconds."""
        result = job.begun(until, label, *options)
        job.until_idle(result, 1)
        result.suspend()
        times = job.look()
        (there,) = [time for port, time in times.outputs.items() if port.stage == _SOURCE]
        return there // 1_000_000, {name: time // 1_000_000 for name, time in times.seen.items()}

    assert runs(1, "Seen") == (100, {"Seen": 100})
    assert runs(2, "Clicks", "--stage_mapping=Seen=Clicks") == (100, {"Clicks": 100})
    # Without the mapping, the observer starts again. The watermark does not go back.
    there, seen = runs(3, "Views")
    assert (there, seen["Views"]) == (100, 60)
    assert job.begun(4, "Views", end=True).wait_until_finish() == "DONE"
    assert sorted({n for _, n in noted(job.late)}) == [1, 2, 3]
