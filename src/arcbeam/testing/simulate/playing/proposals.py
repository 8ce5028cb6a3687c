"""From the machine's words to the store's, and back: proposals become manifests, an opening becomes a start.

Owns the translation. Must not know how a manifest becomes real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arcbeam.engine.plan.layout import Layout
from arcbeam.engine.progress import JobStarted, Propose
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import Times
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import MAX_TIMESTAMP, Timestamp
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.log.steplog import StepLog
from arcbeam.store.manifest.values import JobShape, Manifest, OutputWatermark, StageShape, StageWatermarks
from arcbeam.testing.simulate.scenario.plans import Pipeline


def shape_of(pipeline: Pipeline) -> JobShape:
    """What a pipeline asks of its state."""
    stages = tuple(StageShape(stage.name, stage.level, type(stage.kind).__name__) for stage in pipeline.stages)
    return JobShape("simulated", pipeline.shards, stages)


def draft(log: StepLog, layout: Layout, command: Propose) -> Manifest:
    """The manifest that a proposal asks for."""
    head = log.head
    shards = {(shard.level, shard.shard): shard for shard in head.shards}
    sides = list(head.side_files)
    for report in command.reports:
        shards.update({(shard.level, shard.shard): shard for shard in report.files.shards})
        sides += report.files.sides
    manifest = log.draft(
        command.time,
        mode=command.mode,
        cut=command.cut,
        watermarks=_watermarks(layout, command.times),
        shards=tuple(shards[place] for place in sorted(shards)),
        side_files=tuple(sides),
        committables=tuple(each for report in command.reports for each in report.committables),
        progress=json.dumps({"fresh": command.fresh, "drains_to": command.drains_to}).encode(),
    )
    for name in command.savepoints:
        manifest = pinned(manifest, name)
    return manifest


def started(head: Manifest, now: Timestamp) -> JobStarted:
    """What a machine is told when its driver has opened the job."""
    progress: dict[str, Any] = {"fresh": True, "drains_to": ""}
    if head.progress:
        progress = json.loads(head.progress)
    return JobStarted(
        now,
        head.step,
        head.time,
        times_of(head),
        fresh=progress["fresh"],
        draining=head.mode is CommitMode.DRAINING,
        savepoint=progress["drains_to"],
        unpublished=bool(head.committables),
        ended=head.mode if head.mode in (CommitMode.DONE, CommitMode.DRAINED) else None,
    )


def times_of(manifest: Manifest) -> Times:
    """The watermarks of a manifest."""
    inputs = {of.stage: of.input for of in manifest.watermarks}
    outputs = {Port(of.stage, out.output): out.watermark for of in manifest.watermarks for out in of.outputs}
    return Times(inputs, outputs)


def _watermarks(layout: Layout, times: Times) -> tuple[StageWatermarks, ...]:
    outputs: Mapping[Port, Timestamp] = times.outputs
    return tuple(
        StageWatermarks(
            placed.name,
            min((outputs[port] for port in placed.flow.inputs), default=MAX_TIMESTAMP),
            times.inputs[placed.name],
            tuple(OutputWatermark(port.output, outputs[port]) for port in placed.ports),
        )
        for placed in layout.stages
        if placed.name in times.inputs
    )
