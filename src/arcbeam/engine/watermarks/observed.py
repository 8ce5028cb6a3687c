"""Observed watermarks: the watermark of an output, computed from the times of its elements.

Owns the formula. Must not know the observer, nor how the observed times are stored.

An observer has seen elements up to some time. It assumes that following elements are late by at most its delay. Its
policy combines this with the watermark of its own input. S is the input's watermark; O is the latest time seen, less
the delay:

    S at the beginning of time: O        it has no watermark; but if part of it has not begun, it may have one
    S at the end of time:       S        nothing more follows
    otherwise                   min(S, O), or max(S, O)

Parts of one transform may share what they have seen. These are then not the times of elements but the combined
watermarks of their inputs (`shared`). Each part is at that time, unless its own input is later.

What was seen counts from the commit of its micro-batch on. All elements of one micro-batch are judged by what was seen
before it, in whatever order they arrive. So a micro-batch that runs again judges as the first run did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from arcbeam.model.observers import Observer, ObserverPaths, Policy
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
"""The latest time that each observer has seen, by the observer's name."""

NOTHING_SEEN: Final[Seen] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RootWatermark:
    """The watermark of an output at a stage's root, without observers.

    Attributes:
        whole: the minimum over all shards.
        active: the minimum over shards that are not idle, which observers with `idle_after` use; the beginning of time
            if all are idle.
    """

    whole: Timestamp
    active: Timestamp


def observed_time(paths: ObserverPaths, root: RootWatermark, seen: Seen) -> Timestamp:
    """Return the watermark of an output: the minimum of all paths to it.

    Args:
        paths: the paths to it.
        root: the watermark at the stage's root.
        seen: the times that observers have seen.
    """
    return min(root.whole if observer is None else _of(observer, root, seen) for observer in paths)


def input_of(observer: Observer, root: RootWatermark, seen: Seen) -> Timestamp:
    """Return the watermark of an observer's input."""
    impatient = observer.idle_after is not None and observer.shared is None and root.whole != MAX_TIMESTAMP
    return observed_time(observer.upstream, RootWatermark(root.active, root.active) if impatient else root, seen)


def _of(observer: Observer, root: RootWatermark, seen: Seen) -> Timestamp:
    upstream = input_of(observer, root, seen)
    if upstream == MAX_TIMESTAMP:
        return upstream
    known = _known(observer, seen)
    if upstream == MIN_TIMESTAMP:
        return known
    if upstream == NOT_BEGUN:
        return MIN_TIMESTAMP if observer.policy is Policy.MIN else known
    return min(upstream, known) if observer.policy is Policy.MIN else max(upstream, known)


def _known(observer: Observer, seen: Seen) -> Timestamp:
    """Return the watermark by the seen times alone. No seen time is the end of time."""
    latest = seen.get(observer.name)
    return MIN_TIMESTAMP if latest is None else min(shifted(latest, Duration(-observer.delay)), END_OF_GLOBAL_WINDOW)


def decisive(paths: ObserverPaths, root: RootWatermark, seen: Seen) -> Observer | None:
    """Return the observer that limits an output; None: the watermark at the stage's root limits it."""
    observer = min(paths, key=lambda each: root.whole if each is None else _of(each, root, seen))
    if observer is None:
        return None
    below, there = input_of(observer, root, seen), _of(observer, root, seen)
    by_itself = there == _known(observer, seen) and observer.shared is None
    return observer if there != below or by_itself else decisive(observer.upstream, root, seen)


def together(policy: Policy, inputs: Iterable[tuple[Timestamp, bool]]) -> Timestamp | None:
    """Return the combined watermark of the inputs of observers that share what they see; None: there is none.

    An input that has ended does not count: its end does not limit the others.

    Args:
        policy: which of the inputs counts.
        inputs: the watermark of each, and whether it is idle.
    """
    if policy is Policy.MAX:
        time = max((time for time, _ in inputs if time != MAX_TIMESTAMP), default=MIN_TIMESTAMP)
    else:
        time = min((time for time, idle in inputs if time != MAX_TIMESTAMP and not idle), default=MIN_TIMESTAMP)
    return time if time > NOT_BEGUN else None


def later(seen: Seen, more: Seen) -> dict[str, Timestamp]:
    """Return the later of both times for each observer."""
    both = dict(seen)
    for name, time in more.items():
        both[name] = max(time, both.get(name, MIN_TIMESTAMP))
    return both
