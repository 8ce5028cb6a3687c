"""Messages with input for a worker.

Owns how the end of a bundle's input is marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

_GO: Final = "beam:version:sdk_base:go:"
"""A capability of environments of the Go SDK begins with this."""


def ends_once(environment: Any) -> bool:
    """Return whether a worker counts the ends of transforms with timers, not those of their families, as in Go."""
    return any(each.startswith(_GO) for each in environment.capabilities)


def elements(bundle: str, transform: str, data: bytes) -> Any:
    """Return `Elements` with whole encoded elements for a source."""
    return fn_pb.Elements(data=[fn_pb.Elements.Data(instruction_id=bundle, transform_id=transform, data=data)])


def timers(bundle: str, transform: str, family: str, data: bytes) -> Any:
    """Return `Elements` with whole encoded timers that fire."""
    fired = fn_pb.Elements.Timers(instruction_id=bundle, transform_id=transform, timer_family_id=family, timers=data)
    return fn_pb.Elements(timers=[fired])


def end(bundle: str, transform: str, families: Iterable[tuple[str, str]], *, once: bool = False) -> Any:
    """Return `Elements` that end a bundle's input.

    SUBTLE: all ends are in one message, because a Go worker counts them and closes its streams after the last one. The
    entries have no data, because a Python worker does not read data there. Each family has an entry, whether it had
    timers or not: a Go worker ends only what it has an entry for. It waits forever after more ends than it expects.

    Args:
        bundle: id of the bundle.
        transform: id of its source.
        families: its timer families, by transform and name.
        once: see `ends_once`.
    """
    ended: set[str] = set()
    message = fn_pb.Elements(data=[fn_pb.Elements.Data(instruction_id=bundle, transform_id=transform, is_last=True)])
    for owner, family in families:
        last = not (once and owner in ended)
        message.timers.add(instruction_id=bundle, transform_id=owner, timer_family_id=family, is_last=last)
        ended.add(owner)
    return message
