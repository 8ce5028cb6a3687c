"""The write of keyed elements: whole windowed values by key, for state, timers and general triggers.

Owns what is stored once for many elements, and what stays encoded. Must not know Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import repeat
from typing import Any

from apache_beam import coders
from apache_beam.utils.windowed_value import create
from typing_extensions import override

from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.frames import HEADER, TALLY_KEY, Tally
from arcbeam.harness.encoding.keyforms import Kind
from arcbeam.harness.encoding.opaque import Encodings
from arcbeam.harness.encoding.windowcoder import WindowBytes
from arcbeam.harness.operations.encodedpairs import COPIES, OVERHEAD, EncodedPairs, PairLayout, block_heads, by_key
from arcbeam.harness.operations.groupwrite import GroupWrite
from arcbeam.model.urns import WriteSpec
from arcbeam.sizes import cache_size, threshold

_Stamp = tuple[Any, Any, Any]
"""Time, windows and pane."""
_STAMPS_MAX = cache_size(64)
_PAIRS_MIN = threshold(500, 4)
"""Encoded pairs that are grouped in columns; fewer are decoded."""
_KEPT_BYTES_MAX = threshold(1 << 30, 1000)
"""Bytes of encoded pairs that are grouped together; their places have 31 bits."""


class _Form(Enum):
    """The contents of the tables of a `KeyedWrite`."""

    ALIKE = "values"
    TIMED = "values and times"
    WHOLE = "windowed values"


_OVERHEADS = {_Form.ALIKE: 0, _Form.TIMED: 90, _Form.WHOLE: 100}
"""Bytes of an element besides its value."""


class KeyedWrite(GroupWrite):
    """KEYED: whole windowed values by key, in order of arrival; for state, timers and general triggers.

    At first the tables hold values only. Time, windows and pane are stored once, as their *stamp*. Elements of other
    windows have another stamp and tables of their own: what happens in a window does not depend on other windows. If
    elements of the same windows differ in time, the tables hold values with times. If they also differ in pane, the
    tables hold windowed values. Each flush starts again with values only.

    Encoded pairs wait outside of the tables as long as only such blocks arrive, and no elements of the same windows
    differ in time or pane. They are grouped when they are written.
    """

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        windowed = coders.WindowedValueCoder(coder.wrapped_value_coder.value_coder(), coder.window_coder)
        self._blocks_of_values = BlockCoder(windowed, bulk=factory.data_channel_factory.settings.bulk_values)
        self._blocks_of_encodings = BlockCoder(windowed)
        self._blocks_of_encodings.values = Encodings()
        self._window_bytes = WindowBytes(coder.window_coder)
        self._pair_coder = coder.wrapped_value_coder
        self._decode_key = self._pair_coder.key_coder().get_impl().decode_nested
        self._tally = Tally()
        super().__init__(name, factory, spec, coder)

    def count_combined(self, elements: int, windows: Mapping[bytes, int]) -> None:
        """Count what accumulators that it has taken stand for; see `Tally`."""
        self._more += elements
        self._tally.add(elements, windows)

    @override
    def begin_task(self) -> None:
        super().begin_task()
        self._tally = Tally()

    @override
    def drain(self) -> None:
        if self._tally and not self._count:
            self._flush()
        super().drain()

    def _clear(self) -> None:
        super()._clear()
        # Encoded pairs by encoded windows, with their stamp. Either these are empty, or the tables are.
        self._kept: dict[tuple[bytes, ...], tuple[_Stamp, list[EncodedPairs]]] = {}
        self._layout: PairLayout | None = None
        self._stamp: _Stamp | None = None
        # By encoded windows. The latest ones' tables are also in `_tables`.
        self._stamped: dict[tuple[bytes, ...], tuple[_Stamp, dict[Kind, dict[Any, Any]]]] = {}
        self._seen: set[bytes] = set()
        self._form = _Form.ALIKE
        self._overhead = 0

    def _absorb(self, block: Block) -> None:
        micros, windows, panes = block.micros, block.windows, block.panes
        if type(windows) is Each or type(panes) is Each:
            self._differ(_Form.WHOLE)
        elif self._form is not _Form.WHOLE:
            if self._form is _Form.ALIKE and type(micros) is Each:
                self._differ(_Form.TIMED)
            timed = self._form is _Form.TIMED
            if not self._has_stamp((None if timed else micros, windows, panes)):
                # Times differ more often than panes.
                self._differ(_Form.WHOLE if timed else _Form.TIMED)
                self._absorb(block)
                return
        if self._form is _Form.ALIKE:
            super()._absorb(block)
            return
        values: Iterable[Any] = [value for _, value in block.values]
        if self._form is _Form.TIMED:
            values = zip(values, block.times(), strict=False)
        else:
            values = block.with_values(list(values)).elements()
        elements = zip([key for key, _ in block.values], values, strict=True)
        super()._absorb(Block(list(elements), 0, (), None))

    @override
    def _take(self, block: Block) -> None:
        if isinstance(block, EncodedPairs) and self._keeps(block):
            return
        self._fill_tables()
        super()._take(block)

    def _keeps(self, block: EncodedPairs) -> bool:
        """Keep a block of encoded pairs; return False if it belongs into the tables."""
        if not len(block):
            return True
        if self._layout is not block.layout:
            # With another coder, the values would have other bytes.
            if self._count or block.layout.coder != self._pair_coder:
                return False
            self._layout = block.layout
        if self._count and not self._kept:
            return False
        stamp, windows = block.stamp, self._window_bytes.of(block.windows)
        kept = self._kept.get(windows)
        if kept is None:
            if len(self._kept) >= _STAMPS_MAX or not self._seen.isdisjoint(windows):
                return False
            self._seen.update(windows)
            kept = self._kept[windows] = stamp, []
        elif kept[0] != stamp:
            return False
        kept[1].append(block)
        self._count += len(block)
        self._held_by_values += len(block.data)
        self._held += COPIES * len(block.data) + OVERHEAD * len(block)
        if self._held > min(self._budget, _KEPT_BYTES_MAX):
            self._flush()
        return True

    def _fill_tables(self) -> None:
        """Move all encoded pairs to the tables."""
        if self._kept:
            kept = self._kept
            self._clear()
            for _, blocks in kept.values():
                for block in blocks:
                    super()._take(block)

    @override
    def _flush(self) -> None:
        if self._count < _PAIRS_MIN:
            self._fill_tables()
        super()._flush()

    @override
    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        if self._tally:
            tally, self._tally = self._tally, Tally()
            yield TALLY_KEY, tally.encoded()
        pack, join = HEADER.pack, b"".join
        for (micros, windows, panes), blocks in self._kept.values():
            head = block_heads(self._blocks_of_encodings.shared(micros, windows, panes))
            for nested, count, values in by_key(blocks, self._most_values):
                key, before = self._encode_key(self._decode_key(nested)), head(count)
                yield key, join((pack(len(key), 0, len(before) + len(values)), key, before, values))
        yield from super()._records()

    def _has_stamp(self, stamp: _Stamp) -> bool:
        """Select the tables of a stamp; return False if one of its windows may have another stamp."""
        if stamp == self._stamp:
            return True
        windows = self._window_bytes.of(stamp[1])
        found = self._stamped.get(windows)
        if found is None:
            if len(self._stamped) >= _STAMPS_MAX or not self._seen.isdisjoint(windows):
                return False
            self._seen.update(windows)
            tables = self._tables if self._stamp is None else defaultdict(self._table)
            found = self._stamped[windows] = stamp, tables
        elif found[0] != stamp:
            return False
        self._stamp, self._tables = found
        return True

    def _group_count(self) -> int:
        if len(self._stamped) < 2:
            return super()._group_count()
        return sum(len(table) for _, tables in self._stamped.values() for table in tables.values())

    def _differ(self, form: _Form) -> None:
        """Convert the tables to another form."""
        if form is self._form:
            return
        grown, self._overhead = _OVERHEADS[form] - self._overhead, _OVERHEADS[form]
        self._held += self._count * grown
        self._held_by_values += self._count * grown
        stamped, self._stamped = self._stamped, {}
        if self._form is _Form.ALIKE:
            for windows, ((micros, *rest), tables) in stamped.items():
                for table in tables.values():
                    for values in table.values():
                        values[:] = zip(values, repeat(micros), strict=False)
                stamped[windows] = (None, *rest), tables
        self._form = form
        if form is _Form.TIMED:
            self._stamped = stamped
            if self._stamp is not None:
                self._stamp = (None, *self._stamp[1:])
            return
        self._tables, self._stamp = defaultdict(self._table), None
        for (_, windows, panes), tables in stamped.values():
            for kind, table in tables.items():
                for key, timed in table.items():
                    self._tables[kind][key] += [create(value, micros, windows, panes) for value, micros in timed]

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        blocks = self._blocks_of_encodings if self._encoded else self._blocks_of_values
        if self._form is _Form.WHOLE:
            self._encode_payload = blocks.encode
            yield from super()._groups()
        for (micros, windows, panes), tables in self._stamped.values():
            if self._form is _Form.TIMED:
                self._encode_payload = blocks.encoder_of_timed(windows, panes)
            else:
                self._encode_payload = blocks.encoder_of_alike(micros, windows, panes)
            self._tables = tables
            yield from super()._groups()

    def _values_of(self, payload: list[Any]) -> list[Any]:
        match self._form:
            case _Form.ALIKE:
                return payload
            case _Form.TIMED:
                return [value for value, _ in payload]
            case _Form.WHOLE:
                return [windowed.value for windowed in payload]
