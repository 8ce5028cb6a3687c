"""Triggers: when the pane of a window is due. State machines, one tree of them for each window of each key.

Owns what a trigger is, what it becomes when windows merge, and those that hold no other (`engine.grouping.composites`
has the rest, `engine.grouping.triggerstate` their bytes). Must not know elements, window functions, panes or protos.

An element is not shown to a trigger at once: `room` says how many may come before it has to be asked, and `add` then
tells it of all of them. So a trigger costs per firing, not per element. Only an `eager` one, which counts time from
the next element, must be told of that one when it comes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from arcbeam.engine.grouping.delays import Transform, due
from arcbeam.model.timestamps import Timestamp

UNLIMITED = sys.maxsize
"""`room` of a trigger that no number of elements makes ready."""


class Moment(NamedTuple):
    """When a trigger is asked.

    Attributes:
        now: processing time.
        passed: the watermark has passed the end of the window.
        ticked: the clock is why it is asked, after all elements that had come by then.
    """

    now: Timestamp
    passed: bool = False
    ticked: bool = False


class Trigger(ABC):
    """One trigger and the triggers in it, for one window."""

    __slots__ = ()

    def parts(self) -> tuple[Trigger, ...]:
        """The triggers in it, in an order that belongs to its kind."""
        return ()

    def active(self) -> tuple[Trigger, ...]:
        """Those of them that elements are told to."""
        return self.parts()

    def timed(self) -> bool:
        """Whether it ever follows the clock."""
        return any(part.timed() for part in self.parts())

    def on_time(self) -> bool:
        """Whether it may fire because the watermark passes the end of the window, even without new elements."""
        return any(part.on_time() for part in self.parts())

    def eager(self) -> bool:
        """Whether it must be told of the next element when that comes: it counts time from it."""
        return any(part.eager() for part in self.active())

    def alarm(self, at: Moment) -> Timestamp | None:
        """The next processing time at which it has to be asked; None if the clock changes nothing."""
        return min((alarm for part in self.active() if (alarm := part.alarm(at)) is not None), default=None)

    def finished(self) -> bool:
        """Whether it has fired for the last time."""
        return False

    @abstractmethod
    def fresh(self) -> Self:
        """The same trigger in its first state."""

    def add(self, count: int, now: Timestamp) -> None:
        """That many elements have come."""
        for part in self.active():
            part.add(count, now)

    @abstractmethod
    def room(self, at: Moment) -> int:
        """How many elements may come before it can be ready, if the clock stands; not positive if it may be already."""

    @abstractmethod
    def ready(self, at: Moment) -> bool:
        """Whether it fires."""

    @abstractmethod
    def fire(self, at: Moment) -> bool:
        """It fires (it is ready); returns whether it is finished: it will never fire again."""

    def merge(self, other: Self) -> None:
        """The window of `other`, a trigger of the same shape, became one with this one's; `other` is used up.

        What elements and the clock have finished in either is finished; what the watermark has, only if in both: the
        elements of the other have not had their turn.
        """
        for mine, theirs in zip(self.parts(), other.parts(), strict=True):
            mine.merge(theirs)

    def rewind(self) -> None:
        """The window has grown, and its end is ahead of the watermark again: what passing it did is undone."""
        for part in self.parts():
            part.rewind()


class Never(Trigger):
    """Never fires: what there is goes into the pane that closes the window."""

    __slots__ = ()

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)()

    def room(self, at: Moment) -> int:
        """See `Trigger`."""
        return UNLIMITED

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return False

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        raise AssertionError("a trigger that never fires")


class Always(Trigger):
    """Fires for every element, and is never finished."""

    __slots__ = ()

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)()

    def room(self, at: Moment) -> int:
        """See `Trigger`."""
        return 1

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return True

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        return False


class AfterCount(Trigger):
    """Fires once, when that many elements have come since it began.

    Attributes:
        seen: elements since it began.
        fired: it is finished.
    """

    __slots__ = ("_target", "fired", "seen")

    def __init__(self, target: int) -> None:
        if target < 1:
            raise ValueError(f"a trigger after {target} elements would always fire: at least 1")
        self._target = target
        self.seen = 0
        self.fired = False

    def finished(self) -> bool:
        """See `Trigger`."""
        return self.fired

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)(self._target)

    def add(self, count: int, now: Timestamp) -> None:
        """See `Trigger`."""
        self.seen += count

    def room(self, at: Moment) -> int:
        """See `Trigger`."""
        return self._target - self.seen

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self.seen >= self._target

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        self.fired = True
        return True

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        self.seen += other.seen
        self.fired = self.fired or other.fired


class AfterTime(Trigger):
    """Fires once, when the clock reaches a time that is counted from the first element.

    Args:
        transforms: what makes that time of the first element's, one after the other.

    Attributes:
        due: that time, once the first element has come.
        fired: it is finished.
    """

    __slots__ = ("_transforms", "due", "fired")

    def __init__(self, *transforms: Transform) -> None:
        self._transforms = transforms
        self.due: Timestamp | None = None
        self.fired = False

    def timed(self) -> bool:
        """See `Trigger`."""
        return True

    def eager(self) -> bool:
        """See `Trigger`."""
        return self.due is None

    def alarm(self, at: Moment) -> Timestamp | None:
        """See `Trigger`."""
        return self.due if self.due is not None and self.due > at.now else None

    def finished(self) -> bool:
        """See `Trigger`."""
        return self.fired

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)(*self._transforms)

    def add(self, count: int, now: Timestamp) -> None:
        """See `Trigger`."""
        if self.due is None:
            self.due = due(self._transforms, now)

    def room(self, at: Moment) -> int:
        """See `Trigger`."""
        return 0 if self.ready(at) else UNLIMITED

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self.due is not None and at.now >= self.due

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        self.fired = True
        return True

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        self.due = min((due for due in (self.due, other.due) if due is not None), default=None)
        self.fired = self.fired or other.fired


class AfterSynchronizedTime(AfterTime):
    """Fires once, at the first look at the clock after an element: what came at one time goes into one pane."""

    __slots__ = ()

    def alarm(self, at: Moment) -> Timestamp | None:
        """See `Trigger`."""
        return None if self.due is None or self.ready(at) else self.due

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self.due is not None and (at.now > self.due or (at.ticked and at.now == self.due))
