"""What a stage of a simulated job may do, as values: sources and their events, triggers, ways of keeping.

Owns the shapes. Must not know where a stage is, nor what runs it.

An element is known by its *atoms*: names that go with it through all stages, so that whatever comes out somewhere tells
which events of which source it was made of.
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
"""Delay of triggers that have a count, too."""
ALIGNED: Final = 5000
"""Period to which the alarms of a trigger are moved on."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a source has at one position.

    Attributes:
        atom: its name, unique in the job.
        key: its user key.
        time: its event time.
        output: of the source, where it goes.
        surprising: the source's estimator does not reckon with it: it may be late.
    """

    atom: bytes
    key: bytes
    time: int
    output: str = MAIN
    surprising: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How a restriction is worked off.

    Attributes:
        piece: it makes a checkpoint after so many positions.
        every, pause: at each position that is a multiple of `every`, what is next can be read only after a pause.
        polls: so often it looks, at its end, whether there is more, each time after the pause.
        splits: how often it is split while it runs.
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
    """Reads events.

    Attributes:
        events: by position.
        pace: of reading.
        parts: so many restrictions there are at first.
        bounded: a drain lets it come to its end.
        joins: the driver that is the first to have it; those before have a pipeline without it.
    """

    events: tuple[Event, ...]
    pace: Pace = Pace()
    parts: int = 1
    bounded: bool = False
    joins: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What several stages that observe go by together, instead of by the times of what comes to each.

    Attributes:
        name: of what they share.
        policy: which of their inputs counts.
    """

    name: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Pass:
    """Elements go on as they come; with two outputs, by the sum of their bytes.

    Attributes:
        delay: its outputs are observed, with this delay; None: they are not.
        policy: of the observer.
        jump: a time that is so far ahead of all others is not believed, until others confirm it; None: all are.
        skew: a time that is so far ahead of the clock is not believed; None: all are.
        idle: what its input says does not count when it has stood for so long; None: it always does.
        shared: what it goes by together with others; None: it goes by what comes to it.
        quantile: it goes by the time that this part of all has not passed; None: by the latest.
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
        """Whether its outputs are observed."""
        return self.delay is not None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Elements wait, and hold nothing back, until there are so many of them in their shard, or the job prepares to shut
    down: then, whatever reads them is at the end of the global window.
    """

    size: int = 5


@dataclass(frozen=True, slots=True)
class Expand:
    """A splittable DoFn: of each atom so many copies, each some time behind the one before.

    Attributes:
        side: a side input; copies go on with whether it has anything in the window of what they are of.
        windowing: of what has a side input; each moment is in one window.
        beside: other producers of the same side input.
        newest: of each producer, only what the newest micro-batch has put into a window is read.
    """

    copies: int = 2
    pace: Pace = Pace()
    side: Port | None = None
    windowing: Windowing = TENS
    beside: tuple[Port, ...] = ()
    newest: bool = False


@dataclass(frozen=True)
class Group:
    """Elements are grouped by key and window.

    Attributes:
        trigger: by name; see `TRIGGERS`.
        count: of the trigger's counts and delays.
        lateness: allowed.
        accumulating: panes have all elements of the window.
        combined: its state is an accumulator.
        pane_time: of which elements a pane has its timestamp.
        closes: a window puts out a pane when it closes, also an empty one.
        quiet: a trigger that fires because the watermark passes makes no pane if there is nothing new.
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
        """What the engine is told."""
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
        """One pane for each window, on time, if nothing is late."""
        return self.trigger in ("watermark", "never", "watermark and count") and not self.lateness and not self.closes

    @property
    def together(self) -> bool:
        """All that comes in time goes out together, when the watermark has passed the window."""
        return self.trigger in ("watermark", "repeated watermark", "never", "watermark and count")

    @property
    def punctual(self) -> bool:
        """There is a pane that is on time, whatever has gone out before."""
        return not self.quiet and self.trigger in PUNCTUAL

    @property
    def finishes(self) -> bool:
        """The trigger may finish, and what comes later is dropped."""
        return self.trigger in ("watermark", "count once", "watermark or count", "watermark and count")


PUNCTUAL = frozenset({"watermark", "early and late", "early by the clock", "repeated watermark"})
"""Triggers that fire when the watermark passes the end of a window, and have not finished before."""
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
"""The triggers by name, made with a small number."""


@dataclass(frozen=True)
class Keep:
    """Elements wait in cells until a timer lets them go on.

    Attributes:
        way: "end": all of a window go on together at its end; "expiration": at its expiration; "clock": each at its own
            time, by a processing-time timer, or at the end of the window; "clock or expiration": the same, but what is
            left at the expiration goes on then; "each": each by a timer of its own; "drawers": those of some names
            together, by a timer of that name; "order": in order of time, without
            waiting for more; "debounce": all of a window together, by a timer of either clock that each element moves,
            clears and sets again.
        delay: of timers of event time.
        lateness: allowed.
        pause: of timers of the clock.
        side: a side input; elements go on with whether it has anything in their window.
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
        """When the state of a window goes."""
        late = Duration(0 if self.way == "order" else self.lateness)
        return min(shifted(window.max_timestamp, late), END_OF_GLOBAL_WINDOW)


@dataclass(frozen=True)
class Join:
    """Elements go on with whether the side input has anything in their window.

    Attributes:
        side: where that comes from.
        beside: other producers of the same side input.
        newest: see `Expand`.
    """

    side: Port
    windowing: Windowing = TENS
    beside: tuple[Port, ...] = ()
    newest: bool = False


Kind = Source | Pass | Buffer | Expand | Group | Keep | Join


def promised(events: tuple[Event, ...], lo: int, hi: int, output: str) -> Timestamp:
    """What a source's estimator promises for what is left of it: an honest one, but for what surprises it."""
    return min(
        (Timestamp(each.time) for each in events[lo:hi] if each.output == output and not each.surprising),
        default=MAX_TIMESTAMP,
    )
