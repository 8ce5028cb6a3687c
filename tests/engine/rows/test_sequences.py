"""Values are read in the order in which they were appended, and full rows are not rewritten."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.rows import sequences
from arcbeam.testing.views import MemoryView

_VALUES = st.sampled_from([b"", b"a", b"b" * 127, b"c" * 128, b"d" * 700, b"e" * 5000])


@given(st.lists(_VALUES))
def test_framed_values_are_decoded(values: list[bytes]) -> None:
    assert list(sequences.unframed(b"".join(map(sequences.framed, values)))) == values
    assert list(sequences.unframed(b"xyz" + b"".join(map(sequences.framed, values)), 3)) == values


@settings(max_examples=60, deadline=None)
@given(st.lists(_VALUES, max_size=12), st.lists(_VALUES, min_size=1, max_size=6))
def test_replace_leaves_no_other_rows(before: list[bytes], after: list[bytes]) -> None:
    view, anew = MemoryView(), MemoryView()
    sequences.append(view, b"t", b"a neighbour")
    sequences.append(anew, b"t", b"a neighbour")
    for value in before:
        sequences.append(view, b"s", value)
    sequences.replace(view, b"s", after)
    sequences.extend(anew, b"s", after)
    assert view.snapshot() == anew.snapshot()


@settings(max_examples=60, deadline=None)
@given(st.lists(_VALUES, min_size=1, max_size=12))
def test_written_sequence_is_that_of_appended_values(values: list[bytes]) -> None:
    view = MemoryView()
    writer = sequences.SequenceWriter(view.put, b"s")
    for value in values:
        writer.add(value)
    writer.end()
    assert list(sequences.read(view, b"s")) == values
    sequences.append(view, b"s", b"more")
    assert list(sequences.read(view, b"s")) == [*values, b"more"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(_VALUES, max_size=6) | _VALUES, max_size=12))
def test_values_keep_order_and_sealed_rows_stay(appended: list) -> None:
    view, expected = MemoryView(), []
    sequences.append(view, b"t", b"a neighbour")
    for values in appended:
        before = view.snapshot()
        if isinstance(values, list):
            sequences.extend(view, b"s", iter(values))
            expected += values
        else:
            sequences.append(view, b"s", values)
            expected.append(values)
        now = view.snapshot()
        assert all(now[row] == value for row, value in before.items() if not row.endswith(sequences.TAIL))
        assert list(sequences.read(view, b"s")) == expected
    rows = list(view.scan(b"s", b"t"))
    assert [each for row, value in rows for each in sequences.of_row(row[1:], value)] == expected
    sequences.clear(view, b"s")
    assert len(view) == 1
