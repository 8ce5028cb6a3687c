"""The work of one task, in its range of shards, in a micro-batch.

Owns what the stages and shards of a task share: the markers of the previous level, the watermarks that follow from
them, the task's own marker, its report. Must not know where rows and state come from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.protocol.markers import NO_INPUT, Marker, UpstreamWatermarks, gather
from arcbeam.engine.protocol.microbatchplan import Handover, MicroBatchPlan
from arcbeam.engine.protocol.reports import StageReport, TaskReport
from arcbeam.engine.protocol.stagekinds import Grouped, Splittable, StageSpec, Stateful
from arcbeam.engine.rows.keyspace import RowKind, after, check_format, prefix, put_format
from arcbeam.engine.state.residuals import Residuals
from arcbeam.engine.task.bundles import Budget, BundleResult, Exchange, Shards, SideInputs
from arcbeam.engine.task.stagecontext import StageContext
from arcbeam.engine.task.stagerun import StageRun
from arcbeam.engine.watermarks.clocks import Clock, Local, OutputTime, Port, marker_time, output_time
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

_WAITING: Final = (RowKind.EVENT_HELD, RowKind.EVENT, RowKind.PROCESSING, RowKind.SORTED)
"""The indexes of work that waits for its time in a stage with keys."""


class EngineTask:
    """A task of a level in a micro-batch.

    Args:
        layout: the layout of the job.
        specs: the stages of the level, by name.
        level: the level of the task.
        task: its number in the level.
        token: the token of this attempt; no other attempt of any task has it.
        plan: the plan of the micro-batch.
    """

    def __init__(
        self, layout: Layout, specs: Mapping[str, StageSpec], level: int, task: int, token: bytes, plan: MicroBatchPlan
    ) -> None:
        self._layout = layout
        self._specs = specs
        self._level = level
        self._task = task
        self._token = token
        self._plan = plan

    def run(self, exchange: Exchange, shards: Shards, sides: SideInputs, budget: Budget) -> TaskReport:
        """Do the task's part of the micro-batch, including its marker.

        Returns:
            The report, without the names of files: the caller that writes them adds these.

        Raises:
            InconsistentCutError: markers of the previous level are missing or contradictory. The micro-batch fails.
        """
        layout, plan = self._layout, self._plan
        gathered = self._gathered(exchange)
        reports: list[StageReport] = []
        ends: list[BundleResult] = []
        times: dict[Port, Timestamp] = dict(gathered.times)
        owned = layout.range_of(self._level, self._task)
        views = [shards.view(shard) for shard in owned]
        empty = {
            shard: view for shard, view in zip(owned, views, strict=True) if check_format(view, self._level, shard)
        }
        heads = {
            placed.name: MIN_TIMESTAMP if placed.name in plan.beginning else plan.times.upstream_at(placed.flow)
            for placed in layout.at(self._level)
        }
        waiting = self._waiting(shards, empty)
        resting = {placed.name: local for placed in layout.at(self._level) if (local := self._resting(placed))}
        moves: dict[tuple[str, int], list[Handover]] = {}
        for move in plan.moves:
            for place_of in {move.source, move.target}:
                moves.setdefault((move.stage, place_of), []).append(move)
        for shard, view in zip(owned, views, strict=True):
            for placed in layout.at(self._level):
                name = placed.name
                upstream = plan.times.upstream_of(name, (gathered.times[port] for port in placed.flow.inputs))
                rests = shard in empty and not exchange.has_input(name, shard) and (name, shard) not in moves
                if rests and (local := resting.get(name)):
                    # As a run would report it. Most shards of a job with little data are idle.
                    reports.append(StageReport(name, shard, upstream, local))
                    self._mark(times, placed, upstream, local)
                    continue
                place = StageContext(
                    placed,
                    shard,
                    plan.micro_batch,
                    plan.time,
                    min((plan.times.outputs.get(port, MIN_TIMESTAMP) for port in placed.ports), default=MIN_TIMESTAMP),
                    view,
                    Clock(view, placed.number, placed.flow.outputs, heads[placed.name]),
                    shards.runner(placed.name, shard),
                    exchange,
                    # A stage that never ends must not use up the budget: the following ones run in the same
                    # micro-batch.
                    # A stage whose work arrives in this micro-batch was not counted above.
                    budget.part(1 / max(1, len(waiting) + self._is_new(placed, shard, waiting))),
                )
                waiting.discard((placed.name, shard))
                stage = StageRun(self._specs[placed.name], place, sides, plan.times.outputs)
                report, closed = stage.run(upstream, plan, moves.get((name, shard), ()))
                reports.append(report)
                ends.append(closed)
                self._mark(times, placed, upstream, report.local)
        for view in empty.values():
            if not view.empty:
                put_format(view)
        exchange.send(
            Marker(plan.micro_batch, plan.attempt, self._level, self._task, self._token, gathered.input_digest, times)
        )
        return TaskReport(
            self._level,
            self._task,
            self._token,
            gathered.input_digest,
            tuple(reports),
            tuple(sorted({port for closed in ends for port in closed.published})),
            tuple(committable for closed in ends for committable in closed.committables),
            sum(closed.finalizations for closed in ends),
        )

    def _resting(self, placed: StagePlacement) -> Local | None:
        """Return the times of a stage's shards that have neither state nor input; None: they may have work, too."""
        spec = self._specs[placed.name]
        if placed.scripted or placed.flow.observed or spec.prepares or placed.name in self._plan.preparing:
            return None
        return Local(None, {output: OutputTime() for output in placed.flow.outputs})

    @staticmethod
    def _mark(times: dict[Port, Timestamp], placed: StagePlacement, upstream: Timestamp, local: Local) -> None:
        """Add a shard's outputs to the task's marker."""
        for port in placed.ports:
            there = marker_time(placed.flow.paths(port.output), output_time(upstream, local, port.output))
            times[port] = min(there, times.get(port, MAX_TIMESTAMP))

    def _waiting(self, shards: Shards, empty: Collection[int]) -> set[tuple[str, int]]:
        """Return the stages and shards that share the budget: those with due restrictions, timers or panes."""
        return {
            (placed.name, shard)
            for placed in self._layout.at(self._level)
            for shard in self._layout.range_of(self._level, self._task)
            if shard not in empty and self._may_leave(placed, shards, shard)
        }

    def _is_new(self, placed: StagePlacement, shard: int, waiting: Collection[tuple[str, int]]) -> bool:
        return isinstance(self._specs[placed.name].kind, Splittable) and (placed.name, shard) not in waiting

    def _may_leave(self, placed: StagePlacement, shards: Shards, shard: int) -> bool:
        kind, view = self._specs[placed.name].kind, shards.view(shard)
        if isinstance(kind, Splittable):
            due = Residuals(view, placed.number, placed.flow.outputs).next_due()
            return due is not None and due <= self._plan.time
        if not isinstance(kind, Grouped | Stateful):
            return False
        return any(
            next(iter(view.scan(start, after(start))), None) is not None
            for start in (prefix(index, placed.number) for index in _WAITING)
        )

    def _gathered(self, exchange: Exchange) -> UpstreamWatermarks:
        """Return the watermarks of all previous levels in this micro-batch; those of idle levels do not change."""
        if self._level == self._plan.first:
            outputs = self._plan.times.outputs
            ports = self._layout.ports_before(self._level)
            return UpstreamWatermarks({port: outputs[port] for port in ports}, NO_INPUT)
        return gather(
            exchange.markers(),
            micro_batch=self._plan.micro_batch,
            attempt=self._plan.attempt,
            level=self._level - 1,
            tasks=self._layout.tasks[self._level - 1],
            ports=self._layout.ports_before(self._level),
            committed_outputs=self._plan.times.outputs,
        )
