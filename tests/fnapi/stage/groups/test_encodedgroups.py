"""Groups for a worker have the bytes of their decoded values, however these were written."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, create
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.grouping.contents import EncodedPaneValues
from arcbeam.engine.grouping.effects import EmitPane
from arcbeam.engine.grouping.windowbuffer import AsCame, BufferedPane
from arcbeam.fnapi.stage.encodedgroups import EncodedGroups
from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.operations.encodedvalues import EncodedValues
from arcbeam.harness.streaming.elements import Codec, Packed, PaneValues
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import GLOBAL_WINDOW

GLOBAL = (GlobalWindow(),)
STAMP = (5_000, GLOBAL, PANE_INFO_UNKNOWN)
TEXTS, NUMBERS = coders.StrUtf8Coder(), coders.VarIntCoder()


class Stage:
    """What groups need of a stage.

    Args:
        value: coder of the values.
        read: coder of them in the worker; by default the same.
    """

    def __init__(self, value: Any, read: Any = None) -> None:
        written = coders.WindowedValueCoder(coders.TupleCoder([TEXTS, value]), coders.coders.GlobalWindowCoder())
        self.decode_key = TEXTS.get_impl().decode
        self.codec = Codec(value, Windows(coders.coders.GlobalWindowCoder()), waits=True)
        self.blocks = BlockCoder(coders.WindowedValueCoder(value, coders.coders.GlobalWindowCoder()))
        self.in_bulk = BlockCoder(coders.WindowedValueCoder(value, coders.coders.GlobalWindowCoder()), bulk=True)
        self.packed = Packed(self.blocks, self.codec)
        self.processor = SimpleNamespace(root=SimpleNamespace(written_coder=written))
        self.pair = coders.TupleCoder([TEXTS, coders.IterableCoder(read or value)])
        self.coder = coders.WindowedValueCoder(self.pair, coders.coders.GlobalWindowCoder())
        stage: Any = self
        self.groups = EncodedGroups.of(self.coder, stage)

    def pane(self, key: str, parts: Sequence[Any]) -> EmitPane:
        """Return a pane with parts: blocks as bytes, or `EncodedPaneValues`."""
        contents = BufferedPane(AsCame(b""), self.packed.encoded)
        contents.parts = list(parts)
        return self._pane(key, contents)

    def _pane(self, key: str, contents: Any) -> EmitPane:
        pane: Any = None
        return EmitPane(TEXTS.encode(key), GLOBAL_WINDOW, contents, Timestamp(5_000), pane)

    def same(self, panes: Sequence[EmitPane]) -> EncodedValues:
        """Return the block of panes, which has the bytes that Beam's coder writes."""
        assert self.groups is not None
        block, impl = self.groups.block(panes, STAMP), self.pair.get_impl()
        of = [(TEXTS.decode(pane.key), list(self.values(pane))) for pane in panes]
        each = list(map(impl.encode_nested, of))
        assert block.data == b"".join(each)
        assert [int(end) for end in block.ends] == [len(b"".join(each[: n + 1])) for n in range(len(each))]
        assert [(key, list(values)) for key, values in block.values] == of
        assert (block.micros, block.windows, block.panes) == STAMP
        return block

    def values(self, pane: EmitPane) -> Any:
        """Return a pane's values as embedded Python gets them."""
        return PaneValues.of(pane.contents, self.codec, self.packed)


def encoded(of: Any, values: list[Any], micros: Any = 0) -> bytes:
    times = micros if type(micros) is Each else [micros] * len(values)
    found: bytes = of.encode([create(value, time, GLOBAL) for value, time in zip(values, times, strict=True)])
    return found


PARTS = st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=200), min_size=1, max_size=4)


@pytest.mark.contract("API-03")
@given(st.lists(st.tuples(st.text(max_size=300), PARTS, st.booleans()), min_size=1, max_size=5))
def test_parts_are_joined_as_they_are_encoded(groups: list[Any]) -> None:
    stage = Stage(NUMBERS)
    stage.same([
        stage.pane(key, [encoded(stage.in_bulk if bulk else stage.blocks, part, n) for n, part in enumerate(parts)])
        for key, parts, bulk in groups
    ])  # fmt: skip


def test_elements_with_times_of_their_own_and_stored_ones() -> None:
    stage = Stage(TEXTS)
    timed = encoded(stage.blocks, ["a", "b" * 200], Each([1, 2]))
    stored = EncodedPaneValues((), [TEXTS.encode("c"), b""])
    pane = stage.pane("k", [timed, stored, encoded(stage.blocks, ["d"])])
    assert list(stage.values(pane)) == ["a", "b" * 200, "c", "", "d"]
    stage.same([pane, stage._pane("", stored), stage._pane("empty", EncodedPaneValues(())), stage.pane("none", [])])


def test_values_of_a_known_stamp_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(NUMBERS)
    assert stage.groups is not None
    stage.groups.block([stage.pane("first", [encoded(stage.blocks, [1])])], STAMP)
    panes = [stage.pane("k", [encoded(stage.blocks, [n, 7]), encoded(stage.blocks, [n])]) for n in range(9)]

    def refused(*_: Any) -> Any:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(Packed, "values", refused)
        patch.setattr(Packed, "_read", refused)
        block = stage.groups.block(panes, STAMP)
    assert block.values == [("k", [n, 7, n]) for n in range(9)]
    part = block.slice(3, 5)
    assert isinstance(part, EncodedValues)
    assert part.values == [("k", [3, 7, 3]), ("k", [4, 7, 4])]
    assert block.at(1).stamp == (1, GLOBAL, PANE_INFO_UNKNOWN)
    assert Block.of([block.element(3)]).values == [("k", [3, 7, 3])]


def test_worker_with_another_coder_gets_decoded_groups() -> None:
    assert Stage(NUMBERS, read=coders.BytesCoder()).groups is None
    whole, stage = coders.WindowedValueCoder(TEXTS, coders.coders.GlobalWindowCoder()), Stage(NUMBERS)
    of: Any = stage
    assert EncodedGroups.of(whole, of) is None
