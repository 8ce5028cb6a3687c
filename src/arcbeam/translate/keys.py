"""Keys that are compared by their encoding: grouped by, kept state for, looked up by. Equal keys must have equal bytes.

Owns which collections have such keys, and that their coders are made deterministic: those that can only be so for some
elements refuse the others one by one, in the worker; those that never are refuse the pipeline. The SDK does the same
before it makes a proto, but what it has made of a row's coder is lost in the proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import pipeline_context

from arcbeam.errors import InvalidPipelineError
from arcbeam.model.urns import KEY_CODER_URN
from arcbeam.translate import phases

_MULTIMAP = common_urns.side_inputs.MULTIMAP.urn
_KV = common_urns.coders.KV.urn
_ROW = common_urns.coders.ROW.urn


def check(pipeline: Any) -> None:
    """Refuses keys that never have a deterministic encoding, and a GroupByKey of what is not pairs.

    Raises:
        InvalidPipelineError: names the transform and the coder.
    """
    for _ in _undetermined(pipeline):
        pass


def with_deterministic_keys(pipeline: Any) -> Any:
    """The pipeline, or a copy in which keys are encoded deterministically.

    Raises:
        InvalidPipelineError: see `check`.
    """
    found = dict(_undetermined(pipeline))
    if not found:
        return pipeline
    changed = runner_pb.Pipeline()
    changed.CopyFrom(pipeline)
    components = changed.components
    for pcoll, label in found.items():
        pair = components.coders[components.pcollections[pcoll].coder_id]
        key, value = pair.component_coder_ids
        wrapped, pairs = f"{key}:key:{label}", f"{key}:{value}:pair:{label}"
        components.coders[wrapped].spec.urn = KEY_CODER_URN
        components.coders[wrapped].spec.payload = label.encode()
        components.coders[wrapped].component_coder_ids[:] = [key]
        components.coders[pairs].CopyFrom(pair)
        components.coders[pairs].component_coder_ids[:] = [wrapped, value]
        components.pcollections[pcoll].coder_id = pairs
    return changed


def _undetermined(pipeline: Any) -> Iterator[tuple[str, str]]:
    """The PCollections whose keys' coder is to be made deterministic, with the transform that needs it."""
    context = pipeline_context.PipelineContext(pipeline.components)
    seen: set[str] = set()
    for transform, pcoll in _keyed(pipeline.components):
        proto = pipeline.components.coders[pipeline.components.pcollections[pcoll].coder_id]
        if proto.spec.urn != _KV:
            if transform.spec.urn != common_urns.primitives.GROUP_BY_KEY.urn:
                continue  # the SDK's workers say what is wrong
            raise InvalidPipelineError(
                f"{transform.unique_name}: its input is not made of key-value pairs", "map elements to (key, value)"
            )
        if pcoll in seen:
            continue
        seen.add(pcoll)
        key = proto.component_coder_ids[0]
        try:
            coder = context.coders.get_by_id(key)
        except Exception:
            continue  # another SDK's coder: that SDK has checked it
        if not _may_be_deterministic(coder, transform.unique_name):
            raise InvalidPipelineError(
                f"{transform.unique_name}: the key coder {coder!r} is not deterministic",
                "give the key a type with a deterministic coder, or register one for it",
            )
        if not coder.is_deterministic() or _has_row(pipeline.components, key):
            yield pcoll, transform.unique_name


def _may_be_deterministic(coder: Any, label: str) -> bool:
    """Whether there is a form of a coder that is deterministic for the values that it takes."""
    try:
        return bool(coder.is_deterministic() or coder.as_deterministic_coder(label).is_deterministic())
    except Exception:
        return False


def _keyed(components: Any) -> Iterator[tuple[Any, str]]:
    """Transforms that compare keys, with the PCollection that these are in."""
    for transform in components.transforms.values():
        if transform.spec.urn == common_urns.primitives.GROUP_BY_KEY.urn:
            yield transform, next(iter(transform.inputs.values()))
        payload = phases.par_do_payload(transform)
        if payload is None:
            continue
        for tag, pcoll in sorted(transform.inputs.items()):
            side = payload.side_inputs.get(tag)
            if side is not None:
                if side.access_pattern.urn == _MULTIMAP:
                    yield transform, pcoll
            elif payload.state_specs or payload.timer_family_specs:
                yield transform, pcoll


def _has_row(components: Any, id: str) -> bool:
    """Whether a coder is of rows, or has one of rows in it.

    Such a one says that it is deterministic also where it writes sets, as arrays, in whatever order they have.
    """
    proto = components.coders[id]
    return proto.spec.urn == _ROW or any(_has_row(components, part) for part in proto.component_coder_ids)
