"""Write operations: where each element goes, and when what they hold is handed over."""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker.statesampler import StateSampler
from apache_beam.transforms.window import FixedWindows, GlobalWindow, IntervalWindow, SlidingWindows, TimestampedValue
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.encoding.frames import BLOB_BYTES, COUNT, key_groups, records
from arcbeam.harness.operations import groupwrite, writes
from arcbeam.harness.operations.taskcontext import Settings, TaskContext
from arcbeam.harness.transforms import precombine
from arcbeam.model.files import SideFile
from arcbeam.model.hashing import buckets_per_shard, key_hash
from arcbeam.model.plan import Routing
from arcbeam.model.rows import Row
from arcbeam.model.urns import WriteSpec
from tests.harness.drive import Collect, Driven

MIB = 1 << 20


class Rig:
    """Write operations on their own: what the SDK's factory would give them, and a list for their rows."""

    def __init__(self, shards: int = 3, memory: int = 128 * MIB, partition: int = 0) -> None:
        self.rows: list[Row] = []
        self.most = 0
        counters = CounterFactory()
        self.counter_factory, self.state_sampler = counters, StateSampler("test", counters)
        self.context = self.data_channel_factory = TaskContext(
            Settings(shards=shards, group_memory_bytes=memory), partition=partition
        )
        self.context.outbox = self
        self.context.side_writer = MemorySide

    def put(self, row: Row) -> None:
        self.rows.append(row)

    def op(self, routing: Routing, element: Any, window: Any = None, explode: bool = False) -> Any:
        coder = coders.WindowedValueCoder(element, window or GlobalWindowCoder())
        kind = writes._WRITES[routing]
        if kind is groupwrite.GroupWrite and window is not None:
            kind = groupwrite.WindowedGroupWrite
        op = kind(NameContext("step", "step"), self, WriteSpec(7, routing, explode), coder)
        op.producer = "the step"
        return op

    def written(self, op: Any, elements: Iterable[Any]) -> list[Row]:
        """Runs one task; returns its rows."""
        self.rows.clear()
        op.begin_task()
        for element in elements:
            op.process(element)
        op.finish()
        op.drain()
        return list(self.rows)


class MemorySide:
    """Takes the place of a side-input file."""

    appended: list[tuple[bytes, bytes]]

    def __init__(self, channel: int) -> None:
        MemorySide.appended = []

    def append(self, window: bytes, chunk: bytes) -> None:
        MemorySide.appended.append((window, chunk))

    def close(self) -> SideFile:
        return SideFile(7, -1, "", sum(len(chunk) for _, chunk in MemorySide.appended))


def globally(values: Iterable[Any], at: int = 0) -> Iterator[Any]:
    with_value = WindowedValue(None, Timestamp(at), (GlobalWindow(),)).with_value
    return map(with_value, values)


def pairs(key: Any = None, value: Any = None) -> Any:
    anything = coders.FastPrimitivesCoder()
    return coders.TupleCoder([key or anything, value or anything])


def grouped(rows: Iterable[Row], coder: Any) -> dict[bytes, list[Any]]:
    """Values by encoded key, as the read side joins them; a key may be at one place only."""
    windowed = isinstance(coder, coders.WindowedValueCoder)
    decode = BlockCoder(coder).decode if windowed else coders.ListCoder(coder).get_impl().decode
    found: dict[bytes, list[Any]] = {}
    by_shard: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_shard[row.shard].append(row)
    for shard in by_shard.values():
        for key, windows in key_groups(iter(sorted(shard, key=lambda row: row.bucket)), MIB):
            assert key not in found
            found[key] = [value for chunks in windows.values() for payload in chunks for value in decode(payload)]
    return found


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


class SubInt(int):
    pass


class SubStr(str):
    __slots__ = ()


KEYS = [0, 1, -1, 2**40, "", "a", "ä", "1", b"", b"a", b"\0\xff", None, True, False, 1.0, 0.0, 2.5, float("inf")]
KEYS += [(), (1, "a"), (1.0, "a"), (True, "a"), ("a", (None, b"x")), Color.RED, Point(1, 2), frozenset([3])]


@pytest.mark.contract("BAT-01")
class TestGrouping:
    @pytest.mark.parametrize("routing", [Routing.GROUPED, Routing.KEYED, Routing.SIDE_KEYED])
    @pytest.mark.parametrize("shards", [1, 7, 1000])
    def test_every_key_is_at_its_hash(self, routing: Routing, shards: int) -> None:
        rig = Rig(shards)
        key_impl = coders.FastPrimitivesCoder().get_impl()
        encode = key_impl.encode_nested if routing is Routing.SIDE_KEYED else key_impl.encode
        rows = rig.written(rig.op(routing, pairs()), globally((key, i) for i, key in enumerate(KEYS * 2)))
        seen = set()
        for row in rows:
            assert row.channel == 7
            for key, window, _, _ in records(row.blob):
                assert window == b""
                assert row.shard == key_hash(key) % shards
                assert row.bucket == key_hash(key) // shards % buckets_per_shard(shards)
                seen.add(key)
        assert seen == {encode(key) for key in KEYS}

    def test_keys_are_equal_if_their_encodings_are(self) -> None:
        """1, 1.0 and True are equal in Python, but three keys; so are "a" and b"a"."""
        rig = Rig()
        keys = [1, 1.0, True, "a", b"a", (1,), (1.0,), (True,), 0, 0.0, False, None]
        values = list(itertools.chain(*([(key, (i, n)) for i, key in enumerate(keys)] for n in range(3))))
        found = grouped(rig.written(rig.op(Routing.GROUPED, pairs()), globally(values)), coders.FastPrimitivesCoder())
        impl = coders.FastPrimitivesCoder().get_impl()
        assert found == {impl.encode(key): [(i, n) for n in range(3)] for i, key in enumerate(keys)}

    @pytest.mark.parametrize(
        ("coder", "fast", "other"),
        [
            (coders.VarIntCoder(), 5, SubInt(5)),
            (coders.VarIntCoder(), 1, True),
            (coders.StrUtf8Coder(), "a", SubStr("a")),
        ],
    )
    def test_keys_kept_as_objects_and_as_encodings_meet(self, coder: Any, fast: Any, other: Any) -> None:
        rig = Rig()
        values = [(fast, 1), (other, 2), (fast, 3), (other, 4)]
        rows = rig.written(rig.op(Routing.GROUPED, pairs(coder)), globally(values))
        ((key, found),) = grouped(rows, coders.FastPrimitivesCoder()).items()
        assert key == coder.get_impl().encode(fast)
        assert sorted(found) == [1, 2, 3, 4]

    @settings(max_examples=50)
    @given(
        st.lists(st.tuples(st.one_of(st.integers(0, 5), st.text(max_size=1), st.none(), st.booleans()), st.integers())),
        st.sampled_from([1, 4]),
        st.sampled_from([1, 500, MIB]),
    )
    def test_values_of_a_key_come_back_in_order(self, values: list[Any], shards: int, memory: int) -> None:
        rig, impl = Rig(shards, memory), coders.FastPrimitivesCoder().get_impl()
        expected = defaultdict(list)
        for key, value in values:
            expected[impl.encode(key)].append(value)
        op = rig.op(Routing.GROUPED, pairs())
        assert grouped(rig.written(op, globally(values)), coders.FastPrimitivesCoder()) == expected
        assert rig.context.elements_out == {7: len(values)}

    def test_windows_are_kept_apart(self) -> None:
        rig = Rig()
        windows = [IntervalWindow(i, i + 10) for i in range(3)]
        op = rig.op(Routing.GROUPED, pairs(), IntervalWindowCoder())
        rows = rig.written(op, [WindowedValue((k, i), Timestamp(i), windows[: i + 1]) for i in range(3) for k in "ab"])
        found = set()
        decode = coders.ListCoder(coders.FastPrimitivesCoder()).get_impl().decode
        for row in rows:
            for key, window, start, end in records(row.blob):
                interval = IntervalWindowCoder().get_impl().decode(window)
                found.add((key, int(interval.start), tuple(decode(row.blob[start:end]))))
        a, b = (coders.FastPrimitivesCoder().get_impl().encode(key) for key in "ab")
        assert found == {(key, i, tuple(range(i, 3))) for key in (a, b) for i in range(3)}

    def test_keyed_keeps_timestamps_and_windows(self) -> None:
        rig = Rig()
        op = rig.op(Routing.KEYED, pairs(), IntervalWindowCoder())
        window = IntervalWindow(0, 10)
        rows = rig.written(op, [WindowedValue(("k", i), Timestamp(i), (window,)) for i in range(5)])
        coder = coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder())
        (values,) = grouped(rows, coder).values()
        assert [(o.value, o.timestamp, o.windows) for o in values] == [(i, Timestamp(i), (window,)) for i in range(5)]

    @pytest.mark.parametrize("memory", [1000, MIB])
    @pytest.mark.parametrize("differs", ["nothing", "time", "windows", "pane"])
    def test_keyed_says_once_what_all_share_until_one_differs(self, differs: str, memory: int) -> None:
        rig = Rig(memory=memory)
        coder = coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder())
        early = PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)
        elements = []
        for n in range(300):
            other = 200 <= n < 250
            time = Timestamp(3 if differs == "time" and other else 2)
            windows = (IntervalWindow(0, 5 if differs == "windows" and other else 10),)
            pane = early if differs == "pane" and other else PANE_INFO_UNKNOWN
            elements.append(WindowedValue((f"k{n % 3}", n), time, windows, pane))
        rows = rig.written(rig.op(Routing.KEYED, pairs(), IntervalWindowCoder()), elements)
        encode = coders.FastPrimitivesCoder().get_impl().encode
        assert grouped(rows, coder) == {
            encode(key): [e.with_value(e.value[1]) for e in elements if e.value[0] == key] for key in ("k0", "k1", "k2")
        }

    def test_a_hot_key_is_cut_into_blobs(self) -> None:
        rig = Rig()
        rows = rig.written(rig.op(Routing.GROUPED, pairs()), globally(("hot", bytes(1000)) for _ in range(4000)))
        assert max(len(row.blob) for row in rows) < 2 * BLOB_BYTES
        assert len({(row.shard, row.bucket) for row in rows}) == 1
        (values,) = grouped(rows, coders.FastPrimitivesCoder()).values()
        assert len(values) == 4000

    def test_an_element_of_64_mib(self) -> None:
        rig = Rig()
        value = bytes(64 * MIB)
        for routing in (Routing.GROUPED, Routing.KEYED):
            rows = rig.written(rig.op(routing, pairs()), globally([("k", b"1"), ("k", value), ("k", b"2")]))
            assert sum(len(row.blob) for row in rows) < 65 * MIB

    def test_nothing_is_no_row(self) -> None:
        rig = Rig()
        for routing in (Routing.GROUPED, Routing.KEYED, Routing.FORWARD, Routing.SPREAD):
            assert rig.written(rig.op(routing, pairs()), ()) == []

    def test_a_value_that_does_not_encode_is_named(self) -> None:
        rig = Rig()
        op = rig.op(Routing.GROUPED, pairs(None, coders.VarIntCoder()))
        for values in (["wrong"], [1, "wrong", 2], [*range(1000), "wrong"]):
            with pytest.raises(CoderError, match="'wrong'"):
                rig.written(op, globally(("k", value) for value in values))


class TestBudget:
    """What is held never grows far past the budget, whatever makes it grow."""

    def _held_at_most(self, memory: int, elements: Iterable[Any], routing: Routing = Routing.GROUPED) -> int:
        """Elements between two hand-overs, at most."""
        rig = Rig(memory=memory)
        op = rig.op(routing, pairs())
        op.begin_task()
        most, since, rows = 0, 0, 0
        for element in elements:
            op.process(element)
            since += 1
            if len(rig.rows) > rows:
                most, since, rows = max(most, since), 0, len(rig.rows)
                rig.rows.clear()
                rows = 0
        return max(most, since)

    @pytest.mark.parametrize("routing", [Routing.GROUPED, Routing.KEYED])
    def test_large_values(self, routing: Routing) -> None:
        value = bytes(100_000)
        held = self._held_at_most(4 * MIB, globally((i % 5, value) for i in range(500)), routing)
        assert 30 <= held <= 50

    def test_large_keys(self) -> None:
        held = self._held_at_most(4 * MIB, globally((b"%10000d" % i, 1) for i in range(3000)))
        assert 300 <= held <= 700

    def test_many_small_keys(self) -> None:
        held = self._held_at_most(4 * MIB, globally((i, 1) for i in range(100_000)))
        assert held <= 20_000

    def test_sizes_in_a_pattern(self) -> None:
        """Small and large values in turns: a sample always at the same place of the pattern would never see one."""
        for period in (2, 3, 4, 8, 16):
            large, small = bytes(100_000), b"s"
            elements = globally((i % 7, small if i % period else large) for i in range(12_000))
            assert self._held_at_most(16 * MIB, elements) * 100_000 / period <= 3 * 16 * MIB

    def test_many_windows(self) -> None:
        rig = Rig(memory=4 * MIB)
        op = rig.op(Routing.GROUPED, pairs(), IntervalWindowCoder())
        op.begin_task()
        for i in range(40_000):
            op.process(WindowedValue(("k", 1), Timestamp(i), (IntervalWindow(i, i + 1),)))
        assert rig.rows

    def test_is_shared_by_the_writes_of_a_stage(self) -> None:
        rig = Rig(memory=4 * MIB)
        ops = [rig.op(Routing.GROUPED, pairs()) for _ in range(4)]
        for op in ops:
            op.begin_task()
        assert sum(op._budget for op in ops) == 4 * MIB


@pytest.mark.contract("PLAN-04")
class TestElements:
    def _values(self, rows: Iterable[Row], coder: Any, window: Any = None) -> list[Any]:
        decode = BlockCoder(coders.WindowedValueCoder(coder, window or GlobalWindowCoder())).decode
        return [o for row in rows for o in decode(row.blob)]

    def test_spread_is_even(self) -> None:
        rig = Rig(shards=7)
        rows = rig.written(rig.op(Routing.SPREAD, coders.VarIntCoder()), globally(range(10_000)))
        counts = defaultdict(int)
        for row in rows:
            counts[row.shard] += len(self._values([row], coders.VarIntCoder()))
        assert max(counts.values()) - min(counts.values()) <= 1
        assert len(counts) == 7
        assert sorted(o.value for o in self._values(rows, coders.VarIntCoder())) == list(range(10_000))

    def test_few_elements_of_many_tasks_spread(self) -> None:
        shards = set()
        for partition in range(10):
            rig = Rig(shards=10, partition=partition)
            (row,) = rig.written(rig.op(Routing.SPREAD, coders.VarIntCoder()), globally([1]))
            shards.add(row.shard)
        assert shards == set(range(10))

    def test_forward_keeps_the_order(self) -> None:
        rig = Rig()
        rows = rig.written(rig.op(Routing.FORWARD, coders.VarIntCoder()), globally(range(300_000)))
        assert len(rows) > 1
        assert [o.value for o in self._values(rows, coders.VarIntCoder())] == list(range(300_000))
        assert rig.context.elements_out == {7: 300_000}

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 400_000)), max_size=8))
    @settings(max_examples=30)
    def test_timestamps_and_windows_are_kept(self, runs: list[tuple[int, int, int]]) -> None:
        rig = Rig()
        elements = []
        for start, count, size in runs:
            window = (IntervalWindow(start, start + 1),)
            elements += [WindowedValue(bytes(size), Timestamp(start), window)] * count
        coder = coders.BytesCoder()
        rows = rig.written(rig.op(Routing.FORWARD, coder, IntervalWindowCoder()), elements)
        assert self._values(rows, coder, IntervalWindowCoder()) == elements

    def test_explode_gives_one_element_per_window(self) -> None:
        rig = Rig()
        windows = FixedWindows(1), [IntervalWindow(i, i + 1) for i in range(3)]
        elements = [WindowedValue(v, Timestamp(0), windows[1][:n]) for v, n in ((1, 1), (2, 3), (3, 2), (4, 1))]
        op = rig.op(Routing.SPREAD, coders.VarIntCoder(), IntervalWindowCoder(), explode=True)
        found = self._values(rig.written(op, elements), coders.VarIntCoder(), IntervalWindowCoder())
        assert sorted((o.value, o.windows[0].start) for o in found) == [
            (1, 0),
            (2, 0),
            (2, 1),
            (2, 2),
            (3, 0),
            (3, 1),
            (4, 0),
        ]
        assert all(len(o.windows) == 1 for o in found)

    def test_large_elements_after_small_ones_do_not_wait(self) -> None:
        rig = Rig()
        op = rig.op(Routing.FORWARD, coders.BytesCoder())
        op.begin_task()
        for element in globally([b"s"] * 5000):
            op.process(element)
        most = 0
        for element in globally([bytes(MIB)] * 1000):
            op.process(element)
            held = [e.value for e in op._waiting] + [value for block in op._blocks for value in block.values]
            most = max(most, sum(map(len, held)))
        assert most <= 251 * MIB

    def test_an_element_of_64_mib(self) -> None:
        rig = Rig()
        for routing in (Routing.FORWARD, Routing.SPREAD):
            elements = [b"1", bytes(64 * MIB), b"2"]
            rows = rig.written(rig.op(routing, coders.BytesCoder()), globally(elements))
            found = [o.value for o in self._values(rows, coders.BytesCoder())]
            assert sorted(map(len, found)) == [1, 1, 64 * MIB]

    def test_a_thousand_shards_hold_little(self) -> None:
        rig = Rig(shards=1000)
        op = rig.op(Routing.SPREAD, coders.BytesCoder())
        op.begin_task()
        most = 0
        for element in globally(bytes(200) for _ in range(200_000)):
            op.process(element)
            most = max(most, op._count + len(op._waiting))
        assert most * 200 <= 8 * MIB

    def test_an_element_that_does_not_encode_is_named(self) -> None:
        rig = Rig()
        for values in (["wrong"], [1, "wrong", 2], [*range(1000), "wrong"]):
            with pytest.raises(CoderError, match="'wrong'"):
                rig.written(rig.op(Routing.FORWARD, coders.VarIntCoder()), globally(values))


@pytest.mark.contract("BAT-02")
class TestSide:
    def test_elements_go_to_each_of_their_windows(self) -> None:
        rig = Rig()
        op = rig.op(Routing.SIDE, coders.VarIntCoder(), IntervalWindowCoder())
        windows = [IntervalWindow(i, i + 1) for i in range(3)]
        assert rig.written(op, [WindowedValue(i, Timestamp(i), windows[i:]) for i in range(3)]) == []
        impl = IntervalWindowCoder().get_impl()
        found = {int(impl.decode(window).start): list(chunk) for window, chunk in MemorySide.appended}
        assert found == {0: [0], 1: [0, 1], 2: [0, 1, 2]}
        assert [file.channel for file in rig.context.side_files] == [7]
        assert rig.context.elements_out == {7: 6}

    def test_nothing_is_no_file(self) -> None:
        rig = Rig()
        rig.written(rig.op(Routing.SIDE, coders.VarIntCoder()), ())
        assert rig.context.side_files == []

    def test_many_windows_hold_little(self) -> None:
        rig = Rig()
        op = rig.op(Routing.SIDE, coders.BytesCoder(), IntervalWindowCoder())
        op.begin_task()
        most = 0
        for i in range(10_000):
            window = IntervalWindow(i % 5000, i % 5000 + 1)
            op.process(WindowedValue(bytes(20_000), Timestamp(0), (window,)))
            if i % 100 == 0:
                most = max(most, sum(stream.size() for stream in op._streams.values()))
        op.finish()
        op.drain()
        assert most < 100 * MIB
        assert sum(len(chunk) for _, chunk in MemorySide.appended) >= 10_000 * 20_000

    def test_an_element_that_does_not_encode_is_named(self) -> None:
        rig = Rig()
        with pytest.raises(CoderError, match="'wrong'"):
            rig.written(rig.op(Routing.SIDE, coders.VarIntCoder()), globally([1, "wrong"]))


def test_count_is_what_the_list_coder_writes() -> None:
    """Multimap files cut it off."""
    encoded = coders.ListCoder(coders.VarIntCoder()).get_impl().encode([1, 2, 3])
    assert COUNT.unpack_from(encoded) == (3,)
    assert len(encoded) == COUNT.size + 3


@pytest.mark.contract("PLAN-02")
class TestPrecombine:
    @pytest.mark.parametrize("memory", [1, 20_000, 128 * MIB])
    def test_all_values_are_combined_whatever_the_budget(self, memory: int) -> None:
        with Driven(shards=3, group_memory_bytes=memory) as p:
            pairs = p | beam.Create(range(5000)) | beam.Map(lambda i: (i % 7, i)).with_output_types(tuple[int, int])
            _ = pairs | beam.CombinePerKey(sum) | "Sums" >> Collect("sums")
            _ = (
                pairs
                | beam.CombinePerKey(beam.combiners.ToListCombineFn())
                | beam.MapTuple(lambda k, vs: (k, len(vs)))
                | Collect("lists")
            )
        assert sorted(p.values("sums")) == [(k, sum(range(k, 5000, 7))) for k in range(7)]
        assert sorted(p.values("lists")) == [(k, len(range(k, 5000, 7))) for k in range(7)]

    def test_windows_count_against_the_budget(self) -> None:
        with Driven(shards=2, group_memory_bytes=100_000) as p:
            timed = p | beam.Create(range(5000)) | beam.Map(lambda i: TimestampedValue(("k", i), i))
            sums = timed | beam.WindowInto(FixedWindows(1)) | beam.CombinePerKey(sum)
            _ = sums | Collect()
        assert sorted(value for _, value in p.values()) == list(range(5000))

    @pytest.mark.parametrize("windowed", [False, True])
    def test_a_table_that_combines_nothing_is_given_up(self, windowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: list[int] = []
        take = precombine.Slices.take

        def noted(slices: precombine.Slices, longest: int) -> Iterator[Any]:
            taken.append(slices.entries)
            return take(slices, longest)

        monkeypatch.setattr(precombine.Slices, "take", noted)
        monkeypatch.setattr(precombine, "_PASSING", 10_000)
        with Driven(shards=1, group_memory_bytes=1 << 20) as p:
            pairs = p | beam.Create([0, 1]) | beam.FlatMap(lambda part: ((part * 20_000 + i, i) for i in range(20_000)))
            if windowed:
                pairs = pairs | beam.WindowInto(SlidingWindows(60, 20))
            _ = pairs | beam.CombinePerKey(sum) | beam.combiners.Count.Globally().without_defaults() | Collect()
        assert p.values() == [40_000] * (3 if windowed else 1)
        largest = max(taken)
        assert largest >= 1024
        # After a full table come blocks of their own, then the next try.
        assert any(0 < small <= 4093 and small < largest for small in taken)
        assert taken.count(largest) < len(taken) / 2

    def test_giving_up_can_be_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precombine, "_PASSING", None)
        with Driven(shards=1, group_memory_bytes=1 << 20, giving_up=False) as p:
            pairs = p | beam.Create([0, 1]) | beam.FlatMap(lambda part: ((part * 20_000 + i, i) for i in range(20_000)))
            _ = pairs | beam.CombinePerKey(sum) | beam.combiners.Count.Globally() | Collect()
        assert p.values() == [40_000]


@pytest.mark.parametrize("late", [0, 25, 300])
@pytest.mark.parametrize("combine", [True, False])
def test_a_key_that_cannot_be_encoded_is_named_with_its_step(combine: bool, late: int) -> None:
    p = Driven()
    keyed = "keyed" >> beam.Map(lambda n: (np.int64(n) if n == late else n % 7 or "b", n))
    pairs = p | beam.Create(range(400)) | "spread" >> beam.Reshuffle() | keyed
    _ = pairs | (beam.CombinePerKey(sum) if combine else beam.GroupByKey()) | Collect()
    # Who notices it may be the one who samples sizes, to whom it is a part of the pair.
    with pytest.raises(CoderError, match=rf"cannot encode \(?np.int64\({late}\).*while running 'keyed'"):
        p.run()
