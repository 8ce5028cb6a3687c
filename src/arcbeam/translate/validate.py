"""Validation of a pipeline: everything that is not supported is reported at once, by name.

Owns the list of what is supported. Must not know how anything runs.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_utils import validate_pipeline_graph
from apache_beam.utils import proto_utils
from google.protobuf.message import DecodeError

from arcbeam.errors import InvalidPipelineError, Unsupported, UnsupportedPipelineError
from arcbeam.translate import embedding, keys, phases, teststream, workers
from arcbeam.translate.describe import parts_of

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


def validate(pipeline: Any, *, allow_non_deterministic_keys: bool = False) -> None:
    """Check a pipeline proto.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`; not changed.
        allow_non_deterministic_keys: the SDK's option. With it, equal keys may end up in several groups.

    Raises:
        InvalidPipelineError: the pipeline is not well-formed.
        UnsupportedPipelineError: the pipeline is well-formed but needs features that are not supported; lists all.
    """
    _well_formed(pipeline)
    refused = workers.refused(embedding.with_embedded_parts(pipeline))
    items = [*_requirements(pipeline), *_transforms(pipeline), *refused]
    if items:
        raise UnsupportedPipelineError(tuple(sorted(items, key=lambda item: (item.transform, item.what))))
    if not allow_non_deterministic_keys:
        keys.check(pipeline)


def _well_formed(pipeline: Any) -> None:
    transforms = pipeline.components.transforms
    if not pipeline.root_transform_ids:
        raise InvalidPipelineError("the pipeline has no transforms", "apply at least one transform before run()")
    for root in pipeline.root_transform_ids:
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
        try:
            payload = phases.par_do_payload(transform)
        except DecodeError as e:
            raise InvalidPipelineError(f"the payload of transform '{id}' is malformed: {e}") from e
        if transform.spec.urn == teststream.URN:
            teststream.check(transform, pipeline.components)
        for tag in payload.side_inputs if payload is not None else ():
            if tag not in transform.inputs:
                raise InvalidPipelineError(f"transform '{id}' names a side input '{tag}' that is not among its inputs")
    _well_formed_types(pipeline.components)
    try:
        validate_pipeline_graph(pipeline)
    except ValueError as e:
        raise InvalidPipelineError(str(e)) from e
    except RecursionError as e:
        raise InvalidPipelineError("a transform contains itself, or transforms are nested too deeply") from e


def _well_formed_types(components: Any) -> None:
    """Check that all named coders and windowing strategies exist, and that triggers are valid."""
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
            strategy = components.windowing_strategies[components.pcollections[pcoll].windowing_strategy_id]
            if wrong := _wrong_trigger(strategy.trigger):
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


def _requirements(pipeline: Any) -> list[Unsupported]:
    return [
        Unsupported("pipeline", f"requirement {urn}")
        for urn in pipeline.requirements
        if urn not in _SUPPORTED_REQUIREMENTS
    ]


def _transforms(pipeline: Any) -> list[Unsupported]:
    items: list[Unsupported] = []
    scripts = sum(transform.spec.urn == teststream.URN for transform in pipeline.components.transforms.values())
    for transform in pipeline.components.transforms.values():
        name = transform.unique_name
        if transform.spec.urn == teststream.URN:
            if scripts > 1:
                items.append(Unsupported(name, "one of several TestStreams", "use one with several tagged outputs"))
        elif _is_run(transform) and transform.spec.urn not in phases.RUNNABLE:
            items.append(Unsupported(name, f"transform {transform.spec.urn or 'without a URN'}"))
        elif transform.spec.urn == _READ and _reads_without_end(transform):
            items.append(Unsupported(name, "an unbounded source", _ENDLESS))
        payload = phases.par_do_payload(transform)
        if payload is None:
            continue
        for family, spec in payload.timer_family_specs.items():
            if spec.time_domain not in (runner_pb.TimeDomain.EVENT_TIME, runner_pb.TimeDomain.PROCESSING_TIME):
                items.append(Unsupported(name, f"timer family '{family}' in an unknown time domain"))
        family = payload.on_window_expiration_timer_family_spec
        if family and payload.timer_family_specs[family].time_domain != runner_pb.TimeDomain.EVENT_TIME:
            what = f"a callback on window expiration, '{family}', that is no timer family in event time"
            items.append(Unsupported(name, what))
    return items


def _is_run(transform: Any) -> bool:
    """Return whether a transform runs itself, not only its subtransforms, and is not one that returns its input."""
    return not transform.subtransforms and bool(set(transform.outputs.values()) - set(transform.inputs.values()))


def _reads_without_end(transform: Any) -> bool:
    """Return whether a source declares itself unbounded.

    Splittable DoFns are not checked: one may be unbounded for each element and still end.
    """
    payload = proto_utils.parse_Bytes(transform.spec.payload, runner_pb.ReadPayload)
    return bool(payload.is_bounded == runner_pb.IsBounded.UNBOUNDED)
