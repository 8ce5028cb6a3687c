"""Why the watermarks of a job are where they are, and what would let them go on, in words.

Owns the words. What keeps a watermark is the engine's to say (`watermarks.holdreasons`). Must not know what else a
status tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Final

from arcbeam.engine.watermarks.clocks import Port, shown_time
from arcbeam.engine.watermarks.holdreasons import Complete, Held, HoldReason, Link, Observed, Unreported
from arcbeam.engine.watermarks.holds import Hold, HolderKind, Release
from arcbeam.engine.watermarks.sketches import count_of
from arcbeam.engine.watermarks.stages import Watermarks
from arcbeam.model.observers import Observer, Policy, along
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp, shifted
from arcbeam.streaming.status.snapshot import Since, Snapshot, StageSnapshot

_FAR: Final = 60_000_000
"""Who has seen a time that is so far ahead of the clock has seen a wrong one, mostly."""
_SOON: Final = Duration(10_000_000)
"""Who waits no longer than that by the clock is polled; who waits longer has deferred itself."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why watermarks are where they are.

    Attributes:
        kind: "restriction", "timer", "side input", "elements", "state", "script", "observer", "shutdown",
            "failure" (the micro-batch after fails and is tried again), "not reported", or "driver": it does not get on.
        stage: where it is; "" of the driver.
        shard: of the stage; None: it is of all of them.
        name: of the restriction, timer, side input, state or observer; "" if it has none.
        key: of the user's, as text; None if it has none.
        time: the watermark that it keeps.
        since: when that watermark came there; None if it was not kept.
        due: when it has its turn; None if nobody knows.
        by_clock: whether `due` is of processing time.
        text: all of it, in a line.
        frees: what would let the watermark go on.
        stages: that wait for it.
        decides: whether it keeps anything downstream; not where all that comes out of the stage has watermarks of
            its own, as behind `WithWatermark`.
    """

    kind: str
    stage: str
    shard: int | None
    name: str
    key: str | None
    time: Timestamp
    since: Since | None
    due: Timestamp | None
    by_clock: bool
    text: str
    frees: str
    stages: tuple[str, ...] = ()
    decides: bool = True


class Reasons:
    """Why the watermarks of a job are where they are; what keeps several of them is one cause.

    Args:
        standing: of the stages.
        marks: the same for the engine.
        now: the recorded time of the micro-batch.
    """

    def __init__(self, standing: Snapshot, marks: Watermarks, now: Timestamp) -> None:
        self._stages = {of.name: of for of in standing.stages}
        self._marks, self._times, self._now = marks, marks.times(), now
        self._causes: dict[tuple[str, int | None, str, str, str | None], tuple[Cause, list[str]]] = {}

    def add(self, stage: StageSnapshot) -> str:
        """Takes in what keeps a stage's watermarks; the way to what keeps its input, "" if nothing does."""
        input = self._times.inputs[stage.name]
        whys = [self._marks.explain(stage.name)] if input < MAX_TIMESTAMP else []
        for output in stage.outputs:
            port = Port(stage.name, output)
            if self._times.outputs[port] < input:
                whys.append(self._marks.explain_output(port))
        for why in whys:
            for cause in self._of(why):
                known = cause.stage, cause.shard, cause.kind, cause.name, cause.key
                _, waiting = self._causes.setdefault(known, (cause, []))
                if stage.name not in waiting:
                    waiting.append(stage.name)
        return str(whys[0]) if input < MAX_TIMESTAMP else ""

    def causes(self) -> tuple[Cause, ...]:
        """All of them: those that decide first, then those that stand longest."""
        found = [
            replace(
                cause,
                stages=tuple(waiting),
                decides=self._decides(cause, waiting),
                frees=cause.frees + self._without(cause, waiting),
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
        """How others could go on without what keeps them: for sources, which may be idle."""
        if cause.kind not in ("observer", "restriction"):
            return ""
        told = ""
        ways = (of for output in self._stages[cause.stage].observed.values() for of in along(output))
        if cause.kind == "restriction" and any(
            of.policy is Policy.MIN and of.idle_after is None and of.shared is None for of in ways
        ):
            told = "; or WithWatermark is told not to wait for it (idle_after)"
        for name in waiting:
            inputs = {self._times.outputs[port] for port in self._stages[name].reads} - {MAX_TIMESTAMP}
            if name != cause.stage and len(inputs) > 1 and min(inputs) == cause.time:
                told += f"; or {name!r} is told not to wait for it (WithWatermarkPolicy with idle_after before it)"
                break
        return told

    def _of(self, why: HoldReason) -> Iterator[Cause]:
        """What keeps a watermark: what its way ends at, and the parked elements on it."""
        links = why.links
        for at, link in enumerate(links[1:]):
            if link.waiting is not None:
                deeper = replace(why, links=(replace(link, waiting=None), *links[at + 2 :]))
                yield self._parked(links[at], link, deeper)
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

    def _parked(self, link: Link, of: Link, deeper: HoldReason) -> Cause:
        """Elements wait for a side input."""
        held = of.waiting
        assert held is not None
        stage = self._stages[link.stage]
        until = min((each.until for each in stage.awaited if str(each.port) == of.subject), default=None)
        window = "its window is over" if until is None else f"its watermark has passed {shown_time(until)}"
        return self._made(
            "side input",
            link,
            held.shard,
            f"elements are parked in shard {held.shard}, until a side input is there: {deeper}",
            f"something is put into the {of.subject}, or {window}, so that it is known to be empty",
            of.subject,
        )

    def _cause(self, link: Link, cause: Held | Observed | Unreported) -> Cause:
        match cause:
            case Held(hold, shard):
                kind, what, frees = self._held(link, hold, shard)
                return self._made(kind, link, shard, what, frees, _called(hold), hold.key, hold.release)
            case Observed(observer, latest) if observer.shared is not None:
                known = "nothing" if latest is None else shown_time(latest)
                what = f"it is where '{observer.name}' was by its other inputs: {known}"
                frees = "one of its inputs goes beyond that, or all of them end"
                return self._made("observer", link, None, what, frees, observer.name)
            case Observed(observer, latest, doubted):
                what, frees = self._observed(link, observer, latest, doubted)
                return self._made("observer", link, None, what, frees, observer.name)
            case Unreported(shard):
                frees = "the first micro-batch of this driver, which runs at once"
                return self._made("not reported", link, shard, f"nothing is known yet of shard {shard}", frees)

    def _observed(
        self, link: Link, observer: Observer, latest: Timestamp | None, doubted: Sequence[Timestamp]
    ) -> tuple[str, str]:
        """What an observer has seen, and what it has to see."""
        known, delay = f"'{observer.name}'", _span(observer.delay)
        end = "or all input ends"
        came = self._stages[link.stage].total
        some = came.read or came.made
        if latest is None:
            what = f"{known} has seen nothing yet" if not some else f"{known} has seen no time that it believes yet"
            frees = f"an element comes, {end}"
        else:
            what = f"{known} has seen nothing later than {shown_time(latest)}, and takes {delay} off that"
            if link.time > shifted(latest, Duration(-observer.delay)):
                # As where the job has gone on with a longer delay.
                what += "; the watermark has been further, and does not go back"
            passes = max(latest, shifted(link.time, observer.delay))
            frees = f"an element later than {shown_time(passes)} comes, {end}"
            if (ahead := latest - self._now) > _FAR:
                what += (
                    f"; that is {_span(Duration(ahead))} ahead of the clock, and what comes now is late to it: see "
                    "max_skew, max_jump and quantile"
                )
        if observer.quantile is not None:
            wanted, recent = ceil(1 / (1 - observer.quantile)), self._marks.times().recent.get(observer.name)
            what += f"; it goes by the quantile {observer.quantile} of what came of late"
            if latest is None:
                what += f", for which it takes {wanted} elements: there are {0 if recent is None else count_of(recent)}"
                frees = f"as many elements have come, {end}"
            else:
                frees = f"more than one of {wanted} elements is later than {shown_time(passes)}, {end}"
        if doubted:
            jump = _span(observer.max_jump or Duration(0))
            what += f"; there are {len(doubted)} time(s) that it does not believe: {_times(doubted)}"
            later = f"an element with a later event time comes, at most {jump} later; " if latest is not None else ""
            frees = f"{later}{observer.confirmed_by} others confirm one that is not believed; {end}"
        if observer.max_skew is not None:
            skew = f"{_span(observer.max_skew)} ahead of the clock"
            what += f"; it believes no time {skew} (the counter notBelieved says of how many)"
            if latest is None and some:
                frees = f"an element comes that is not {skew} (are times in another time zone, or unit?), {end}"
        return what, frees

    def _made(
        self,
        kind: str,
        link: Link,
        shard: int | None,
        what: str,
        frees: str,
        name: str = "",
        key: str | None = None,
        release: Release | None = None,
    ) -> Cause:
        since = self._since(link)
        return Cause(
            kind,
            link.stage,
            shard,
            name,
            key,
            link.time,
            since,
            release.at if release else None,
            bool(release and release.by_clock),
            f"{self._at(link)}: {what}",
            frees,
        )

    def _held(self, link: Link, hold: Hold, shard: int) -> tuple[str, str, str]:
        """Kind, what holds, and what would free it."""
        stage, key = self._stages[link.stage], "" if hold.key is None else f" of key {hold.key!r}"
        where = f"in shard {shard} of {link.stage!r}"
        match hold.kind:
            case HolderKind.RESIDUAL | HolderKind.RUNNING:
                return "restriction", *self._restriction(stage, hold, where)
            case HolderKind.TIMER:
                return "timer", *self._timer(link, hold, f"timer '{_called(hold)}'{key} {where}")
            case HolderKind.SCRIPT:
                return (
                    "script",
                    f"the script of {link.stage!r} has said no more",
                    "its next event that moves the watermark",
                )
            case HolderKind.GATHERED | HolderKind.SORTED | HolderKind.ELEMENT:
                frees = f"the input watermark of {link.stage!r} passes {shown_time(hold.time)}: {self._input(link)}"
                return "elements", f"{hold} wait {where}", frees
            case HolderKind.PARKED:
                return "side input", f"{hold} waits {where}", "the side input is there"
            case HolderKind.UNPREPARED:
                return (
                    "shutdown",
                    f"{link.stage!r} is to prepare to shut down",
                    "the job ends, or is drained",
                )
            case HolderKind.STATE:
                frees = f"the window's pane comes out, or its trigger finishes: {self._input(link)}"
                return "state", f"held by {hold} {where}", frees

    def _input(self, link: Link) -> str:
        return f"it is at {shown_time(self._times.inputs[link.stage])}"

    def _restriction(self, stage: StageSnapshot, hold: Hold, where: str) -> tuple[str, str]:
        of = f" of element {hold.about}" if hold.about else ""
        one = f"restriction {hold.name}{of} {where}"
        one += f" (of {stage.live} that are not done)" if stage.live > 1 else ""
        due = hold.release.at if hold.release else None
        silent = hold.time == MIN_TIMESTAMP
        waits = due is not None and due > shifted(self._now, _SOON)
        if waits:
            assert due is not None
            what = f"{one} has deferred itself until {shown_time(due)}"
            frees = f"the clock comes to {shown_time(due)}, when it is processed again"
            return what + (", and reports no watermark" if silent else ""), frees
        if silent:
            frees = (
                "its DoFn reports a watermark (a watermark estimator), the times of its elements are observed "
                "(arcbeam.io.WithWatermark behind it), or it is done"
            )
            return f"{one} reports no watermark", frees
        frees = (
            "its source has something later and its estimator says so, its estimator follows the clock, or it is done"
        )
        return f"{one} goes on, and reports no later watermark", frees

    def _timer(self, link: Link, hold: Hold, named: str) -> tuple[str, str]:
        what, release = f"{named} holds it at its output timestamp", hold.release
        if release is None:
            return what, "it fires, is cleared, or is set with a later output timestamp"
        if release.by_clock:
            return what, f"the clock comes to {shown_time(release.at)}, when it fires; or it is cleared"
        passes = f"the input watermark of {link.stage!r} passes {shown_time(release.at)}, when it fires"
        return what, f"{passes} ({self._input(link)}); or it is cleared"


def _called(hold: Hold) -> str:
    """As its user calls it: the SDK puts something before the name of a timer."""
    return hold.name.removeprefix("ts-") if hold.kind is HolderKind.TIMER else hold.name


def _times(times: Sequence[Timestamp]) -> str:
    """The first of some, and the last."""
    return shown_time(times[0]) + (f" to {shown_time(times[-1])}" if len(times) > 1 else "")


def _span(span: Duration) -> str:
    return str(timedelta(microseconds=span))
