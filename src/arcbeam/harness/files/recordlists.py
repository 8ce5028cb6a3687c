"""Bounded sources that emit lists of records instead of single records.

Owns the change of the bundle descriptor. The SDK's DoFn that reads a `BoundedSource` is replaced by one that emits
lists. An added transform splits them into records, block by block (`harness.transforms.values`). This is invisible
outside: the added transform and the collection of lists are removed from reports. A contract test covers the SDK
internals that this module relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import apache_beam as beam
from apache_beam.coders import coder_impl, coders
from apache_beam.internal import pickler
from apache_beam.io import filebasedsource, iobase
from apache_beam.metrics import monitoring_infos
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.transforms import core

from arcbeam.harness.files import lines
from arcbeam.harness.operations.blockoperation import PIECE, longest_of, once

_PROCESS_URN = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn
_READ = iobase.SDFBoundedSourceReader()._create_sdf_bounded_source_dofn().process.__code__
_SUFFIX = "/arcbeam:records"
"""Suffix of the ids of added objects."""
_LABELS = (monitoring_infos.PTRANSFORM_LABEL, monitoring_infos.PCOLLECTION_LABEL)


class _ReadLists(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Reads a bounded source; emits lists of its records.

    Args:
        coder: coder of a record.
    """

    def __init__(self, coder: Any) -> None:
        self._coder = coder

    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(iobase._SDFBoundedSourceRestrictionProvider()),  # noqa: B008
    ) -> Iterator[list[Any]]:
        restriction = tracker.current_restriction()
        source, positions = restriction.source(), restriction.range_tracker()
        if type(source) is filebasedsource._SingleFileSource and lines.can_read(source._file_based_source):
            return lines.read(source._file_based_source, source._file_name, positions)
        return _listed(source.read(positions), self._coder.estimate_size)


def _listed(records: Iterable[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Yield records in lists, which are short while records are large."""
    more, longest = once(records), 1
    while part := list(islice(more, longest)):
        yield part
        longest = min(longest_of(len(part), lambda record, _: size(record), part[0], part[-1]), PIECE)


class _NeverEncoded(coder_impl.CoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Lists of records do not leave the stage. Sizes are estimated for the single records that follow."""

    def estimate_size(self, value: Any, nested: bool = False) -> int:
        return 0


class _ListsCoder(coders.FastCoder):  # type: ignore[misc]  # Beam is untyped
    def _create_impl(self) -> Any:
        return _NeverEncoded()

    def is_deterministic(self) -> bool:
        return False


def _same(records: list[Any]) -> list[Any]:
    return records


def rewrite(components: Any) -> None:
    """Change the descriptor's transforms that read bounded sources."""
    for id, transform in list(components.transforms.items()):
        if transform.spec.urn == _PROCESS_URN:
            _rewrite(components, id, transform)


def _rewrite(components: Any, id: str, transform: Any) -> None:
    payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
    if payload.do_fn.urn != python_urns.PICKLED_DOFN_INFO or len(transform.outputs) != 1 or payload.side_inputs:
        return
    fn, args, kwargs, tags, windowing = pickler.loads(payload.do_fn.payload)
    if getattr(fn.process, "__code__", None) != _READ or getattr(fn, "_runtime_output_constraints", None):
        return
    ((tag, output),) = transform.outputs.items()
    listed = id + _SUFFIX
    coder = PipelineContext(components).coders.get_by_id(components.pcollections[output].coder_id)
    payload.do_fn.payload = pickler.dumps((_ReadLists(coder), args, kwargs, tags, windowing))
    transform.spec.payload = payload.SerializeToString()
    transform.outputs[tag] = listed
    pcoll = components.pcollections[listed]
    pcoll.CopyFrom(components.pcollections[output])
    pcoll.unique_name, pcoll.coder_id = listed, listed
    components.coders[listed].CopyFrom(_ListsCoder().to_runner_api(None))
    info: Any = core.FlatMap(_same).fn, (), {}, [], windowing
    apart = components.transforms[listed]
    # SUBTLE: a name of its own, because the SDK keeps counters by name.
    apart.unique_name = transform.unique_name + "/Records"
    apart.environment_id = transform.environment_id
    apart.inputs["in"], apart.outputs[tag] = listed, output
    apart.spec.urn = common_urns.primitives.PAR_DO.urn
    apart.spec.payload = runner_pb.ParDoPayload(
        do_fn=runner_pb.FunctionSpec(urn=python_urns.PICKLED_DOFN_INFO, payload=pickler.dumps(info))
    ).SerializeToString()


def makes_lists(transform: Any) -> bool:
    """Return whether a transform emits lists of records."""
    return any(pcoll.endswith(_SUFFIX) for pcoll in transform.outputs.values())


def is_added(info: Any) -> bool:
    """Return whether a monitoring info belongs to an object that was added here."""
    return any(info.labels.get(label, "").endswith(_SUFFIX) for label in _LABELS)
