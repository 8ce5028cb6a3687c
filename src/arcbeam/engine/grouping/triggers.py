"""Triggers: when the pane of a window is due. State machines, one tree of them for each window of each key.

Owns the protocol of triggers, how they merge with windows, and the triggers without parts (`engine.grouping.composites`
has the others, `engine.grouping.triggerstate` their bytes). Must not know elements, window functions, panes or protos.

A trigger does not see each element at once. `elements_until_ready` is how many elements may arrive before it must be
evaluated, and `add` then adds all of them. So a trigger costs per firing, not per element. Only an `eager` trigger,
which counts time from the next element, must see that element when it arrives.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from typing_extensions import override

from arcbeam.engine.grouping.delays import Transform, due
from arcbeam.model.timestamps import Timestamp

UNLIMITED = sys.maxsize
"""The `elements_until_ready` of a trigger that no number of elements makes ready."""


class Moment(NamedTuple):
    """The moment at which a trigger is evaluated.

    Attributes:
        now: processing time.
        passed: the watermark has passed the end of the window.
        ticked: it is evaluated because of the clock, after all elements that had arrived by then.
    """

    now: Timestamp
    passed: bool = False
    ticked: bool = False


class Trigger(ABC):
    """A trigger of one window, with its parts."""

    __slots__ = ()

    def parts(self) -> tuple[Trigger, ...]:
        """Return its parts, in an order that depends on its kind."""
        return ()

    def active(self) -> tuple[Trigger, ...]:
        """Return the parts that receive elements."""
        return self.parts()

    def timed(self) -> bool:
        """Return whether it ever follows the clock."""
        return any(part.timed() for part in self.parts())

    def on_time(self) -> bool:
        """Return whether it may fire when the watermark passes the window's end, even without new elements."""
        return any(part.on_time() for part in self.parts())

    def eager(self) -> bool:
        """Return whether it must see the next element when that arrives, because it counts time from it."""
        return any(part.eager() for part in self.active())

    def next_timer(self, at: Moment) -> Timestamp | None:
        """Return the next processing time at which to evaluate it; None if the clock has no effect."""
        return min(
            (next_timer for part in self.active() if (next_timer := part.next_timer(at)) is not None), default=None
        )

    def finished(self) -> bool:
        """Return whether it has fired for the last time."""
        return False

    @abstractmethod
    def fresh(self) -> Self:
        """Return the same trigger in its first state."""

    def add(self, count: int, now: Timestamp) -> None:
        """Add a number of elements."""
        for part in self.active():
            part.add(count, now)

    @abstractmethod
    def elements_until_ready(self, at: Moment) -> int:
        """Return how many elements may arrive before it can be ready, at this time; at most 0 if it may be ready."""

    @abstractmethod
    def ready(self, at: Moment) -> bool:
        """Return whether it is ready to fire."""

    @abstractmethod
    def fire(self, at: Moment) -> bool:
        """Fire it; it is ready. Return whether it is finished: it will never fire again."""

    def merge(self, other: Self) -> None:
        """Merge it with `other`, a trigger of the same shape whose window was merged; `other` is used up.

        What elements and the clock have finished in one of them is finished. What the watermark has finished must be
        finished in both, because the other's elements have not fired yet.
        """
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            mine.merge(theirs)

    def rewind(self) -> None:
        """Undo the effect of the window's end: the window has grown, and the watermark has not passed its end."""
        for part in self.parts():
            part.rewind()


class Never(Trigger):
    """Never fires: all elements are in the pane that closes the window."""

    __slots__ = ()

    @override
    def fresh(self) -> Self:
        return type(self)()

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return UNLIMITED

    @override
    def ready(self, at: Moment) -> bool:
        return False

    @override
    def fire(self, at: Moment) -> bool:
        raise AssertionError("this trigger never fires")


class Always(Trigger):
    """Fires for every element, and is never finished."""

    __slots__ = ()

    @override
    def fresh(self) -> Self:
        return type(self)()

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return 1

    @override
    def ready(self, at: Moment) -> bool:
        return True

    @override
    def fire(self, at: Moment) -> bool:
        return False


class AfterCount(Trigger):
    """Fires once, when a number of elements have arrived since it began.

    Attributes:
        seen: elements since it began.
        fired: it is finished.
    """

    __slots__ = ("_target", "fired", "seen")

    def __init__(self, target: int) -> None:
        if target < 1:
            raise ValueError(f"a trigger after {target} elements would always fire: at least 1 is required")
        self._target = target
        self.seen = 0
        self.fired = False

    @override
    def finished(self) -> bool:
        return self.fired

    @override
    def fresh(self) -> Self:
        return type(self)(self._target)

    @override
    def add(self, count: int, now: Timestamp) -> None:
        self.seen += count

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return self._target - self.seen

    @override
    def ready(self, at: Moment) -> bool:
        return self.seen >= self._target

    @override
    def fire(self, at: Moment) -> bool:
        self.fired = True
        return True

    @override
    def merge(self, other: Self) -> None:
        self.seen += other.seen
        self.fired = self.fired or other.fired


class AfterTime(Trigger):
    """Fires once, when the clock reaches a time that is counted from the first element.

    Args:
        transforms: the steps from the first element's time to that time.

    Attributes:
        due: that time, once the first element has arrived.
        fired: it is finished.
    """

    __slots__ = ("_transforms", "due", "fired")

    def __init__(self, *transforms: Transform) -> None:
        self._transforms = transforms
        self.due: Timestamp | None = None
        self.fired = False

    @override
    def timed(self) -> bool:
        return True

    @override
    def eager(self) -> bool:
        return self.due is None

    @override
    def next_timer(self, at: Moment) -> Timestamp | None:
        return self.due if self.due is not None and self.due > at.now else None

    @override
    def finished(self) -> bool:
        return self.fired

    @override
    def fresh(self) -> Self:
        return type(self)(*self._transforms)

    @override
    def add(self, count: int, now: Timestamp) -> None:
        if self.due is None:
            self.due = due(self._transforms, now)

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return 0 if self.ready(at) else UNLIMITED

    @override
    def ready(self, at: Moment) -> bool:
        return self.due is not None and at.now >= self.due

    @override
    def fire(self, at: Moment) -> bool:
        self.fired = True
        return True

    @override
    def merge(self, other: Self) -> None:
        self.due = min((due for due in (self.due, other.due) if due is not None), default=None)
        self.fired = self.fired or other.fired


class AfterSynchronizedTime(AfterTime):
    """Fires once, when the clock is first read after an element: elements of the same time are in the same pane."""

    __slots__ = ()

    @override
    def next_timer(self, at: Moment) -> Timestamp | None:
        return None if self.due is None or self.ready(at) else self.due

    @override
    def ready(self, at: Moment) -> bool:
        return self.due is not None and (at.now > self.due or (at.ticked and at.now == self.due))
