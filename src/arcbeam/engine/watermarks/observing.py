"""Watermarks that are observed: where an output is, by the times of what has come.

Owns the formula. Must not know who observes, nor how what was seen is kept.

An observer has seen elements of some time; it takes what is yet to come to be late by its delay at most. What its own
input says of time goes together with that by its policy. With S what the input says and O the latest time that was
seen, less the delay:

    S at the beginning of time: O        it says nothing; but if something of it has not begun, it may
    S at the end of time:       S        nothing comes any more
    otherwise                   min(S, O), or max(S, O)

What was seen counts from the commit of the step on in which it was seen: all that comes in one step is judged by what
was seen before it, in whatever order it comes, and a step that is run again judges as the first one did.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def _input_of(observer: Observer, root: Said, seen: Seen) -> Timestamp:
    impatient = observer.idle_after is not None and root.whole != MAX_TIMESTAMP
    return observed_time(observer.behind, Said(root.heard, root.heard) if impatient else root, seen)


def _of(observer: Observer, root: Said, seen: Seen) -> Timestamp:
    said = _input_of(observer, root, seen)
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
    below, there = _input_of(observer, said, seen), _of(observer, said, seen)
    return observer if there != below or there == _known(observer, seen) else decisive(observer.behind, said, seen)


def later(seen: Seen, more: Seen) -> dict[str, Timestamp]:
    """What was seen, with what was seen elsewhere, or later."""
    both = dict(seen)
    for name, time in more.items():
        both[name] = max(time, both.get(name, MIN_TIMESTAMP))
    return both
