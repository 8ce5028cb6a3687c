"""Watermarks that are observed: where an output is, by the times of what has come.

Owns the formula. Must not know who observes, nor how what was seen is kept.

An observer has seen elements of some time; it takes what is yet to come to be late by its delay at most. What its own
input says of time goes together with that by its policy. With S what the input says and O the latest time that was
seen, less the delay:

    S at the beginning of time: O        it says nothing; but if something of it has not begun, it may
    S at the end of time:       S        nothing comes any more
    otherwise                   min(S, O), or max(S, O)

Parts of one transform may share what they have seen: that is then no time of elements, but what their inputs say, taken
together (`shared`), and each is where that is, if its own input is not later.

What was seen counts from the commit of the micro-batch on in which it was seen: all that comes in one micro-batch is
judged by what was seen before it, in whatever order it comes, and a micro-batch that is run again judges as the first
one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from arcbeam.model.observers import Observer, Policy, Ways
from arcbeam.model.timestamps import (
    END_OF_GLOBAL_WINDOW,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    NOT_BEGUN,
    Duration,
    Timestamp,
    shifted,
)

Seen = Mapping[str, Timestamp]
"""The latest time that observers have seen, by their names."""

NOTHING_SEEN: Final[Seen] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Said:
    """What a stage's root says of an output: where that would be without observers.

    Attributes:
        whole: in all shards.
        heard: in those in which that has moved of late: what counts for observers that do not wait for others; the
            beginning of time if there is none.
    """

    whole: Timestamp
    heard: Timestamp


def observed_time(ways: Ways, said: Said, seen: Seen) -> Timestamp:
    """Where an output is: the earliest of all ways to it.

    Args:
        ways: to it.
        said: what the stage's root says.
        seen: what was seen.
    """
    return min(said.whole if observer is None else _of(observer, said, seen) for observer in ways)


def input_of(observer: Observer, root: Said, seen: Seen) -> Timestamp:
    """What the input of an observer says."""
    impatient = observer.idle_after is not None and observer.shared is None and root.whole != MAX_TIMESTAMP
    return observed_time(observer.behind, Said(root.heard, root.heard) if impatient else root, seen)


def _of(observer: Observer, root: Said, seen: Seen) -> Timestamp:
    said = input_of(observer, root, seen)
    if said == MAX_TIMESTAMP:
        return said
    known = _known(observer, seen)
    if said == MIN_TIMESTAMP:
        return known
    if said == NOT_BEGUN:
        return MIN_TIMESTAMP if observer.policy is Policy.MIN else known
    return min(said, known) if observer.policy is Policy.MIN else max(said, known)


def _known(observer: Observer, seen: Seen) -> Timestamp:
    """Where it is by what was seen alone. Nothing that was seen is an end of time."""
    latest = seen.get(observer.name)
    return MIN_TIMESTAMP if latest is None else min(shifted(latest, Duration(-observer.delay)), END_OF_GLOBAL_WINDOW)


def decisive(ways: Ways, said: Said, seen: Seen) -> Observer | None:
    """The observer that an output waits for; None: it waits for what the stage's root says."""
    observer = min(ways, key=lambda each: said.whole if each is None else _of(each, said, seen))
    if observer is None:
        return None
    below, there = input_of(observer, said, seen), _of(observer, said, seen)
    by_itself = there == _known(observer, seen) and observer.shared is None
    return observer if there != below or by_itself else decisive(observer.behind, said, seen)


def together(policy: Policy, inputs: Iterable[tuple[Timestamp, bool]]) -> Timestamp | None:
    """What the inputs of observers say that share what they have seen; None: nothing.

    An input that has ended does not count: while others go on, its end says nothing of them.

    Args:
        policy: which of them counts.
        inputs: what each says, and whether it is idle.
    """
    if policy is Policy.MAX:
        time = max((time for time, _ in inputs if time != MAX_TIMESTAMP), default=MIN_TIMESTAMP)
    else:
        time = min((time for time, idle in inputs if time != MAX_TIMESTAMP and not idle), default=MIN_TIMESTAMP)
    return time if time > NOT_BEGUN else None


def later(seen: Seen, more: Seen) -> dict[str, Timestamp]:
    """What was seen, with what was seen elsewhere, or later."""
    both = dict(seen)
    for name, time in more.items():
        both[name] = max(time, both.get(name, MIN_TIMESTAMP))
    return both
