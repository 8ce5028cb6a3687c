"""Triggers: when the pane of a window is due. State machines, one tree of them for each window of each key.

Owns what each trigger means. Pure: standard library only; times are arguments, in microseconds. Must not know elements,
window functions, panes or protos (`harness.panes` holds the elements, `harness.triggered` reads the protos).

An element is not shown to a trigger at once: `room` says how many may come before it has to be asked, and `add` then
tells it of all of them. So a trigger costs per firing, not per element.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Self

UNLIMITED = sys.maxsize
"""`room` of a trigger that no number of elements makes ready."""


class Moment(NamedTuple):
    """When a trigger is asked.

    Attributes:
        now: processing time, microseconds.
        passed: the watermark has passed the end of the window.
    """

    now: int
    passed: bool = False


class Trigger(ABC):
    """One trigger and the triggers in it, for one window."""

    __slots__ = ()

    def parts(self) -> tuple[Trigger, ...]:
        """The triggers in it."""
        return ()

    def timed(self) -> bool:
        """Whether it follows the clock, and so must be told of every element when it comes."""
        return any(part.timed() for part in self.parts())

    def on_time(self) -> bool:
        """Whether it may fire because the watermark passes the end of the window, even without new elements."""
        return any(part.on_time() for part in self.parts())

    @abstractmethod
    def fresh(self) -> Self:
        """The same trigger in its first state."""

    @abstractmethod
    def add(self, count: int, now: int) -> None:
        """That many elements have come."""

    @abstractmethod
    def room(self, passed: bool) -> int:
        """How many elements may come before it can be ready; not positive if it may be already.

        Args:
            passed: the watermark has passed the end of the window.
        """

    @abstractmethod
    def ready(self, at: Moment) -> bool:
        """Whether it fires."""

    @abstractmethod
    def fire(self, at: Moment) -> bool:
        """It fires (it is ready); returns whether it is finished: it will never fire again."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """The window of `other`, a trigger of the same shape, became one with this one's; `other` is used up."""


class Never(Trigger):
    """Never fires: what there is goes into the pane that closes the window."""

    __slots__ = ()

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)()

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return UNLIMITED

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return False

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        raise AssertionError("a trigger that never fires")

    def merge(self, other: Self) -> None:
        """See `Trigger`."""


class Always(Trigger):
    """Fires for every element, and is never finished."""

    __slots__ = ()

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)()

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return 1

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return True

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        return False

    def merge(self, other: Self) -> None:
        """See `Trigger`."""


class AfterCount(Trigger):
    """Fires once, when that many elements have come since it began."""

    __slots__ = ("_seen", "_target")

    def __init__(self, target: int) -> None:
        self._target = target
        self._seen = 0

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)(self._target)

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""
        self._seen += count

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return self._target - self._seen

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self._seen >= self._target

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        return True

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        self._seen += other._seen


class AfterTime(Trigger):
    """Fires once, when the clock reaches a time that is counted from the first element.

    Args:
        due: that time, given when the first element came; both in microseconds since 1970.
    """

    __slots__ = ("_due", "_due_after")

    def __init__(self, due: Callable[[int], int]) -> None:
        self._due_after = due
        self._due: int | None = None

    def timed(self) -> bool:
        """See `Trigger`."""
        return True

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)(self._due_after)

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""
        if self._due is None:
            self._due = self._due_after(now)

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return 1

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self._due is not None and at.now >= self._due

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        return True

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        dues = [due for due in (self._due, other._due) if due is not None]
        self._due = min(dues, default=None)


class AfterWatermark(Trigger):
    """Fires when the watermark passes the end of the window; before and after that as two other triggers say.

    Args:
        early: repeated before; None for nothing.
        late: repeated after; None: it is finished by then.
    """

    __slots__ = ("_early", "_fired", "_late")

    def __init__(self, early: Trigger | None = None, late: Trigger | None = None) -> None:
        self._early = None if early is None else Repeatedly(early)
        self._late = None if late is None else Repeatedly(late)
        self._fired = False

    def parts(self) -> tuple[Trigger, ...]:
        """See `Trigger`."""
        return tuple(filter(None, (self._early, self._late)))

    def on_time(self) -> bool:
        """See `Trigger`."""
        return True

    def _current(self) -> Trigger | None:
        return self._late if self._fired else self._early

    def fresh(self) -> Self:
        """See `Trigger`."""
        new = type(self)()
        if self._early is not None:
            new._early = self._early.fresh()
        if self._late is not None:
            new._late = self._late.fresh()
        return new

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""
        current = self._current()
        if current is not None:
            current.add(count, now)

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        if passed and not self._fired:
            return 0
        current = self._current()
        return UNLIMITED if current is None else current.room(passed)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        if at.passed and not self._fired:
            return True
        current = self._current()
        return current is not None and current.ready(at)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        if at.passed and not self._fired:
            self._fired = True
            return self._late is None
        current = self._current()
        return current is not None and current.fire(at)

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        self._fired = self._fired or other._fired
        for mine, theirs in ((self._early, other._early), (self._late, other._late)):
            if mine is not None and theirs is not None:
                mine.merge(theirs)


class Repeatedly(Trigger):
    """Begins again when what it repeats is finished."""

    __slots__ = ("_part",)

    def __init__(self, part: Trigger) -> None:
        self._part = part

    def parts(self) -> tuple[Trigger, ...]:
        """See `Trigger`."""
        return (self._part,)

    def fresh(self) -> Self:
        """See `Trigger`."""
        return type(self)(self._part.fresh())

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""
        self._part.add(count, now)

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return self._part.room(passed)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self._part.ready(at)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        if self._part.fire(at):
            self._part = self._part.fresh()
        return False

    def merge(self, other: Self) -> None:
        """See `Trigger`."""
        self._part.merge(other._part)


class _Several(Trigger):
    __slots__ = ("_parts",)

    def __init__(self, *parts: Trigger) -> None:
        self._parts = parts

    def parts(self) -> tuple[Trigger, ...]:
        return self._parts

    def fresh(self) -> Self:
        return type(self)(*(part.fresh() for part in self._parts))

    def add(self, count: int, now: int) -> None:
        for part in self._parts:
            part.add(count, now)

    def merge(self, other: Self) -> None:
        for mine, theirs in zip(self._parts, other._parts, strict=True):
            mine.merge(theirs)


class AfterAny(_Several):
    """Fires when any of several does; finished when one that fired is."""

    __slots__ = ()

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return min(part.room(passed) for part in self._parts)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return any(part.ready(at) for part in self._parts)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        finished = [part.fire(at) for part in self._parts if part.ready(at)]  # all of them, whatever the first says
        return any(finished)


class AfterAll(_Several):
    """Fires when all of several would; finished when all are."""

    __slots__ = ()

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return max(part.room(passed) for part in self._parts)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return all(part.ready(at) for part in self._parts)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        finished = [part.fire(at) for part in self._parts]
        return all(finished)


class AfterEach(_Several):
    """One after the other: the next begins when the one before it is finished."""

    __slots__ = ("_index",)

    def __init__(self, *parts: Trigger) -> None:
        super().__init__(*parts)
        self._index = 0

    def add(self, count: int, now: int) -> None:
        """See `Trigger`."""
        self._parts[self._index].add(count, now)

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return self._parts[self._index].room(passed)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return self._parts[self._index].ready(at)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        if not self._parts[self._index].fire(at):
            return False
        if self._index + 1 == len(self._parts):
            return True
        self._index += 1
        return False

    def merge(self, other: Self) -> None:
        """See `Trigger`: it goes on with the part that either has come to."""
        super().merge(other)
        self._index = max(self._index, other._index)


class OrFinally(_Several):
    """The first of two, until the second fires: then it fires for the last time."""

    __slots__ = ()

    def room(self, passed: bool) -> int:
        """See `Trigger`."""
        return min(part.room(passed) for part in self._parts)

    def ready(self, at: Moment) -> bool:
        """See `Trigger`."""
        return any(part.ready(at) for part in self._parts)

    def fire(self, at: Moment) -> bool:
        """See `Trigger`."""
        main, final = self._parts
        return final.ready(at) or main.fire(at)
