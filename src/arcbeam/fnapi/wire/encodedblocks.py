"""The input of a worker: blocks become bytes.

Owns how elements that share windows and pane are encoded: these, and mostly the time, too, are encoded once for a
block. Must not know messages.
"""

from __future__ import annotations

from typing import Any

from arcbeam.fnapi.wire.times import TIME, encoded_times
from arcbeam.harness.encoding.blocks import Block, Each


class BlockEncoder:
    """Encodes blocks for a worker.

    Args:
        coder: coder of the elements, of windowed values.
    """

    def __init__(self, coder: Any) -> None:
        value = coder.wrapped_value_coder.get_impl()
        self._encode, self._encode_value = coder.get_impl().encode_nested, value.encode_nested
        self._append_value = value.encode_to_stream

    def write(self, block: Block, stream: Any) -> bool:
        """Append a block to the SDK's output stream, if its elements share windows and pane; return whether they do.

        Args:
            block: its times are whole milliseconds.
            stream: the stream.
        """
        if type(block.windows) is Each or type(block.panes) is Each:
            return False
        values, write, append = block.values, stream.write, self._append_value
        if not values:
            return True
        first = self._encode(block.element(0))
        head = first[: len(first) - len(self._encode_value(values[0]))]
        if type(block.micros) is not Each:
            for value in values:
                write(head)
                append(value, stream, True)
            return True
        times, stamp = encoded_times(block.micros), head[TIME:]
        for at, value in zip(range(0, len(times), TIME), values, strict=True):
            write(times[at : at + TIME])
            write(stamp)
            append(value, stream, True)
        return True
