"""Writes to groupings: each key is in one place, as one key."""

from __future__ import annotations

import enum
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfo, PaneInfoTiming, WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import Block, BlockCoder, Each
from arcbeam.harness.encoding.bulk import ListBytes
from arcbeam.harness.encoding.frames import BLOB_BYTES, key_groups, records
from arcbeam.model.plan import Routing
from arcbeam.model.rows import Row, buckets_per_shard, key_hash
from tests.harness.drive import Collect, Driven
from tests.harness.operations.rig import MIB, Rig, globally, pairs


def grouped(rows: Iterable[Row], coder: Any) -> dict[bytes, list[Any]]:
    """Return values by encoded key, as the read side joins them; a key must be in one place only."""
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
    def test_keys_are_distributed_by_hash(self, routing: Routing, shards: int) -> None:
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
    def test_same_key_in_both_forms_is_one_group(self, coder: Any, fast: Any, other: Any) -> None:
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
    def test_values_of_key_stay_in_order(self, values: list[Any], shards: int, memory: int) -> None:
        rig, impl = Rig(shards, memory), coders.FastPrimitivesCoder().get_impl()
        expected = defaultdict(list)
        for key, value in values:
            expected[impl.encode(key)].append(value)
        op = rig.op(Routing.GROUPED, pairs())
        assert grouped(rig.written(op, globally(values)), coders.FastPrimitivesCoder()) == expected
        assert rig.context.elements_out == {7: len(values)}

    def test_windows_are_separate(self) -> None:
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
    def test_keyed_write_stores_shared_columns_once(self, differs: str, memory: int) -> None:
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

    @pytest.mark.parametrize("memory", [1000, MIB])
    @pytest.mark.parametrize("differs", [False, True])
    def test_keyed_write_stores_columns_once_per_window(self, differs: bool, memory: int) -> None:
        rig = Rig(memory=memory)
        op = rig.op(Routing.KEYED, pairs(), IntervalWindowCoder())
        windows = [(IntervalWindow(start, start + 10),) for start in (0, 10, 20)]
        blocks = [
            Block(
                [(f"k{n % 2}", 4 * n + i) for i in range(4)],
                windows[n % 3][0].end.micros - 1,
                windows[n % 3],
                PANE_INFO_UNKNOWN,
            )
            for n in range(24)
        ]
        if differs:
            blocks.append(Block([("k0", 1000)], 7, windows[0], PANE_INFO_UNKNOWN))
        op.begin_task()
        op.setup()
        op.start()
        for block in blocks:
            op.take(block)
        op.finish()
        op.drain()
        coder = coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder())
        encode = coders.FastPrimitivesCoder().get_impl().encode
        found = grouped(rig.rows, coder)
        for key in ("k0", "k1"):
            expected = [e.with_value(e.value[1]) for block in blocks for e in block.elements() if e.value[0] == key]
            for of in windows:
                # In order within a window.
                assert [e for e in found[encode(key)] if e.windows == of] == [e for e in expected if e.windows == of]
            assert len(found[encode(key)]) == len(expected)

    def test_hot_key_is_divided_into_blobs(self) -> None:
        rig = Rig()
        rows = rig.written(rig.op(Routing.GROUPED, pairs()), globally(("hot", bytes(1000)) for _ in range(4000)))
        assert max(len(row.blob) for row in rows) < 2 * BLOB_BYTES
        assert len({(row.shard, row.bucket) for row in rows}) == 1
        (values,) = grouped(rows, coders.FastPrimitivesCoder()).values()
        assert len(values) == 4000

    def test_element_of_64_mib(self) -> None:
        rig = Rig()
        value = bytes(64 * MIB)
        for routing in (Routing.GROUPED, Routing.KEYED):
            rows = rig.written(rig.op(routing, pairs()), globally([("k", b"1"), ("k", value), ("k", b"2")]))
            assert sum(len(row.blob) for row in rows) < 65 * MIB

    def test_empty_input_writes_no_row(self) -> None:
        rig = Rig()
        for routing in (Routing.GROUPED, Routing.KEYED, Routing.FORWARD, Routing.SPREAD):
            assert rig.written(rig.op(routing, pairs()), ()) == []

    def test_error_names_value_that_cannot_be_encoded(self) -> None:
        rig = Rig()
        op = rig.op(Routing.GROUPED, pairs(None, coders.VarIntCoder()))
        for values in (["wrong"], [1, "wrong", 2], [*range(1000), "wrong"]):
            with pytest.raises(CoderError, match="'wrong'"):
                rig.written(op, globally(("k", value) for value in values))


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize(
    "group", [lambda: beam.GroupByKey(), lambda: beam.CombinePerKey(sum)], ids=["grouped", "summed"]
)
def test_error_names_refused_key_and_transform(group: Any, windowed: bool) -> None:
    p = Driven()
    numbers = p | beam.Create([2000], reshuffle=False) | beam.FlatMap(lambda n: iter(range(n)))
    # An integer of unusual size: it is encoded only when the task writes.
    points = numbers | "points" >> beam.Map(lambda x: ((x, 2**70 if x == 1500 else x), x)).with_output_types(
        tuple[tuple[int, int], int]
    )
    if windowed:
        points |= beam.WindowInto(beam.window.FixedWindows(10))
    points | group() | Collect()
    with pytest.raises(CoderError, match=r"cannot encode \(1500, \d+\), a key: OverflowError") as caught:
        p.run()
    assert caught.value.step == ("WindowInto(WindowIntoFn)" if windowed else "points")


@pytest.mark.parametrize("memory", [1000, MIB])
@pytest.mark.parametrize("seed", range(25))
def test_keyed_write_keeps_elements_and_order(seed: int, memory: int) -> None:
    chance = random.Random(seed)
    panes = [PANE_INFO_UNKNOWN, PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)]
    all_windows = [(IntervalWindow(start, start + 10),) for start in (0, 10, 20)]
    all_windows.append((*all_windows[0], *all_windows[1]))
    differ = [chance.random() < 0.4 for _ in range(3)]
    blocks = []
    for n in range(chance.choice([1, 8, 30])):
        count = chance.choice([1, 4, 200])
        columns: list[Any] = []
        for varies, choices in zip(differ, (range(5), all_windows, panes), strict=True):
            each = [chance.choice(choices) for _ in range(count)]
            columns.append(Each(each) if varies and chance.random() < 0.7 else each[0] if varies else choices[0])
        values = [(chance.choice(["a", "b", 1, 1.0, ("t", 1)]), chance.choice([n, (n, i), None])) for i in range(count)]
        blocks.append(Block(values, *columns))
    rig = Rig(memory=memory)
    op = rig.op(Routing.KEYED, pairs(), IntervalWindowCoder())
    op.begin_task()
    op.setup()
    op.start()
    for block in blocks:
        op.take(block)
    op.finish()
    op.drain()
    encode = coders.FastPrimitivesCoder().get_impl().encode
    found = grouped(rig.rows, coders.WindowedValueCoder(coders.FastPrimitivesCoder(), IntervalWindowCoder()))
    expected: dict[tuple[bytes, Any], list[Any]] = defaultdict(list)
    for element in (element for block in blocks for element in block.elements()):
        for window in element.windows:
            expected[encode(element.value[0]), window].append(element.with_value(element.value[1]))
    seen: dict[tuple[bytes, Any], list[Any]] = defaultdict(list)
    for key, elements in found.items():
        for element in elements:
            for window in element.windows:
                seen[key, window].append(element)
    assert seen == expected


class Counted:
    """Counts its live instances."""

    alive = 0

    def __init__(self, n: int) -> None:
        self.n = n
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1

    def __reduce__(self) -> Any:
        return Counted, (self.n,)


class TestOpaqueValues:
    """Values whose size in memory is unknown."""

    @pytest.mark.parametrize("differs", ["nothing", "time", "windows"])
    @pytest.mark.parametrize("routing", [Routing.GROUPED, Routing.KEYED])
    def test_opaque_values_are_held_encoded(self, routing: Routing, differs: str) -> None:
        rig, windows = Rig(), [(IntervalWindow(start, start + 10),) for start in (0, 10)]
        op = rig.op(routing, pairs(), IntervalWindowCoder())
        op.begin_task()
        op.setup()
        op.start()
        for n in range(8):
            micros: Any = Each(range(100)) if differs == "time" and n == 4 else 3
            in_windows: Any = Each(windows * 50) if differs == "windows" and n == 4 else windows[0]
            op.take(Block([(i % 3, Counted(100 * n + i)) for i in range(100)], micros, in_windows, PANE_INFO_UNKNOWN))
            assert Counted.alive == 0
        op.finish()
        op.drain()
        values = coders.FastPrimitivesCoder()
        seen = defaultdict(list)
        for row in rig.rows:
            for key, window, start, end in records(row.blob):
                payload = row.blob[start:end]
                if routing is Routing.KEYED:
                    read: Any = BlockCoder(coders.WindowedValueCoder(values, IntervalWindowCoder())).decode(payload)
                    for element in read:
                        seen[key, element.windows].append(element.value.n)
                else:
                    found = ListBytes(values).decode(payload)
                    seen[key, (IntervalWindowCoder().get_impl().decode(window),)] += [each.n for each in found]
        assert sorted(n for each in seen.values() for n in each) == list(range(800))
        assert all(each == sorted(each) for each in seen.values()), "in order in each window"

    @pytest.mark.parametrize("routing", [Routing.GROUPED, Routing.KEYED])
    def test_opaque_values_are_counted_by_encoded_size(self, routing: Routing) -> None:
        rig = Rig(memory=100_000)
        op = rig.op(routing, pairs(None, coders.PickleCoder()))
        op.begin_task()
        op.setup()
        op.start()
        held = 0
        for n in range(2000):
            op.take(Block([("k", "x" * 1000)], 0, (), PANE_INFO_UNKNOWN))
            held = max(held, n + 1 - op._written)
        assert 80 < held < 110

    @pytest.mark.parametrize("routing", [Routing.GROUPED, Routing.KEYED, Routing.SIDE_KEYED])
    @pytest.mark.parametrize("from_place", [0, 1, 700])
    def test_opaque_values_among_others(self, routing: Routing, from_place: int) -> None:
        values = [{n} if n % 2 or n < from_place else SubInt(n) for n in range(2000)]
        rig = Rig()
        rows = rig.written(rig.op(routing, pairs()), globally((n % 7, value) for n, value in enumerate(values)))
        seen = defaultdict(list)
        coder = coders.FastPrimitivesCoder()
        windowed = coders.WindowedValueCoder(coder, GlobalWindowCoder())
        for row in rows:
            for key, _, start, end in records(row.blob):
                payload = row.blob[start:end]
                if routing is Routing.KEYED:
                    seen[key] += [element.value for element in BlockCoder(windowed).decode(payload)]
                else:
                    seen[key] += list(ListBytes(coder).decode(payload))
        assert seen == {coder.encode(key): values[key::7] for key in range(7)}

    def test_error_names_opaque_value(self) -> None:
        rig = Rig()
        with pytest.raises(CoderError, match="cannot encode 'wrong'"):
            rig.written(rig.op(Routing.GROUPED, pairs(None, Refusing())), globally(("k", v) for v in [1, 2, "wrong"]))


class Refusing(coders.Coder):
    def encode(self, value: Any) -> bytes:
        if value == "wrong":
            raise ValueError("not that one")
        return bytes([value])

    def decode(self, encoded: bytes) -> Any:
        return encoded[0]
