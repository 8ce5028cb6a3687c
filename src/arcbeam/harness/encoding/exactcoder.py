"""A coder of windowed values with microseconds.

Owns the encoding of windowed values that only arcbeam and the embedded SDK read one by one: restrictions of splittable
DoFns. The SDK's coder truncates to milliseconds, so an element would be earlier when its residual is processed.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders import coder_impl, coders
from apache_beam.utils.windowed_value import create


class ExactCoderImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """The timestamp as big-endian signed microseconds, followed by the SDK's encoding.

    Args:
        inexact: the SDK's coder impl of windowed values.
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
        inexact: the SDK's coder of windowed values.
    """

    def __init__(self, inexact: Any) -> None:
        self._inexact = inexact

    def _create_impl(self) -> ExactCoderImpl:
        return ExactCoderImpl(self._inexact.get_impl())

    def is_deterministic(self) -> bool:
        """Return whether the SDK's coder is deterministic."""
        return bool(self._inexact.is_deterministic())
