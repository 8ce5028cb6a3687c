"""The reasons why a watermark does not advance, as values that print as one line.

Owns their texts. Must not know how a reason is found: that is `stages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MIN_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class ShardHold:
    """A hold in a shard."""

    hold: Hold
    shard: int

    def __str__(self) -> str:
        silent = self.hold.kind is HolderKind.RESIDUAL and self.hold.time == MIN_TIMESTAMP
        where = f"{self.hold} in shard {self.shard}"
        return f"because {where} reports no watermark" if silent else f"held by {where}"


@dataclass(frozen=True, slots=True)
class Observed:
    """An observer has seen no later time, or has not accepted later times."""

    observer: Observer
    latest: Timestamp | None
    unconfirmed: tuple[Timestamp, ...] = ()

    def __str__(self) -> str:
        if self.observer.shared is not None:
            known = "nothing" if self.latest is None else shown_time(self.latest)
            return f"at the time that the inputs of {self.observer.name!r} share, which is {known}"
        delay = timedelta(microseconds=self.observer.delay)
        seen = "has seen nothing yet" if self.latest is None else f"has seen {shown_time(self.latest)}, less {delay}"
        if self.unconfirmed:
            first = shown_time(self.unconfirmed[0])
            seen += f", and has not accepted {len(self.unconfirmed)} later time(s), the first of them {first}"
        return f"observed by {self.observer.name!r}, which {seen}"


@dataclass(frozen=True, slots=True)
class Unreported:
    """A shard has not reported yet."""

    shard: int

    def __str__(self) -> str:
        return f"which shard {self.shard} has not reported yet"


@dataclass(frozen=True, slots=True)
class Complete:
    """No limit: nothing more can arrive."""

    def __str__(self) -> str:
        return "which is complete"


Cause = ShardHold | Observed | Unreported | Complete


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the chain to the cause: a watermark and its value.

    Attributes:
        subject: the name of the watermark.
        time: its value.
        waiting: the blocked element that waits for it; None if it is upstream.
        stage, output: its stage and output; without an output it is the stage's input watermark.
    """

    subject: str
    time: Timestamp
    waiting: ShardHold | None = None
    stage: str = ""
    output: str | None = None


@dataclass(frozen=True, slots=True)
class HoldReason:
    """The reason why a watermark does not advance; prints as one line.

    Attributes:
        links: from the requested watermark to the one that the cause limits.
        cause: what limits it.
    """

    links: tuple[Link, ...]
    cause: Cause

    def __str__(self) -> str:
        first, *others = self.links
        text, time = f"{first.subject} is at {shown_time(first.time)}", first.time
        for link in others:
            text += f", {link.waiting}, which waits for" if link.waiting else " because of"
            text += f" {link.subject}" + ("" if link.time == time else f" (at {shown_time(link.time)})")
            time = link.time
        return f"{text}, {self.cause}"
