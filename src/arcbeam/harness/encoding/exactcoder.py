"""Windowed values as bytes, to the microsecond.

Owns the form of a windowed value wherever only we and the embedded SDK read it one by one: restrictions of splittable
DoFns. The SDK's own has milliseconds, so that an element would be earlier when what is left of it goes on.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders import coder_impl, coders
from apache_beam.utils.windowed_value import create


class ExactCoderImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """The timestamp in microseconds, signed, big-endian, and then what the SDK writes.

    Args:
        inexact: the SDK's, of windowed values.
    """

    def __init__(self, inexact: Any) -> None:
        self._inexact = inexact

    def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
        """See the SDK's `CoderImpl`."""
        out.write_bigendian_int64(value.timestamp_micros)
        self._inexact.encode_to_stream(value, out, nested)

    def decode_from_stream(self, in_: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        time = in_.read_bigendian_int64()
        value = self._inexact.decode_from_stream(in_, nested)
        return create(value.value, time, value.windows, value.pane_info)


class ExactCoder(coders.FastCoder):  # type: ignore[misc]  # Beam is untyped
    """See `ExactCoderImpl`.

    Args:
        inexact: the SDK's, of windowed values.
    """

    def __init__(self, inexact: Any) -> None:
        self._inexact = inexact

    def _create_impl(self) -> ExactCoderImpl:
        return ExactCoderImpl(self._inexact.get_impl())

    def is_deterministic(self) -> bool:
        """Equal values have equal bytes if the SDK's coder says so."""
        return bool(self._inexact.is_deterministic())
