"""The watermarks of all stages of a plan: how shards and stages go together, and the way to what keeps one (`why`).

Owns what was said to anybody: upstream, input and output watermarks, which never go back. Must not know how a shard
knows its own (`clocks`), nor when a micro-batch is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from arcbeam.engine.watermarks.clocks import Local, Port, input_time, output_time, shown_time, told_time
from arcbeam.engine.watermarks.holdreasons import Cause, Complete, Held, HoldReason, Link, Observed, Unreported
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.observed import Said, Seen, decisive, input_of, later, observed_time, together
from arcbeam.engine.watermarks.outlierfilter import Doubted, believed
from arcbeam.engine.watermarks.sketches import Recent, quantile_of, with_more
from arcbeam.model.observers import NOT_OBSERVED, Observer, Ways, along
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class StageFlow:
    """Where a stage's elements come from and go to.

    Attributes:
        name: of the stage, unique.
        inputs: the outputs that it reads; several: a Flatten. None: a source, whose upstream watermark is at the end.
        outputs: names of its own.
        shards: in how many shards it runs; they are numbered from 0.
        observed: the ways to those outputs that observers are on the ways to.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    shards: int = 1
    observed: Mapping[str, Ways] = field(default_factory=dict)

    def ways(self, output: str) -> Ways:
        """To an output."""
        return self.observed.get(output, NOT_OBSERVED)


@dataclass(frozen=True, slots=True)
class Times:
    """The watermarks of all stages at one commit.

    Attributes:
        inputs: input watermark by stage.
        outputs: output watermark by port.
        upstream: the upstream watermark that each stage was told.
        seen: the latest time that each observer has ever seen.
        recent: the times of late of those that go by a quantile.
        doubted: later times, which those have seen that do not believe any.
    """

    inputs: Mapping[str, Timestamp] = field(default_factory=dict)
    outputs: Mapping[Port, Timestamp] = field(default_factory=dict)
    upstream: Mapping[str, Timestamp] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    recent: Mapping[str, Recent] = field(default_factory=dict)
    doubted: Doubted = field(default_factory=dict)

    def upstream_of(self, stage: str, producers: Iterable[Timestamp]) -> Timestamp:
        """The upstream watermark of a stage whose producers are there, on top of this commit.

        What a stage was told is not taken back: who is before it only now (a changed pipeline has one producer more)
        and is further behind is late where that is said.
        """
        return max(min(producers, default=MAX_TIMESTAMP), self.upstream.get(stage, MIN_TIMESTAMP))

    def check_after(self, before: Times) -> None:
        """Checks that no watermark is earlier than it was.

        Raises:
            ValueError: one is; it is named, with both times.
        """
        known: list[tuple[object, Timestamp, Timestamp | None]] = [
            *((f"input of {stage!r}", time, self.inputs.get(stage)) for stage, time in before.inputs.items()),
            *((port, time, self.outputs.get(port)) for port, time in before.outputs.items()),
        ]
        for subject, time, now in known:
            if now is not None and now < time:
                raise ValueError(
                    f"the watermark of the {subject} went back from {shown_time(time)} to {shown_time(now)}"
                )


def upstream_watermarks(
    markers: Sequence[Mapping[Port, Timestamp]], tasks: Mapping[Port, int], committed_outputs: Mapping[Port, Timestamp]
) -> dict[Port, Timestamp]:
    """The output watermarks that the markers of a micro-batch tell a task of a later level, when all have come.

    Args:
        markers: of each task of the levels before: `clocks.told_time` of each port it has, the least of its shards.
        tasks: how many tasks have each port.
        committed_outputs: the watermarks of the micro-batch's head. They are not taken back.

    Returns:
        By port of `tasks`, the earliest of all its tasks.

    Raises:
        ValueError: not as many markers tell of a port as tasks have it. Nothing may be concluded from some of them.
    """
    times: dict[Port, Timestamp] = {}
    for port, count in tasks.items():
        told = [marker[port] for marker in markers if port in marker]
        if len(told) != count:
            raise ValueError(f"{len(told)} markers tell of the {port}, which {count} tasks have")
        times[port] = max(min(told, default=MAX_TIMESTAMP), committed_outputs.get(port, MIN_TIMESTAMP))
    return times


def _heard(upstream: Timestamp, locals: Sequence[Local], output: str) -> Timestamp:
    told = (output_time(upstream, local, output) for local in locals if not local.outputs[output].quiet)
    # A shard that has nothing says nothing, neither that all has ended.
    return min((time for time in told if time < MAX_TIMESTAMP), default=MIN_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class _Limit:
    """Something that keeps a watermark from going on; `port` if that is another watermark."""

    time: Timestamp
    cause: Cause | None
    port: Port | None = None


class Watermarks:
    """The watermarks of a plan, from what all shards say at the end of each micro-batch.

    A shard that has said nothing yet keeps its stages at the beginning of time. Watermarks never go back: what a shard
    says that is earlier than what was said already (a hold for late data, a restriction without a watermark) keeps them
    where they are.

    Args:
        stages: producers before consumers.
        committed: the watermarks of the commit that is resumed.

    Raises:
        ValueError: a stage reads an output that no stage before it has, or a name is there twice.
    """

    def __init__(self, stages: Iterable[StageFlow], committed: Times | None = None) -> None:
        self._stages: dict[str, StageFlow] = {}
        self._locals: dict[tuple[str, int], Local] = {}
        self._inputs: dict[str, Timestamp] = {}
        self._outputs: dict[Port, Timestamp] = {}
        committed = committed or Times()
        self._committed = committed
        self._seen, self._recent = committed.seen, committed.recent
        self._doubted = dict(committed.doubted)
        for stage in stages:
            if stage.name in self._stages:
                raise ValueError(f"two stages are named {stage.name!r}")
            for port in stage.inputs:
                if port not in self._outputs:
                    raise ValueError(f"{stage.name!r} reads {port}, which no stage before it has")
            self._stages[stage.name] = stage
            self._inputs[stage.name] = committed.inputs.get(stage.name, MIN_TIMESTAMP)
            for output in stage.outputs:
                port = Port(stage.name, output)
                self._outputs[port] = committed.outputs.get(port, MIN_TIMESTAMP)
        self._shared: dict[str, list[tuple[Port, Observer]]] = {}
        for stage in self._stages.values():
            for output, ways in stage.observed.items():
                for observer in dict.fromkeys(along(ways)):
                    if observer.shared is not None:
                        self._shared.setdefault(observer.name, []).append((Port(stage.name, output), observer))
        self._observers = {
            observer.name: observer
            for stage in self._stages.values()
            for ways in stage.observed.values()
            for observer in along(ways)
        }

    def report(self, stage: str, shard: int, local: Local) -> None:
        """Takes what a shard says about a stage, in place of what it said before.

        Raises:
            ValueError: there is no such stage, or it has no such shard.
        """
        shards = self._stage(stage).shards
        if not 0 <= shard < shards:
            raise ValueError(f"stage {stage!r} has {shards} shards: there is no shard {shard}")
        self._locals[stage, shard] = local

    def advance(self) -> Times:
        """Moves all watermarks as far as they may; where they are then."""
        observed: dict[Port, Said] = {}
        sketches: dict[str, list[bytes]] = {}
        doubted = {name: set(times) for name, times in self._doubted.items()}
        for stage in self._stages.values():
            upstream = self.upstream(stage.name)
            shards = [self._locals.get((stage.name, shard)) for shard in range(stage.shards)]
            locals = [local for local in shards if local is not None]
            if len(locals) < len(shards):
                continue
            for local in locals:
                if local.seen:
                    self._seen = later(self._seen, local.seen)
                for name, sketch in local.sketches.items():
                    sketches.setdefault(name, []).append(sketch)
                for name, more in local.doubted.items():
                    doubted.setdefault(name, set()).update(more)
            there = min((input_time(upstream, local) for local in locals), default=upstream)
            self._inputs[stage.name] = max(self._inputs[stage.name], there)
            for output in stage.outputs:
                port, ways = Port(stage.name, output), stage.ways(output)
                there = min((output_time(upstream, local, output) for local in locals), default=upstream)
                self._outputs[port] = max(self._outputs[port], told_time(ways, there))
                if ways != NOT_OBSERVED:
                    observed[port] = Said(there, _heard(upstream, locals, output))
        for name, micro_batch in sketches.items():
            quantile = self._observers[name].quantile
            assert quantile is not None
            recent = with_more(self._recent.get(name), micro_batch)
            self._recent = {**self._recent, name: recent}
            latest = quantile_of(recent, quantile)
            if latest is not None:
                self._seen = later(self._seen, {name: latest})
        self._doubted = {}
        for name, times in doubted.items():
            self._believe(name, times)
        self._share(observed)
        # SUBTLE: behind all stages. What was seen in a micro-batch was told to no task of it: none has fired by it, so
        # those who read such an output are where they were.
        for port, said in observed.items():
            there = observed_time(self._stages[port.stage].ways(port.output), said, self._seen)
            self._outputs[port] = max(self._outputs[port], there)
        return self.times()

    def times(self) -> Times:
        """Input and output watermarks as they are, and what was seen."""
        upstream = {stage: self.upstream(stage) for stage in self._stages}
        return Times(dict(self._inputs), dict(self._outputs), upstream, self._seen, self._recent, self._doubted)

    def _share(self, said: Mapping[Port, Said]) -> None:
        """What observers have seen that share it, by what the roots of their stages say: each of those is there."""
        while True:
            more: dict[str, Timestamp] = {}
            for name, parts in self._shared.items():
                if all(port in said for port, _ in parts):
                    policy = parts[0][1].shared
                    assert policy is not None
                    inputs = (
                        (input_of(of, said[port], self._seen), self._is_idle(port, of.part)) for port, of in parts
                    )
                    time = together(policy, inputs)
                    if time is not None and time > self._seen.get(name, MIN_TIMESTAMP):
                        more[name] = time
            if not more:
                return
            # One may be behind another.
            self._seen = later(self._seen, more)

    def _is_idle(self, port: Port, part: str) -> bool:
        """Whether what comes to a part of a shared observer has stood for long, in all shards where it goes on."""
        upstream = self.upstream(port.stage)
        locals = [self._locals[port.stage, shard] for shard in range(self._stages[port.stage].shards)]
        return all(
            part in local.outputs[port.output].idle or output_time(upstream, local, port.output) == MAX_TIMESTAMP
            for local in locals
        )

    def _believe(self, name: str, doubted: Collection[Timestamp]) -> None:
        """Of the times that an observer doubts, what is believed now, and what is left."""
        observer = self._observers.get(name)
        if observer is None or observer.max_jump is None:
            return
        belief = believed(self._seen.get(name), doubted, observer.max_jump, observer.confirmed_by)
        if belief.latest is not None:
            self._seen = later(self._seen, {name: belief.latest})
        if belief.doubted:
            self._doubted[name] = belief.doubted

    def upstream(self, stage: str) -> Timestamp:
        """The earliest output watermark of what a stage reads; no earlier than it was told."""
        return self._committed.upstream_of(stage, (self._outputs[port] for port in self._stages[stage].inputs))

    def _said(self, stage: StageFlow, output: str) -> Said:
        """Where an output would be if nothing observed it."""
        upstream = self.upstream(stage.name)
        shards = [self._locals.get((stage.name, shard)) for shard in range(stage.shards)]
        locals = [local for local in shards if local is not None]
        if len(locals) < len(shards):
            return Said(MIN_TIMESTAMP, MIN_TIMESTAMP)
        told = (output_time(upstream, local, output) for local in locals)
        return Said(min(told, default=upstream), _heard(upstream, locals, output))

    def _leader(self, observer: Observer) -> Port | None:
        """Of the outputs whose observers share what they see the one whose input decides; None: none goes on."""
        if observer.shared is None:
            return None
        seen = self._seen.get(observer.name, MIN_TIMESTAMP)
        said = (
            (input_of(of, self._said(self._stages[port.stage], port.output), self._seen), port)
            for port, of in self._shared[observer.name]
        )
        return min((each for each in said if seen <= each[0] < MAX_TIMESTAMP), default=(MIN_TIMESTAMP, None))[1]

    def explain(self, stage: str) -> HoldReason:
        """What keeps the input watermark of a stage where it is.

        Raises:
            ValueError: there is no such stage.
        """
        self._stage(stage)
        return self._follow(Link(f"input of {stage!r}", self._inputs[stage], stage=stage), stage, None)

    def explain_output(self, port: Port) -> HoldReason:
        """What keeps an output watermark where it is.

        Raises:
            ValueError: there is no such stage, or it has no such output.
        """
        outputs = self._stage(port.stage).outputs
        if port.output not in outputs:
            known = ", ".join(map(repr, outputs)) or "none"
            raise ValueError(f"stage {port.stage!r} has no output {port.output!r}; it has {known}")
        return self._follow(_link(port, self._outputs[port]), port.stage, port.output)

    def _stage(self, name: str) -> StageFlow:
        stage = self._stages.get(name)
        if stage is None:
            known = ", ".join(map(repr, self._stages)) or "none"
            raise ValueError(f"there is no stage {name!r}; there are: {known}")
        return stage

    def _follow(self, link: Link, stage: str, output: str | None) -> HoldReason:
        """The way from one watermark (the input's, if there is no output) to the cause, over as many as it takes."""
        links = [link]
        while True:
            # Of equally early limits the first is told: what is nearest.
            limit = min(self._limits(stage, output), key=lambda limit: limit.time)
            if limit.port is None:
                assert limit.cause is not None
                return HoldReason(tuple(links), limit.cause)
            waiting = limit.cause if isinstance(limit.cause, Held) else None
            if any(known.subject == str(limit.port) for known in links):
                # A side input that waits for what waits for it: a plan cannot be so, a wrong report can.
                return HoldReason(tuple(links), waiting or Complete())
            links.append(_link(limit.port, self._outputs[limit.port], waiting))
            stage, output = limit.port.stage, limit.port.output

    def _limits(self, name: str, output: str | None) -> list[_Limit]:
        """All that keeps a watermark, the nearest first."""
        stage = self._stages[name]
        limits: list[_Limit] = []
        if output is not None and (ways := stage.ways(output)) != NOT_OBSERVED:
            observer = decisive(ways, self._said(stage, output), self._seen)
            if observer is not None and (port := self._leader(observer)) is not None:
                return [_Limit(MIN_TIMESTAMP, None, port)]
            if observer is not None:
                name = observer.name
                return [_Limit(MIN_TIMESTAMP, Observed(observer, self._seen.get(name), self._doubted.get(name, ())))]
        for shard in range(stage.shards):
            local = self._locals.get((name, shard))
            if local is None:
                limits.append(_Limit(MIN_TIMESTAMP, Unreported(shard)))
                continue
            pending = local.pending
            if output is not None:
                known = local.outputs[output]
                pending = known.pending
                if known.hold is not None:
                    limits.append(_Limit(known.hold.time, Held(known.hold, shard)))
            if pending is not None:
                waits_for = local.waits_for if pending.kind is HolderKind.PARKED else None
                limits.append(_Limit(pending.time, Held(pending, shard), waits_for))
        limits += [_Limit(self._outputs[port], None, port) for port in stage.inputs]
        return limits or [_Limit(MAX_TIMESTAMP, Complete())]


def _link(port: Port, time: Timestamp, waiting: Held | None = None) -> Link:
    return Link(str(port), time, waiting, port.stage, port.output)
