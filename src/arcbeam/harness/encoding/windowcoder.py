"""Encodings of windows: a coder of interval windows with microseconds, and caches of encoded windows.

Owns the encoding of interval windows that only arcbeam and the embedded SDK read: exchanges, state keys, side inputs.
The SDK's coder truncates to milliseconds, so it would not distinguish windows that are closer than that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from apache_beam.coders import coder_impl, coders
from apache_beam.transforms.window import IntervalWindow

from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.model.urns import INTERVAL_WINDOW_URN
from arcbeam.sizes import by_identity, cache_size

_BYTES = 9
_pack = struct.Struct(">bqbq").pack
_START_MICROS_MIN, _END_MICROS_MAX = -(1 << 62), 1 << 62
_KNOWN_MAX = cache_size(10_000)


class IntervalWindowCoderImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """Start and end as big-endian signed microseconds, nine bytes each.

    SUBTLE: a window may begin before the first event time, or end after the last, so 64 bits are not enough.
    """

    def __init__(self) -> None:
        # Many elements share a window, and each window is three objects.
        self._known: dict[bytes, Any] = {}

    def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
        """See the SDK's `CoderImpl`."""
        # The SDK's attributes are limited to 64 bits.
        start, end = value._start_micros, value._end_micros
        if start > _START_MICROS_MIN and end < _END_MICROS_MAX:
            out.write(_pack(-(start < 0), start, -(end < 0), end))
            return
        start, end = value.start.micros, value.end.micros
        out.write(start.to_bytes(_BYTES, "big", signed=True) + end.to_bytes(_BYTES, "big", signed=True))

    def decode_from_stream(self, in_: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        encoded = in_.read(2 * _BYTES)
        window = self._known.get(encoded)
        if window is None:
            if len(self._known) > _KNOWN_MAX:
                self._known.clear()
            start = int.from_bytes(encoded[:_BYTES], "big", signed=True)
            end = int.from_bytes(encoded[_BYTES:], "big", signed=True)
            window = self._known[encoded] = IntervalWindow(timestamp_of(start), timestamp_of(end))
        return window

    def estimate_size(self, value: Any, nested: bool = False) -> int:
        """See the SDK's `CoderImpl`."""
        return 2 * _BYTES


class IntervalWindowCoder(coders.FastCoder):  # type: ignore[misc]  # Beam is untyped
    """See `IntervalWindowCoderImpl`."""

    def _create_impl(self) -> IntervalWindowCoderImpl:
        return IntervalWindowCoderImpl()

    def is_deterministic(self) -> bool:
        """Return True: equal windows have equal bytes."""
        return True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class WindowBytes:
    """Encodes windows. A tuple of windows is encoded once per object; most elements share one.

    Tables use encoded windows as keys: hashing and comparing an interval window takes microseconds.
    """

    def __init__(self, window_coder: Any) -> None:
        self._impl = window_coder.get_impl()
        # With the tuple itself, otherwise a new tuple could get the same identity.
        self._known: dict[int, tuple[Any, tuple[bytes, ...]]] = by_identity()
        self._windows: dict[bytes, Any] = {}

    def of(self, windows: Any) -> tuple[bytes, ...]:
        """Return the windows' encodings."""
        found = self._known.get(id(windows))
        if found is None:
            if len(self._known) > _KNOWN_MAX:
                self._known.clear()
            found = self._known[id(windows)] = windows, tuple(map(self._impl.encode, windows))
        return found[1]

    def window(self, encoded: bytes) -> Any:
        """Return the window of an encoding."""
        window = self._windows.get(encoded)
        if window is None:
            if len(self._windows) > _KNOWN_MAX:
                self._windows.clear()
            window = self._windows[encoded] = self._impl.decode(encoded)
        return window


def register() -> None:
    """Register our coder in the SDK. Idempotent."""
    coders.Coder.register_structured_urn(INTERVAL_WINDOW_URN, IntervalWindowCoder)


class WindowTuples:
    """Encodes the windows of an element as the SDK's coder of tuples does. Usually there is one window.

    Decoding equal windows returns the same object.
    """

    def __init__(self, window_impl: Any) -> None:
        self._impl = coder_impl.TupleSequenceCoderImpl(window_impl)
        self._window = window_impl
        self._intervals = isinstance(window_impl, IntervalWindowCoderImpl)
        self._known: dict[bytes, tuple[Any]] = {}
        self.encode_to_stream = self._impl.encode_to_stream

    def decode_from_stream(self, stream: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        if not self._intervals:
            return self._impl.decode_from_stream(stream, nested)
        count = stream.read_bigendian_int32()
        if count != 1:
            return tuple([self._window.decode_from_stream(stream, True) for _ in range(count)])
        encoded = stream.read(2 * _BYTES)
        windows = self._known.get(encoded)
        if windows is None:
            if len(self._known) > _KNOWN_MAX:
                self._known.clear()
            windows = self._known[encoded] = (self._window.decode(encoded),)
        return windows


def remembering_latest(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return a function like `encode` that remembers the latest window: most calls are for the same one."""
    latest: Any = None
    encoded = b""

    def of(window: Any) -> bytes:
        nonlocal latest, encoded
        if window is not latest:
            latest, encoded = window, encode(window)
        return encoded

    return of
