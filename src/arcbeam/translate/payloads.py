"""The payload of a stage: the components from which the harness makes a bundle descriptor.

Owns with which coders and windowing strategies the task's process reads and writes collections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.urns import INTERVAL_WINDOW_URN, PREFIXED_URN, READ_URN, WRITE_URN
from arcbeam.translate import workers
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform

_CODERS = common_urns.coders


def coder_of(context: Any, coder: str, *, beside_workers: bool) -> str:
    """Return the coder with which the task's process reads and writes a collection; see `payload_of`."""
    found: str = context.decoded(coder) if beside_workers else context.ours(coder)
    return found


def payload_of(
    context: Any,
    pipeline: ParsedPipeline,
    transforms: list[ParsedTransform],
    grouped: Mapping[str, str],
    *,
    beside_workers: bool,
) -> bytes:
    """Return the components of just one stage, serialized.

    Args:
        context: of the SDK's phases, from `phases.optimized`.
        pipeline: the pipeline after these phases.
        transforms: those of the task's process, with our reads and writes.
        grouped: the windowing strategy of a collection that a grouping outputs, by the collection: that of the
            grouping's input.
        beside_workers: the transforms are embedded, in a pipeline that also has SDK workers: values that are bytes in
            stages of workers are decoded.
    """
    components = pipeline.components
    pcolls = {p for t in transforms for p in (*t.proto.inputs.values(), *t.proto.outputs.values())}
    ours = {
        pcoll: coder_of(context, components.pcollections[pcoll].coder_id, beside_workers=beside_workers)
        for pcoll in sorted(pcolls)
    }
    _, strategies = workers.strategies(context, pipeline)
    payload = runner_pb.Components(
        coders=components.coders,
        windowing_strategies=strategies,
        environments=components.environments,
    )
    for coder in payload.coders.values():
        if coder.spec.urn == _CODERS.INTERVAL_WINDOW.urn:
            coder.spec.urn = INTERVAL_WINDOW_URN
        elif coder.spec.urn == _CODERS.LENGTH_PREFIX.urn and beside_workers:
            coder.spec.urn = PREFIXED_URN
    for transform in transforms:
        kept = payload.transforms[transform.name]
        kept.CopyFrom(transform.proto)
        if transform.urn in (READ_URN, WRITE_URN):
            # A Flatten's write has the environment of the Flatten, which may be another SDK's.
            kept.environment_id = ""
    for pcoll, coder in ours.items():
        payload.pcollections[pcoll].CopyFrom(components.pcollections[pcoll])
        payload.pcollections[pcoll].coder_id = coder
    for pcoll, strategy in grouped.items():
        payload.pcollections[pcoll].windowing_strategy_id = strategy
    data: bytes = payload.SerializeToString(deterministic=True)
    return data
