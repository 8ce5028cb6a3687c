"""The causes that hold a job's watermarks, and what would release them, as text.

Owns the texts. The engine determines what holds a watermark (`watermarks.holdreasons`). Must not know the rest of a
status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from math import ceil
from typing import Final

from arcbeam.engine.watermarks.clocks import Port, shown_time
from arcbeam.engine.watermarks.comparison import passed
from arcbeam.engine.watermarks.holdreasons import Complete, HoldReason, Link, Observed, ShardHold, Unreported
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.engine.watermarks.sketches import count_of
from arcbeam.engine.watermarks.stages import Nearest, Watermarks
from arcbeam.model.observers import Observer, Policy, all_observers
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.streaming.status.moment import CLOCK_REACHES
from arcbeam.streaming.status.snapshot import Since, Snapshot, StageSnapshot

_AHEAD_MICROS_MAX: Final = 60_000_000
"""An observed time that is so much later than the clock is usually wrong."""
_POLLING_MAX: Final = Duration(10_000_000)
"""A restriction that waits no longer than this by the clock is polled; one that waits longer has deferred itself."""


class CauseKind(StrEnum):
    """What holds a watermark."""

    RESTRICTION = "restriction"
    TIMER = "timer"
    SIDE_INPUT = "side input"
    ELEMENTS = "elements"
    STATE = "state"
    SCRIPT = "script"
    OBSERVER = "observer"
    SHUTDOWN = "shutdown"
    NOT_REPORTED = "not reported"
    FAILURE = "failure"
    """The next micro-batch fails and is tried again."""
    DRIVER = "driver"
    """The driver does not progress."""

    @property
    def is_trouble(self) -> bool:
        """Whether it is no watermark's, but keeps the job from progressing."""
        return self in (CauseKind.FAILURE, CauseKind.DRIVER)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that holds watermarks.

    Attributes:
        kind: of what holds them.
        stage: its stage; "" for the driver. Of a failure: the transform, "" if unknown.
        shard: its shard; None: all shards of the stage.
        name: the name of the restriction, timer, side input, state or observer; "" if it has none.
        key: the user's key, as text; None if it has none.
        time: the watermark that it holds.
        since: when that watermark reached its value, or the first try failed; None if it was not stored.
        due: when it will be released; None if unknown.
        by_clock: whether `due` is a processing time.
        text: the complete description, in a line.
        released_when: what would let the watermark advance.
        stages: the stages that wait for it.
        decides: whether it holds any watermark downstream. It does not if all outputs of the stage have watermarks of
            their own, as after `WithWatermark`.
        about: the whole element of the restriction, of which `text` has the beginning; "" if it has none.
    """

    kind: CauseKind
    stage: str
    time: Timestamp
    since: Since | None
    text: str
    released_when: str
    shard: int | None = None
    name: str = ""
    key: str | None = None
    due: Timestamp | None = None
    by_clock: bool = False
    stages: tuple[str, ...] = ()
    decides: bool = True
    about: str = ""


class Reasons:
    """The causes that hold a job's watermarks; what holds several of them is one cause.

    Args:
        snapshot: the snapshot of the stages.
        marks: the watermarks of the same manifest.
        now: the recorded time of the micro-batch.
    """

    def __init__(self, snapshot: Snapshot, marks: Watermarks, now: Timestamp) -> None:
        self._stages = {of.name: of for of in snapshot.stages}
        self._marks, self._times, self._now = marks, marks.times(), now
        self._nearest: Nearest = {}
        self._causes: dict[tuple[str, int | None, CauseKind, str, str | None], tuple[Cause, list[str]]] = {}

    def add(self, stage: StageSnapshot) -> str:
        """Add the causes that hold a stage's watermarks; return the chain that holds its input, "" if there is none."""
        input = self._times.inputs[stage.name]
        whys = [self._marks.explain(stage.name, self._nearest)] if input < MAX_TIMESTAMP else []
        for output in stage.outputs:
            port = Port(stage.name, output)
            if self._times.outputs[port] < input:
                whys.append(self._marks.explain_output(port, self._nearest))
        for why in whys:
            for cause in self._of(why):
                known = cause.stage, cause.shard, cause.kind, cause.name, cause.key
                _, waiting = self._causes.setdefault(known, (cause, []))
                if stage.name not in waiting:
                    waiting.append(stage.name)
        return str(whys[0]) if input < MAX_TIMESTAMP else ""

    def causes(self) -> tuple[Cause, ...]:
        """Return all causes: first those that decide, then those that have not moved for longest."""
        found = [
            replace(
                cause,
                stages=tuple(waiting),
                decides=self._decides(cause, waiting),
                released_when=cause.released_when + self._without(cause, waiting),
            )
            for cause, waiting in self._causes.values()
        ]
        return tuple(
            sorted(found, key=lambda cause: (not cause.decides, cause.since.time if cause.since else MIN_TIMESTAMP))
        )

    def _decides(self, cause: Cause, waiting: Sequence[str]) -> bool:
        outputs = [self._times.outputs[Port(cause.stage, output)] for output in self._stages[cause.stage].outputs]
        return waiting != [cause.stage] or not outputs or cause.time in outputs

    def _without(self, cause: Cause, waiting: Sequence[str]) -> str:
        """Return how others could proceed without the cause: for sources, which may be idle."""
        if cause.kind not in (CauseKind.OBSERVER, CauseKind.RESTRICTION):
            return ""
        text = ""
        paths = (of for output in self._stages[cause.stage].observed.values() for of in all_observers(output))
        if cause.kind is CauseKind.RESTRICTION and any(
            of.policy is Policy.MIN and of.idle_after is None and of.shared is None for of in paths
        ):
            text = "; or set idle_after of WithWatermark: then the watermark does not wait for an idle source"
        for name in waiting:
            inputs = {self._times.outputs[port] for port in self._stages[name].reads} - {MAX_TIMESTAMP}
            if name != cause.stage and len(inputs) > 1 and min(inputs) == cause.time:
                text += (
                    f"; or put WithWatermarkPolicy with idle_after before {name!r}: then it does not wait for an idle "
                    "input"
                )
                break
        return text

    def _of(self, why: HoldReason) -> Iterator[Cause]:
        """Yield the causes that hold a watermark: the end of its chain, and the blocked elements on it."""
        links = why.links
        for at, link in enumerate(links[1:]):
            if link.waiting is not None:
                deeper = replace(why, links=(replace(link, waiting=None), *links[at + 2 :]))
                yield self._blocked(links[at], link, deeper)
                return
        if not isinstance(why.cause, Complete):
            yield self._cause(links[-1], why.cause)

    def _since(self, link: Link) -> Since | None:
        stage = self._stages[link.stage]
        return stage.input if link.output is None else stage.outputs.get(link.output)

    def _at(self, link: Link) -> str:
        since = self._since(link)
        stands = f", since micro-batch {since.micro_batch} ({shown_time(since.time)})" if since else ""
        return f"the watermark of the {link.subject} is at {shown_time(link.time)}{stands}"

    def _blocked(self, link: Link, of: Link, deeper: HoldReason) -> Cause:
        """Return the cause for elements that wait for a side input."""
        held = of.waiting
        assert held is not None
        stage = self._stages[link.stage]
        until = min((each.until for each in stage.awaited if str(each.port) == of.subject), default=None)
        window = "its window ends" if until is None else f"its watermark passes {shown_time(until)}"
        return self._made(
            CauseKind.SIDE_INPUT,
            link,
            held.shard,
            f"elements in shard {held.shard} wait for a side input ({deeper})",
            f"the {of.subject} gets an element, or {window} (then the side input is complete)",
            of.subject,
        )

    def _cause(self, link: Link, cause: ShardHold | Observed | Unreported) -> Cause:
        match cause:
            case ShardHold(hold, shard) if self._is_caught_up(link, hold):
                what = f"restrictions in shard {shard} of {link.stage!r} have no backlog, and their watermark advances"
                return self._made(CauseKind.RESTRICTION, link, shard, what, "they are processed again, which is soon")
            case ShardHold(hold, shard):
                kind, what, released_when = self._held(link, hold, shard)
                made = self._made(kind, link, shard, what, released_when, _called(hold), hold.key, hold.release)
                return replace(made, about=hold.about)
            case Observed(observer, latest) if observer.shared is not None:
                known = "nothing" if latest is None else shown_time(latest)
                what = f"its watermark comes from '{observer.name}' and the other inputs of that: {known}"
                released_when = "one of these inputs passes that time, or all of them end"
                return self._made(CauseKind.OBSERVER, link, None, what, released_when, observer.name)
            case Observed(observer, latest, unconfirmed):
                what, released_when = self._observed(link, observer, latest, unconfirmed)
                return self._made(CauseKind.OBSERVER, link, None, what, released_when, observer.name)
            case Unreported(shard):
                released_when = "the first micro-batch of this driver, which runs at once"
                return self._made(
                    CauseKind.NOT_REPORTED, link, shard, f"shard {shard} has not reported yet", released_when
                )

    def _observed(
        self, link: Link, observer: Observer, latest: Timestamp | None, unconfirmed: Sequence[Timestamp]
    ) -> tuple[str, str]:
        """Return what an observer has seen, and what it has to see."""
        known, delay = f"'{observer.name}'", _span(observer.delay)
        end = "or all input ends"
        arrived = self._stages[link.stage].total
        some = arrived.read or arrived.made
        if latest is None:
            what = f"{known} has observed no element yet" if not some else f"{known} has accepted no event time yet"
            released_when = f"an element arrives, {end}"
        else:
            what = (
                f"{known} has observed {shown_time(latest)} as the latest event time, and subtracts a delay of {delay}"
            )
            if link.time > shifted(latest, Duration(-observer.delay)):
                # For example, if the job was resumed with a longer delay.
                what += "; the result is earlier than the present watermark, which never goes back"
            passes = max(latest, shifted(link.time, observer.delay))
            released_when = f"an element later than {shown_time(passes)} arrives, {end}"
            if (ahead := latest - self._now) > _AHEAD_MICROS_MAX:
                what += (
                    f"; that is {_span(Duration(ahead))} later than the clock, so current elements are late: see "
                    "max_skew, max_jump and quantile"
                )
        if observer.quantile is not None:
            wanted, recent = ceil(1 / (1 - observer.quantile)), self._marks.times().recent.get(observer.name)
            what += f"; it uses the quantile {observer.quantile} of recent elements"
            if latest is None:
                what += f", which requires {wanted} elements: {0 if recent is None else count_of(recent)} have arrived"
                released_when = f"{wanted} elements have arrived, {end}"
            else:
                released_when = f"more than one of {wanted} elements is later than {shown_time(passes)}, {end}"
        if unconfirmed:
            jump = _span(observer.max_jump or Duration(0))
            what += f"; it has not accepted {len(unconfirmed)} time(s): {_times(unconfirmed)}"
            later = f"an element with a later event time arrives, at most {jump} later; " if latest is not None else ""
            released_when = f"{later}{observer.confirmed_by} others confirm one of these times; {end}"
        if observer.max_skew is not None:
            skew = _span(observer.max_skew)
            what += f"; it rejects event times more than {skew} ahead of the clock (counter rejectedEventTimes)"
            if latest is None and some:
                released_when = (
                    f"an element at most {skew} ahead of the clock arrives (are unit and time zone of the times "
                    f"right?), {end}"
                )
        return what, released_when

    def _made(
        self,
        kind: CauseKind,
        link: Link,
        shard: int | None,
        what: str,
        released_when: str,
        name: str = "",
        key: str | None = None,
        release: Release | None = None,
    ) -> Cause:
        text, since = f"{self._at(link)}: {what}", self._since(link)
        due, by_clock = (release.at, release.by_clock) if release else (None, False)
        return Cause(kind, link.stage, link.time, since, text, released_when, shard, name, key, due, by_clock)

    def _held(self, link: Link, hold: Hold, shard: int) -> tuple[CauseKind, str, str]:
        """Return the kind, what holds, and what would release it."""
        stage, key = self._stages[link.stage], "" if hold.key is None else f" of key {hold.key!r}"
        # The text begins with the watermark, which has the stage's name.
        where = f"in shard {shard}"
        match hold.kind:
            case HolderKind.RESIDUAL | HolderKind.RUNNING:
                return CauseKind.RESTRICTION, *self._restriction(stage, hold, where)
            case HolderKind.TIMER:
                return CauseKind.TIMER, *self._timer(link, hold, f"timer '{_called(hold)}'{key} {where}")
            case HolderKind.SCRIPT:
                return (
                    CauseKind.SCRIPT,
                    f"the events of TestStream {link.stage!r} have not advanced the watermark further",
                    "one of its events advances the watermark",
                )
            case HolderKind.BUFFERED | HolderKind.SORTED | HolderKind.ELEMENT:
                released_when = f"{self._input(link)} passes {shown_time(hold.time)}, and a micro-batch processes them"
                if passed(self._times.inputs[link.stage], hold.time):
                    released_when = "the next micro-batch processes them"
                wait = "wait" if hold.kind is HolderKind.BUFFERED else "waits"
                return CauseKind.ELEMENTS, f"{hold} {wait} {where}", released_when
            case HolderKind.BLOCKED:
                return CauseKind.SIDE_INPUT, f"{hold} waits {where}", "the side input is ready"
            case HolderKind.UNPREPARED:
                return (
                    CauseKind.SHUTDOWN,
                    f"{link.stage!r} has yet to prepare to shut down",
                    "the job ends, or is drained",
                )
            case HolderKind.STATE:
                now = shown_time(self._times.inputs[link.stage])
                released_when = (
                    f"the window's pane fires, or its trigger finishes; the stage's input watermark is at {now}"
                )
                return CauseKind.STATE, f"held by {hold} {where}", released_when

    def _input(self, link: Link) -> str:
        return f"the input watermark of {link.stage!r} (now {shown_time(self._times.inputs[link.stage])})"

    def _is_caught_up(self, link: Link, hold: Hold) -> bool:
        """Return whether a restriction holds that has nothing left to read, and whose watermark advances."""
        if hold.kind is not HolderKind.RESIDUAL or hold.size != 0 or hold.time == MIN_TIMESTAMP or hold.reason:
            return False
        if hold.release is not None and hold.release.at > shifted(self._now, _POLLING_MAX):
            return False
        since = self._since(link)
        return since is not None and self._now <= shifted(since.time, _POLLING_MAX)

    def _restriction(self, stage: StageSnapshot, hold: Hold, where: str) -> tuple[str, str]:
        # Its name is a digest, and changes with each split.
        one = f"restriction {f'of element {hold.subject}' if hold.about else hold.name} {where}"
        one += f" (of {stage.live} that are not done)" if stage.live > 1 else ""
        if hold.reason:
            return f"{one} waits: {hold.reason}", "this ends; until then the restriction is processed repeatedly"
        due = hold.release.at if hold.release else None
        silent = hold.time == MIN_TIMESTAMP
        waits = due is not None and due > shifted(self._now, _POLLING_MAX)
        if waits:
            assert due is not None
            what = f"{one} has deferred itself until {shown_time(due)}"
            released_when = f"{CLOCK_REACHES}{shown_time(due)}, when it is processed again"
            return what + (", and reports no watermark" if silent else ""), released_when
        if silent:
            released_when = (
                "the restriction ends, or its DoFn reports a watermark: give it a watermark estimator, or apply "
                "arcbeam.io.WithWatermark to its output"
            )
            return f"{one} reports no watermark", released_when
        released_when = "the restriction ends, or its watermark estimator reports a later time"
        return f"{one} has not reported a later watermark", released_when

    def _timer(self, link: Link, hold: Hold, named: str) -> tuple[str, str]:
        what, release = f"{named} holds the watermark at its output timestamp", hold.release
        if release is None:
            return what, "it fires, is cleared, or is set with a later output timestamp"
        if release.by_clock:
            return what, f"{CLOCK_REACHES}{shown_time(release.at)} and the timer fires, or the timer is cleared"
        passes = f"{self._input(link)} passes {shown_time(release.at)}"
        return what, f"{passes} and the timer fires, or the timer is cleared"


def _called(hold: Hold) -> str:
    """Return a holder's name as in the user's code: the SDK prefixes the names of timers."""
    return hold.name.removeprefix("ts-") if hold.kind is HolderKind.TIMER else hold.name


def _times(times: Sequence[Timestamp]) -> str:
    """Return the first and the last of some times."""
    return shown_time(times[0]) + (f" to {shown_time(times[-1])}" if len(times) > 1 else "")


def _span(span: Duration) -> str:
    return str(timedelta(microseconds=span))
