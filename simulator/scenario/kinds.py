"""The kinds of stages of a simulated job, as values: sources and their events, triggers, stateful stages.

Owns the shapes. Must not know the place of a stage, nor what runs it.

An element is identified by its *atoms*: names that are passed on through all stages. So each output shows from which
events of which source it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from arcbeam.engine.grouping.composites import AfterAll, AfterAny, AfterEach, AfterWatermark, OrFinally, Repeatedly
from arcbeam.engine.grouping.delays import AlignTo, Delay
from arcbeam.engine.grouping.strategy import PaneTime, Strategy
from arcbeam.engine.grouping.triggers import AfterCount, AfterSynchronizedTime, AfterTime, Always, Never, Trigger
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.observers import Policy
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.model.windows import Window
from simulator.scenario.combining import Atoms
from simulator.scenario.windowings import TENS, Windowing

MAIN, OTHER = "main", "other"
SOON: Final = 700
"""The delay of triggers that also have a count."""
ALIGNED: Final = 5000
"""The period to which a trigger aligns its alarms."""


@dataclass(frozen=True, slots=True)
class Event:
    """The event of a source at one position.

    Attributes:
        atom: its name, unique in the job.
        key: its user key.
        time: its event time.
        output: the output of the source that it goes to.
        surprising: the source's estimator ignores it, so it may be late.
    """

    atom: bytes
    key: bytes
    time: int
    output: str = MAIN
    surprising: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How a restriction is processed.

    Attributes:
        piece: the number of positions before each checkpoint.
        every, pause: a checkpoint at a multiple of `every` resumes only after the pause.
        polls: how many times it polls for more at its end, each time after the pause.
        splits: the probability of a split in a run.
        silent: its estimator reports nothing until it runs for the first time.
    """

    piece: int = 3
    every: int = 5
    pause: int = 0
    polls: int = 0
    splits: float = 0.3
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A source that reads events.

    Attributes:
        events: the events by position.
        pace: the pace of reading.
        parts: the number of initial restrictions.
        bounded: whether a drain lets it read to its end.
        joins: the number of the first driver with this source; earlier drivers have a pipeline without it.
    """

    events: tuple[Event, ...]
    pace: Pace = Pace()
    parts: int = 1
    bounded: bool = False
    joins: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """An observer that several stages share; it uses their input watermarks instead of timestamps of elements.

    Attributes:
        name: the name of the shared observer.
        policy: how it combines their input watermarks.
    """

    name: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Pass:
    """Passes elements on unchanged; with two outputs, the sum of their bytes selects one.

    Attributes:
        delay: the delay of the observer of its outputs; None: they are not observed.
        policy: the policy of the observer.
        jump: a timestamp this far ahead of all others is ignored until others confirm it; None: none is.
        skew: a timestamp more than this ahead of the clock is ignored; None: none is.
        idle: the input watermark is ignored after it has not advanced for this time; None: never.
        shared: the observer that it shares with others; None: it has its own.
        quantile: the quantile of the timestamps that the observer uses; None: the latest timestamp.
    """

    delay: int | None = None
    policy: Policy = Policy.MIN
    jump: int | None = None
    skew: int | None = None
    idle: int | None = None
    shared: Shared | None = None
    quantile: float | None = None

    @property
    def observes(self) -> bool:
        """Return whether its outputs are observed."""
        return self.delay is not None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Buffers elements without a hold, until their shard has this number of them or the job prepares its shutdown.

    At shutdown, the consumers are at the end of the global window.
    """

    size: int = 5


@dataclass(frozen=True, slots=True)
class Expand:
    """A splittable DoFn: makes copies of each atom, each with a later timestamp than the copy before.

    Attributes:
        side: a side input; each copy shows whether it has contents in the window of the original element.
        windowing: the windows if there is a side input; each timestamp is in one window.
        beside: other producers of the same side input.
        newest: only the contents from the newest micro-batch of each producer and window are read.
    """

    copies: int = 2
    pace: Pace = Pace()
    side: Port | None = None
    windowing: Windowing = TENS
    beside: tuple[Port, ...] = ()
    newest: bool = False


@dataclass(frozen=True)
class Group:
    """Groups elements by key and window.

    Attributes:
        trigger: the name of the trigger; see `TRIGGERS`.
        count: the number from which the trigger's counts and delays are made.
        lateness: the allowed lateness.
        accumulating: whether a pane has all elements of the window.
        combined: whether its state is an accumulator.
        pane_time: the timestamp of a pane.
        closes: whether a closing window always has a pane, even without elements.
        quiet: whether an on-time pane without new elements is omitted.
    """

    windowing: Windowing = TENS
    trigger: str = "watermark"
    count: int = 2
    lateness: int = 0
    accumulating: bool = False
    combined: bool = False
    pane_time: PaneTime = PaneTime.END_OF_WINDOW
    closes: bool = False
    quiet: bool = False

    @cached_property
    def strategy(self) -> Strategy:
        """Return the strategy for the engine."""
        return Strategy(
            TRIGGERS[self.trigger](self.count),
            self.windowing.merging,
            Atoms() if self.combined else None,
            self.accumulating,
            self.pane_time,
            lateness=Duration(self.lateness),
            empty_on_time=not self.quiet,
            empty_last=self.closes,
        )

    @property
    def once(self) -> bool:
        """Return whether each window has exactly one pane, on time, if no data is late."""
        return self.trigger in ("watermark", "never", "watermark and count") and not self.lateness and not self.closes

    @property
    def together(self) -> bool:
        """Return whether all elements that are on time come out together, after the watermark has passed the window."""
        return self.trigger in ("watermark", "repeated watermark", "never", "watermark and count")

    @property
    def is_on_time(self) -> bool:
        """Return whether each window has an on-time pane, whatever panes precede it."""
        return not self.quiet and self.trigger in PUNCTUAL

    @property
    def finishes(self) -> bool:
        """Return whether the trigger may finish; later elements are then dropped."""
        return self.trigger in ("watermark", "count once", "watermark or count", "watermark and count")


PUNCTUAL = frozenset({"watermark", "early and late", "early by the clock", "repeated watermark"})
"""Triggers that always fire when the watermark passes the end of a window, because they do not finish before."""
TRIGGERS: Mapping[str, Callable[[int], Trigger]] = {
    "watermark": lambda count: AfterWatermark(),
    "early and late": lambda count: AfterWatermark(early=Repeatedly(AfterCount(count)), late=Repeatedly(AfterCount(1))),
    "early by the clock": lambda count: AfterWatermark(
        early=Repeatedly(AfterTime(Delay(Duration(count * 1000)))), late=Repeatedly(AfterCount(1))
    ),
    "repeated watermark": lambda count: Repeatedly(AfterWatermark()),
    "counts": lambda count: Repeatedly(AfterCount(count)),
    "clock": lambda count: Repeatedly(AfterTime(Delay(Duration(count * 1000)))),
    "count or clock": lambda count: Repeatedly(AfterAny(AfterCount(count), AfterTime(Delay(Duration(SOON))))),
    "each": lambda count: Repeatedly(AfterEach(AfterCount(count), AfterCount(1))),
    "count once": lambda count: AfterCount(count),
    "watermark or count": lambda count: OrFinally(AfterWatermark(), AfterCount(count + 1)),
    "watermark and count": lambda count: AfterAll(AfterWatermark(), AfterCount(count)),
    "count and clock": lambda count: Repeatedly(AfterAll(AfterCount(count), AfterTime(Delay(Duration(SOON))))),
    "aligned clock": lambda count: Repeatedly(
        AfterTime(Delay(Duration(count * 300)), AlignTo(Duration(ALIGNED), Duration(300)))
    ),
    "synchronized": lambda count: Repeatedly(AfterSynchronizedTime()),
    "always": lambda count: Always(),
    "never": lambda count: Never(),
}
"""By name, a function that makes the trigger from a small number."""


@dataclass(frozen=True)
class Keep:
    """Buffers elements in cells until a timer releases them.

    Attributes:
        way: when elements are released. "end": all of a window at its end; "expiration": all at its expiration;
            "clock": with their own timestamps, by a processing-time timer or at the end of the window; "clock or
            expiration": the same, but the rest is released at the expiration; "each": each element by its own timer;
            "drawers": the elements of a drawer together, by the timer of that drawer; "order": in order of timestamps,
            without waiting for more; "debounce": all of a window, by an event timer or a processing-time timer that
            each element moves, clears and sets again.
        delay: the delay of event timers.
        lateness: the allowed lateness.
        pause: the delay of processing-time timers.
        side: a side input; each output shows whether it has contents in the element's window.
        beside: other producers of the same side input.
        newest: see `Expand`.
    """

    windowing: Windowing = TENS
    way: str = "end"
    delay: int = 3
    lateness: int = 0
    pause: int = 3000
    side: Port | None = None
    beside: tuple[Port, ...] = ()
    newest: bool = False

    def expires(self, window: Window) -> Timestamp:
        """Return when the state of a window expires."""
        late = Duration(0 if self.way == "order" else self.lateness)
        return min(shifted(window.max_timestamp, late), END_OF_GLOBAL_WINDOW)


@dataclass(frozen=True)
class Join:
    """Passes elements on, with whether the side input has contents in their window.

    Attributes:
        side: the producer of the side input.
        beside: other producers of the same side input.
        newest: see `Expand`.
    """

    side: Port
    windowing: Windowing = TENS
    beside: tuple[Port, ...] = ()
    newest: bool = False


Kind = Source | Pass | Buffer | Expand | Group | Keep | Join


def promised(events: tuple[Event, ...], lo: int, hi: int, output: str) -> Timestamp:
    """Return a source's watermark for its remaining events: the earliest timestamp that is not surprising."""
    return min(
        (Timestamp(each.time) for each in events[lo:hi] if each.output == output and not each.surprising),
        default=MAX_TIMESTAMP,
    )
