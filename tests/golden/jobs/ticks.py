"""A streaming job that uses every kind of state, for golden job folders. Run by `tests.golden.jobs.make` and its test.

    GOLDEN_OUTPUT=FOLDER GOLDEN_LIMIT=N arcbeam run ticks.py --checkpoint_dir=…

Ticks are numbers 0 to `END`; number n happens at second n. With GOLDEN_LIMIT the source waits there, with a deferred
restriction and a hold; without, it reads to its end. Lines of results are published into GOLDEN_OUTPUT, exactly once:
one file for each bundle. Every line is there once, in whatever order numbers come.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    CombiningValueStateSpec,
    OrderedListStateSpec,
    ReadModifyWriteStateSpec,
    SetStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import FixedWindows, GlobalWindows, Sessions, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from arcbeam.io import DeduplicateWithinWatermark, JoinWithin, Publish, Publisher, WithWatermark

END = 400
KEYS = 5
SPAN = 50


class Ticks(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """An unbounded source that ends, or waits at GOLDEN_LIMIT."""

    class Provider(beam.transforms.core.RestrictionProvider):  # type: ignore[misc]  # Beam is untyped
        """Offsets."""

        def initial_restriction(self, element: Any) -> OffsetRange:
            return OffsetRange(0, END)

        def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
            return OffsetRestrictionTracker(restriction)

        def restriction_size(self, element: Any, restriction: OffsetRange) -> int:
            return int(restriction.size())

        def truncate(self, element: Any, restriction: OffsetRange) -> None:
            return None

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]  # Beam is untyped
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Provider()),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        limit = int(os.environ.get("GOLDEN_LIMIT", END))
        at = tracker.current_restriction().start
        while at < END:
            if at >= limit:
                tracker.defer_remainder(Duration(seconds=0.2))
                return
            if not tracker.try_claim(at):
                return
            estimator.set_watermark(Timestamp(at))
            yield TimestampedValue((at % KEYS, at), at)
            at += 1


class Spans(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Puts out what a key had in each span of `SPAN` seconds, by a timer at its end; uses every kind of state."""

    WAITING = BagStateSpec("waiting", VarIntCoder())
    COUNT = CombiningValueStateSpec("count", sum)
    SEEN = SetStateSpec("seen", VarIntCoder())
    SORTED = OrderedListStateSpec("sorted", VarIntCoder())
    FIRST = ReadModifyWriteStateSpec("first", StrUtf8Coder())
    END_OF_SPAN = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[int, int],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
        ordered: Any = beam.DoFn.StateParam(SORTED),
        first: Any = beam.DoFn.StateParam(FIRST),
        end: Any = beam.DoFn.TimerParam(END_OF_SPAN),
    ) -> None:
        key, n = element
        waiting.add(n)
        count.add(1)
        seen.add(n % 3)
        ordered.add((Timestamp(n), n))
        if first.read() is None:
            first.write(f"key {key}")
            end.set(Timestamp(SPAN))

    @on_timer(END_OF_SPAN)  # type: ignore[untyped-decorator]  # Beam is untyped
    def over(
        self,
        key: Any = beam.DoFn.KeyParam,
        at: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        count: Any = beam.DoFn.StateParam(COUNT),
        seen: Any = beam.DoFn.StateParam(SEEN),
        ordered: Any = beam.DoFn.StateParam(SORTED),
        first: Any = beam.DoFn.StateParam(FIRST),
        end: Any = beam.DoFn.TimerParam(END_OF_SPAN),
    ) -> Iterator[str]:
        of_span = [n for n in waiting.read() if n < at.seconds()]
        later = [n for n in waiting.read() if n >= at.seconds()]
        held = [n for _, n in ordered.read_range(Timestamp(0), at)]
        ordered.clear_range(Timestamp(0), at)
        waiting.clear()
        for n in later:
            waiting.add(n)
        yield (
            f"spans|{first.read()}|{at.seconds()}|{sum(of_span)}|{sum(held)}|{sorted(seen.read())}|"
            f"{count.read() - len(later)}"
        )
        if at.seconds() < END:
            end.set(at + SPAN)


class PerBundle(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """The lines of a bundle become one committable."""

    def start_bundle(self) -> None:
        self._lines: list[str] = []

    def process(self, line: str) -> None:
        self._lines.append(line)

    def finish_bundle(self) -> Iterator[Any]:
        if self._lines:
            yield GlobalWindows.windowed_value("\n".join(self._lines))


class Lines(Publisher):
    """Writes each committable to a file that is named by what is in it."""

    def publish(self, committables: Sequence[str]) -> None:
        folder = Path(os.environ["GOLDEN_OUTPUT"])
        for text in committables:
            name = hashlib.sha256(text.encode()).hexdigest()
            whole = folder / f".{name}.{os.getpid()}"
            whole.write_text(text + "\n", encoding="utf-8")
            whole.replace(folder / name)


def pipeline_of(pipeline: beam.Pipeline) -> None:
    """Build the pipeline: what each branch puts out is a line."""
    ticks = pipeline | beam.Impulse() | "Read" >> beam.ParDo(Ticks()).with_output_types(tuple[int, int])
    fixed = ticks | "Fixed" >> beam.WindowInto(FixedWindows(SPAN))
    counts = fixed | beam.CombineGlobally(beam.combiners.CountCombineFn()).without_defaults()
    odd, even = ((ticks | f"Only{i}" >> beam.Filter(lambda kv, i=i: kv[1] % 2 == i)) for i in (1, 0))
    branches = {
        "fixed": fixed
        | beam.CombinePerKey(sum)
        | "LineFixed" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: f"fixed|{kv[0]}|{w.end}|{kv[1]}"),
        "sliding": ticks
        | "Sliding" >> beam.WindowInto(SlidingWindows(2 * SPAN, SPAN))
        | "GroupSliding" >> beam.GroupByKey()
        | "LineSliding" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: f"sliding|{kv[0]}|{w.end}|{sum(kv[1])}"),
        "sessions": ticks
        | "Gaps" >> beam.Filter(lambda kv: kv[1] // 30 % 2 == 0)
        | "Sessions" >> beam.WindowInto(Sessions(20))
        | "GroupSessions" >> beam.GroupByKey()
        | "LineSessions" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: f"sessions|{kv[0]}|{w.start}|{sum(kv[1])}"),
        "spans": ticks | "Spans" >> beam.ParDo(Spans()),
        "side": fixed
        | "Tenth" >> beam.Filter(lambda kv: kv[1] % 10 == 0)
        | "LineSide" >> beam.Map(lambda kv, n: f"side|{kv[1]}|{n}", n=beam.pvalue.AsSingleton(counts)),
        "join": (even, odd)
        | JoinWithin(before=5, after=5)
        | "LineJoin" >> beam.Map(lambda kv: f"join|{kv[0]}|{kv[1][0]}|{kv[1][1]}"),
        "dedup": ticks
        | "Twins" >> beam.Map(lambda kv: (kv[1] // 2, "twin"))
        | DeduplicateWithinWatermark(delay=10)
        | "LineDedup" >> beam.Map(lambda kv: f"dedup|{kv[0]}"),
        "observed": ticks
        | "At" >> beam.Map(lambda kv: {"at": float(kv[1]), "n": kv[1]})
        | WithWatermark("at", delay=30)
        | "Minutes" >> beam.WindowInto(FixedWindows(60))
        | "Seven" >> beam.Map(lambda row: (row["n"] % 7, row["n"]))
        | "GroupSeven" >> beam.GroupByKey()
        | "LineSeven" >> beam.Map(lambda kv, w=beam.DoFn.WindowParam: f"observed|{kv[0]}|{w.end}|{sum(kv[1])}"),
    }
    lines = [branch | f"Global{name}" >> beam.WindowInto(GlobalWindows()) for name, branch in branches.items()]
    lines | beam.Flatten() | beam.ParDo(PerBundle()) | Publish(Lines())


if __name__ == "__main__":
    with beam.Pipeline() as pipeline:
        pipeline_of(pipeline)
