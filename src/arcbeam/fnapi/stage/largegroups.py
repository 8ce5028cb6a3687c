"""Groups that are too large for one message: a worker reads their values in pages.

Owns how such a group is encoded. Must not know where the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from apache_beam.coders.coder_impl import create_OutputStream

from arcbeam.harness.streaming.elements import PaneValues

_EMPTY: Final = b"\0\0\0\0"
_IN_PAGES: Final = b"\xff\xff\xff\xff" + b"\xff" * 9 + b"\x01"
"""The number of values is unknown (-1), and all of them are in pages (a chunk of -1 values)."""


class LargeGroups:
    """The large groups of a stage.

    Args:
        encode: encodes an element of the stage's input, a windowed `(key, values)`, to a stream.
        coder: coder of one value.
        keep: keeps encoded values until the bundle ends, and returns the token of their pages.
    """

    def __init__(self, encode: Callable[[Any, Any, bool], None], coder: Any, keep: Callable[[Any], bytes]) -> None:
        self._encode, self._encode_value, self._keep = encode, coder.get_impl().encode_nested, keep

    @staticmethod
    def is_large(element: Any) -> bool:
        """Return whether an element of the stage's input is a large group."""
        return type(element.value[1]) is PaneValues

    def encoded(self, element: Any) -> bytes:
        """Return a large group with the token of its pages."""
        key, values = element.value
        stream = create_OutputStream()
        self._encode(element.with_value((key, [])), stream, True)
        data: bytes = stream.get()
        assert data.endswith(_EMPTY)
        token = self._keep(_Encoded(values, self._encode_value))
        stream = create_OutputStream()
        stream.write(data[: -len(_EMPTY)])
        stream.write(_IN_PAGES)
        stream.write(token, True)
        found: bytes = stream.get()
        return found


class _Encoded:
    """Values of a group, encoded at each iteration.

    Args:
        values: may be iterated any number of times.
        encode: encodes a value in nested context.
    """

    def __init__(self, values: Any, encode: Callable[[Any], bytes]) -> None:
        self._values, self._encode = values, encode

    def __iter__(self) -> Iterator[bytes]:
        return map(self._encode, self._values)
