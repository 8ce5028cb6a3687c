"""The watermarks of all stages of a plan, and the reason that holds each.

Owns how shards and stages are combined, and the reported watermarks (upstream, input, output), which never decrease.
Must not know how a shard computes its own (`clocks`), nor when a micro-batch runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from arcbeam.engine.watermarks.clocks import Local, Port, input_time, marker_time, output_time, shown_time
from arcbeam.engine.watermarks.holdreasons import Cause, Complete, HoldReason, Link, Observed, ShardHold, Unreported
from arcbeam.engine.watermarks.holds import HolderKind
from arcbeam.engine.watermarks.observed import RootWatermark, Seen, decisive, input_of, later, observed_time, together
from arcbeam.engine.watermarks.outlierfilter import UnconfirmedTimes, without_outliers
from arcbeam.engine.watermarks.sketches import Recent, quantile_of, with_more
from arcbeam.model.observers import NOT_OBSERVED, Observer, ObserverPaths, all_observers
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp


@dataclass(frozen=True, slots=True)
class StageFlow:
    """The inputs and outputs of a stage.

    Attributes:
        name: the unique name of the stage.
        inputs: the outputs that it reads; several: a Flatten. None: a source, whose upstream watermark is at the end.
        outputs: the names of its outputs.
        shards: the number of its shards, numbered from 0.
        observed: the paths to those of its outputs that have observers upstream.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    shards: int = 1
    observed: Mapping[str, ObserverPaths] = field(default_factory=dict)

    def paths(self, output: str) -> ObserverPaths:
        """Return the paths to an output."""
        return self.observed.get(output, NOT_OBSERVED)


@dataclass(frozen=True, slots=True)
class WatermarkTimes:
    """The watermarks of all stages at one commit.

    Attributes:
        inputs: the input watermark by stage.
        outputs: the output watermark by port.
        upstream: the upstream watermark that each stage received.
        seen: the latest time that each observer has ever seen.
        recent: the recent times of observers with a quantile.
        unconfirmed: later times that observers with an outlier filter have seen and not accepted.
    """

    inputs: Mapping[str, Timestamp] = field(default_factory=dict)
    outputs: Mapping[Port, Timestamp] = field(default_factory=dict)
    upstream: Mapping[str, Timestamp] = field(default_factory=dict)
    seen: Seen = field(default_factory=dict)
    recent: Mapping[str, Recent] = field(default_factory=dict)
    unconfirmed: UnconfirmedTimes = field(default_factory=dict)

    @property
    def earliest(self) -> Timestamp:
        """The watermark of the whole job: the earliest of all outputs. If there are none, the earliest of all inputs.

        The input of a source that reads nothing is at the beginning of time for longer, and limits no window or timer.
        """
        return min(self.outputs.values() or self.inputs.values(), default=MIN_TIMESTAMP)

    def upstream_of(self, stage: str, producers: Iterable[Timestamp]) -> Timestamp:
        """Return the upstream watermark of a stage with these producers' watermarks, after this commit.

        It never decreases. If a changed pipeline has one more producer, which lags further, that producer's elements
        may be late.
        """
        return max(min(producers, default=MAX_TIMESTAMP), self.upstream.get(stage, MIN_TIMESTAMP))

    def upstream_at(self, stage: StageFlow) -> Timestamp:
        """Return the upstream watermark of a stage at this commit, with what observers saw last."""
        if not stage.inputs:
            return self.upstream.get(stage.name, MIN_TIMESTAMP)
        return self.upstream_of(stage.name, (self.outputs.get(port, MIN_TIMESTAMP) for port in stage.inputs))

    def check_after(self, before: WatermarkTimes) -> None:
        """Check that no watermark has decreased.

        Raises:
            ValueError: one has; the message names it, with both times.
        """
        known: list[tuple[object, Timestamp, Timestamp | None]] = [
            *((f"input of {stage!r}", time, self.inputs.get(stage)) for stage, time in before.inputs.items()),
            *((port, time, self.outputs.get(port)) for port, time in before.outputs.items()),
        ]
        for subject, time, now in known:
            if now is not None and now < time:
                raise ValueError(
                    f"the watermark of the {subject} decreased from {shown_time(time)} to {shown_time(now)}"
                )


def upstream_watermarks(
    markers: Sequence[Mapping[Port, Timestamp]], tasks: Mapping[Port, int], committed_outputs: Mapping[Port, Timestamp]
) -> dict[Port, Timestamp]:
    """Return the output watermarks that a task of a later level receives, once it has all markers of a micro-batch.

    Args:
        markers: of each task of the levels before: `clocks.marker_time` of each of its ports, the minimum of its
            shards.
        tasks: the number of tasks of each port.
        committed_outputs: the watermarks of the micro-batch's head. They never decrease.

    Returns:
        By port of `tasks`, the minimum of all its tasks.

    Raises:
        ValueError: the number of markers for a port is not the number of its tasks. A partial result would be wrong.
    """
    times: dict[Port, Timestamp] = {}
    for port, count in tasks.items():
        marked = [marker[port] for marker in markers if port in marker]
        if len(marked) != count:
            raise ValueError(f"{len(marked)} markers contain the {port}, which {count} tasks have")
        times[port] = max(min(marked, default=MAX_TIMESTAMP), committed_outputs.get(port, MIN_TIMESTAMP))
    return times


def _active(upstream: Timestamp, locals: Sequence[Local], output: str) -> Timestamp:
    times = (output_time(upstream, local, output) for local in locals if not local.outputs[output].quiet)
    # A shard that has ended limits nothing; nor does it mean that all have ended.
    return min((time for time in times if time < MAX_TIMESTAMP), default=MIN_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of a watermark; `port` if it is another watermark."""

    time: Timestamp
    cause: Cause | None
    port: Port | None = None


Nearest = dict[tuple[str, str | None], tuple[_Limit, Link | None]]
"""The limits that decide, and the links to these, by stage and output; None: the input."""


class Watermarks:
    """The watermarks of a plan, from the reports of all shards at the end of each micro-batch.

    If a shard has not reported yet, its stages stay at the beginning of time. Watermarks never decrease: a later report
    with an earlier time (a hold for late data, a restriction without a watermark) leaves them unchanged.

    Args:
        stages: producers before consumers.
        committed: the watermarks of the commit that the job resumes from.

    Raises:
        ValueError: a stage reads an output that no earlier stage has, or two stages have the same name.
    """

    def __init__(self, stages: Iterable[StageFlow], committed: WatermarkTimes | None = None) -> None:
        self._stages: dict[str, StageFlow] = {}
        self._locals: dict[tuple[str, int], Local] = {}
        self._inputs: dict[str, Timestamp] = {}
        self._outputs: dict[Port, Timestamp] = {}
        committed = committed or WatermarkTimes()
        self._committed = committed
        self._seen, self._recent = committed.seen, committed.recent
        self._unconfirmed = dict(committed.unconfirmed)
        for stage in stages:
            if stage.name in self._stages:
                raise ValueError(f"two stages are named {stage.name!r}")
            for port in stage.inputs:
                if port not in self._outputs:
                    raise ValueError(f"{stage.name!r} reads {port}, which no earlier stage has")
            self._stages[stage.name] = stage
            self._inputs[stage.name] = committed.inputs.get(stage.name, MIN_TIMESTAMP)
            for output in stage.outputs:
                port = Port(stage.name, output)
                self._outputs[port] = committed.outputs.get(port, MIN_TIMESTAMP)
        self._shared: dict[str, list[tuple[Port, Observer]]] = {}
        for stage in self._stages.values():
            for output, paths in stage.observed.items():
                for observer in dict.fromkeys(all_observers(paths)):
                    if observer.shared is not None:
                        self._shared.setdefault(observer.name, []).append((Port(stage.name, output), observer))
        self._observers = {
            observer.name: observer
            for stage in self._stages.values()
            for paths in stage.observed.values()
            for observer in all_observers(paths)
        }

    def report(self, stage: str, shard: int, local: Local) -> None:
        """Record a shard's times of a stage, in place of the previous ones.

        Raises:
            ValueError: there is no such stage, or it has no such shard.
        """
        shards = self._stage(stage).shards
        if not 0 <= shard < shards:
            raise ValueError(f"stage {stage!r} has {shards} shards: there is no shard {shard}")
        self._locals[stage, shard] = local

    def advance(self) -> WatermarkTimes:
        """Move all watermarks as far as possible; return them."""
        observed: dict[Port, RootWatermark] = {}
        sketches: dict[str, list[bytes]] = {}
        unconfirmed = {name: set(times) for name, times in self._unconfirmed.items()}
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
                for name, more in local.unconfirmed.items():
                    unconfirmed.setdefault(name, set()).update(more)
            there = min((input_time(upstream, local) for local in locals), default=upstream)
            self._inputs[stage.name] = max(self._inputs[stage.name], there)
            for output in stage.outputs:
                port, paths = Port(stage.name, output), stage.paths(output)
                there = min((output_time(upstream, local, output) for local in locals), default=upstream)
                self._outputs[port] = max(self._outputs[port], marker_time(paths, there))
                if paths != NOT_OBSERVED:
                    observed[port] = RootWatermark(there, _active(upstream, locals, output))
        for name, micro_batch in sketches.items():
            quantile = self._observers[name].quantile
            assert quantile is not None
            recent = with_more(self._recent.get(name), micro_batch)
            self._recent = {**self._recent, name: recent}
            latest = quantile_of(recent, quantile)
            if latest is not None:
                self._seen = later(self._seen, {name: latest})
        self._unconfirmed = {}
        for name, times in unconfirmed.items():
            self._accept_confirmed(name, times)
        self._share(observed)
        # SUBTLE: this runs after all stages. No task of a micro-batch knows what was observed in it, so none has fired
        # by it, and the readers of an observed output stay where they were.
        for port, root in observed.items():
            there = observed_time(self._stages[port.stage].paths(port.output), root, self._seen)
            self._outputs[port] = max(self._outputs[port], there)
        return self.times()

    def times(self) -> WatermarkTimes:
        """Return the current watermarks, and what was seen."""
        upstream = {stage: self.upstream(stage) for stage in self._stages}
        return WatermarkTimes(
            dict(self._inputs), dict(self._outputs), upstream, self._seen, self._recent, self._unconfirmed
        )

    def _share(self, roots: Mapping[Port, RootWatermark]) -> None:
        """Advance the observers that share what they see, by the watermarks at the roots of their stages."""
        while True:
            more: dict[str, Timestamp] = {}
            for name, parts in self._shared.items():
                if all(port in roots for port, _ in parts):
                    policy = parts[0][1].shared
                    assert policy is not None
                    inputs = (
                        (input_of(of, roots[port], self._seen), self._is_idle(port, of.part)) for port, of in parts
                    )
                    time = together(policy, inputs)
                    if time is not None and time > self._seen.get(name, MIN_TIMESTAMP):
                        more[name] = time
            if not more:
                return
            # One may be upstream of another.
            self._seen = later(self._seen, more)

    def _is_idle(self, port: Port, part: str) -> bool:
        """Return whether the input of a shared observer's part is idle, in all shards where it has not ended."""
        upstream = self.upstream(port.stage)
        locals = [self._locals[port.stage, shard] for shard in range(self._stages[port.stage].shards)]
        return all(
            part in local.outputs[port.output].idle or output_time(upstream, local, port.output) == MAX_TIMESTAMP
            for local in locals
        )

    def _accept_confirmed(self, name: str, unconfirmed: Collection[Timestamp]) -> None:
        """Accept the unconfirmed times of an observer that its filter now allows, and keep the rest."""
        observer = self._observers.get(name)
        if observer is None or observer.max_jump is None:
            return
        decision = without_outliers(self._seen.get(name), unconfirmed, observer.max_jump, observer.confirmed_by)
        if decision.latest is not None:
            self._seen = later(self._seen, {name: decision.latest})
        if decision.unconfirmed:
            self._unconfirmed[name] = decision.unconfirmed

    def upstream(self, stage: str) -> Timestamp:
        """Return the minimum output watermark of a stage's inputs; it never decreases."""
        return self._committed.upstream_of(stage, (self._outputs[port] for port in self._stages[stage].inputs))

    def _root_watermark(self, stage: StageFlow, output: str) -> RootWatermark:
        """Return the watermark that an output would have without observers."""
        upstream = self.upstream(stage.name)
        shards = [self._locals.get((stage.name, shard)) for shard in range(stage.shards)]
        locals = [local for local in shards if local is not None]
        if len(locals) < len(shards):
            return RootWatermark(MIN_TIMESTAMP, MIN_TIMESTAMP)
        times = (output_time(upstream, local, output) for local in locals)
        return RootWatermark(min(times, default=upstream), _active(upstream, locals, output))

    def _leader(self, observer: Observer) -> Port | None:
        """Return, of outputs whose observers share what they see, the one whose input decides; None: all have ended."""
        if observer.shared is None:
            return None
        seen = self._seen.get(observer.name, MIN_TIMESTAMP)
        known = (
            (input_of(of, self._root_watermark(self._stages[port.stage], port.output), self._seen), port)
            for port, of in self._shared[observer.name]
        )
        return min((each for each in known if seen <= each[0] < MAX_TIMESTAMP), default=(MIN_TIMESTAMP, None))[1]

    def explain(self, stage: str, nearest: Nearest | None = None) -> HoldReason:
        """Return the reason that holds the input watermark of a stage.

        Args:
            stage: its name.
            nearest: the limits that earlier calls found, if nothing has changed since; this call adds its own.

        Raises:
            ValueError: there is no such stage.
        """
        self._stage(stage)
        return self._follow(Link(f"input of {stage!r}", self._inputs[stage], stage=stage), stage, None, nearest)

    def explain_output(self, port: Port, nearest: Nearest | None = None) -> HoldReason:
        """Return the reason that holds an output watermark.

        Args:
            port: the output.
            nearest: as in `explain`.

        Raises:
            ValueError: there is no such stage, or it has no such output.
        """
        outputs = self._stage(port.stage).outputs
        if port.output not in outputs:
            known = ", ".join(map(repr, outputs)) or "none"
            raise ValueError(f"stage {port.stage!r} has no output {port.output!r}; it has {known}")
        return self._follow(_link(port, self._outputs[port]), port.stage, port.output, nearest)

    def _stage(self, name: str) -> StageFlow:
        stage = self._stages.get(name)
        if stage is None:
            known = ", ".join(map(repr, self._stages)) or "none"
            raise ValueError(f"there is no stage {name!r}; there are: {known}")
        return stage

    def _follow(self, link: Link, stage: str, output: str | None, nearest: Nearest | None) -> HoldReason:
        """Return the chain from one watermark (without an output: the stage's input) to the cause."""
        links, passed = [link], {link.subject}
        nearest = {} if nearest is None else nearest
        while True:
            if (found := nearest.get((stage, output))) is None:
                # Of equal limits, take the first, which is the nearest.
                limit = min(self._limits(stage, output), key=lambda limit: limit.time)
                waiting = limit.cause if isinstance(limit.cause, ShardHold) else None
                to = None if limit.port is None else _link(limit.port, self._outputs[limit.port], waiting)
                found = nearest[stage, output] = limit, to
            limit, to = found
            if limit.port is None or to is None:
                assert limit.cause is not None
                return HoldReason(tuple(links), limit.cause)
            if to.subject in passed:
                # A cycle of side inputs: impossible in a plan, possible in a wrong report.
                return HoldReason(tuple(links), to.waiting or Complete())
            passed.add(to.subject)
            links.append(to)
            stage, output = limit.port.stage, limit.port.output

    def _limits(self, name: str, output: str | None) -> list[_Limit]:
        """Return all limits of a watermark, the nearest first."""
        stage = self._stages[name]
        limits: list[_Limit] = []
        if output is not None and (paths := stage.paths(output)) != NOT_OBSERVED:
            observer = decisive(paths, self._root_watermark(stage, output), self._seen)
            if observer is not None and (port := self._leader(observer)) is not None:
                return [_Limit(MIN_TIMESTAMP, None, port)]
            if observer is not None:
                name = observer.name
                return [
                    _Limit(MIN_TIMESTAMP, Observed(observer, self._seen.get(name), self._unconfirmed.get(name, ())))
                ]
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
                    limits.append(_Limit(known.hold.time, ShardHold(known.hold, shard)))
            if pending is not None:
                waits_for = local.waits_for if pending.kind is HolderKind.BLOCKED else None
                limits.append(_Limit(pending.time, ShardHold(pending, shard), waits_for))
        limits += [_Limit(self._outputs[port], None, port) for port in stage.inputs]
        return limits or [_Limit(MAX_TIMESTAMP, Complete())]


def _link(port: Port, time: Timestamp, waiting: ShardHold | None = None) -> Link:
    return Link(str(port), time, waiting, port.stage, port.output)
