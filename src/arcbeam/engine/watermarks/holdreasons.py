"""Why a watermark is where it is, as values that print as one line.

Owns their words. Must not know how a cause is found: that is `stages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class Held:
    """Something in a shard holds it."""

    hold: Hold
    shard: int

    def __str__(self) -> str:
        silent = self.hold.kind is HolderKind.RESIDUAL and self.hold.time == MIN_TIMESTAMP
        return f"held by {self.hold} in shard {self.shard}" + (", which reports no watermark" if silent else "")


@dataclass(frozen=True, slots=True)
class Observed:
    """An observer has seen no more, or does not believe what it has seen."""

    observer: Observer
    latest: Timestamp | None
    doubted: tuple[Timestamp, ...] = ()

    def __str__(self) -> str:
        if self.observer.shared is not None:
            known = "nothing" if self.latest is None else shown_time(self.latest)
            return f"at what others of {self.observer.name!r} have said, which is {known}"
        delay = timedelta(microseconds=self.observer.delay)
        seen = "has seen nothing yet" if self.latest is None else f"has seen {shown_time(self.latest)}, less {delay}"
        if self.doubted:
            first = shown_time(self.doubted[0])
            seen += f", and does not believe {len(self.doubted)} later time(s), the first of them {first}"
        return f"observed by {self.observer.name!r}, which {seen}"


@dataclass(frozen=True, slots=True)
class Unreported:
    """A shard has said nothing yet."""

    shard: int

    def __str__(self) -> str:
        return f"not known yet of shard {self.shard}"


@dataclass(frozen=True, slots=True)
class Complete:
    """Nothing keeps it: there is nothing to come."""

    def __str__(self) -> str:
        return "complete"


Cause = Held | Observed | Unreported | Complete


@dataclass(frozen=True, slots=True)
class Link:
    """A micro-batch of the way to the cause: a watermark, and where it is.

    Attributes:
        subject: which watermark.
        time: where it is.
        waiting: why it is looked at: a parked element waits for it; None if it is upstream.
        stage, output: whose it is; no output: the input's.
    """

    subject: str
    time: Timestamp
    waiting: Held | None = None
    stage: str = ""
    output: str | None = None


@dataclass(frozen=True, slots=True)
class HoldReason:
    """Why a watermark is where it is; prints as one line.

    Attributes:
        links: from the watermark that was asked for to the one that the cause keeps.
        cause: what keeps it.
    """

    links: tuple[Link, ...]
    cause: Cause

    def __str__(self) -> str:
        told: list[str] = []
        time: Timestamp | None = None
        for link in self.links:
            at = "" if link.time == time else f" is at {shown_time(link.time)}"
            if link.waiting:
                told.append(f"{link.waiting}, waiting for {link.subject}" + (at and f", which{at}"))
            else:
                told.append(link.subject + at)
            time = link.time
        return ": ".join([*told, str(self.cause)])
