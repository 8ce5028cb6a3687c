"""What a shard asks of those around it: user code, side inputs, rows that come and go, and how long it may work.

Owns the protocols, and the values that go through them. Must not know who implements them: user code runs in an SDK's
bundles, rows travel by Spark, and in tests all of it is in memory. What there may be of for each element is a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from arcbeam.engine.grouping.effects import DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.groupings import Elements, WindowedElement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.observed import NOTHING_SEEN, Seen
from arcbeam.engine.watermarks.outlierfilter import NOTHING_DOUBTED, Doubted
from arcbeam.model.commits import Committable
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window


class TimerSet(NamedTuple):
    """User code has set a timer.

    Attributes:
        key, window, family, tag: what it is known by.
        fire_at: when it is to fire, in the time of its family. A time of event time behind the expiration of its window
            means that expiration.
        hold: its output timestamp; None if it holds nothing back. A later one than when it fires (event time) or its
            window expires (processing time) means that moment.
        payload: for its callback.
    """

    key: bytes
    window: Window
    family: str
    fire_at: Timestamp
    hold: Timestamp | None
    tag: str = ""
    payload: bytes = b""


class TimerCleared(NamedTuple):
    """User code has cleared a timer."""

    key: bytes
    window: Window
    family: str
    tag: str = ""


_NO_SKETCHES: Final[Mapping[str, bytes]] = MappingProxyType({})
_NO_CELLS: Final[Mapping[str, int]] = MappingProxyType({})


class CallResult(NamedTuple):
    """What a call of user code has led to, apart from what it put out and its state: both are where they belong.

    Attributes:
        written: how many elements it put out.
        timers: that it has set and cleared, in that order.
    """

    written: int = 0
    timers: Sequence[TimerSet | TimerCleared] = ()


NOTHING: Final = CallResult()
"""A call that has led to nothing."""


@dataclass(frozen=True, slots=True)
class RestrictionResult:
    """How a restriction ran.

    Attributes:
        splits: what was split off while it ran.
        deferred: what it left when it returned; None if it is done.
        call: what it has led to.
        goes_on: what it deferred may run again in the same micro-batch, if it is due: it got somewhere, and does not
            wait for anything that only a commit brings.
        made: elements that its DoFn put out, whatever became of them in transforms behind it.
    """

    splits: Sequence[Remainder] = ()
    deferred: Remainder | None = None
    call: CallResult = NOTHING
    goes_on: bool = False
    made: int = 0


@dataclass(frozen=True, slots=True)
class BundleResult:
    """What the end of a stage's bundles has led to.

    Attributes:
        call: by `finish_bundle`: no timers, nor state.
        seen: the latest time that observers have seen in all calls, by their names.
        sketches: of the times that those have seen that go by a quantile.
        doubted: later times, which those have seen that do not believe any.
        published: side inputs of which something was written.
        committables: for sinks.
        finalizations: how many bundles want to be told that the micro-batch is committed.
        cells: see `kept.StateMetrics`: by how many more.
    """

    call: CallResult = NOTHING
    seen: Seen = field(default_factory=lambda: NOTHING_SEEN)
    sketches: Mapping[str, bytes] = field(default_factory=lambda: _NO_SKETCHES)
    doubted: Doubted = field(default_factory=lambda: NOTHING_DOUBTED)
    published: tuple[Port, ...] = ()
    committables: tuple[Committable, ...] = ()
    finalizations: int = 0
    cells: Mapping[str, int] = field(default_factory=lambda: _NO_CELLS)


class Budget(Protocol):
    """How much more a task may do in a micro-batch. It has a clock, or counts."""

    def exhausted(self) -> bool:
        """Whether the rest should be left for the next micro-batch."""

    def part(self, fraction: float) -> Budget:
        """A fraction of what is left of it now, as a budget; what that leaves goes back to this one."""


class Runner(Protocol):
    """The user code of one stage in one shard; what it puts out goes on from there.

    It cuts bundles as it sees fit: a call may be a bundle, or part of one that `finish` ends. A call of a kind that the
    stage does not have never comes.

    **What a call has changed is there when it returns**: state in the shard's view, timers in `CallResult`. Between two
    calls timers fire, and the state of windows that are over is dropped; what is written behind that would stay for
    ever. A runner may buffer its writes inside of a call. It may also keep what it has read: but for its own calls, the
    state of a key and window changes only when it is dropped, and no call about the two comes after that. Nobody here
    looks at what it puts out: that may wait for `finish`, or longer, but goes on before the task's marker.

    **The order of calls** in a micro-batch: `truncate` what waits; then what was parked and what has come (`process`,
    `restriction`, `panes`); `resume`; then what the watermark and the clock let happen (`fire`, `expire`, `panes`,
    `process` in order of time); `prepare`; and `finish`, always and once, behind all that fires and drops. Calls for
    another stage or shard do not come in between.
    """

    def process(self, key: bytes, elements: Elements) -> CallResult:
        """Elements of a user key, whose state and timers they may touch; the key is empty if the stage has none."""

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        """What a grouping puts out."""

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        """The callbacks of timers, each before the next is asked for: what that is may depend on what this one has set.

        Args:
            due: the timers; what each was taken from is as if it had never been.
            led_to: takes what a callback has led to; need not be called where that is nothing.
        """

    def expire(self, key: bytes, window: Window) -> CallResult:
        """The callback of a window's expiration; its state is still there."""

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        """The restriction of an element that has come to a splittable stage."""

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        """Processes a restriction; makes a checkpoint when the budget is exhausted, though not before progress.

        Args:
            restriction: due.
            budget: of the task.
            pieces: into how many parts the rest is cut by the checkpoint, as far as it can be.
        """

    def truncate(self, restriction: Restriction) -> Remainder | None:
        """What a drain leaves of a restriction that waits."""

    def prepare(self) -> CallResult:
        """Calls `prepare_to_shutdown`; only of a stage that offers it. It may change state, but set no timer."""

    def finish(self) -> BundleResult:
        """Ends the bundles; nothing else is called after it.

        What `finish_bundle` may do it may do: put out elements, observe, count, and hand over what waits for
        the commit. State is not written any more, nor a timer set: whatever they could wait for in this micro-batch is
        past. Either is refused, and fails the micro-batch.
        """


class SideInputs(Protocol):
    """The side inputs of a level's stages, as the micro-batch's head has published them."""

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        """What an element of that window reads."""

    def until(self, stage: str, lot: SideInputWindow) -> Timestamp:
        """The last moment of a side input's window: when its port has passed that, nothing more comes to it."""

    def exists(self, stage: str, lot: SideInputWindow) -> bool:
        """Whether anything was put into it."""


class Exchange(Protocol):
    """What comes to a task, and goes on from it."""

    def markers(self) -> Sequence[Marker]:
        """The markers of the level before."""

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, Elements]]:
        """What has come to a stage in a shard: user keys (empty without keys) and elements, a key any number of times.
        Of a source in the first micro-batch of a job: that from which it begins.

        Asked for once for each, shards ascending, stages of a shard in the layout's order.
        """

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | Late) -> None:
        """Something was dropped: it goes where late data goes."""

    def send(self, marker: Marker) -> None:
        """Sends a marker behind all rows, to every task of the next level."""


class Shards(Protocol):
    """The state of a task's shards, and the user code that works on it."""

    def view(self, shard: int) -> StateView:
        """The state of a shard at the micro-batch's head."""

    def runner(self, stage: str, shard: int) -> Runner:
        """The user code of a stage; it has the state of that view. It is finished before the next one is asked for."""
