"""The input of a worker: blocks become bytes.

Owns how elements that share windows and pane are encoded: these, and mostly the time, too, are encoded once for a
block. Must not know messages.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders.coder_impl import PaneInfoCoderImpl, create_OutputStream

from arcbeam.fnapi.wire.times import TIME, encoded_times
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.windowcoder import WindowTuples
from arcbeam.harness.operations.encodedvalues import EncodedValues


class BlockEncoder:
    """Encodes blocks for a worker.

    Args:
        coder: coder of the elements, of windowed values.
    """

    def __init__(self, coder: Any) -> None:
        self._append_value = coder.wrapped_value_coder.get_impl().encode_to_stream
        self._windows, self._panes = WindowTuples(coder.window_coder.get_impl()), PaneInfoCoderImpl()

    def write(self, block: Block, stream: Any) -> bool:
        """Append a block to the SDK's output stream, if its elements share windows and pane; return whether they do.

        Args:
            block: its times are whole milliseconds. Encoded values are as the worker reads them.
            stream: the stream.
        """
        if type(block.windows) is Each or type(block.panes) is Each:
            return False
        stamp, write, append = self._stamp(block), stream.write, self._append_value
        if type(block.micros) is not Each:
            head = encoded_times([block.micros]) + stamp
            if isinstance(block, EncodedValues):
                data, start = block.data, 0
                for end in block.ends.tolist():
                    write(head)
                    write(data[start:end])
                    start = end
                return True
            for value in block.values:
                write(head)
                append(value, stream, True)
            return True
        times = encoded_times(block.micros)
        for at, value in zip(range(0, len(times), TIME), block.values, strict=True):
            write(times[at : at + TIME])
            write(stamp)
            append(value, stream, True)
        return True

    def _stamp(self, block: Block) -> bytes:
        """Return the encoded windows and pane that all elements share."""
        stream = create_OutputStream()
        self._windows.encode_to_stream(block.windows, stream, True)
        self._panes.encode_to_stream(block.panes, stream, True)
        stamp: bytes = stream.get()
        return stamp
