"""The embedded parts of a pipeline with SDK workers: what only Spark's Python workers can do.

They observe watermarks, output the elements that groupings drop, know the attempt that a sink stages for, and call
DoFns at the end of the job. Owns which transforms these are. Must not know how they run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.observers import ANNOTATION
from arcbeam.model.shutdown import MARK
from arcbeam.model.urns import EMBEDDED_ANNOTATION, LATE_ANNOTATION, PUBLISH_ANNOTATION
from arcbeam.translate import phases
from arcbeam.translate.identifying.pickles import unpacked
from arcbeam.translate.workers import has_workers, is_python

_EMBEDDED = "arcbeam/embedded"
_MARK = MARK.encode()
_PASSING = frozenset([common_urns.primitives.FLATTEN.urn, common_urns.primitives.ASSIGN_WINDOWS.urn, *phases.EXCHANGES])
"""Transforms that pass each element on in the same micro-batch, unchanged."""


def with_embedded_parts(pipeline: Any) -> Any:
    """Return a pipeline in which the parts of Python workers that need it are embedded. Idempotent.

    Args:
        pipeline: `beam_runner_api_pb2.Pipeline`, well-formed; not changed.
    """
    parts = _parts(pipeline)
    if not parts:
        return pipeline
    changed = runner_pb.Pipeline()
    changed.CopyFrom(pipeline)
    components = pipeline.components
    for id in parts:
        transform = changed.components.transforms[id]
        embedded = changed.components.environments[_EMBEDDED]
        embedded.CopyFrom(components.environments[transform.environment_id])
        embedded.urn, embedded.payload = python_urns.EMBEDDED_PYTHON, b""
        transform.environment_id = _EMBEDDED
    return changed


def with_parts(pipeline: Any) -> frozenset[str]:
    """Return the environments of Python workers from which parts become embedded; see `with_embedded_parts`."""
    return frozenset(pipeline.components.transforms[id].environment_id for id in _parts(pipeline))


def _parts(pipeline: Any) -> list[str]:
    """Return the ids of transforms that have Python workers and become embedded."""
    components = pipeline.components
    if not any(has_workers(components, each) for each in components.environments):
        return []
    leaves = phases.leaves(pipeline)
    found: set[str] = set()
    for id, transform in components.transforms.items():
        if EMBEDDED_ANNOTATION in transform.annotations:
            found.update(_inside(components, id))
    for id, transform in leaves.items():
        if any(each in transform.annotations for each in (ANNOTATION, LATE_ANNOTATION)) or _is_called_at_end(transform):
            found.add(id)
        if PUBLISH_ANNOTATION in transform.annotations:
            found.add(id)
            found.update(_staging(leaves, transform))
    return sorted(id for id in found if _has_python_workers(components, components.transforms[id]))


def _has_python_workers(components: Any, transform: Any) -> bool:
    environment = transform.environment_id
    return has_workers(components, environment) and is_python(components.environments[environment])


def _inside(components: Any, id: str) -> Iterator[str]:
    """Yield a transform and all transforms in it."""
    yield id
    for part in components.transforms[id].subtransforms:
        yield from _inside(components, part)


def _staging(leaves: dict[str, Any], publish: Any) -> set[str]:
    """Return the ids of the DoFns whose outputs are committables, and of what passes these on.

    Other producers stay where they are. Groupings run no user code; another SDK, and the SDK workers of Python, cannot
    name an attempt, and the latter say so.
    """
    producers = defaultdict(list)
    for id, transform in leaves.items():
        for pcoll in transform.outputs.values():
            producers[pcoll].append(id)
    found: set[str] = set()
    waiting = list(publish.inputs.values())
    while waiting:
        for id in producers[waiting.pop()]:
            if id in found:
                continue
            if leaves[id].spec.urn in _PASSING:
                found.add(id)
                waiting += leaves[id].inputs.values()
            elif leaves[id].spec.urn == common_urns.primitives.PAR_DO.urn:
                found.add(id)
    return found


def _is_called_at_end(transform: Any) -> bool:
    """Return whether the DoFn of a transform is an `arcbeam.GracefulShutdown`, without unpickling it.

    The mark is in the display data, unless the SDK's type checks wrap the DoFn; and in the DoFn's attributes, unless
    its class says otherwise what is pickled.
    """
    if transform.spec.urn != common_urns.primitives.PAR_DO.urn:
        return False
    if any(_MARK in each.payload for each in transform.display_data):
        return True
    return _MARK in unpacked(phases.par_do_payload(transform).do_fn.payload)
