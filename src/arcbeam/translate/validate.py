"""Validation of a pipeline: everything that is not supported is reported at once, by name.

Owns the list of what is supported, and the changes to a pipeline that is. Must not know how anything runs.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_utils import validate_pipeline_graph
from apache_beam.runners.worker import bundle_processor

from arcbeam.errors import InvalidPipelineError, Unsupported, UnsupportedPipelineError
from arcbeam.translate import embedding, keys, teststream, workers, workerscripts
from arcbeam.translate.describe import parts_of
from arcbeam.translate.parsing.parsedpipeline import LEAVES, PAR_DO_URNS, ParsedPipeline, ParsedTransform

_READ = common_urns.deprecated_primitives.READ.urn
_ENDLESS = "make it a splittable DoFn, or limit it: an unbounded source of the old kind has no checkpoints"
_REQUIREMENTS = common_urns.requirements
_SUPPORTED_REQUIREMENTS = {
    _REQUIREMENTS.REQUIRES_STATEFUL_PROCESSING.urn,
    _REQUIREMENTS.REQUIRES_BUNDLE_FINALIZATION.urn,
    _REQUIREMENTS.REQUIRES_SPLITTABLE_DOFN.urn,
    _REQUIREMENTS.REQUIRES_STABLE_INPUT.urn,
    _REQUIREMENTS.REQUIRES_TIME_SORTED_INPUT.urn,
    _REQUIREMENTS.REQUIRES_ON_WINDOW_EXPIRATION.urn,
}


RUNNABLE: frozenset[str] = (
    LEAVES
    | PAR_DO_URNS
    | frozenset(bundle_processor.BeamTransformFactory._known_urns)
    | {common_urns.primitives.IMPULSE.urn, _READ}
)
"""URNs of leaf transforms that the runner or the SDK's harness can run."""


def validated(pipeline: ParsedPipeline, *, allow_non_deterministic_keys: bool = False) -> ParsedPipeline:
    """Check a pipeline; return it as it runs: with embedded parts, a decoded script, and deterministic keys.

    Args:
        pipeline: the pipeline.
        allow_non_deterministic_keys: the SDK's option. With it, equal keys may end up in several groups.

    Raises:
        InvalidPipelineError: the pipeline is not well-formed.
        UnsupportedPipelineError: the pipeline is well-formed but needs features that are not supported; lists all.
    """
    _well_formed(pipeline)
    pipeline = embedding.with_embedded_parts(pipeline)
    items = [*_requirements(pipeline), *_transforms(pipeline), *workers.refused(pipeline)]
    if items:
        raise UnsupportedPipelineError(tuple(sorted(items, key=lambda item: (item.transform, item.what))))
    undetermined = {} if allow_non_deterministic_keys else keys.undetermined(pipeline)
    pipeline = workerscripts.with_decoded_script(pipeline)
    # The SDK of a worker has made the keys of its pipeline deterministic.
    return pipeline if pipeline.any_workers else keys.with_deterministic_keys(pipeline, undetermined)


def _well_formed(pipeline: ParsedPipeline) -> None:
    transforms = pipeline.components.transforms
    if not pipeline.proto.root_transform_ids:
        raise InvalidPipelineError("the pipeline has no transforms", "apply at least one transform before run()")
    for root in pipeline.proto.root_transform_ids:
        if root not in transforms:
            raise InvalidPipelineError(f"the pipeline names a root transform '{root}' that it does not contain")
    for id, transform in transforms.items():
        for sub in transform.subtransforms:
            if sub not in transforms:
                raise InvalidPipelineError(f"transform '{id}' names a subtransform '{sub}' that does not exist")
        for pcoll in (*transform.inputs.values(), *transform.outputs.values()):
            if pcoll not in pipeline.components.pcollections:
                raise InvalidPipelineError(f"transform '{id}' names a PCollection '{pcoll}' that does not exist")
        if transform.environment_id and transform.environment_id not in pipeline.components.environments:
            raise InvalidPipelineError(
                f"transform '{id}' names an environment '{transform.environment_id}' that does not exist"
            )
        if transform.spec.urn == teststream.URN:
            teststream.check(transform, pipeline.components)
    for id, parsed in pipeline.transforms.items():
        for tag in parsed.par_do.side_inputs:
            if tag not in parsed.proto.inputs:
                raise InvalidPipelineError(f"transform '{id}' names a side input '{tag}' that is not among its inputs")
    _well_formed_types(pipeline)
    try:
        validate_pipeline_graph(pipeline.proto)
    except ValueError as e:
        raise InvalidPipelineError(str(e)) from e
    except RecursionError as e:
        raise InvalidPipelineError("a transform contains itself, or transforms are nested too deeply") from e


def _well_formed_types(pipeline: ParsedPipeline) -> None:
    """Check that all named coders and windowing strategies exist, and that triggers are valid."""
    components = pipeline.components
    for id, pcoll in components.pcollections.items():
        if pcoll.coder_id not in components.coders:
            raise InvalidPipelineError(f"PCollection '{id}' names a coder '{pcoll.coder_id}' that does not exist")
        if pcoll.windowing_strategy_id not in components.windowing_strategies:
            raise InvalidPipelineError(
                f"PCollection '{id}' names a windowing strategy '{pcoll.windowing_strategy_id}' that does not exist"
            )
    for id, coder in components.coders.items():
        if coder.spec.urn == common_urns.coders.KV.urn and len(coder.component_coder_ids) != 2:
            raise InvalidPipelineError(f"coder '{id}' of key-value pairs does not have two component coders")
        for part in coder.component_coder_ids:
            if part not in components.coders:
                raise InvalidPipelineError(f"coder '{id}' names a coder '{part}' that does not exist")
    for id, strategy in components.windowing_strategies.items():
        if strategy.window_coder_id not in components.coders:
            raise InvalidPipelineError(
                f"windowing strategy '{id}' names a coder '{strategy.window_coder_id}' that does not exist"
            )
    for transform in components.transforms.values():
        if transform.spec.urn != common_urns.primitives.ASSIGN_WINDOWS.urn:
            continue
        for pcoll in transform.outputs.values():
            if wrong := _wrong_trigger(pipeline.strategy(pcoll).trigger):
                raise InvalidPipelineError(
                    f"transform '{transform.unique_name}': {wrong}", "correct the trigger of this WindowInto"
                )


def _wrong_trigger(trigger: Any) -> str:
    """Return what is invalid in a trigger; "" if nothing is."""
    kind = trigger.WhichOneof("trigger")
    if kind in ("after_any", "after_all", "after_each") and not parts_of(trigger):
        return f"the trigger {kind} is empty"
    if kind == "after_processing_time":
        for transform in trigger.after_processing_time.timestamp_transforms:
            if transform.delay.delay_millis < 0:
                return f"the trigger has a negative delay of {transform.delay.delay_millis} ms"
    return next(filter(None, map(_wrong_trigger, parts_of(trigger))), "")


def _requirements(pipeline: ParsedPipeline) -> list[Unsupported]:
    return [
        Unsupported("pipeline", f"requirement {urn}")
        for urn in pipeline.proto.requirements
        if urn not in _SUPPORTED_REQUIREMENTS
    ]


def _transforms(pipeline: ParsedPipeline) -> list[Unsupported]:
    items: list[Unsupported] = []
    scripts = sum(transform.urn == teststream.URN for transform in pipeline.transforms.values())
    for transform in pipeline.transforms.values():
        name, payload = transform.name, transform.par_do
        if transform.urn == teststream.URN:
            if scripts > 1:
                items.append(Unsupported(name, "one of several TestStreams", "use one with several tagged outputs"))
        elif _is_run(transform) and transform.urn not in RUNNABLE:
            items.append(Unsupported(name, f"transform {transform.urn or 'without a URN'}"))
        elif transform.urn == _READ and _reads_without_end(transform):
            items.append(Unsupported(name, "an unbounded source", _ENDLESS))
        for family, spec in payload.timer_family_specs.items():
            if spec.time_domain not in (runner_pb.TimeDomain.EVENT_TIME, runner_pb.TimeDomain.PROCESSING_TIME):
                items.append(Unsupported(name, f"timer family '{family}' in an unknown time domain"))
        family = payload.on_window_expiration_timer_family_spec
        if family and payload.timer_family_specs[family].time_domain != runner_pb.TimeDomain.EVENT_TIME:
            what = f"a callback on window expiration, '{family}', that is no timer family in event time"
            items.append(Unsupported(name, what))
    return items


def _is_run(transform: ParsedTransform) -> bool:
    """Return whether a transform runs itself, not only its subtransforms, and is not one that returns its input."""
    proto = transform.proto
    return not proto.subtransforms and bool(set(proto.outputs.values()) - set(proto.inputs.values()))


def _reads_without_end(transform: ParsedTransform) -> bool:
    """Return whether a source declares itself unbounded.

    Splittable DoFns are not checked: one may be unbounded for each element and still end.
    """
    payload = runner_pb.ReadPayload.FromString(transform.proto.spec.payload)
    return bool(payload.is_bounded == runner_pb.IsBounded.UNBOUNDED)
