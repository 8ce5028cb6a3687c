"""TestStreams of pipelines whose transforms run in SDK workers: Python decodes their elements there.

Owns the transform that decodes them, and the coder of their elements. In Python, a TestStream encodes an element
without its length, and a collection may have another coder than its TestStream. Only the SDK can convert one encoding
to the other.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.runners.worker.bundle_processor import IDENTITY_DOFN_URN

from arcbeam.translate import teststream
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline


def with_decoded_script(pipeline: ParsedPipeline) -> ParsedPipeline:
    """Return the pipeline; or a copy of it in which a worker decodes the elements of a TestStream of Python.

    In a copy for another SDK, the TestStream has the coder of its elements as they are encoded.
    """
    components = pipeline.components
    id = next((id for id, t in components.transforms.items() if t.spec.urn == teststream.URN), None)
    environment = pipeline.python_workers
    if id is None:
        return pipeline
    if environment is None:
        return _with_prefixes(pipeline, id) if pipeline.any_workers else pipeline
    changed = pipeline.changed()
    components = changed.components
    script = components.transforms[id]
    payload = teststream.payload_of(script)
    prefixed = f"{payload.coder_id} of {id}"
    components.coders[prefixed].spec.urn = common_urns.coders.LENGTH_PREFIX.urn
    components.coders[prefixed].component_coder_ids.append(payload.coder_id)
    payload.coder_id = prefixed
    script.spec.payload = payload.SerializeToString(deterministic=True)
    decoding = [_decoded(components, script, tag, prefixed, environment) for tag in sorted(script.outputs)]
    for part in (changed.root_transform_ids, *(t.subtransforms for t in components.transforms.values())):
        if id in part:
            place = list(part).index(id) + 1
            part[:] = [*part[:place], *decoding, *part[place:]]
    return ParsedPipeline(changed)


def nests(context: Any, pipeline: ParsedPipeline, coder: str) -> bool:
    """Return whether elements of a script are encoded as in streams; those that we do not know, after their length.

    Args:
        context: of the SDK's phases, from `phases.optimized`.
        pipeline: the pipeline after these phases.
        coder: id of the coder of the script's elements.
    """
    coders = pipeline.components.coders
    if not pipeline.of_another_sdk:
        return False
    prefix: str = common_urns.coders.LENGTH_PREFIX.urn
    here, between = (str(coders[id].spec.urn) for id in (coder, context.maybe_length_prefixed_coder(coder)))
    return here == prefix or between != prefix


def _with_prefixes(pipeline: ParsedPipeline, id: str) -> ParsedPipeline:
    """Return the pipeline; or a copy in which a TestStream has the coder of its collection, if that adds a length.

    Go encodes an element with the coder of its collection, and names the coder within. Rows have no length.
    """
    payload = teststream.payload_of(pipeline.components.transforms[id])
    for pcoll in pipeline.components.transforms[id].outputs.values():
        declared = pipeline.coder(pcoll)
        if (
            declared.spec.urn == common_urns.coders.LENGTH_PREFIX.urn
            and payload.coder_id in declared.component_coder_ids
        ):
            changed = pipeline.changed()
            payload.coder_id = changed.components.pcollections[pcoll].coder_id
            changed.components.transforms[id].spec.payload = payload.SerializeToString(deterministic=True)
            return ParsedPipeline(changed)
    return pipeline


def _decoded(components: Any, script: Any, tag: str, coder: str, environment: str) -> str:
    """Insert the transform that decodes an output; return its id."""
    pcoll = script.outputs[tag]
    encoded, id = f"{pcoll} encoded", f"{pcoll} decoded"
    components.pcollections[encoded].CopyFrom(components.pcollections[pcoll])
    components.pcollections[encoded].coder_id = coder
    script.outputs[tag] = encoded
    transform = components.transforms[id]
    transform.unique_name = f"{script.unique_name}/Decode {tag}"
    transform.spec.urn = IDENTITY_DOFN_URN
    transform.inputs["in"], transform.outputs["out"] = encoded, pcoll
    transform.environment_id = environment
    return id
