"""The bundle descriptor of a stage for its SDK worker.

Owns the ports that connect the worker's transforms with the runner. Must not know what is sent through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.worker.bundle_processor import DATA_INPUT_URN, DATA_OUTPUT_URN

from arcbeam.model.plan import Remote, RemotePort

_OURS: Final = "arcbeam/"
SOURCE: Final = f"{_OURS}source"
"""Id of the transform that reads the stage's input."""
TRUNCATED: Final = f"{_OURS}truncated"
"""Id of the output of a truncation."""
CALLED: Final = f"{_OURS}out"
"""Id of the output of a call about windows, and of its coder."""
_CODERS: Final = common_urns.coders
_PAGED: Final = common_urns.coders.STATE_BACKED_ITERABLE
PROCESS_URN: Final = common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn


def par_do_payload(transform: Any) -> Any:
    """Return the `ParDoPayload` of a transform; None if it has none."""
    if transform.spec.urn != common_urns.primitives.PAR_DO.urn:
        return None
    return runner_pb.ParDoPayload.FromString(transform.spec.payload)


def sink_of(tag: str) -> str:
    """Return the id of the transform that writes the output with that tag."""
    return f"{_OURS}{tag}"


def is_port(id: str) -> bool:
    """Return whether a transform with this id is ours, not one of the worker's."""
    return id.startswith(_OURS)


def sampled_sink_of(pcoll: str) -> str:
    """Return the id of the transform that writes a collection only for samples."""
    return f"{_OURS}sampled/{pcoll}"


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
    made.transforms[SOURCE].CopyFrom(_port(SOURCE, DATA_INPUT_URN, remote.source.coder, address))
    made.transforms[SOURCE].outputs["out"] = remote.source.pcoll
    for tag, port in remote.sinks.items():
        made.transforms[sink_of(tag)].CopyFrom(_port(sink_of(tag), DATA_OUTPUT_URN, port.coder, address))
        made.transforms[sink_of(tag)].inputs["in"] = port.pcoll
    return made


def sampled(made: Any, inner: Sequence[RemotePort]) -> Any:
    """Return a stage's `ProcessBundleDescriptor` with more outputs: collections that do not leave the worker otherwise.

    Args:
        made: see `descriptor`.
        inner: the collections.
    """
    port = fn_pb.RemoteGrpcPort.FromString(made.transforms[SOURCE].spec.payload)
    more = fn_pb.ProcessBundleDescriptor()
    more.CopyFrom(made)
    more.id = f"{made.id}/sampled"
    for each in inner:
        id = sampled_sink_of(each.pcoll)
        more.transforms[id].CopyFrom(_port(id, DATA_OUTPUT_URN, each.coder, port.api_service_descriptor.url))
        more.transforms[id].inputs["in"] = each.pcoll
    return more


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
    made.transforms[TRUNCATED].CopyFrom(_port(TRUNCATED, DATA_OUTPUT_URN, remote.source.coder, address))
    made.transforms[TRUNCATED].inputs["in"] = TRUNCATED
    return made


def merging(id: str, name: str, coders: Mapping[str, Any], strategy: Any, address: str) -> Any:
    """Return the `ProcessBundleDescriptor` that merges windows.

    Its input is KV<nonce, windows>; its output, KV<nonce, KV<kept windows, [KV<merged window, replaced windows>]>>.

    Args:
        id: unique for the worker.
        name: name of the transform, for errors.
        coders: `Coder` protos by id.
        strategy: the `WindowingStrategy` of the windows.
        address: see `descriptor`.
    """
    made, window = _calling(id, coders), strategy.window_coder_id
    some = _add_coder(made, "windows", _CODERS.ITERABLE, window)
    merges = _add_coder(made, "merges", _CODERS.ITERABLE, _add_coder(made, "merge", _CODERS.KV, window, some))
    return _called(
        made,
        (name, common_urns.primitives.MERGE_WINDOWS.urn, strategy.window_fn),
        (some, _add_coder(made, "merged", _CODERS.KV, some, merges)),
        address,
    )


def mapping(id: str, name: str, coders: Mapping[str, Any], mapping: Any, of: tuple[Any, Any], address: str) -> Any:
    """Return the `ProcessBundleDescriptor` that maps windows; from KV<nonce, window> to KV<nonce, window>.

    Args:
        id: unique for the worker.
        name: name of the transform, for errors.
        coders: `Coder` protos by id.
        mapping: `FunctionSpec` of the mapping.
        of: the `WindowingStrategy` of the windows; of those that they are mapped to.
        address: see `descriptor`.
    """
    main, side = of
    called = name, common_urns.primitives.MAP_WINDOWS.urn, mapping
    return _called(_calling(id, coders), called, (main.window_coder_id, side.window_coder_id), address)


def _calling(id: str, coders: Mapping[str, Any]) -> Any:
    made = fn_pb.ProcessBundleDescriptor(id=id, coders=coders)
    _add_coder(made, "nonce", _CODERS.BYTES)
    _add_coder(made, "global", _CODERS.GLOBAL_WINDOW)
    made.windowing_strategies["arcbeam/global"].window_fn.urn = common_urns.global_windows.urn
    made.windowing_strategies["arcbeam/global"].window_coder_id = "arcbeam/global"
    made.windowing_strategies["arcbeam/global"].trigger.default.SetInParent()
    made.windowing_strategies["arcbeam/global"].accumulation_mode = runner_pb.AccumulationMode.DISCARDING
    return made


def _called(made: Any, called: tuple[str, str, Any], coders: tuple[str, str], address: str) -> Any:
    """Add one transform from KV<nonce, first coder> to KV<nonce, second coder>, and its ports."""
    name, urn, function = called
    # A Python worker opens a state stream.
    made.state_api_service_descriptor.url = address
    for pcoll, coder in zip(("in", "out"), coders, strict=True):
        pair = _add_coder(made, f"{pcoll} pair", _CODERS.KV, "arcbeam/nonce", coder)
        made.pcollections[pcoll].coder_id = pair
        made.pcollections[pcoll].windowing_strategy_id = "arcbeam/global"
        _add_coder(made, pcoll, _CODERS.WINDOWED_VALUE, pair, "arcbeam/global")
    made.transforms[SOURCE].CopyFrom(_port(SOURCE, DATA_INPUT_URN, "arcbeam/in", address))
    made.transforms[SOURCE].outputs["out"] = "in"
    made.transforms["arcbeam/call"].unique_name = name
    made.transforms["arcbeam/call"].spec.urn = urn
    made.transforms["arcbeam/call"].spec.payload = function.SerializeToString()
    made.transforms["arcbeam/call"].inputs["in"] = "in"
    made.transforms["arcbeam/call"].outputs["out"] = "out"
    made.transforms[CALLED].CopyFrom(_port(CALLED, DATA_OUTPUT_URN, CALLED, address))
    made.transforms[CALLED].inputs["in"] = "out"
    return made


def _add_coder(made: Any, name: str, kind: Any, *parts: str) -> str:
    coder = made.coders[f"arcbeam/{name}"]
    coder.spec.urn = kind.urn
    coder.component_coder_ids[:] = parts
    return f"arcbeam/{name}"


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


def has_restrictions(made: Any) -> bool:
    """Return whether a stage's descriptor has a transform that processes restrictions."""
    return bool(_processes(made))


def process_of(made: Any) -> tuple[str, Any]:
    """Return the transform of a splittable stage's descriptor that processes restrictions, after its id."""
    (process,) = _processes(made)
    return process, made.transforms[process]


def _port(name: str, urn: str, coder: str, address: str) -> Any:
    grpc_port = fn_pb.RemoteGrpcPort(
        api_service_descriptor=endpoints_pb2.ApiServiceDescriptor(url=address), coder_id=coder
    )
    spec = runner_pb.FunctionSpec(urn=urn, payload=grpc_port.SerializeToString())
    return runner_pb.PTransform(unique_name=name, spec=spec)
