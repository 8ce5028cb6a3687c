"""The embedded parts of a pipeline with SDK workers: what only Spark's Python workers can do.

They observe watermarks, output the elements that groupings drop, know the attempt that a sink stages for, and call
DoFns at the end of the job. Owns which transforms these are. Must not know how they run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from apache_beam.portability import common_urns, python_urns

from arcbeam.model.observers import ANNOTATION
from arcbeam.model.shutdown import MARK
from arcbeam.model.urns import EMBEDDED_ANNOTATION, LATE_ANNOTATION, PUBLISH_ANNOTATION
from arcbeam.translate.identifying.pickles import unpacked
from arcbeam.translate.parsing.parsedpipeline import EXCHANGES, ParsedPipeline, ParsedTransform

_EMBEDDED = "arcbeam/embedded"
_MARK = MARK.encode()
_PASSING = frozenset([common_urns.primitives.FLATTEN.urn, common_urns.primitives.ASSIGN_WINDOWS.urn, *EXCHANGES])
"""Transforms that pass each element on in the same micro-batch, unchanged."""


def with_embedded_parts(pipeline: ParsedPipeline) -> ParsedPipeline:
    """Return a well-formed pipeline with the parts of Python workers embedded that need it. Idempotent."""
    parts = _parts(pipeline)
    if not parts:
        return pipeline
    changed = pipeline.changed()
    components = pipeline.components
    for id in parts:
        transform = changed.components.transforms[id]
        embedded = changed.components.environments[_EMBEDDED]
        embedded.CopyFrom(components.environments[transform.environment_id])
        embedded.urn, embedded.payload = python_urns.EMBEDDED_PYTHON, b""
        transform.environment_id = _EMBEDDED
    return ParsedPipeline(changed)


def with_parts(pipeline: ParsedPipeline) -> frozenset[str]:
    """Return the environments of Python workers from which parts become embedded; see `with_embedded_parts`."""
    return frozenset(pipeline.components.transforms[id].environment_id for id in _parts(pipeline))


def _parts(pipeline: ParsedPipeline) -> list[str]:
    """Return the ids of transforms that have Python workers and become embedded."""
    components = pipeline.components
    if not any(map(pipeline.has_workers, components.environments)):
        return []
    found: set[str] = set()
    for id, transform in components.transforms.items():
        if EMBEDDED_ANNOTATION in transform.annotations:
            found.update(_inside(components, id))
    for id, transform in pipeline.leaves.items():
        annotations = transform.proto.annotations
        if ANNOTATION in annotations or LATE_ANNOTATION in annotations or _is_called_at_end(transform):
            found.add(id)
        if PUBLISH_ANNOTATION in annotations:
            found.add(id)
            found.update(_staging(pipeline.leaves, transform))
    environments = {id: components.transforms[id].environment_id for id in found}
    return sorted(id for id, each in environments.items() if pipeline.has_workers(each) and pipeline.is_python(each))


def _inside(components: Any, id: str) -> Iterator[str]:
    """Yield a transform and all transforms in it."""
    yield id
    for part in components.transforms[id].subtransforms:
        yield from _inside(components, part)


def _staging(leaves: Mapping[str, ParsedTransform], publish: ParsedTransform) -> set[str]:
    """Return the ids of the DoFns whose outputs are committables, and of what passes these on.

    Other producers stay where they are. Groupings run no user code; another SDK, and the SDK workers of Python, cannot
    name an attempt, and the latter say so.
    """
    producers = defaultdict(list)
    for id, transform in leaves.items():
        for pcoll in transform.proto.outputs.values():
            producers[pcoll].append(id)
    found: set[str] = set()
    waiting = list(publish.proto.inputs.values())
    while waiting:
        for id in producers[waiting.pop()]:
            if id in found:
                continue
            if leaves[id].urn in _PASSING:
                found.add(id)
                waiting += leaves[id].proto.inputs.values()
            elif leaves[id].urn == common_urns.primitives.PAR_DO.urn:
                found.add(id)
    return found


def _is_called_at_end(transform: ParsedTransform) -> bool:
    """Return whether the DoFn of a transform is an `arcbeam.GracefulShutdown`, without unpickling it.

    The mark is in the display data, unless the SDK's type checks wrap the DoFn; and in the DoFn's attributes, unless
    its class says otherwise what is pickled.
    """
    if transform.urn != common_urns.primitives.PAR_DO.urn:
        return False
    if any(_MARK in each.payload for each in transform.proto.display_data):
        return True
    return _MARK in unpacked(transform.par_do.do_fn.payload)
