"""Runs a whole plan in this process, without Spark, stage by stage and shard by shard.

For tests: Spark's work between stages (filter, union, repartition by shard, sort by bucket) is done with lists here.
    The
results of a pipeline are the elements that its `Collect` transforms have seen:

    with Driven(shards=3) as p:
        p | beam.Create([1, 2]) | beam.Map(lambda x: x + 1) | Collect()
    assert sorted(p.values()) == [2, 3]
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam

from arcbeam.harness.batch.batchstage import BoundedStage
from arcbeam.harness.encoding.frames import COUNT, key_groups
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.files import SideFile
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.rows import RESIDUAL, BundleReport, Row
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto

_collected: dict[str, list[Any]] = defaultdict(list)
_runs = itertools.count()


class _CollectFn(beam.DoFn):
    def __init__(self, name: str) -> None:
        self._name = name

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam):
        _collected[self._name].append((element, timestamp, window))


class Collect(beam.PTransform):
    """Records every element, with its timestamp and window, under a name."""

    def __init__(self, name: str = "") -> None:
        super().__init__(f"Collect {name}")
        self.name = name

    def expand(self, pcoll: Any) -> Any:
        return pcoll | beam.ParDo(_CollectFn(f"{pcoll.pipeline.run_id}:{self.name}")).with_output_types(None)


class Driven(beam.Pipeline):
    """A pipeline that runs in this process when its `with` block ends.

    Args:
        shards: number of shards of every exchange.
        bundle_elements: elements after which a bundle is cut.
        fusion: whether transforms share stages.
        edit: may change the pipeline proto.
        prepare: called with each stage before it runs.
        settings: other fields of `TaskSettings`.

    Attributes:
        plan: the plan that was run.
        reports: reports of all tasks, in the order in which they ran.
    """

    _bounded = True

    def __init__(
        self,
        shards: int = 2,
        bundle_elements: int = 500_000,
        fusion: bool = True,
        edit: Callable[[Any], None] = lambda proto: None,
        prepare: Callable[[BoundedStage], None] = lambda stage: None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.run_id = f"run{next(_runs)}"
        self.plan: Plan
        self.reports: list[BundleReport] = []
        self._driven_settings = TaskSettings(shards=shards, bundle_elements=bundle_elements, **settings)
        self._fusion, self._edit, self._prepare = fusion, edit, prepare

    def run(self, *_: Any) -> None:  # type: ignore[override]
        """Translate and run; raise what user code raises."""
        proto = pipeline_proto(self)
        self._edit(proto)
        self.plan = translate(ParsedPipeline(proto), name=self.run_id, fusion=self._fusion, bounded=self._bounded)
        self.reports = self._drive(self.plan, self._driven_settings, self._prepare)

    def _drive(self, *around: Any) -> list[BundleReport]:
        return drive(*around)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.run()

    def values(self, name: str = "") -> list[Any]:
        """Return the elements that `Collect(name)` has seen."""
        return [value for value, _, _ in self.windowed(name)]

    def timestamped(self, name: str = "") -> list[tuple[Any, float]]:
        """Return the same with their timestamps in seconds."""
        return [(value, timestamp.micros / 1e6) for value, timestamp, _ in self.windowed(name)]

    def windowed(self, name: str = "") -> list[tuple[Any, Any, Any]]:
        """Return the same as (element, timestamp, window)."""
        return _collected[f"{self.run_id}:{name}"]


def drive(
    plan: Plan, settings: TaskSettings, prepare: Callable[[BoundedStage], None] = lambda stage: None
) -> list[BundleReport]:
    """Run a plan; return the reports of all tasks."""
    return _Drive(plan, settings, prepare).run()


class _Drive:
    def __init__(self, plan: Plan, settings: TaskSettings, prepare: Callable[[BoundedStage], None]) -> None:
        self._plan, self._settings, self._prepare = plan, settings, prepare
        self._outputs: dict[str, list[list[Row]]] = {}
        self._sides = MemorySides()
        self._reports: list[BundleReport] = []

    def run(self) -> list[BundleReport]:
        for stage in self._plan.stages:
            self._run(stage)
        return self._reports

    def _run(self, stage: Stage) -> None:
        self._build_sides(stage)
        bounded = BoundedStage(stage, self._settings, self._sides)
        self._prepare(bounded)
        source = [[Row(0, 0, 0, b"")]] if stage.source is None else self._exchanged(self._plan.channels[stage.source])
        outputs: list[list[Row]] = []
        try:
            while any(source):
                written = [self._task(bounded, rows, n) for n, rows in enumerate(source) if rows]
                outputs += written
                residuals = [row for rows in written for row in rows if row.channel == RESIDUAL]
                source = _by_shard(residuals, self._settings.shards)
        finally:
            errors = bounded.close()
        if errors:
            raise RuntimeError(*errors)
        self._outputs[stage.id] = outputs

    def _build_sides(self, stage: Stage) -> None:
        for side in stage.side_inputs:
            channel = self._plan.channels[side.channel]
            if channel.routing is Routing.SIDE_KEYED and side.channel not in self._sides.multimaps:
                self._sides.build(channel, self._exchanged(channel), self._settings.group_memory_bytes)

    def _task(self, stage: BoundedStage, rows: list[Row], partition: int) -> list[Row]:
        outbox = _ListOutbox()
        self._reports.append(stage.run(iter(rows), outbox, partition, self._sides.writer))
        stage.finalize()
        return outbox.rows

    def _exchanged(self, channel: Channel) -> list[list[Row]]:
        partitions = [
            [row for row in rows if row.channel == channel.index]
            for producer in channel.producers
            for rows in self._outputs[producer]
        ]
        if channel.routing in (Routing.FORWARD, Routing.SIDE):
            return partitions
        return _by_shard([row for rows in partitions for row in rows], self._settings.shards)


def _by_shard(rows: Iterable[Row], shards: int) -> list[list[Row]]:
    moved: list[list[Row]] = [[] for _ in range(shards)]
    for row in rows:
        moved[row.shard].append(row)
    return [sorted(rows, key=lambda row: row.bucket) for rows in moved]


class _ListOutbox:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, row: Row) -> None:
        self.rows.append(row)


class MemorySides:
    """Side inputs in memory; see `arcbeam.model.rows.SideStore`."""

    def __init__(self) -> None:
        self.multimaps: dict[int, dict[bytes, dict[bytes, list[bytes]]]] = {}
        self._iterables: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)

    def writer(self, channel: int) -> _SideWriter:
        """Return a writer for an iterable side input."""
        return _SideWriter(self._iterables, channel)

    def build(self, channel: Channel, shards: Iterable[list[Row]], memory: int) -> None:
        """Build the multimap of a SIDE_KEYED channel."""
        windows: dict[bytes, dict[bytes, list[bytes]]] = defaultdict(dict)
        for rows in shards:
            for key, groups in key_groups(iter(rows), memory):
                for window, chunks in groups.items():
                    windows[window][key] = [payload[COUNT.size :] for payload in chunks]
        self.multimaps[channel.index] = windows

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        return iter(self._iterables.get((channel, window), ()))

    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        return iter(self.multimaps[channel].get(window, {}).get(key, ()))

    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        return iter(self.multimaps[channel].get(window, {}))


class _SideWriter:
    last = False

    def __init__(self, iterables: dict[tuple[int, bytes], list[bytes]], channel: int) -> None:
        self._iterables, self._channel = iterables, channel

    def append(self, window: bytes, chunk: bytes) -> None:
        self._iterables[self._channel, window].append(chunk)

    def close(self) -> SideFile | None:
        return SideFile(self._channel, -1, "", 0)
