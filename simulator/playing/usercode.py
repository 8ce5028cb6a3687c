"""The user code of the stages of a simulated job: one runner for each kind.

Owns the user code. Must not know micro-batches, attempts and files: outputs go to its context.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.groupings import KeyElements, WindowedElement
from arcbeam.engine.state.cells import BagCell, Cells
from arcbeam.engine.state.residuals import Remainder, Restriction
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task import bundles
from arcbeam.engine.task.bundles import Budget, BundleResult, CallResult, RestrictionResult
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.observed import NOTHING_SEEN, Seen
from arcbeam.engine.watermarks.observed import later as later_seen
from arcbeam.engine.watermarks.outlierfilter import NOTHING_UNCONFIRMED, UnconfirmedTimes, without_outliers
from arcbeam.engine.watermarks.sketches import sketched
from arcbeam.model.commits import Committable
from arcbeam.model.interfaces import StateView
from arcbeam.model.observers import CONFIRMED_BY
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Timestamp
from arcbeam.model.windows import Window
from simulator.judging.records import Broken, Out
from simulator.scenario.combining import atoms_of
from simulator.scenario.kinds import MAIN, Buffer, Expand, Pace, Pass, Source, promised
from simulator.scenario.plans import Stage


class RunnerContext(Protocol):
    """The environment of a runner: one stage in one shard, in one attempt of a task."""

    stage: Stage
    now: Timestamp
    draining: bool
    """Whether a drain has begun."""
    chance: str
    """The prefix of all random seeds of the attempt."""
    last_event: int
    """A timestamp after those of all events."""

    view: StateView
    """The state of the shard."""

    def put_out(self, out: Out) -> None:
        """Send an output to its consumers."""

    def timed(self, fired: Fired) -> None:
        """Check a timer that has fired."""

    def over(self, window: Window) -> None:
        """Record that the engine reports the end of a window."""

    def not_over(self, moment: Timestamp) -> None:
        """Record that a processing-time timer fires while an event timer of the key is pending for that timestamp."""

    def side_input(self, window: Window) -> tuple[bytes, ...] | None:
        """Return the contents of the side input in a window, sorted; None if there is no side input."""

    def published(self) -> tuple[Port, ...]:
        """Return the side inputs that got contents."""

    def part(self) -> Committable | None:
        """Return the committable with all outputs and drops."""


class Runner(bundles.Runner):
    """The base of all runners: every call fails that its stage must not get."""

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.name = context.stage.name
        self.seen: Seen = NOTHING_SEEN
        self.sketches: Mapping[str, bytes] = {}
        self.unconfirmed: UnconfirmedTimes = NOTHING_UNCONFIRMED

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        raise Broken(f"{self.name} has no elements")

    @override
    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        raise Broken(f"{self.name} has no panes")

    @override
    def fire(self, due: Iterator[Fired], led_to: Callable[[CallResult], None]) -> None:
        for fired in due:
            self.context.timed(fired)
            led_to(self.fired(fired))

    def fired(self, fired: Fired) -> CallResult:
        """Run a timer's callback."""
        raise Broken(f"{self.name} has no timers")

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        raise Broken(f"{self.name} has no callback for expirations")

    @override
    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        raise Broken(f"{self.name} has no restrictions")

    @override
    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        raise Broken(f"{self.name} has no restrictions")

    @override
    def truncate(self, restriction: Restriction) -> Remainder | None:
        raise Broken(f"{self.name} has no restrictions")

    @override
    def prepare(self) -> CallResult:
        return CallResult()

    @override
    def finish(self) -> BundleResult:
        part = self.context.part()
        return BundleResult(
            seen=self.seen,
            sketches=self.sketches,
            unconfirmed=self.unconfirmed,
            published=self.context.published(),
            committables=(part,) if part else (),
            finalizations=1 if part else 0,
        )

    def put_out(
        self,
        key: bytes,
        atoms: Iterable[bytes],
        time: Timestamp,
        window: Window | None = None,
        *,
        output: str = MAIN,
    ) -> None:
        """Send an element to the consumers."""
        joined = side_input = None
        if window is not None and (side_input := self.context.side_input(window)) is not None:
            joined = bool(side_input)
        self.context.put_out(
            Out(self.name, output, key, tuple(atoms), time, window, None, joined, side_input=side_input)
        )


class Passing(Runner):
    """Pass elements on unchanged."""

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        outputs, kind = self.context.stage.outputs, self.context.stage.kind
        assert isinstance(kind, Pass)
        for value, time, _, _ in elements:
            self.put_out(key, atoms_of(value), time, output=outputs[sum(value) % len(outputs)])
        if kind.observes and kind.shared is None and elements:
            self._see([time for _, time, _, _ in elements], kind)
        return CallResult(len(elements))

    def _see(self, times: Sequence[Timestamp], kind: Pass) -> None:
        jump = kind.jump
        if kind.skew is not None:
            times = self._near(times, kind.skew)
            if not times:
                return
        if kind.quantile is not None:
            self.sketches = {self.name: sketched(times, self.sketches.get(self.name, b""))}
            return
        if jump is None:
            self.seen = later_seen(self.seen, {self.name: max(times)})
            return
        unconfirmed = (*times, *self.unconfirmed.get(self.name, ()))
        decision = without_outliers(self.seen.get(self.name), unconfirmed, jump, CONFIRMED_BY)
        self.seen = {} if decision.latest is None else {self.name: decision.latest}
        self.unconfirmed = {self.name: decision.unconfirmed} if decision.unconfirmed else {}

    def _near(self, times: Sequence[Timestamp], skew: int) -> Sequence[Timestamp]:
        """Return the timestamps that are not too far ahead of the clock."""
        return [time for time in times if time <= self.context.now + skew]


class Buffering(Runner):
    """Buffer elements in a bag of the shard.

    Args:
        context: the context of the stage.
        number: the number of the stage.
    """

    def __init__(self, context: RunnerContext, number: int) -> None:
        super().__init__(context)
        kind = context.stage.kind
        assert isinstance(kind, Buffer)
        self.size = kind.size
        self.bag = BagCell(Cells(context.view, number), "buffer")

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        self.bag.extend(b"", b"", (b"%b:%d:%b" % (key, time, value) for value, time, _, _ in elements))
        return self._let_go() if len(list(self.bag.read(b"", b""))) >= self.size else CallResult()

    def prepare(self) -> CallResult:
        """See `bundles.Runner`: this is the last chance to release the bag."""
        return self._let_go()

    def _let_go(self) -> CallResult:
        waiting = [each.split(b":", 2) for each in self.bag.read(b"", b"")]
        self.bag.clear(b"", b"")
        for key, time, value in waiting:
            self.put_out(key, atoms_of(value), Timestamp(int(time)))
        return CallResult(len(waiting))


class Joining(Runner):
    """Pass elements on, with whether the side input of their window has contents."""

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        for value, time, windows, _ in elements:
            for window in windows:
                self.put_out(key, atoms_of(value), time, window)
        return CallResult(len(elements))


class Grouping(Runner):
    """Pass panes on as elements."""

    @override
    def panes(self, panes: Sequence[EmitPane]) -> CallResult:
        for pane in panes:
            values = list(pane.contents)
            atoms = tuple(atom for value in values for atom in atoms_of(value))
            self.context.put_out(
                Out(self.name, MAIN, pane.key, atoms, pane.timestamp, pane.window, pane.pane, elements=len(values))
            )
        return CallResult(len(panes))


class _Splittable(Runner, ABC):
    """Process positions from `lo` to `hi` at a pace.

    The element of a restriction is `lo:hi:polls:due:cut:` and its original element. `due` is the requested processing
    time, `cut` is 1 after truncation.
    """

    pace: Pace

    @abstractmethod
    def read(self, what: bytes, at: int) -> None:
        """Put out the element at a position."""

    @abstractmethod
    def watermarks(self, what: bytes, lo: int, hi: int) -> dict[str, Timestamp]:
        """Return the watermarks for the remaining positions, by output."""

    def rest(self, what: bytes, lo: int, hi: int, polls: int, due: int | None, cut: int = 0) -> Remainder:
        """Return the rest of a restriction."""
        marks = self.watermarks(what, lo, hi)
        if polls:
            marks = {output: min(mark, Timestamp(self.context.last_event)) for output, mark in marks.items()}
        element = b"%d:%d:%d:%d:%d:" % (lo, hi, polls, due or 0, cut) + what
        return Remainder(element, float(hi - lo), None if due is None else Timestamp(due), marks)

    def whole(self, what: bytes, lo: int, hi: int, polls: int) -> Remainder:
        """Return a restriction before its first run."""
        remainder = self.rest(what, lo, hi, polls, None)
        return Remainder(remainder.element, remainder.size) if self.pace.silent else remainder

    @override
    def resume(self, restriction: Restriction, budget: Budget, pieces: int) -> RestrictionResult:
        pace, now = self.pace, self.context.now
        lo, hi, polls, due, cut, what = _taken_apart(restriction)
        if due > now:
            raise Broken(f"a restriction of {self.name} is due at {due}, but runs at {now}")
        if self.context.draining and not cut:
            raise Broken(f"a restriction of {self.name} runs in a drain, but was not truncated")
        splits: list[Remainder] = []
        chance = random.Random(f"{self.context.chance}/{restriction.id.hex()}")
        while hi - lo > 1 and chance.random() < pace.splits and len(splits) < 2:
            # The second half becomes a separate residual, and this restriction ends earlier.
            half = (lo + hi) // 2
            later_on = now + pace.pause if pace.pause and chance.random() < 0.2 else None
            splits.append(self.rest(what, half, hi, polls, later_on, cut))
            hi, polls = half, 0
        for count, at in enumerate(range(lo, hi)):
            if count and (count >= pace.piece or budget.exhausted()):
                pause = now + pace.pause if pace.pause and at % pace.every == 0 else None
                # The pieces for other tasks follow the positions with which this restriction resumes.
                for _ in range(min(pieces, hi - at) - 1):
                    splits.append(self.rest(what, hi - (hi - at) // pieces, hi, polls, None, cut))
                    hi, polls = hi - (hi - at) // pieces, 0
                rest = self.rest(what, at, hi, polls, pause, cut)
                # Half of the sources return early, and request to resume in the same micro-batch.
                may_resume = pause is None and pace.piece % 2 == 0
                return RestrictionResult(splits, rest, CallResult(count), may_resume, count)
            self.read(what, at)
        if polls:
            rest = self.rest(what, hi, hi, polls - 1, now + pace.pause, cut)
            return RestrictionResult(splits, rest, CallResult(hi - lo), made=hi - lo)
        return RestrictionResult(splits, None, CallResult(hi - lo), made=hi - lo)

    def cut(self, restriction: Restriction) -> Remainder:
        """Return the whole restriction, truncated and without a due time."""
        lo, hi, polls, _, cut, what = _taken_apart(restriction)
        if cut or not self.context.draining:
            raise Broken(f"a restriction of {self.name} is truncated {'twice' if cut else 'without a drain'}")
        return self.rest(what, lo, hi, polls, None, 1)


def _taken_apart(restriction: Restriction) -> tuple[int, int, int, int, int, bytes]:
    lo, hi, polls, due, cut, what = restriction.remainder.element.split(b":", 5)
    return int(lo), int(hi), int(polls), int(due), int(cut), what


class Reading(_Splittable):
    """Read the events of a source."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        kind = context.stage.kind
        assert isinstance(kind, Source)
        self.source, self.pace = kind, kind.pace

    @override
    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        lo, hi = map(int, element[0].split(b":"))
        return self.whole(b"", lo, hi, self.pace.polls)

    @override
    def truncate(self, restriction: Restriction) -> Remainder | None:
        return self.cut(restriction) if self.source.bounded else None

    @override
    def read(self, what: bytes, at: int) -> None:
        event = self.source.events[at]
        self.put_out(event.key, (event.atom,), Timestamp(event.time), output=event.output)

    @override
    def watermarks(self, what: bytes, lo: int, hi: int) -> dict[str, Timestamp]:
        return {output: promised(self.source.events, lo, hi, output) for output in self.context.stage.outputs}


def later(time: int, copy: int) -> Timestamp:
    """Return the timestamp of a copy."""
    return Timestamp(min(time + copy, END_OF_GLOBAL_WINDOW))


class Expanding(_Splittable):
    """Make copies of elements."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        kind = context.stage.kind
        assert isinstance(kind, Expand)
        self.copies, self.pace = kind.copies, kind.pace

    @override
    def restriction(self, key: bytes, element: WindowedElement) -> Remainder:
        value, time, (window,), _ = element
        count = len(list(atoms_of(value))) * self.copies
        of = window.ordered().hex().encode()
        return self.whole(b"%b:%d:%b:%b" % (key, time, of, value), 0, count, self.pace.polls)

    def truncate(self, restriction: Restriction) -> Remainder | None:
        """See `bundles.Runner`: all copies are still made."""
        return self.cut(restriction)

    @override
    def read(self, what: bytes, at: int) -> None:
        key, time, of, value = what.split(b":", 3)
        atom = list(atoms_of(value))[at // self.copies]
        windowing = self.context.stage.windowing
        self.put_out(
            key,
            (b"%b.%d" % (atom, at % self.copies),),
            later(int(time), at % self.copies),
            windowing.decode(bytes.fromhex(of.decode())) if windowing else None,
        )

    @override
    def watermarks(self, what: bytes, lo: int, hi: int) -> dict[str, Timestamp]:
        time = int(what.split(b":", 3)[1])
        ahead = min((at % self.copies for at in range(lo, hi)), default=None)
        return {MAIN: MAX_TIMESTAMP if ahead is None else later(time, ahead)}
