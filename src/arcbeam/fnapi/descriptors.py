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
TRUNCATED: Final = "arcbeam/truncated"
"""Id of the output of a truncation."""
_PAGED: Final = common_urns.coders.STATE_BACKED_ITERABLE
PROCESS_URN: Final = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn


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


def truncation(id: str, remote: Remote, address: str) -> Any:
    """Return the `ProcessBundleDescriptor` that truncates restrictions of a splittable stage; see `descriptor`.

    Its output has the coder of its input. Its transform has the id of the one that processes restrictions, because side
    inputs are found by that.
    """
    made = descriptor(id, remote, address)
    for each in [each for each in made.transforms if each not in (SOURCE, *_processes(made))]:
        del made.transforms[each]
    (process,) = _processes(made)
    transform = made.transforms[process]
    transform.spec.urn = common_urns.sdf_components.TRUNCATE_SIZED_RESTRICTION.urn
    transform.outputs.clear()
    transform.outputs["out"] = TRUNCATED
    made.pcollections[TRUNCATED].CopyFrom(made.pcollections[remote.source.pcoll])
    made.transforms[TRUNCATED].CopyFrom(_port(TRUNCATED, DATA_OUTPUT_URN, remote.source, address))
    made.transforms[TRUNCATED].inputs["in"] = TRUNCATED
    return made


def with_paged_groups(made: Any, remote: Remote) -> bool:
    """Let the values of a group come in pages, if the worker can read them: change the coder of the source's port.

    Args:
        made: the `ProcessBundleDescriptor` of a stage whose input is `KV<key, iterable of values>`; it is changed.
        remote: the worker's part of the stage.

    Returns:
        Whether they may come in pages.
    """
    (environment,) = made.environments.values()
    if _PAGED.urn not in environment.capabilities:
        return False
    windowed = made.coders[remote.source.coder]
    pair = made.coders[windowed.component_coder_ids[0]]
    if pair.spec.urn != common_urns.coders.KV.urn:
        return False
    key, values = pair.component_coder_ids
    if made.coders[values].spec.urn != common_urns.coders.ITERABLE.urn:
        return False
    # The payload is the threshold for an SDK that writes pages, which no worker does here.
    made.coders["arcbeam/values"].spec.urn, made.coders["arcbeam/values"].spec.payload = _PAGED.urn, b"1"
    made.coders["arcbeam/values"].component_coder_ids[:] = made.coders[values].component_coder_ids
    for id, of, parts in (
        ("arcbeam/group", pair, [key, "arcbeam/values"]),
        ("arcbeam/windowed", windowed, ["arcbeam/group", windowed.component_coder_ids[1]]),
    ):
        made.coders[id].spec.CopyFrom(of.spec)
        made.coders[id].component_coder_ids[:] = parts
    port = fn_pb.RemoteGrpcPort.FromString(made.transforms[SOURCE].spec.payload)
    port.coder_id = "arcbeam/windowed"
    made.transforms[SOURCE].spec.payload = port.SerializeToString()
    return True


def _processes(made: Any) -> list[str]:
    return [id for id, transform in made.transforms.items() if transform.spec.urn == PROCESS_URN]


def process_of(made: Any) -> Any:
    """Return the transform of a splittable stage's descriptor that processes restrictions."""
    (process,) = _processes(made)
    return made.transforms[process]


def _port(name: str, urn: str, port: RemotePort, address: str) -> Any:
    grpc_port = fn_pb.RemoteGrpcPort(
        api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url=address), coder_id=port.coder
    )
    spec = runner_pb.FunctionSpec(urn=urn, payload=grpc_port.SerializeToString())
    return runner_pb.PTransform(unique_name=name, spec=spec)
