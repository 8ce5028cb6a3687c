"""The bundle descriptor of a stage for its SDK worker.

Owns the ports that connect the worker's transforms with the runner. Must not know what is sent through them.
"""

from __future__ import annotations

from typing import Any, Final

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.worker.bundle_processor import DATA_INPUT_URN, DATA_OUTPUT_URN

from arcbeam.model.plan import Remote, RemotePort

SOURCE: Final = "arcbeam/source"
"""Id of the transform that reads the stage's input."""


def par_do_payload(transform: Any) -> Any:
    """Return the `ParDoPayload` of a transform; None if it has none."""
    if transform.spec.urn != common_urns.primitives.PAR_DO.urn:
        return None
    return runner_pb.ParDoPayload.FromString(transform.spec.payload)


def sink_of(tag: str) -> str:
    """Return the id of the transform that writes the output with that tag."""
    return f"arcbeam/{tag}"


def descriptor(id: str, remote: Remote, address: str) -> Any:
    """Return the `ProcessBundleDescriptor` of a stage.

    Args:
        id: unique for the worker.
        remote: the worker's part of the stage.
        address: of the data and state services. SUBTLE: the same text for all ports, because a worker opens a stream
            for each text.
    """
    part = runner_pb.Components.FromString(remote.components)
    made = fn_pb.ProcessBundleDescriptor(
        id=id,
        transforms=part.transforms,
        pcollections=part.pcollections,
        windowing_strategies=part.windowing_strategies,
        coders=part.coders,
        environments=part.environments,
        # A Python worker opens a state stream, whether the stage has state or not.
        state_api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url=address),
        timer_api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url=address),
    )
    made.transforms[SOURCE].CopyFrom(_port(SOURCE, DATA_INPUT_URN, remote.source, address))
    made.transforms[SOURCE].outputs["out"] = remote.source.pcoll
    for tag, port in remote.sinks.items():
        made.transforms[sink_of(tag)].CopyFrom(_port(sink_of(tag), DATA_OUTPUT_URN, port, address))
        made.transforms[sink_of(tag)].inputs["in"] = port.pcoll
    return made


def _port(name: str, urn: str, port: RemotePort, address: str) -> Any:
    grpc_port = fn_pb.RemoteGrpcPort(
        api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url=address), coder_id=port.coder
    )
    spec = runner_pb.FunctionSpec(urn=urn, payload=grpc_port.SerializeToString())
    return runner_pb.PTransform(unique_name=name, spec=spec)
