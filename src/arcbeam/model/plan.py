"""The plan: a translated pipeline, as seen by everything but the translator.

Owns the proto-free description of stages and the channels between them. A leaf: standard library only. Data that only
the harness can read (coders, DoFns, windowing) travels as opaque bytes in `Stage.payload`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from arcbeam.model.observers import ObserverPaths
from arcbeam.model.script import Script

BY_SDK_WORKERS = " by SDK workers"
"""The part of a stage's shape that says: only a job with SDK workers reads these rows."""


class Routing(enum.StrEnum):
    """How elements travel over a channel."""

    FORWARD = "forward"
    """Within the partition that produced them, without an exchange; in a streaming job to its task's first shard."""
    SPREAD = "spread"
    """To all shards evenly; windows, timestamps and panes kept (Reshuffle, Redistribute, restrictions of an SDF)."""
    KEYED = "keyed"
    """All windowed values of a key to one shard, adjacent (state, timers, general triggers)."""
    GROUPED = "grouped"
    """All values of a key and window to one shard, grouped in the bundle first (GroupByKey, default trigger)."""
    SIDE = "side"
    """To immutable files, read as an iterable per window (side input)."""
    SIDE_KEYED = "side_keyed"
    """Exchanged by key, then to immutable files, looked up by window and key (multimap side input)."""


class TypeKind(enum.StrEnum):
    """The kind of a field's type; see Beam's schemas."""

    BYTE = "byte"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    ARRAY = "array"
    ITERABLE = "iterable"
    MAP = "map"
    ROW = "row"
    LOGICAL = "logical"


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field.

    Attributes:
        kind: its kind.
        nullable: whether the value may be missing.
        parts: the types of the elements of an array or iterable; of keys and values of a map; of what represents a
            logical type, if its schema says so.
        fields: the fields of a row.
        urn: of a logical type.
    """

    kind: TypeKind
    nullable: bool = False
    parts: tuple[FieldType, ...] = ()
    fields: tuple[Field, ...] = ()
    urn: str = ""

    def __str__(self) -> str:
        parts = self.fields if self.kind is TypeKind.ROW else self.parts
        text = self.urn or self.kind.value
        inside = f"<{', '.join(map(str, parts))}>" if parts and not self.urn else ""
        return f"{text}{inside}{'?' if self.nullable else ''}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a row."""

    name: str
    type: FieldType

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, slots=True)
class Channel:
    """A directed edge of the plan: one PCollection on its way from its producers to its consumers.

    Attributes:
        index: position in `Plan.channels`; the number in rows of the exchange.
        name: human-readable name of the PCollection.
        routing: how elements travel.
        coder: human-readable element coder.
        windowing: human-readable windowing strategy.
        producers: ids of the stages that write it (several: a Flatten).
        consumers: ids of the stages that read it as main input (empty for side routings).
        schema: the fields of its elements; None if these are not rows.
    """

    index: int
    name: str
    routing: Routing
    coder: str = ""
    windowing: str = ""
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    schema: tuple[Field, ...] | None = None


class Firings(enum.StrEnum):
    """The firings that are read of a side input whose trigger fires more than once in a window."""

    ALL = "all"
    """The content of all firings."""
    LAST = "last"
    """In an unbounded job, the content of the last firing."""


@dataclass(frozen=True, slots=True)
class SideInput:
    """A stage's use of a side channel.

    Attributes:
        transform: id of the consuming transform in the stage's payload.
        tag: the transform's local name for it.
        channel: index of the SIDE or SIDE_KEYED channel.
        lateness: microseconds after the end of its window during which an element may still reach the transform and
            read it.
        eager: its windows are read as soon as they have content: its trigger fires before their end.
        firings: the firings that are read.
    """

    transform: str
    tag: str
    channel: int
    lateness: int = 0
    eager: bool = False
    firings: Firings = Firings.ALL


class TimeDomain(enum.StrEnum):
    """The clock that a timer follows."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True, slots=True)
class TimerFamily:
    """A family of timers of one transform.

    Attributes:
        transform: its id.
        family: the SDK's name.
        domain: the clock.
        expiration: whether it is the transform's callback on window expiration, which no user code sets.
    """

    transform: str
    family: str
    domain: TimeDomain
    expiration: bool = False

    @property
    def follows(self) -> str:
        """What it follows, for people."""
        return "window expiration" if self.expiration else f"{self.domain.value} time"


@dataclass(frozen=True, slots=True)
class Transform:
    """One transform inside a fused stage, for people: ids as in the payload, full name, URN."""

    id: str
    name: str
    urn: str


@dataclass(frozen=True, slots=True)
class RemotePort:
    """A collection on its way into or out of an SDK worker.

    Attributes:
        pcoll: id of the PCollection.
        coder: id of the windowed coder with which the worker reads or writes it.
        ours: id of the coder that reads the same bytes here: what only the worker's SDK can decode is bytes.
    """

    pcoll: str
    coder: str
    ours: str


@dataclass(frozen=True, slots=True)
class Remote:
    """The transforms of a stage that an SDK worker runs.

    Attributes:
        environment: the worker's environment; opaque, like the components.
        components: the transforms, and all that they name.
        source: the input.
        sinks: the outputs that leave the worker, by tag.
        timers: for each timer family, by transform and name, the id of the coder that reads its timers here.
        inner: the collections that do not leave the worker, except when samples of them are taken.
    """

    environment: bytes = field(repr=False)
    components: bytes = field(repr=False)
    source: RemotePort
    sinks: Mapping[str, RemotePort]
    timers: Mapping[tuple[str, str], str] = field(default_factory=dict)
    inner: tuple[RemotePort, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Transforms that run in one bundle.

    Attributes:
        id: unique in the plan ("s0", "s1", … in topological order).
        name: human-readable, made of its transforms' names.
        transforms: in topological order, without the plan's own reads and writes.
        payload: how to build the bundle processor; opaque to all but the harness.
        source: index of the channel it reads; None for an impulse (one empty element), and for an output of a script.
        sinks: indexes of the channels it writes.
        side_inputs: what must be complete before the stage may start.
        states: (transform id, state name) of its user states.
        timers: its timer families.
        splittable: the root transform processes restrictions of a splittable DoFn.
        finalizes: a transform requests bundle finalization.
        time_sorted: the stateful root requires its input in order of event time.
        scripted: its output is what the plan's script adds to one of its outputs.
        stable: the root requires stable input: the same elements in every retry.
        uid: the transform that identifies its state across runs; unique, and independent of fusion.
        observed: the paths to those of its sinks that have observers upstream, by index.
        publishers: those of its transforms that take committables, by name.
        shape: the form of its stored state (state, restrictions, elements blocked by a side input), for people; states
            of different shapes are incompatible. "" if it stores nothing.
        remote: the transforms that an SDK worker runs; None if the task's process runs all.
        merges_in_worker: its grouping's windows are merged by a function that only an SDK worker can call.
    """

    id: str
    name: str
    transforms: tuple[Transform, ...]
    payload: bytes = field(repr=False)
    source: int | None
    sinks: tuple[int, ...]
    side_inputs: tuple[SideInput, ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    timers: tuple[TimerFamily, ...] = ()
    splittable: bool = False
    finalizes: bool = False
    time_sorted: bool = False
    scripted: bool = False
    stable: bool = False
    uid: str = ""
    observed: Mapping[int, ObserverPaths] = field(default_factory=dict)
    publishers: tuple[str, ...] = ()
    shape: str = ""
    remote: Remote | None = None
    merges_in_worker: bool = False

    @property
    def stateful(self) -> bool:
        """Whether it has state or timers per key."""
        return bool(self.states or self.timers)

    @property
    def side_channels(self) -> dict[tuple[str, str], int]:
        """The channels of its side inputs, by transform and the transform's name for it."""
        return {(side.transform, side.tag): side.channel for side in self.side_inputs}


@dataclass(frozen=True, slots=True)
class Plan:
    """A translated pipeline.

    Attributes:
        name: the job's name.
        stages: in topological order: producers before consumers, side inputs before their users.
        channels: by index.
        bounded: it runs in phases; otherwise in a streaming job.
        script: the script of its TestStream; None if it has none. Only in streaming jobs.
        warnings: warnings for people before it runs.
        local_bytes: bytes that may wait between stages that run in one task (`local_stages`); 0: none do.
        finite: it is a streaming job only because transforms run in SDK workers; all its input is bounded.
    """

    name: str
    stages: tuple[Stage, ...]
    channels: tuple[Channel, ...]
    bounded: bool = True
    script: Script | None = None
    warnings: tuple[str, ...] = ()
    finite: bool = False
    local_bytes: int = 0

    def stage(self, id: str) -> Stage:
        """Return the stage with that id; KeyError if there is none."""
        for stage in self.stages:
            if stage.id == id:
                return stage
        raise KeyError(id)

    def local_stages(
        self, done: Collection[str] = (), ready: Collection[int] = (), without: Collection[str] = ()
    ) -> tuple[Stage, ...]:
        """Return the stages that one task may run, one after the other, while there is little data between them.

        All that they read comes from each other, from impulses, or from stages that are done. Not among them:
        splittable DoFns, which have rounds; stages that need stable input; what reads a Reshuffle, which asks for all
        slots (only the one inside of a Create does not: its elements come from one task). Empty if one task would save
        no exchange.

        Args:
            done: ids of stages whose output is complete.
            ready: indexes of side channels that are complete.
            without: ids of stages that run elsewhere.
        """
        if not (self.bounded and self.local_bytes):
            return ()
        ids: set[str] = set()
        for stage in self.stages:
            if stage.id in done or stage.id in without:
                continue
            read = [self.channels[side.channel] for side in stage.side_inputs if side.channel not in ready]
            if stage.source is not None:
                read.append(self.channels[stage.source])
            inside = all(producer in ids or producer in done for channel in read for producer in channel.producers)
            if inside and not (stage.splittable or stage.stable or self._asks_for_slots(stage)):
                ids.add(stage.id)
        local = tuple(stage for stage in self.stages if stage.id in ids)
        exchanges = (Routing.GROUPED, Routing.KEYED)
        saves = len(ids) + len(done) == len(self.stages) or any(
            stage.side_inputs or (stage.source is not None and self.channels[stage.source].routing in exchanges)
            for stage in local
        )
        return local if saves and len(local) > 1 else ()

    def _asks_for_slots(self, stage: Stage) -> bool:
        """Return whether the stage reads a Reshuffle of what other stages than roots have written."""
        if stage.source is None or self.channels[stage.source].routing is not Routing.SPREAD:
            return False
        return any(self.stage(producer).source is not None for producer in self.channels[stage.source].producers)
