"""The protocols between a shard and its environment: user code, side inputs, rows in and out, and the budget.

Owns the protocols, and their values. Must not know the implementations: user code runs in an SDK's bundles, Spark moves
rows, and in tests everything is in memory. A value that is created for each element is a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from arcbeam.engine.grouping.effects import DropCombined, DropHeld, DropLate, EmitPane
from arcbeam.engine.grouping.groupings import Combined, KeyElements, WindowedElement
from arcbeam.engine.protocol.markers import Marker
from arcbeam.engine.state.blocked import SideInputWindow
from arcbeam.engine.state.keyqueue import Late
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.observed import NOTHING_SEEN, Seen
from arcbeam.engine.watermarks.outlierfilter import NOTHING_UNCONFIRMED, UnconfirmedTimes
from arcbeam.model.commits import Committable
from arcbeam.model.interfaces import StateView
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window


class TimerSet(NamedTuple):
    """User code has set a timer.

    Attributes:
        key, window, family, tag: its identity.
        fire_at: its firing time, in the time domain of its family. An event time after the expiration of its window
            means that expiration.
        hold: its output timestamp; None if it holds nothing. If it is later than the firing time (event time) or the
            expiration of the window (processing time), it means that moment.
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
    """The result of a call of user code, without its output and state: these are stored already.

    Attributes:
        written: the number of elements that it output.
        timers: the timers that it has set and cleared, in that order.
    """

    written: int = 0
    timers: Sequence[TimerSet | TimerCleared] = ()


NOTHING: Final = CallResult()
"""A call without effects."""


@dataclass(frozen=True, slots=True)
class RestrictionResult:
    """The result of running a restriction.

    Attributes:
        splits: the parts split off while it ran.
        deferred: what it left when it returned; None if it is done.
        call: the result of the call.
        may_resume: the deferred part may run again in the same micro-batch, if it is due: it made progress, and does
            not wait for a commit.
        made: the number of elements that its DoFn output, whatever downstream transforms did with them.
    """

    splits: Sequence[Remainder] = ()
    deferred: Remainder | None = None
    call: CallResult = NOTHING
    may_resume: bool = False
    made: int = 0


@dataclass(frozen=True, slots=True)
class BundleResult:
    """The result of the end of a stage's bundles.

    Attributes:
        call: the result of `finish_bundle`: without timers or state.
        seen: the latest time that observers have seen in all calls, by their names.
        sketches: sketches of the times, for observers with a quantile.
        unconfirmed: later times that observers with an outlier filter have seen and not accepted.
        published: the side inputs that were written to.
        committables: output for sinks.
        finalizations: the number of bundles to finalize after the commit.
        cells: the changes of `StateMetrics.cells`.
    """

    call: CallResult = NOTHING
    seen: Seen = field(default_factory=lambda: NOTHING_SEEN)
    sketches: Mapping[str, bytes] = field(default_factory=lambda: _NO_SKETCHES)
    unconfirmed: UnconfirmedTimes = field(default_factory=lambda: NOTHING_UNCONFIRMED)
    published: tuple[Port, ...] = ()
    committables: tuple[Committable, ...] = ()
    finalizations: int = 0
    cells: Mapping[str, int] = field(default_factory=lambda: _NO_CELLS)


class Budget(Protocol):
    """The remaining budget of a task in a micro-batch. It has a clock, or counts."""

    def exhausted(self) -> bool:
        """Return whether the rest should be left for the next micro-batch."""

    def part(self, fraction: float) -> Budget:
        """Return a fraction of the remaining budget as a budget; what it does not use returns to this one."""


class Runner(Protocol):
    """The user code of one stage in one shard; it passes on its own output.

    It decides on bundles: a call may be a bundle, or part of one that `finish` ends. A call that does not fit the kind
    of the stage never happens.

    **The effects of a call are stored when it returns**: state in the shard's view, timers in `CallResult`. Between two
    calls timers fire, and the state of expired windows is dropped; state written after that would stay forever. A
    runner may buffer its writes within a call. It may also cache what it has read: apart from its own calls, the state
    of a key and window changes only when it is dropped, and no call for that key and window follows. Its output may
    wait until `finish`, or longer, but is passed on before the task's marker.

    **Lots.** A runner whose `together` is not 1 may also store the effects of `process` later, and return timers of
    earlier calls: all that is missing comes with `settle`. The engine calls it before timers fire and state is dropped.
    It fires the timers and expirations of such a stage by `fire_together` instead of `fire` and `expire`.

    **The order of calls** in a micro-batch: `truncate` for waiting restrictions; then blocked and arrived elements
    (`process`, `restriction`, `panes`); `settle`; `resume`; then what the watermark and the clock allow (`fire`,
    `expire`, `panes`, `process` in order of time); `prepare`; and `finish`, always and once, after all firing and
    dropping. Calls of another stage or shard do not happen in between.

    Attributes:
        together: the maximum of timers that it fires together.
    """

    together: int = 1

    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        """Process elements of a user key, with access to its state and timers; without keys, the key is empty."""

    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        """Process the panes of a grouping."""

    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        """Call the callbacks of timers, each before the next is requested: that may depend on what this one has set.

        Args:
            due: the timers, which are no longer stored.
            led_to: takes the result of a callback; the call may be omitted if there are no effects.
        """

    def expire(self, key: bytes, window: Window) -> CallResult:
        """Call the callback of a window's expiration; its state still exists."""

    def settle(self) -> CallResult:
        """Store all effects of earlier `process` calls; return what these have not returned."""
        return NOTHING

    def fire_together(self, batch: Sequence[Fired]) -> CallResult:
        """Call the callbacks of timers and expirations, each of another key, in any order; `process` calls are settled.

        Args:
            batch: at most `together` timers, which are no longer stored; the family of expirations is `EXPIRATION`.

        Returns:
            The results of all.
        """
        raise AssertionError("this runner fires one timer after the other")

    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        """Return the restriction of an element that has arrived at a splittable stage."""

    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        """Process a restriction; checkpoint when the budget is exhausted, but not before progress.

        Args:
            restriction: a due restriction.
            budget: the budget of the task.
            pieces: into how many parts the residual is cut, if possible.
        """

    def truncate(self, restriction: Restriction) -> Remainder | None:
        """Return what a drain leaves of a waiting restriction."""

    def prepare(self) -> CallResult:
        """Call `prepare_to_shutdown`, for stages that have it. It may change state, but set no timer."""

    def finish(self) -> BundleResult:
        """End the bundles; no call follows.

        `finish_bundle` may output elements, observe, count, and pass on committables and finalizations. It must not
        write state or set timers: all events of this micro-batch that these could wait for have passed. Either is
        refused, and fails the micro-batch.
        """


class SideInputs(Protocol):
    """The side inputs of a level's stages, as the micro-batch's head has published them."""

    def needed(self, stage: str, window: Window) -> Sequence[SideInputWindow]:
        """Return the side inputs that an element of that window reads."""

    def until(self, stage: str, batch: SideInputWindow) -> Timestamp:
        """Return the last moment of a side input's window: it is complete when its port's watermark has passed that."""

    def exists(self, stage: str, batch: SideInputWindow) -> bool:
        """Return whether anything was written to it."""


class Exchange(Protocol):
    """The input and output of a task."""

    def markers(self) -> Sequence[Marker]:
        """Return the markers of the previous level."""

    def elements(self, stage: str, shard: int) -> Iterable[tuple[bytes, KeyElements | Combined]]:
        """Return the input of a stage in a shard: user keys (empty without keys) and elements; a key may repeat. For a
        source in the first micro-batch of a job: its initial input. For a grouping of accumulators also what they stand
        for, which may come in another shard.

        Called once for each, shards ascending, and stages of a shard in the layout's order.
        """

    def has_input(self, stage: str, shard: int) -> bool:
        """Return whether there may be input of a stage in a shard. If not, `elements` need not be called."""

    def late(self, stage: str, shard: int, drop: DropLate | DropHeld | DropCombined | Late) -> None:
        """Send dropped data to the destination of late data."""

    def send(self, marker: Marker) -> None:
        """Send a marker, after all rows, to every task of the next level."""


class Shards(Protocol):
    """The state of a task's shards, and the user code that works on it."""

    def view(self, shard: int) -> StateView:
        """Return the state of a shard at the micro-batch's head."""

    def runner(self, stage: str, shard: int) -> Runner:
        """Return the user code of a stage, with the state of that view. Finish it before requesting the next one."""
