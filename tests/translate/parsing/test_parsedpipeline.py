"""What a pipeline's proto says about its transforms and environments, and that reading it changes nothing."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from arcbeam.errors import InvalidPipelineError
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.stage.inworkers import external


class Seen(beam.DoFn):
    SEEN = ReadModifyWriteStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, pair: tuple[int, int], side: Any = None, seen: Any = beam.DoFn.StateParam(SEEN)) -> None:
        seen.write(1)


def proto_of() -> Any:
    p = beam.Pipeline()
    pairs = p | beam.Create([(1, 2)])
    _ = pairs | "Seen" >> beam.ParDo(Seen(), side=beam.pvalue.AsList(pairs))
    return pipeline_proto(p)


def test_transforms_have_their_payloads() -> None:
    pipeline = ParsedPipeline(proto_of())
    by_name = {transform.name: transform for transform in pipeline.leaves.values()}
    seen, impulse = by_name["Seen"], by_name["Create/Impulse"]
    assert (seen.is_par_do, seen.has_state, list(seen.par_do.state_specs)) == (True, True, ["seen"])
    assert (impulse.is_par_do, impulse.has_state, impulse.par_do) == (False, False, runner_pb.ParDoPayload())
    assert seen.main_inputs == [pcoll for tag, pcoll in seen.proto.inputs.items() if tag not in seen.par_do.side_inputs]
    changed = seen.with_spec("urn", b"payload")
    assert (changed.name, changed.urn, changed.has_state, seen.has_state) == ("Seen", "urn", False, True)
    assert seen.with_spec("urn", b"", "Other").name == "Other"


def test_malformed_payload_is_named() -> None:
    proto = proto_of()
    id = next(id for id, transform in proto.components.transforms.items() if transform.unique_name == "Seen")
    proto.components.transforms[id].spec.payload = b"\xff"
    with pytest.raises(InvalidPipelineError, match=f"payload of transform '{id}' is malformed"):
        _ = ParsedPipeline(proto).transforms


def test_workers_are_those_of_used_environments() -> None:
    proto = proto_of()
    embedded, before = ParsedPipeline(proto), proto.SerializeToString(deterministic=True)
    assert (embedded.any_workers, embedded.python_workers, embedded.of_another_sdk) == (False, None, False)
    assert not embedded.has_workers("missing")
    assert proto.SerializeToString(deterministic=True) == before, "a missing environment is not added"
    changed = embedded.changed()
    changed.components.environments["unused"].CopyFrom(external("localhost:1"))
    assert ParsedPipeline(changed).has_workers("unused")
    assert not ParsedPipeline(changed).any_workers
    (used,) = embedded.used_environments
    changed.components.environments[used].CopyFrom(external("localhost:1"))
    python = ParsedPipeline(changed)
    assert (python.any_workers, python.python_workers, python.of_another_sdk) == (True, used, False)
    del changed.components.environments[used].capabilities[:]
    other = ParsedPipeline(changed)
    assert (other.any_workers, other.python_workers, other.of_another_sdk) == (True, None, True)
