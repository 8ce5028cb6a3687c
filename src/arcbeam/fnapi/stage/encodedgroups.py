"""Groups for a worker: values that were written encoded are not decoded on their way to it.

Owns how a group is put together of encoded parts. Must not know messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
from apache_beam import coders

from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.windowbuffer import BufferedPane
from arcbeam.harness.encoding.frames import COUNT
from arcbeam.harness.operations.encodedvalues import EncodedValues
from arcbeam.harness.streaming.stageparts import StageParts

_COUNT: Final = COUNT.size


class EncodedGroups:
    """Encodes the groups of a stage.

    Args:
        coder: coder of the worker's input, of windowed `(key, values)`.
        stage: the stage.
    """

    def __init__(self, coder: Any, stage: StageParts) -> None:
        pair = coder.wrapped_value_coder
        self._encode_key = pair.key_coder().get_impl().encode_nested
        self._decode = coders.ListCoder(pair).get_impl().decode
        self._decode_key, self._codec, self._packed = stage.decode_key, stage.codec, stage.packed

    @staticmethod
    def of(coder: Any, stage: StageParts) -> EncodedGroups | None:
        """Return the same; None if the worker reads values in another encoding than the stage."""
        pair, written = coder.wrapped_value_coder, stage.processor.root.written_coder.wrapped_value_coder
        if type(pair) is not coders.TupleCoder or type(pair.value_coder()) is not coders.IterableCoder:
            return None
        return EncodedGroups(coder, stage) if pair.value_coder().value_coder() == written.value_coder() else None

    def block(self, panes: Sequence[EmitPane], stamp: tuple[int, tuple[Any], Any]) -> EncodedValues:
        """Return the groups of panes that share time, window and pane info.

        Args:
            panes: each has few values; see `PaneValues.are_few`.
            stamp: time, windows and pane info.
        """
        groups = list(map(self._group, panes))
        return EncodedValues(self._decode, b"".join(groups), np.array(list(accumulate(map(len, groups)))), *stamp)

    def _group(self, pane: EmitPane) -> bytes:
        key, contents = self._encode_key(self._decode_key(pane.key)), pane.contents
        if not isinstance(contents, BufferedPane):
            return b"".join((key, self._packed.listed_values(list(map(self._codec.decode, contents)))))
        lists = [
            self._packed.listed(part)
            if type(part) is bytes
            else self._packed.listed_values(list(map(self._codec.decode, part)))
            for part in contents.parts
        ]
        if len(lists) == 1:
            return b"".join((key, lists[0]))
        count = sum(COUNT.unpack_from(each)[0] for each in lists)
        return b"".join((key, COUNT.pack(count), *(each[_COUNT:] for each in lists)))
