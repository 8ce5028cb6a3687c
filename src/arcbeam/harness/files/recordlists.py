"""Bounded sources that hand on lists of records, not one record after the other.

Owns the change of a bundle descriptor that makes it so: the SDK's DoFn that reads a `BoundedSource` is replaced by one
that puts out lists, and a transform behind it takes them apart, which is done block by block
(`harness.transforms.values`). To the outside nothing changes: the added transform and the collection of lists are left
out of what is reported. The SDK's internals that are leaned on are held by a contract test.
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
"""Of the ids of what is added."""
_LABELS = (monitoring_infos.PTRANSFORM_LABEL, monitoring_infos.PCOLLECTION_LABEL)


class _ReadLists(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Reads a bounded source; puts out lists of its records.

    Args:
        coder: of a record.
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
    """Records in lists that are short while records are large."""
    more, longest = once(records), 1
    while part := list(islice(more, longest)):
        yield part
        longest = min(longest_of(len(part), lambda record, _: size(record), part[0], part[-1]), PIECE)


class _NeverEncoded(coder_impl.CoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Lists of records do not leave the stage; how large they are is asked of the records behind."""

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
    """Changes the descriptor's transforms that read bounded sources."""
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
    # SUBTLE: of its own, for the SDK keeps counters by it.
    apart.unique_name = transform.unique_name + "/Records"
    apart.environment_id = transform.environment_id
    apart.inputs["in"], apart.outputs[tag] = listed, output
    apart.spec.urn = common_urns.primitives.PAR_DO.urn
    apart.spec.payload = runner_pb.ParDoPayload(
        do_fn=runner_pb.FunctionSpec(urn=python_urns.PICKLED_DOFN_INFO, payload=pickler.dumps(info))
    ).SerializeToString()


def makes_lists(transform: Any) -> bool:
    """Whether a transform puts out lists of records."""
    return any(pcoll.endswith(_SUFFIX) for pcoll in transform.outputs.values())


def is_added(info: Any) -> bool:
    """Whether a monitoring info speaks of what was added here."""
    return any(info.labels.get(label, "").endswith(_SUFFIX) for label in _LABELS)
