"""Rows' keys are ordered like the tuples that they encode."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from arcbeam.engine.rows import keyspace
from arcbeam.engine.rows.keyspace import RowKind, Section
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

_TIMES = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP).map(Timestamp)
_BYTES = st.lists(st.sampled_from([b"\0", b"\1", b"\2", b"\xff", b"a", b"b"]), max_size=6).map(b"".join)
_LONG = st.binary(min_size=100, max_size=400)


def _encoded(row: tuple[int, bytes, Timestamp, bytes]) -> bytes:
    stage, key, time, window = row
    return (
        keyspace.prefix(RowKind.KEYED, stage)
        + keyspace.part(key)
        + keyspace.moment(time)
        + keyspace.part(window, keyspace.NAME_LIMIT)
    )


_ROWS = st.tuples(st.integers(0, 65535), _BYTES, _TIMES, _BYTES)


@settings(max_examples=200, deadline=None)
@given(_ROWS, _ROWS)
@example((0, b"", MIN_TIMESTAMP, b""), (0, b"\0", MAX_TIMESTAMP, b""))
@example((0, b"a", Timestamp(-1), b""), (0, b"a", Timestamp(0), b"\0"))
def test_keys_are_ordered_as_tuples(one: tuple, other: tuple) -> None:
    assert (_encoded(one) < _encoded(other)) == (one < other)
    assert (_encoded(one) == _encoded(other)) == (one == other)


@settings(max_examples=100, deadline=None)
@given(st.lists(_BYTES | _LONG, max_size=4))
def test_parts_are_split_again(raws: list[bytes]) -> None:
    pieces = keyspace.parts(b"".join(map(keyspace.part, raws)))
    assert len(pieces) == len(raws)
    for piece, raw in zip(pieces, raws, strict=True):
        is_short = len(raw) + raw.count(b"\0") <= keyspace.KEY_LIMIT
        assert keyspace.whole(piece) == (raw if is_short else None)
        assert keyspace.shown(piece).endswith("…") != is_short


@settings(max_examples=100, deadline=None)
@given(_LONG, _LONG)
def test_long_parts_are_distinct(one: bytes, other: bytes) -> None:
    assert (keyspace.part(one) == keyspace.part(other)) == (one == other)
    short = one[:40]
    assert (keyspace.part(short) < keyspace.part(other)) == (short < other)


@settings(max_examples=100, deadline=None)
@given(_BYTES, _BYTES)
def test_no_part_is_a_prefix_of_another(one: bytes, other: bytes) -> None:
    assert keyspace.part(one).startswith(keyspace.part(other)) == (one == other)


@given(_TIMES)
def test_moments_are_decoded(time: Timestamp) -> None:
    assert keyspace.time_of(keyspace.moment(time)) == time


@pytest.mark.parametrize("stage", [70_000, 65_536, -1])
def test_number_of_stage_has_two_bytes(stage: int) -> None:
    assert keyspace.prefix(RowKind.KEYED, 65_535) == b"\x10\xff\xff"
    with pytest.raises(ValueError, match=f"0 to 65,535: {stage:,}"):
        keyspace.prefix(RowKind.KEYED, stage)


def test_lmdb_accepts_longest_key() -> None:
    long = b"\0" * 5000
    name = keyspace.name("n" * 5000)
    key, window = keyspace.part(long), keyspace.part(long, keyspace.NAME_LIMIT)
    slot = key + window + bytes((Section.TIMER,)) + name + key
    timer = keyspace.prefix(RowKind.EVENT, 1) + keyspace.moment(MAX_TIMESTAMP) + b"\0" + slot
    hold = keyspace.prefix(RowKind.HOLDS, 1) + name + keyspace.moment(MAX_TIMESTAMP) + bytes((RowKind.KEYED,)) + slot
    assert max(len(timer), len(hold)) <= keyspace.KEY_BYTES_MAX


@given(st.binary(max_size=4), st.binary(max_size=6))
@example(b"\xff\xff", b"\xff\xff\xff")
@example(b"a\xff", b"b")
def test_after_ends_a_prefix(start: bytes, key: bytes) -> None:
    end = keyspace.after(start)
    assert (start <= key and (end is None or key < end)) == key.startswith(start)


def test_parts_are_shown_as_text_if_possible() -> None:
    shown = [
        keyspace.shown(piece) for piece in keyspace.parts(b"".join(map(keyspace.part, [b"user7", b"\xff\0", b""])))
    ]
    assert shown == ["user7", "b'\\xff\\x00'", ""]


def test_keys_are_shown_as_text_or_short() -> None:
    keys = [
        b"user7",
        b"\x04EWR",
        "\x04Zürich".encode(),
        b"\xff\0",
        b"\x01A",
        b"",
        b"\xfe" * 17,
        b"\xfe" * 600,
        b"k" * 600,
    ]
    shown = [keyspace.key_shown(piece) for piece in keyspace.parts(b"".join(map(keyspace.part, keys)))]
    assert shown[:6] == ["user7", "EWR", "Zürich", "0xff00", "0x0141", ""]
    assert shown[6:8] == ["0x" + "fe" * 16 + "…"] * 2
    assert shown[8].startswith("kkk")
    assert shown[8].endswith("k…")
