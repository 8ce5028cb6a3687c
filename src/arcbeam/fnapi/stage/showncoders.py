"""Coders that decode what a worker's elements show to people: as much of each as this process can.

Owns which parts of a coder are decoded here. What is unknown stays bytes. Must not know where the elements come from.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from apache_beam import coders
from apache_beam.coders.coder_impl import CallbackCoderImpl, LengthPrefixCoderImpl
from apache_beam.coders.coders import FastCoder
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.runners.pipeline_context import PipelineContext
from typing_extensions import override

from arcbeam.fnapi.wire.skipping import read_varint
from arcbeam.model.plan import RemotePort

_CODERS: Final = common_urns.coders
_GO: Final = "beam:go:coder:custom:v1"
_GO_INTEGERS: Final = ((b"\x0a\x07varintz", True), (b"\x0a\x08varuintz", False))
"""How the payload of Go's coders of integers begins, with their names; and whether the integers are signed."""


def decoders(protos: Mapping[str, Any], port: RemotePort) -> list[Callable[[Any], Any]]:
    """Return functions that decode an element of a collection from a stream of the SDK's, to be tried in this order.

    Args:
        protos: `Coder` protos by id.
        port: the collection, with the coder that writes it.
    """
    known = PipelineContext(fn_pb.ProcessBundleDescriptor(coders=protos)).coders
    ours = known.get_by_id(port.ours)
    shown = coders.WindowedValueCoder(
        _shown(protos, known, protos[port.coder].component_coder_ids[0]), ours.window_coder
    )
    return [_from_stream(each) for each in (shown, ours)]


def _from_stream(coder: Any) -> Callable[[Any], Any]:
    decode = coder.get_impl().decode_from_stream
    return lambda stream: decode(stream, True)


def _shown(protos: Mapping[str, Any], known: Any, id: str) -> Any:
    urn, parts = protos[id].spec.urn, protos[id].component_coder_ids
    if urn == _CODERS.KV.urn:
        return coders.TupleCoder([_shown(protos, known, part) for part in parts])
    if urn == _CODERS.ITERABLE.urn:
        return coders.IterableCoder(_shown(protos, known, parts[0]))
    if urn == _CODERS.NULLABLE.urn:
        return coders.NullableCoder(_shown(protos, known, parts[0]))
    if urn == _CODERS.LENGTH_PREFIX.urn and protos[parts[0]].spec.urn == _GO:
        signed = _is_signed(protos[parts[0]].spec.payload)
        return coders.BytesCoder() if signed is None else _GoInteger(signed)
    if urn == _CODERS.LENGTH_PREFIX.urn:
        return _Prefixed(_shown(protos, known, parts[0]))
    try:
        found = known.get_by_id(id)
        found.get_impl()
    except Exception:  # of another SDK, or of a package that is not here
        return coders.BytesCoder()
    return found


def _is_signed(payload: bytes) -> bool | None:
    """Return whether a coder of Go's is one of signed or of unsigned integers; None: of other values."""
    try:
        named = base64.b64decode(payload)
    except binascii.Error:
        return None
    return next((signed for begin, signed in _GO_INTEGERS if named.startswith(begin)), None)


class _Prefixed(FastCoder):  # type: ignore[misc]  # Beam is untyped
    """Decodes a value after its length; one that cannot be decoded here stays bytes."""

    def __init__(self, coder: Any) -> None:
        self._coder = coder

    @override
    def _create_impl(self) -> Any:
        impl = self._coder.get_impl()

        def decode(data: bytes) -> Any:
            try:
                return impl.decode(data)
            except Exception:  # for example, its class is in the program that has submitted the job
                return data

        return LengthPrefixCoderImpl(CallbackCoderImpl(impl.encode, decode))


class _GoInteger(FastCoder):  # type: ignore[misc]  # Beam is untyped
    """Decodes integers of Go: a varint after its length, of signed ones in zigzag."""

    def __init__(self, signed: bool) -> None:
        self._signed = signed

    @override
    def _create_impl(self) -> Any:
        def decode(data: bytes) -> int:
            value, _ = read_varint(data, 0)
            return (value >> 1) ^ -(value & 1) if self._signed else value

        return LengthPrefixCoderImpl(CallbackCoderImpl(None, decode))
