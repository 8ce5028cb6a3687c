"""A job whose clock is set forward by a day, and back. It runs as a program, because all its processes use that clock.

The program returns only if the job is correct.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms import userstate, window
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import read_newest
from arcbeam.store.manifest.values import Manifest
from tests.notes import note, noted
from tests.offsets import NO_END, Endless, Whole
from tests.spark.streaming.days.jobs import pipeline
from tests.spark.streaming.fed import fed, feed

DAY, HOUR = 86_400, 3_600
POLLS_AFTER, FIRES_AFTER = 1.5, 1.0
"""Seconds of user code's clock."""
EARLY = 0.3
"""Seconds by which something may be early.

After a host's clock was set back, a task knows only the job's time at which its micro-batch was planned, not how long
it has waited since: up to two tenths of a second on a busy machine.
"""


class AsOne(Endless):
    """A restriction that is not split."""

    tracker = Whole


class Polls(beam.DoFn):
    """Polls with a delay, and records when it runs."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element: tuple[str, str], tracker: Any = beam.DoFn.RestrictionParam(AsOne())) -> Iterator[Any]:
        source, polls = element
        at = tracker.current_restriction().start
        if int(Path(source, "fed").read_text().split()[1]):
            tracker.try_claim(NO_END)
        elif tracker.try_claim(at):
            note(time.monotonic(), polls)
            tracker.defer_remainder(Duration(POLLS_AFTER))
        yield at


class Waits(beam.DoFn):
    """Outputs the number of a key's elements when the first of them has waited for some processing time."""

    COUNT = userstate.CombiningValueStateSpec("count", sum)
    FIRE = userstate.TimerSpec("fire", TimeDomain.REAL_TIME)

    def __init__(self, timers: str) -> None:
        self._timers = timers

    def process(
        self,
        element: tuple[int, int],
        count: Any = beam.DoFn.StateParam(COUNT),
        fire: Any = beam.DoFn.TimerParam(FIRE),
    ) -> None:
        if not count.read():
            fire.set(Timestamp.of(time.time() + FIRES_AFTER))
            note(("set", time.monotonic(), 0), self._timers)
        count.add(1)

    @userstate.on_timer(FIRE)
    def fired(self, count: Any = beam.DoFn.StateParam(COUNT)) -> None:
        note(("fired", time.monotonic(), count.read()), self._timers)
        count.clear()


class Trial:
    """The job, and the clock."""

    def __init__(self, folder: Path) -> None:
        self.source, self.state = folder / "source", folder / "state"
        self.windows, self.hours, self.polls, self.timers = (
            folder / name for name in ("windows", "hours", "polls", "timers")
        )
        for each in (self.windows, self.hours, self.polls, self.timers):
            each.mkdir()
        self.begins = time.time()
        self._seen: list[tuple[int, dict[Any, int]]] = []

    def set(self, seconds: int) -> float:
        """Set the clock; return the time of a monotonic clock."""
        file = Path(os.environ["ARCBEAM_TRIAL_CLOCK"])
        partial = file.with_name("partial")
        partial.write_text(str(seconds))
        partial.rename(file)
        return time.monotonic()

    def submit(self) -> Any:
        p = pipeline(f"--checkpoint_dir={self.state}")
        numbers = fed(p, self.source)
        groups = numbers | beam.WindowInto(window.FixedWindows(10)) | beam.WithKeys(0) | "Tens" >> beam.GroupByKey()
        _ = groups | "Note tens" >> beam.Map(lambda pair, to: note(sorted(pair[1]), to), str(self.windows))
        _ = numbers | "Key" >> beam.Map(lambda n: (0, n)) | "Wait" >> beam.ParDo(Waits(str(self.timers)))
        hours = p | PeriodicImpulse(self.begins, self.begins + 12 * HOUR, HOUR)
        _ = hours | "Note hours" >> beam.Map(lambda at, to: note(round(float(at)), to), str(self.hours))
        _ = p | beam.Create([(str(self.source), str(self.polls))]) | "Poll" >> beam.ParDo(Polls())
        return p.run()

    def until(self, result: Any, done: Callable[[], bool]) -> None:
        while not done():
            assert result.wait_until_finish(50) == "RUNNING"
            self.look()

    def look(self) -> None:
        """Check that the job's clock and watermarks never go back, whatever the clock does."""
        head = read_newest(FolderBlobs(self.state))
        if not isinstance(head, Manifest):
            return
        marks = {(of.stage, out.output): out.watermark for of in head.watermarks for out in of.outputs}
        marks |= {(of.stage, ""): of.input for of in head.watermarks}
        if self._seen:
            time_before, before = self._seen[-1]
            assert head.time >= time_before
            assert all(marks[port] >= mark for port, mark in before.items()), (before, marks)
        self._seen.append((head.time, marks))

    def tens(self) -> list[list[int]]:
        return sorted(noted(self.windows))

    def fired(self, since: float) -> list[tuple[float, float]]:
        """Return when timers were set and when they fired, for timers set since a time."""
        events = sorted(noted(self.timers), key=lambda event: event[1])
        pairs = [(one[1], other[1]) for one, other in pairwise(events) if (one[0], other[0]) == ("set", "fired")]
        return [pair for pair in pairs if pair[0] > since]


def in_tens(count: int) -> list[list[int]]:
    return [list(range(at, at + 10)) for at in range(0, count, 10)]


def main(folder: Path) -> None:
    trial = Trial(folder)
    feed(trial.source, 20)
    result = trial.submit()
    trial.until(result, lambda: trial.tens() == in_tens(20) and bool(trial.fired(0)))
    assert len(noted(trial.hours)) == 1

    trial.set(DAY)
    feed(trial.source, 40)
    # What is due by the clock has run.
    trial.until(result, lambda: trial.tens() == in_tens(40) and len(noted(trial.hours)) == 12)

    back = trial.set(0)
    late = back + POLLS_AFTER
    trial.until(result, lambda: polled(trial, late) > 0)
    feed(trial.source, 60)
    trial.until(result, lambda: trial.tens() == in_tens(60) and bool(trial.fired(late)) and polled(trial, late) > 2)
    result.suspend()

    # Another driver, whose clock begins where that of the first ended.
    feed(trial.source, 80)
    again = time.monotonic()
    result = trial.submit()
    trial.until(result, lambda: trial.tens() == in_tens(80) and bool(trial.fired(again)) and polled(trial, again) > 2)
    feed(trial.source, 80, end=True)
    assert result.wait_until_finish() == "DONE"
    trial.look()

    assert trial.tens() == in_tens(80)
    assert sorted(noted(trial.hours)) == [round(trial.begins + hour * HOUR) for hour in range(12)]
    assert sum(count for what, _, count in noted(trial.timers) if what == "fired") == 80
    for since in (late, again):
        assert all(fired - at > FIRES_AFTER - EARLY for at, fired in trial.fired(since)), trial.fired(since)
    for since, until in ((late, again), (again, float("inf"))):
        polls = [at for at in noted(trial.polls) if since < at < until]
        assert all(then - at > POLLS_AFTER - EARLY for at, then in pairwise(sorted(polls))), polls


def polled(trial: Trial, since: float) -> int:
    return sum(at > since for at in noted(trial.polls))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
