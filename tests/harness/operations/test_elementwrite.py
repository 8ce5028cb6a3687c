"""Writes of single elements, block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder, IntervalWindowCoder
from apache_beam.transforms.window import FixedWindows, IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.model.plan import Routing
from arcbeam.model.rows import Row
from tests.harness.operations.rig import MIB, Rig, globally


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

    def test_forward_stays_in_the_place_of_its_task(self) -> None:
        rig = Rig(shards=10, partition=3)
        rows = rig.written(rig.op(Routing.FORWARD, coders.VarIntCoder()), globally(range(300_000)))
        assert {row.shard for row in rows} == {3}

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

    def test_explode_makes_one_element_per_window(self) -> None:
        rig = Rig()
        windows = FixedWindows(1), [IntervalWindow(i, i + 1) for i in range(3)]
        elements = [WindowedValue((v, 1.0), Timestamp(0), windows[1][:n]) for v, n in ((1, 1), (2, 3), (3, 2), (4, 1))]
        sized = coders.TupleCoder([coders.VarIntCoder(), coders.FloatCoder()])
        op = rig.op(Routing.SPREAD, sized, IntervalWindowCoder(), explode=True)
        found = self._values(rig.written(op, elements), sized, IntervalWindowCoder())
        assert sorted((o.value[0], o.windows[0].start) for o in found) == [
            (1, 0),
            (2, 0),
            (2, 1),
            (2, 2),
            (3, 0),
            (3, 1),
            (4, 0),
        ]
        assert all(len(o.windows) == 1 for o in found)

    @pytest.mark.contract("SDF-08")
    @pytest.mark.parametrize("held", [1, 1000])
    def test_restrictions_are_spread_by_size(self, held: int) -> None:
        rig = Rig(shards=3, partition=2)
        sized = coders.TupleCoder([coders.VarIntCoder(), coders.FloatCoder()])
        op = rig.op(Routing.SPREAD, sized, explode=True)
        op._longest = held
        sizes = [9.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0]
        rows = rig.written(op, globally(enumerate(sizes)))
        loads: dict[int, float] = defaultdict(float)
        for row in rows:
            loads[row.shard] += sum(o.value[1] for o in self._values([row], sized))
        assert sorted(loads.values()) in ([4.0, 5.0, 9.0], [4.5, 4.5, 9.0])
        assert loads[2] == 9.0, "each task begins with another shard"

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

    def test_element_of_64_mib(self) -> None:
        rig = Rig()
        for routing in (Routing.FORWARD, Routing.SPREAD):
            elements = [b"1", bytes(64 * MIB), b"2"]
            rows = rig.written(rig.op(routing, coders.BytesCoder()), globally(elements))
            found = [o.value for o in self._values(rows, coders.BytesCoder())]
            assert sorted(map(len, found)) == [1, 1, 64 * MIB]

    def test_thousand_shards_hold_little_memory(self) -> None:
        rig = Rig(shards=1000)
        op = rig.op(Routing.SPREAD, coders.BytesCoder())
        op.begin_task()
        most = 0
        for element in globally(bytes(200) for _ in range(200_000)):
            op.process(element)
            most = max(most, op._count + len(op._waiting))
        assert most * 200 <= 8 * MIB

    def test_error_names_element_that_cannot_be_encoded(self) -> None:
        rig = Rig()
        for values in (["wrong"], [1, "wrong", 2], [*range(1000), "wrong"]):
            with pytest.raises(CoderError, match="'wrong'"):
                rig.written(rig.op(Routing.FORWARD, coders.VarIntCoder()), globally(values))
