"""Blobs of the exchange: groups are read complete, in order, repeatedly, with any memory."""

from __future__ import annotations

import gc
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.transforms.window import IntervalWindow, Sessions
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.harness.batch.inputs import merge_windows
from arcbeam.harness.encoding.frames import (
    TALLY,
    TALLY_KEY,
    Chunks,
    GroupValues,
    Spool,
    Tally,
    key_groups,
    record,
    records,
)
from arcbeam.model.rows import Row

pytestmark = pytest.mark.contract("BAT-01")

Group = tuple[bytes, bytes, bytes]


def rows_of(buckets: dict[int, list[list[Group]]]) -> Iterator[Row]:
    """Return one row per blob, by bucket."""
    for bucket in sorted(buckets):
        for blob in buckets[bucket]:
            yield Row(1, 0, bucket, b"".join(record(*group) for group in blob))


def joined(rows: Iterable[Row], memory: int) -> dict[tuple[bytes, bytes], list[bytes]]:
    """Return all payloads by key and window; each key must occur only once."""
    found: dict[tuple[bytes, bytes], list[bytes]] = {}
    for key, windows in key_groups(rows, memory):
        for window, chunks in windows.items():
            assert (key, window) not in found
            found[key, window] = list(chunks)
            assert list(chunks) == found[key, window]
            assert chunks.size == sum(map(len, found[key, window]))
    return found


class TestRecords:
    @given(st.lists(st.tuples(st.binary(), st.binary(), st.binary())))
    def test_records_are_read_back(self, groups: list[Group]) -> None:
        blob = b"".join(record(*group) for group in groups)
        assert [(key, window, blob[start:end]) for key, window, start, end in records(blob)] == groups


_groups = st.tuples(
    st.binary(max_size=2),
    st.sampled_from([b"", b"w", b"ww"]),
    st.one_of(st.binary(max_size=6), st.integers(0, 3000).map(lambda n: bytes([n % 256]) * n)),
)


class TestKeyGroups:
    @given(st.lists(st.lists(_groups, max_size=12), max_size=12), st.sampled_from([0, 1, 1500, 1 << 20]))
    def test_payloads_of_key_stay_in_order(self, blobs: list[list[Group]], memory: int) -> None:
        buckets: dict[int, list[list[Group]]] = defaultdict(list)
        expected: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
        for blob in blobs:
            for key, window, payload in blob:
                buckets[len(key)].append([(key, window, payload)])
                expected[key, window].append(payload)
        assert joined(rows_of(buckets), memory) == expected

    def test_no_rows_give_no_groups(self) -> None:
        assert list(key_groups(iter(()), 10)) == []
        assert list(key_groups(iter([Row(1, 0, 0, b"")]), 10)) == []

    def test_empty_keys_windows_and_payloads_are_kept(self) -> None:
        assert joined(rows_of({0: [[(b"", b"", b""), (b"", b"", b"")]]}), 0) == {(b"", b""): [b"", b""]}

    def test_only_one_bucket_is_held(self) -> None:
        """The groups of a bucket are available before the next bucket is read."""
        read: list[int] = []

        def rows() -> Iterator[Row]:
            for bucket in range(5):
                read.append(bucket)
                yield Row(1, 0, bucket, record(b"k%d" % bucket, b"", b"v"))

        groups = key_groups(rows(), 100)
        assert next(groups)[0] == b"k0"
        assert read == [0, 1]

    def test_groups_of_earlier_bucket_stay_readable(self) -> None:
        payload = bytes(5000)
        groups = list(key_groups(rows_of({b: [[(b"k%d" % b, b"", payload)]] * 3 for b in range(4)}), 4000))
        gc.collect()
        assert [list(windows[b""]) for _, windows in groups] == [[payload] * 3] * 4

    def test_two_concurrent_iterations(self) -> None:
        payloads = [bytes([i]) * 70_000 for i in range(40)]
        ((_, windows),) = key_groups(rows_of({0: [[(b"k", b"", p)] for p in payloads]}), 100_000)
        first, second = iter(windows[b""]), iter(windows[b""])
        for expected in payloads:
            assert next(first) == expected
        for expected in payloads:
            assert next(second) == expected
        assert next(first, None) is next(second, None) is None

    def test_spilled_payloads_free_memory(self) -> None:
        def held(objects: Iterable[Any]) -> int:
            return sum(len(part) for chunks in objects for part in chunks._memory)

        payload = bytes(1000)
        blobs = [[(b"k%d" % (i % 7), b"", payload)] for i in range(2000)]
        groups = list(key_groups(rows_of({0: blobs}), 50_000))
        chunks = [windows[b""] for _, windows in groups]
        assert sum(c.size for c in chunks) == 2_000_000
        assert held(chunks) <= 60_000

    def test_small_groups_stay_in_memory(self) -> None:
        """Recording the place of a few bytes costs more than keeping them."""
        spool, chunks = Spool(), Chunks()
        chunks.append(b"abc")
        chunks.spill(spool)
        assert spool.size == 0
        assert list(chunks) == [b"abc"]

    def test_small_payloads_share_a_segment(self) -> None:
        spool, chunks = Spool(), Chunks()
        for i in range(10_000):
            chunks.append(b"%d" % i)
        chunks.spill(spool)
        assert chunks._spilled is not None
        assert len(chunks._spilled) == 1
        assert [int(p) for p in chunks] == list(range(10_000))


class TestChunks:
    def test_repeated_spilling_keeps_order(self) -> None:
        spool, chunks = Spool(), Chunks()
        for i in range(300):
            chunks.append(bytes([i % 256]) * 900)
            if i % 7 == 0:
                chunks.spill(spool)
        assert [p[0] for p in chunks] == [i % 256 for i in range(300)]

    def test_extend_keeps_payloads_of_both(self) -> None:
        for spill_a in (False, True):
            for spill_b in (False, True):
                a, b = Chunks(), Chunks()
                a.append(b"a" * 1000)
                b.append(b"b" * 1000)
                if spill_a:
                    a.spill(Spool())
                if spill_b:
                    b.spill(Spool())
                a.extend(b)
                assert sorted(a) == [b"a" * 1000, b"b" * 1000]
                assert a.size == 2000

    def test_payload_of_64_mib(self) -> None:
        payload = os.urandom(1 << 20) * 64
        chunks, spool = Chunks(), Spool()
        chunks.append(b"before")
        chunks.append(payload)
        chunks.append(b"after")
        chunks.spill(spool)
        before, found, after = chunks
        assert (before, after) == (b"before", b"after")
        assert found == payload


class TestSpool:
    def test_spool_leaves_no_file_or_descriptor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = len(os.listdir("/proc/self/fd"))
        spool = Spool()
        offset = spool.append(b"hello")
        assert spool.read(offset, 5) == b"hello"
        assert list(tmp_path.iterdir()) == []
        del spool
        assert len(os.listdir("/proc/self/fd")) == before

    def test_reading_past_end_fails(self) -> None:
        spool = Spool()
        spool.append(b"hello")
        with pytest.raises(OSError, match="truncated"):
            spool.read(0, 6)


class TestValues:
    def _values(self, lists: list[list[int]]) -> GroupValues:
        impl = coders.ListCoder(coders.VarIntCoder()).get_impl()
        chunks = Chunks()
        for values in lists:
            chunks.append(impl.encode(values))
        return GroupValues(chunks, impl.decode)

    @given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))))
    def test_values_can_be_iterated_repeatedly(self, lists: list[list[int]]) -> None:
        values = self._values(lists)
        flat = [value for part in lists for value in part]
        assert list(values) == flat
        assert list(values) == flat
        assert pickle.loads(pickle.dumps(values)) == flat

    def test_values_encode_like_list(self) -> None:
        coder = coders.IterableCoder(coders.VarIntCoder()).get_impl()
        assert list(coder.decode(coder.encode(self._values([[1, 2], [3]])))) == [1, 2, 3]
        anything = coders.FastPrimitivesCoder().get_impl()
        assert list(anything.decode(anything.encode(self._values([[1, 2], [3]])))) == [1, 2, 3]


class TestMergedWindows:
    def test_values_are_joined(self) -> None:
        windows = {IntervalWindow(t, t + 10): Chunks() for t in (0, 5, 30)}
        for window, chunks in windows.items():
            chunks.append(str(window.start).encode())
        merged = merge_windows(Sessions(10), windows)
        found = {window: sorted(chunks) for window, chunks in merged.items()}
        assert found == {
            IntervalWindow(0, 15): sorted(str(Timestamp(t)).encode() for t in (0, 5)),
            IntervalWindow(30, 40): [str(Timestamp(30)).encode()],
        }


_TALLIES = st.lists(
    st.tuples(st.integers(-(10**12), 10**12), st.dictionaries(st.binary(max_size=40), st.integers(-5, 10**12)))
)


@given(_TALLIES)
def test_records_add_up(parts: list[tuple[int, dict[bytes, int]]]) -> None:
    together, payloads = Tally(), []
    for elements, windows in parts:
        one = Tally()
        for tally in (one, together):
            tally.add(elements, windows)
        encoded = one.encoded()
        ((key, window, start, end),) = records(encoded)
        assert (key, window) == (TALLY_KEY, TALLY)
        payloads.append(encoded[start:end])
    found = Tally.of(payloads)
    assert (found.elements, found.windows) == (together.elements, together.windows)


def test_tally_without_more_than_accumulators_is_empty() -> None:
    tally = Tally()
    tally.add(0, {b"w": 0})
    assert not tally
    tally.add(0, {b"w": 1})
    assert tally
