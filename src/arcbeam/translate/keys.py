"""Deterministic key coders: equal keys must have equal bytes, because keys are compared by their encoding.

Owns which collections have such keys (for grouping, for state, for lookups) and makes their coders deterministic. A
coder that is deterministic only for some values rejects the others one by one, in the worker. A coder that never is
deterministic rejects the pipeline. The SDK does the same before it makes a proto, but the proto loses what it did to a
row's coder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.runners import pipeline_context

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.urns import KEY_CODER_URN
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform

_MULTIMAP = common_urns.side_inputs.MULTIMAP.urn
_KV = common_urns.coders.KV.urn
_ROW = common_urns.coders.ROW.urn


def with_deterministic_keys(pipeline: ParsedPipeline, undetermined: Mapping[str, str]) -> ParsedPipeline:
    """Return the pipeline, or a copy of it in which keys are encoded deterministically; see `undetermined`."""
    if not undetermined:
        return pipeline
    changed = pipeline.changed()
    components = changed.components
    for pcoll, label in undetermined.items():
        pair = components.coders[components.pcollections[pcoll].coder_id]
        key, value = pair.component_coder_ids
        wrapped, pairs = f"{key}:key:{label}", f"{key}:{value}:pair:{label}"
        components.coders[wrapped].spec.urn = KEY_CODER_URN
        components.coders[wrapped].spec.payload = label.encode()
        components.coders[wrapped].component_coder_ids[:] = [key]
        components.coders[pairs].CopyFrom(pair)
        components.coders[pairs].component_coder_ids[:] = [wrapped, value]
        components.pcollections[pcoll].coder_id = pairs
    return ParsedPipeline(changed)


def undetermined(pipeline: ParsedPipeline) -> dict[str, str]:
    """Return each PCollection whose key coder must be made deterministic, with the transform that needs it.

    Raises:
        InvalidPipelineError: keys never have a deterministic encoding, or the input of a GroupByKey does not consist of
            key-value pairs. It names the transform and the coder.
    """
    return dict(_undetermined(pipeline))


def _undetermined(pipeline: ParsedPipeline) -> Iterator[tuple[str, str]]:
    context = pipeline_context.PipelineContext(pipeline.components)
    seen: set[str] = set()
    for transform, pcoll in _keyed(pipeline):
        proto = pipeline.coder(pcoll)
        if proto.spec.urn != _KV:
            if transform.urn != common_urns.primitives.GROUP_BY_KEY.urn:
                continue  # the SDK's workers report the error
            raise InvalidPipelineError(
                f"{transform.name}: the input does not consist of key-value pairs",
                "map elements to (key, value)",
            )
        if pcoll in seen:
            continue
        seen.add(pcoll)
        key = proto.component_coder_ids[0]
        try:
            coder = context.coders.get_by_id(key)
        except Exception:
            continue  # another SDK's coder, which that SDK has checked
        if not _may_be_deterministic(coder, transform.name):
            raise InvalidPipelineError(
                f"{transform.name}: the key coder {coder!r} is not deterministic",
                "give the key a type with a deterministic coder, or register one for it",
            )
        if not coder.is_deterministic() or _has_row(pipeline.components, key):
            yield pcoll, transform.name


def _may_be_deterministic(coder: Any, label: str) -> bool:
    """Return whether some form of a coder is deterministic for the values that the form accepts."""
    try:
        return bool(coder.is_deterministic() or coder.as_deterministic_coder(label).is_deterministic())
    except Exception:
        return False


def _keyed(pipeline: ParsedPipeline) -> Iterator[tuple[ParsedTransform, str]]:
    """Yield each transform that compares keys, with the PCollection that contains the keys."""
    for transform in pipeline.transforms.values():
        if transform.urn == common_urns.primitives.GROUP_BY_KEY.urn:
            yield transform, next(iter(transform.proto.inputs.values()))
        for tag, pcoll in sorted(transform.proto.inputs.items()):
            side = transform.par_do.side_inputs.get(tag)
            if transform.has_state if side is None else side.access_pattern.urn == _MULTIMAP:
                yield transform, pcoll


def _has_row(components: Any, id: str) -> bool:
    """Return whether a coder is a row coder or contains one.

    A row coder claims to be deterministic, but it writes sets as arrays in arbitrary order.
    """
    proto = components.coders[id]
    return proto.spec.urn == _ROW or any(_has_row(components, part) for part in proto.component_coder_ids)
