"""The user code of stateful stages: cells, event timers and processing-time timers.

Owns the buffered elements, and when they are released. Must not know micro-batches, attempts and files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace

from typing_extensions import override

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.engine.rows import sequences
from arcbeam.engine.state.cells import BagCell, Cells, MultimapCell, OrderedListCell
from arcbeam.engine.state.timers import Fired
from arcbeam.engine.task.bundles import BundleResult, CallResult, TimerCleared, TimerSet
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW, Window
from simulator.judging.records import Broken
from simulator.playing.usercode import Runner, RunnerContext
from simulator.scenario.combining import atoms_of
from simulator.scenario.kinds import Keep

# The state of a DoFn, stored in bags as in the SDK.


class Value(BagCell):
    """One value for each key and window: a bag with one value, which a write replaces."""

    def get(self, key: bytes, at: bytes) -> bytes | None:
        """Return the value; None if there is none."""
        return next(self.read(key, at), None)

    def set(self, key: bytes, at: bytes, value: bytes) -> None:
        """Set the value."""
        self.clear(key, at)
        self.add(key, at, value)


class Sum(BagCell):
    """A sum for each key and window: a bag of summands, which a read replaces by their sum."""

    def get(self, key: bytes, at: bytes) -> bytes | None:
        """Return the sum; None if nothing was added."""
        added = list(self.read(key, at))
        if not added:
            return None
        total = b"%d" % sum(map(int, added))
        if len(added) > 1:
            self.clear(key, at)
            self.add(key, at, total)
        return total


class Map(BagCell):
    """Several values by name for each key and window: a bag of pairs, which a removal writes again without some."""

    def put(self, key: bytes, at: bytes, name: bytes, value: bytes) -> None:
        """Add a value to those of a name."""
        self.add(key, at, sequences.framed(name) + sequences.framed(value))

    def all(self, key: bytes, at: bytes) -> dict[bytes, list[bytes]]:
        """Return the values of all names, in order of arrival."""
        found: dict[bytes, list[bytes]] = {}
        for pair in self.read(key, at):
            name, value = sequences.unframed(pair)
            found.setdefault(name, []).append(value)
        return found

    def of(self, key: bytes, at: bytes, name: bytes) -> list[bytes]:
        """Return the values of a name."""
        return self.all(key, at).get(name, [])

    def remove(self, key: bytes, at: bytes, name: bytes) -> None:
        """Remove the values of a name."""
        framed = sequences.framed(name)
        kept = [pair for pair in self.read(key, at) if not pair.startswith(framed)]
        self.clear(key, at)
        self.extend(key, at, kept)


class Drawers(MultimapCell):
    """Several values by name for each key and window, as SDKs with maps keep them."""

    def put(self, key: bytes, at: bytes, name: bytes, value: bytes) -> None:
        """Add a value to those of a name."""
        self.extend(key, at, name, [value])

    def all(self, key: bytes, at: bytes) -> dict[bytes, list[bytes]]:
        """Return the values of all names, in order of arrival."""
        return {name: self.of(key, at, name) for name in self.keys(key, at)}

    def of(self, key: bytes, at: bytes, name: bytes) -> list[bytes]:
        """Return the values of a name."""
        return list(self.read(key, at, name))


class StatefulRunner(Runner, ABC):
    """The common part of all stateful user code.

    Args:
        context: the context of the stage.
        number: the number of the stage.
    """

    def __init__(self, context: RunnerContext, number: int) -> None:
        super().__init__(context)
        kind = context.stage.kind
        assert isinstance(kind, Keep)
        self.kind = kind
        self._cells = cells = Cells(context.view, number)
        self.count = Value(cells, "count")
        self.bag = BagCell(cells, "bag")
        self.last = Value(cells, "last")
        self.sum = Sum(cells, "sum")
        self.by_name = Map(cells, "by name")
        self.in_time = OrderedListCell(cells, "in time")
        self.drawers = Drawers(cells, "drawers")

    @override
    def process(self, key: bytes, elements: KeyElements) -> CallResult:
        timers: list[TimerSet | TimerCleared] = []
        written = 0
        for value, time, windows, _ in elements:
            for window in windows:
                timers += self.take_in(key, window, time, value)
                written += self.kind.way == "order"
        return CallResult(written, timers)

    @override
    def finish(self) -> BundleResult:
        return replace(super().finish(), cells=dict(self._cells.more))

    @abstractmethod
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        """Store an element of a window, and yield its timers."""

    def window_of(self, fired: Fired) -> Window:
        """Return the window of a timer."""
        return self.kind.windowing.decode(fired.window)


class UntilEnd(StatefulRunner):
    """Release all elements of a window together: at its end, or at its expiration."""

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at = window.ordered()
        self.count.set(key, at, b"%d" % (int(self.count.get(key, at) or b"0") + 1))
        self.bag.add(key, at, value)
        self.sum.add(key, at, b"%d" % len(value))
        if self.kind.way == "end":
            end = window.max_timestamp
            # One never fires, and one is set twice: only the last setting counts. It may be after the window's end.
            yield TimerSet(key, window, "end", Timestamp(time + 1), time, tag="never")
            yield TimerSet(key, window, "end", Timestamp(end + 1), end)
            yield TimerCleared(key, window, "end", tag="never")
            # Set again for every element, with a new payload only.
            count = self.count.get(key, at) or b""
            yield TimerSet(key, window, "end", Timestamp(end + self.kind.delay), end, payload=count)

    @override
    def fired(self, fired: Fired) -> CallResult:
        if fired.tag:
            raise Broken(f"a timer of {self.name} fired that was cleared")
        if fired.payload != self.count.get(fired.key, fired.window):
            raise Broken(
                f"a timer of {self.name} fired with {fired.payload!r}, a payload that a later setting replaced"
            )
        window = self.window_of(fired)
        self.context.over(window)
        return self._let_go(fired.key, window)

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        self.context.over(window)
        return self._let_go(key, window)

    def _let_go(self, key: bytes, window: Window) -> CallResult:
        at = window.ordered()
        values = list(self.bag.read(key, at))
        count, size = int(self.count.get(key, at) or b"0"), int(self.sum.get(key, at) or b"0")
        if (count, size) != (len(values), sum(map(len, values))):
            raise Broken(f"the cells of {self.name} for {key!r} in {window} do not agree: {count}, {size}, {values}")
        for value in values:
            self.put_out(key, atoms_of(value), window.max_timestamp, window)
        for cell in (self.count, self.bag, self.sum):
            cell.clear(key, at)
        return CallResult(len(values))


class ByTheClock(StatefulRunner):
    """Release the earlier half of the elements some processing time after the first arrived, and so on.

    Release the rest at the end of their window.
    """

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at = window.ordered()
        self.in_time.add(key, at, time, value)
        first = next(iter(self.in_time.read(key, at)))[0]
        due = self.count.get(key, at) or b"%d" % (self.context.now + self.kind.pause)
        self.count.set(key, at, due)
        self.sum.add(key, at, b"1")
        yield from self._timers(key, window, Timestamp(int(due)), first)

    @override
    def fired(self, fired: Fired) -> CallResult:
        window = self.window_of(fired)
        if fired.family == "clock":
            due = self.count.get(fired.key, fired.window)
            if fired.payload != self.sum.get(fired.key, fired.window):
                raise Broken(f"a timer of {self.name} fired with {fired.payload!r}, an older payload")
            early = fired.fire_at > self.context.now and not self.context.draining
            if early or due != b"%d" % fired.fire_at:
                raise Broken(f"a timer of {self.name} is due at {fired.fire_at}, set for {due!r}: {self.context.now}")
            if self.kind.way == "clock" and window == GLOBAL_WINDOW:
                # The timer for the end of the window is still pending. With other windows, the processing-time timer
                # may precede the expiration of an earlier window, and so this timer.
                self.context.not_over(window.max_timestamp)
        half = self._half(fired) if fired.family == "clock" else None
        values = list(self.in_time.read(fired.key, fired.window, None, half))
        for time, value in values:
            self.put_out(fired.key, atoms_of(value), time, window)
        self.in_time.clear_range(fired.key, fired.window, None, half)
        if half is not None:
            again = Timestamp(self.context.now + self.kind.pause)
            self.count.set(fired.key, fired.window, b"%d" % again)
            return CallResult(len(values), list(self._timers(fired.key, window, again, half)))
        self.count.clear(fired.key, fired.window)
        self.sum.clear(fired.key, fired.window)
        if self.kind.way != "clock":
            return CallResult(len(values))
        other = "end" if fired.family == "clock" else "clock"
        return CallResult(len(values), [TimerCleared(fired.key, window, other)])

    def _half(self, fired: Fired) -> Timestamp | None:
        """Return the timestamp from which elements stay buffered; None if all are released."""
        times = sorted({time for time, _ in self.in_time.read(fired.key, fired.window)})
        return times[len(times) // 2] if len(times) > 1 else None

    def _timers(self, key: bytes, window: Window, due: Timestamp, first: Timestamp) -> Iterator[TimerSet]:
        # Most settings change only the payload.
        yield TimerSet(key, window, "clock", due, first, payload=self.sum.get(key, window.ordered()) or b"")
        if self.kind.way == "clock":
            yield TimerSet(key, window, "end", window.max_timestamp, first)

    @override
    def expire(self, key: bytes, window: Window) -> CallResult:
        at = window.ordered()
        self.context.over(window)
        due = self.count.get(key, at)
        # In a drain, processing-time timers that other timers set never fire.
        if due is not None and int(due) <= self.context.now and not self.context.draining:
            raise Broken(f"{window} of {self.name} expires at {self.context.now} before a timer that is due at {due!r}")
        values = list(self.in_time.read(key, at))
        for _, value in values:
            self.put_out(key, atoms_of(value), window.max_timestamp, window)
        return CallResult(len(values))


class Each(StatefulRunner):
    """Set a separate timer for each element."""

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at, tag = window.ordered(), f"{value.decode()}@{time}"
        self.by_name.put(key, at, tag.encode(), b"")
        yield TimerSet(key, window, "each", Timestamp(time + self.kind.delay), time, tag, value)

    @override
    def fired(self, fired: Fired) -> CallResult:
        name = fired.tag.encode()
        count = len(self.by_name.of(fired.key, fired.window, name))
        if fired.hold is None or not fired.tag.endswith(f"@{fired.hold}"):
            raise Broken(f"a timer of {self.name} holds at {fired.hold}, but its tag is {fired.tag}")
        for _ in range(count):
            self.put_out(fired.key, atoms_of(fired.payload), fired.hold, self.window_of(fired))
        self.by_name.remove(fired.key, fired.window, name)
        return CallResult(count)


class InDrawers(StatefulRunner):
    """Buffer elements in drawers. Each drawer has its own timer, and is released as a whole."""

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at, number = window.ordered(), sum(value) % 3
        # Some tags are too long for a row's key, and one is not.
        drawer = b"drawer %d" % number * (1 if not number else 12)
        self.drawers.put(key, at, drawer, b"%d:%b" % (time, value))
        self.by_name.remove(key, at, drawer)
        self.by_name.put(key, at, drawer, b"%d" % len(self._inside(key, at, drawer)))
        first = min(each for each, _ in self._inside(key, at, drawer))
        yield TimerSet(key, window, "drawer", Timestamp(time + self.kind.delay), first, drawer.decode())

    @override
    def fired(self, fired: Fired) -> CallResult:
        key, at, drawer = fired.key, fired.window, fired.tag.encode()
        found = {name: len(values) for name, values in self.drawers.all(key, at).items()}
        counted = {name: int(count) for name, (count,) in self.by_name.all(key, at).items()}
        if found != counted or drawer not in found:
            raise Broken(f"the drawers of {self.name} for {key!r} do not agree: {found}, {counted}, {fired}")
        values = self._inside(key, at, drawer)
        if fired.hold != min(time for time, _ in values):
            raise Broken(f"a timer of {self.name} holds at {fired.hold}, but its drawer has {values}")
        for time, value in values:
            self.put_out(key, atoms_of(value), time, self.window_of(fired))
        self.drawers.remove(key, at, drawer)
        self.by_name.remove(key, at, drawer)
        return CallResult(len(values))

    def _inside(self, key: bytes, at: bytes, drawer: bytes) -> list[tuple[Timestamp, bytes]]:
        pairs = (each.split(b":", 1) for each in self.drawers.of(key, at, drawer))
        return [(Timestamp(int(time)), value) for time, value in pairs]


class InOrder(StatefulRunner):
    """Require elements in the order of their timestamps, and release them at once."""

    @override
    def take_in(self, key: bytes, window: Window, time: Timestamp, value: bytes) -> Iterator[TimerSet | TimerCleared]:
        at = window.ordered()
        last = self.count.get(key, at)
        if last is not None and int(last) > time:
            raise Broken(f"{self.name} got an element of {time} after one of {last!r}")
        fired = self.last.get(key, at)
        if fired is not None and int(fired) >= time:
            raise Broken(f"{self.name} got an element of {time} after a timer of {fired!r}")
        self.count.set(key, at, b"%d" % time)
        self.put_out(key, atoms_of(value), time, window)
        yield TimerSet(key, window, "end", Timestamp(time + self.kind.delay), None)

    @override
    def fired(self, fired: Fired) -> CallResult:
        self.last.set(fired.key, fired.window, b"%d" % fired.fire_at)
        return CallResult()


WAYS: dict[str, Callable[[RunnerContext, int], StatefulRunner]] = {
    "end": UntilEnd,
    "expiration": UntilEnd,
    "clock": ByTheClock,
    "clock or expiration": ByTheClock,
    "each": Each,
    "drawers": InDrawers,
    "order": InOrder,
}
"""The class of each `Keep.way`."""
