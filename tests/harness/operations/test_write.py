"""Write operations: when they write their buffers, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam import coders
from apache_beam.coders.coders import IntervalWindowCoder
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.encoding.frames import COUNT
from arcbeam.model.plan import Routing
from tests.harness.drive import Collect, Driven
from tests.harness.operations.rig import MIB, MemorySide, Rig, globally, pairs


class TestBudget:
    """Buffers never grow far beyond the budget, for any growth."""

    def _held_at_most(self, memory: int, elements: Iterable[Any], routing: Routing = Routing.GROUPED) -> int:
        """Return the maximum number of elements between two writes."""
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

    def test_periodic_sizes(self) -> None:
        """Small and large values alternate: a sample always at the same place of the pattern would miss one kind."""
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

    def test_budget_is_shared_by_writes_of_stage(self) -> None:
        rig = Rig(memory=4 * MIB)
        ops = [rig.op(Routing.GROUPED, pairs()) for _ in range(4)]
        for op in ops:
            op.begin_task()
        assert sum(op._budget for op in ops) == 4 * MIB


@pytest.mark.parametrize("routing", [Routing.SPREAD, Routing.KEYED, Routing.GROUPED])
def test_elements_count_whether_written_or_not(routing: Routing) -> None:
    rig = Rig(memory=4 * MIB)
    op = rig.op(routing, pairs())
    op.begin_task()
    for n, element in enumerate(globally((i % 5, bytes(60_000)) for i in range(200)), 1):
        op.take(Block.of([element]))
        assert (op.taken, op.elements) == (n, n)
    assert rig.rows, "some are written"


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

    def test_empty_input_writes_no_file(self) -> None:
        rig = Rig()
        rig.written(rig.op(Routing.SIDE, coders.VarIntCoder()), ())
        assert rig.context.side_files == []

    def test_many_windows_hold_little_memory(self) -> None:
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

    def test_error_names_element_that_cannot_be_encoded(self) -> None:
        rig = Rig()
        with pytest.raises(CoderError, match="'wrong'"):
            rig.written(rig.op(Routing.SIDE, coders.VarIntCoder()), globally([1, "wrong"]))


def test_count_equals_that_of_list_coder() -> None:
    """Multimap files omit the count."""
    encoded = coders.ListCoder(coders.VarIntCoder()).get_impl().encode([1, 2, 3])
    assert COUNT.unpack_from(encoded) == (3,)
    assert len(encoded) == COUNT.size + 3


@pytest.mark.parametrize("late", [0, 25, 300])
@pytest.mark.parametrize("combine", [True, False])
def test_error_names_unencodable_key_and_transform(combine: bool, late: int) -> None:
    p = Driven()
    keyed = "keyed" >> beam.Map(lambda n: (np.int64(n) if n == late else n % 7 or "b", n))
    pairs = p | beam.Create(range(400)) | "spread" >> beam.Reshuffle() | keyed
    _ = pairs | (beam.CombinePerKey(sum) if combine else beam.GroupByKey()) | Collect()
    # Size sampling may fail first, where the key is a part of the pair.
    with pytest.raises(CoderError, match=rf"cannot encode \(?np.int64\({late}\).*while running 'keyed'"):
        p.run()
