"""The format of blocks that wait in a window: `format_1_blocks.json`. Every version must be able to read it.

A change of the format adds another file, and both are read.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from apache_beam import coders
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.windowcoder import IntervalWindowCoder

_GOLDEN = Path(__file__).parent / "format_1_blocks.json"
_WINDOWS = (IntervalWindow(0, 60), IntervalWindow(30, 90))
_PANE = PaneInfo(False, True, PaneInfoTiming.LATE, 3, 2)


class Trip(NamedTuple):
    """A class of an importable module: such named tuples are written as columns."""

    a: int
    b: str


KINDS: dict[str, tuple[Any, list[Any]]] = {
    "few": (coders.VarIntCoder(), [1, 2, 3]),
    "texts": (coders.StrUtf8Coder(), ["a", "ü"] * 10),
    "tuples": (coders.TupleCoder([coders.VarIntCoder(), coders.StrUtf8Coder()]), [(n, str(n)) for n in range(20)]),
    "anything": (coders.FastPrimitivesCoder(), [1, "a", None, (1, [2])] * 5),
    "named tuples": (coders.FastPrimitivesCoder(), [Trip(n, str(n)) for n in range(20)]),
    "numbers": (coders.FastPrimitivesCoder(), [np.int32(n) for n in range(20)]),
    "arrays": (coders.FastPrimitivesCoder(), [np.arange(3, dtype=np.float64) + n for n in range(20)]),
    "tuples with numbers": (coders.FastPrimitivesCoder(), [(n, np.float32(n)) for n in range(20)]),
}


def encoded(kind: str, form: str) -> bytes:
    coder, values = KINDS[kind]
    blocks = BlockCoder(coders.WindowedValueCoder(coder, IntervalWindowCoder()), bulk=True)
    if form == "alike":
        return blocks.encoder_of_alike(-5, _WINDOWS, _PANE)(values)
    return blocks.encoder_of_timed(_WINDOWS, _PANE)([(value, n) for n, value in enumerate(values)])


FORMS = [(kind, form) for kind in KINDS for form in ("alike", "timed")]


def write() -> None:
    """Write the file of a new format."""
    blocks = {f"{kind}, {form}": encoded(kind, form).hex() for kind, form in FORMS}
    _GOLDEN.write_text(json.dumps(blocks, indent=0) + "\n", encoding="ascii")


def golden() -> dict[str, str]:
    found: dict[str, str] = json.loads(_GOLDEN.read_text(encoding="ascii"))
    return found


@pytest.mark.contract("STORE-05")
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_format_1_is_read(kind: str, form: str) -> None:
    coder, values = KINDS[kind]
    blocks = BlockCoder(coders.WindowedValueCoder(coder, IntervalWindowCoder()))
    (block,) = blocks.read(bytes.fromhex(golden()[f"{kind}, {form}"]))
    assert list(map(repr, block.values)) == list(map(repr, values))
    assert [type(value) for value in block.values] == [type(value) for value in values]
    times = [element.timestamp_micros for element in block.elements()]
    assert times == ([-5] * len(values) if form == "alike" else list(range(len(values))))
    assert {(element.windows, element.pane_info) for element in block.elements()} == {(_WINDOWS, _PANE)}


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_format_1_is_written(kind: str, form: str) -> None:
    assert encoded(kind, form).hex() == golden()[f"{kind}, {form}"]


@pytest.mark.contract("STORE-05")
def test_named_tuple_with_added_field_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = collections.namedtuple("Trip", "a b c", defaults=["new"], module=__name__)
    kept = encoded("named tuples", "alike")
    one = coders.FastPrimitivesCoder().encode(Trip(1, "1"))
    monkeypatch.setattr(sys.modules[__name__], "Trip", later)
    blocks = BlockCoder(coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder()))
    (block,) = blocks.read(kept)
    assert block.values[1] == coders.FastPrimitivesCoder().decode(one) == later(1, "1", "new")
    assert {type(value) for value in block.values} == {later}
