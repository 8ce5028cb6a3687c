"""The user keys of a bundle in an SDK worker.

Owns which keys share a bundle, and how a worker names a key. Must not know what is done for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from arcbeam.errors import ArcbeamError
from arcbeam.fnapi.wire.skipping import CutShortError, read_varint, skip_prefixed, skip_varint
from arcbeam.sizes import threshold

_KEYS_MAX: Final = threshold(10_000)
"""Keys of a bundle: a worker keeps the state of all of them until the bundle ends."""
_PICKLED: Final = "beam:coder:pickled_python:v1"
_NONE, _INT, _TUPLE, _STRINGS = b"\0", b"\1", b"\6", (b"\3", b"\4")
"""First bytes of values in the encoding that the Python SDK has for any type. At the end, a string has no length."""


class KeyBatch:
    """The keys of the open bundle.

    SUBTLE: within a bundle the Python SDK finds the state of a key by `==`, but 1, 1.0 and True are three keys. So a
    key that may equal another one has a bundle of its own.

    Args:
        coder: the coder with which the runner reads keys.
        protos: `Coder` protos by id.
        id: id of the coder with which the worker writes them.
    """

    def __init__(self, coder: Any, protos: Any, id: str) -> None:
        self._encode = coder.get_impl().encode_nested
        self._mixes = any(protos[each].spec.urn == _PICKLED for each in _parts(protos, id))
        self._keys: dict[bytes, bytes] = {}
        self._is_full = False

    def has_room(self, key: bytes, user_key: Any) -> bool:
        """Return whether a key may be added.

        Args:
            key: the engine's key.
            user_key: the key as the runner reads it.
        """
        if not self._keys:
            return True
        if self._encode(user_key) in self._keys:
            return True
        return not self._is_full and len(self._keys) < _KEYS_MAX and not self._is_alone(user_key)

    def add(self, key: bytes, user_key: Any) -> None:
        """Add a key; see `has_room`."""
        self._keys[self._encode(user_key)] = key
        self._is_full = self._is_full or self._is_alone(user_key)

    def clear(self) -> None:
        """Remove all keys: the bundle has ended."""
        self._keys.clear()
        self._is_full = False

    def key_of(self, encoded: bytes) -> bytes:
        """Return the engine's key for a key as the worker encodes it, in nested context.

        Raises:
            ArcbeamError: the bundle has no such key.
        """
        key = self._keys.get(encoded)
        if key is None:
            if len(self._keys) != 1:
                raise ArcbeamError(f"the SDK worker names a key that is not in its bundle: {encoded[:100]!r}")
            # Its coder is not deterministic, so the key may have other bytes now.
            (key,) = self._keys.values()
        return key

    def key_of_timer(self, timer: Any) -> bytes:
        """Return the engine's key of a timer that the worker sets or clears."""
        return self.key_of(self._encode(timer.user_key))

    def _is_alone(self, user_key: Any) -> bool:
        return self._mixes and not all(map(_is_plain, _bytes_in(user_key)))


def _parts(protos: Any, id: str) -> Iterator[str]:
    yield id
    for part in protos[id].component_coder_ids:
        yield from _parts(protos, part)


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _bytes_in(each)


def _is_plain(data: bytes) -> bool:
    """Return whether a value of any type, encoded by Python, equals only values with the same encoding."""
    if data[:1] in _STRINGS:
        return True
    try:
        return _after_plain(data, 0) == len(data)
    except CutShortError:
        return False


def _after_plain(data: bytes, at: int) -> int:
    """Return the place after a text, bytes, an integer, None, or a tuple of these; -1 if it is something else."""
    kind = data[at : at + 1]
    if kind == _NONE:
        return at + 1
    if kind == _INT:
        return skip_varint(data, at + 1)
    if kind in _STRINGS:
        return skip_prefixed(data, at + 1)
    if kind != _TUPLE:
        return -1
    count, at = read_varint(data, at + 1)
    for _ in range(count):
        at = _after_plain(data, at)
        if at < 0:
            break
    return at
