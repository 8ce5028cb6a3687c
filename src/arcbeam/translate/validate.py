"""What a bounded pipeline may ask for: everything it may not is refused at once, by name.

Owns the list of what is supported. Must not know how anything is run.
"""

from __future__ import annotations

from typing import Any

from apache_beam import coders
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import pipeline_context
from apache_beam.runners.pipeline_utils import validate_pipeline_graph

from arcbeam.errors import InvalidPipelineError, Unsupported, UnsupportedPipelineError
from arcbeam.translate import phases

_REQUIREMENTS = common_urns.requirements
_SUPPORTED_REQUIREMENTS = {
    _REQUIREMENTS.REQUIRES_STATEFUL_PROCESSING.urn,
    _REQUIREMENTS.REQUIRES_BUNDLE_FINALIZATION.urn,
    _REQUIREMENTS.REQUIRES_SPLITTABLE_DOFN.urn,
    _REQUIREMENTS.REQUIRES_STABLE_INPUT.urn,
    _REQUIREMENTS.REQUIRES_TIME_SORTED_INPUT.urn,
}


def validate(pipeline: Any) -> None:
    """Checks a pipeline proto.

    Raises:
        InvalidPipelineError: it is not a well-formed pipeline.
        UnsupportedPipelineError: it is, but needs what is not supported; all such items are in it.
    """
    _well_formed(pipeline)
    items = [*_requirements(pipeline), *_transforms(pipeline)]
    if items:
        raise UnsupportedPipelineError(tuple(items))
    _deterministic_keys(pipeline)


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
    for id, pcoll in pipeline.components.pcollections.items():
        if pcoll.coder_id not in pipeline.components.coders:
            raise InvalidPipelineError(f"PCollection '{id}' names a coder '{pcoll.coder_id}' that does not exist")
        if pcoll.windowing_strategy_id not in pipeline.components.windowing_strategies:
            raise InvalidPipelineError(
                f"PCollection '{id}' names a windowing strategy '{pcoll.windowing_strategy_id}' that does not exist"
            )
    try:
        validate_pipeline_graph(pipeline)
    except ValueError as e:
        raise InvalidPipelineError(str(e)) from e


def _requirements(pipeline: Any) -> list[Unsupported]:
    return [
        Unsupported("pipeline", f"requirement {urn}")
        for urn in pipeline.requirements
        if urn not in _SUPPORTED_REQUIREMENTS
    ]


def _transforms(pipeline: Any) -> list[Unsupported]:
    items: list[Unsupported] = []
    for transform in pipeline.components.transforms.values():
        name = transform.unique_name
        if transform.spec.urn == common_urns.primitives.TEST_STREAM.urn:
            items.append(Unsupported(name, "TestStream", "unbounded pipelines are not supported yet"))
        payload = phases.par_do_payload(transform)
        if payload is None:
            continue
        for family, spec in payload.timer_family_specs.items():
            if spec.time_domain not in (runner_pb.TimeDomain.EVENT_TIME, runner_pb.TimeDomain.PROCESSING_TIME):
                items.append(Unsupported(name, f"timer family '{family}' in an unknown time domain"))
        if payload.on_window_expiration_timer_family_spec:
            items.append(Unsupported(name, "a callback on window expiration"))
    return items


def _deterministic_keys(pipeline: Any) -> None:
    """Refuses a GroupByKey whose key coder says that it is not deterministic."""
    context = pipeline_context.PipelineContext(pipeline.components)
    for transform in pipeline.components.transforms.values():
        if transform.spec.urn != common_urns.primitives.GROUP_BY_KEY.urn:
            continue
        pcoll = pipeline.components.pcollections[next(iter(transform.inputs.values()))]
        proto = pipeline.components.coders[pcoll.coder_id]
        if proto.spec.urn != common_urns.coders.KV.urn:
            raise InvalidPipelineError(
                f"{transform.unique_name}: its input is not made of key-value pairs", "map elements to (key, value)"
            )
        try:
            key_coder = context.coders.get_by_id(proto.component_coder_ids[0])
        except Exception:
            continue  # another SDK's coder: that SDK has checked it
        if isinstance(key_coder, coders.FastPrimitivesCoder):
            continue  # decided per element by the SDK's own as_deterministic_coder
        if not key_coder.is_deterministic():
            raise InvalidPipelineError(
                f"{transform.unique_name}: the key coder {key_coder!r} is not deterministic",
                "give the key a type with a deterministic coder, or call as_deterministic_coder",
            )
