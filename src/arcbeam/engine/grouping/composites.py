"""Triggers that consist of triggers: of the watermark, of repetition, and combinations.

Owns the meaning of each. Must not know more than `engine.grouping.triggers` does.
"""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from arcbeam.engine.grouping.triggers import UNLIMITED, Moment, Trigger


class AfterWatermark(Trigger):
    """Fires when the watermark passes the end of the window; before and after that, two other triggers decide.

    Args:
        early: repeated before; None: it does not fire before.
        late: repeated after; None: it is finished after.

    Attributes:
        fired: it has fired because of the watermark.
    """

    __slots__ = ("_early", "_late", "fired")

    def __init__(self, early: Trigger | None = None, late: Trigger | None = None) -> None:
        self._early = None if early is None else Repeatedly(early)
        self._late = None if late is None else Repeatedly(late)
        self.fired = False

    @override
    def parts(self) -> tuple[Trigger, ...]:
        return tuple(filter(None, (self._early, self._late)))

    @override
    def active(self) -> tuple[Trigger, ...]:
        current = self._late if self.fired else self._early
        return () if current is None else (current,)

    @override
    def on_time(self) -> bool:
        return True

    @override
    def finished(self) -> bool:
        return self.fired and self._late is None

    @override
    def fresh(self) -> Self:
        new = type(self)()
        if self._early is not None:
            new._early = self._early.fresh()
        if self._late is not None:
            new._late = self._late.fresh()
        return new

    def _due(self, at: Moment) -> bool:
        # If it is finished and evaluated again, a composite waits for all its parts: it stays ready.
        return at.passed and not (self.fired and self._late is not None)

    @override
    def elements_until_ready(self, at: Moment) -> int:
        if self._due(at):
            return 0
        return min((part.elements_until_ready(at) for part in self.active()), default=UNLIMITED)

    @override
    def ready(self, at: Moment) -> bool:
        return self._due(at) or any(part.ready(at) for part in self.active())

    @override
    def fire(self, at: Moment) -> bool:
        if self._due(at):
            self.fired = True
            if self._early is not None:
                self._early = self._early.fresh()
        else:
            for part in self.active():
                part.fire(at)
        return self.finished()

    @override
    def merge(self, other: Self) -> None:
        super().merge(other)
        if self.fired != other.fired:
            self.rewind()

    @override
    def rewind(self) -> None:
        self.fired = False
        if self._late is not None:
            self._late = self._late.fresh()


class Repeatedly(Trigger):
    """Begins again when its part is finished."""

    __slots__ = ("_part",)

    def __init__(self, part: Trigger) -> None:
        self._part = part

    @override
    def parts(self) -> tuple[Trigger, ...]:
        return (self._part,)

    @override
    def fresh(self) -> Self:
        return type(self)(self._part.fresh())

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return self._part.elements_until_ready(at)

    @override
    def ready(self, at: Moment) -> bool:
        return self._part.ready(at)

    @override
    def fire(self, at: Moment) -> bool:
        if self._part.fire(at):
            self._part = self._part.fresh()
        return False


class _Several(Trigger):
    __slots__ = ("_parts",)

    def __init__(self, *parts: Trigger) -> None:
        if not parts:
            raise ValueError(f"{type(self).__name__} requires at least one trigger")
        self._parts = parts

    def parts(self) -> tuple[Trigger, ...]:
        return self._parts

    def fresh(self) -> Self:
        return type(self)(*(part.fresh() for part in self._parts))


class AfterAny(_Several):
    """Fires when any of its parts does; finished when one that fired is."""

    __slots__ = ()

    @override
    def finished(self) -> bool:
        return any(part.finished() for part in self._parts)

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return min(part.elements_until_ready(at) for part in self._parts)

    @override
    def ready(self, at: Moment) -> bool:
        return any(part.ready(at) for part in self._parts)

    @override
    def fire(self, at: Moment) -> bool:
        finished = [part.fire(at) for part in self._parts if part.ready(at)]  # all of them, whatever the first returns
        return any(finished)


class AfterAll(_Several):
    """Fires when all its parts would; finished when all are."""

    __slots__ = ()

    @override
    def finished(self) -> bool:
        return all(part.finished() for part in self._parts)

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return max(part.elements_until_ready(at) for part in self._parts)

    @override
    def ready(self, at: Moment) -> bool:
        return all(part.ready(at) for part in self._parts)

    @override
    def fire(self, at: Moment) -> bool:
        finished = [part.fire(at) for part in self._parts]
        return all(finished)


class AfterEach(_Several):
    """One part after the other: the next begins when the one before it is finished.

    Attributes:
        index: the index of the current part; the number of parts if it is finished.
    """

    __slots__ = ("index",)

    def __init__(self, *parts: Trigger) -> None:
        super().__init__(*parts)
        self.index = 0

    @override
    def active(self) -> tuple[Trigger, ...]:
        return self._parts[self.index : self.index + 1]

    @override
    def finished(self) -> bool:
        return self.index == len(self._parts)

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return min((part.elements_until_ready(at) for part in self.active()), default=0)

    @override
    def ready(self, at: Moment) -> bool:
        # If it is finished and evaluated again, a composite waits for all its parts: it stays ready.
        return all(part.ready(at) for part in self.active())

    @override
    def fire(self, at: Moment) -> bool:
        for part in self.active():
            if part.fire(at):
                self.index += 1
        return self.finished()

    def merge(self, other: Self) -> None:
        """See `Trigger`: it continues with the first part that is not finished now."""
        super().merge(other)
        self._settle()

    @override
    def rewind(self) -> None:
        super().rewind()
        self._settle()

    def _settle(self) -> None:
        finished = [part.finished() for part in self._parts]
        self.index = finished.index(False) if False in finished else len(finished)
        self._parts = (
            *self._parts[: self.index + 1],
            *(part.fresh() for part in self._parts[self.index + 1 :]),
        )


class OrFinally(_Several):
    """Fires like the first of two, until the second fires: then it fires for the last time.

    Attributes:
        ended: the second has fired.
    """

    __slots__ = ("ended",)

    def __init__(self, main: Trigger, final: Trigger) -> None:
        super().__init__(main, final)
        self.ended = False

    @override
    def finished(self) -> bool:
        return self.ended or self._parts[0].finished()

    @override
    def elements_until_ready(self, at: Moment) -> int:
        return min(part.elements_until_ready(at) for part in self._parts)

    @override
    def ready(self, at: Moment) -> bool:
        return any(part.ready(at) for part in self._parts)

    @override
    def fire(self, at: Moment) -> bool:
        main, final = self._parts
        if final.ready(at):
            self.ended = True
            final.fire(at)
            return True
        return main.fire(at)

    @override
    def merge(self, other: Self) -> None:
        super().merge(other)
        self.ended = self.ended or other.ended
        self._settle()

    @override
    def rewind(self) -> None:
        super().rewind()
        self._settle()

    def _settle(self) -> None:
        # An end caused by the watermark is undone with the window's end.
        final = self._parts[1]
        self.ended = self.ended and (final.finished() or not final.on_time())
