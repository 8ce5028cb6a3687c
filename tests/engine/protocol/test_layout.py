"""A layout gives each shard one task, and refuses stages through which no micro-batch can flow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.engine.protocol.layout import Layout, StagePlacement
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import StageFlow

_READ = StagePlacement(StageFlow("read", (), ("main",), 4), 1, 0)
_SUM = StagePlacement(StageFlow("sum", (Port("read", "main"),), (), 4), 2, 1)


@given(shards=st.integers(1, 300), tasks=st.integers(1, 300))
def test_each_shard_has_one_task(shards: int, tasks: int) -> None:
    tasks = min(tasks, shards)
    layout = Layout((StagePlacement(StageFlow("read", (), (), shards), 1, 0),), shards, (tasks,))
    owned = [layout.range_of(0, task) for task in range(tasks)]
    assert [shard for each in owned for shard in each] == list(range(shards))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


def test_stages_are_found_by_level() -> None:
    layout = Layout((_READ, _SUM), 4, (2, 4))
    assert layout.at(1) == (_SUM,)
    assert layout.ports_before(1) == (Port("read", "main"),)
    assert layout.ports_before(0) == ()
    assert layout.flows == (_READ.flow, _SUM.flow)


@pytest.mark.parametrize(
    ("stages", "tasks", "why"),
    [
        ((), (1,), "without stages"),
        ((_SUM, _READ), (1, 1), "'sum' reads output 'main' of 'read'"),
        ((_READ, replace(_SUM, level=0)), (1, 1), "'sum' at level 0 reads output 'main' of 'read'"),
        ((_READ, replace(_SUM, number=1)), (1, 1), "'read' and 'sum' both have number 1"),
        ((_READ, _SUM), (1,), "'sum' is at level 1; there are 1"),
        ((_READ, _SUM), (1, 5), "level 1 has 5 tasks for 4 shards"),
        ((_READ, _SUM), (0, 1), "level 0 has 0 tasks"),
        ((replace(_READ, flow=replace(_READ.flow, shards=2)), _SUM), (1, 1), "'read' has 2 shards, the layout 4"),
        ((replace(_READ, side_inputs=(("rates", Port("rates", "main")),)),), (1,), "side input 'rates' of 'read'"),
    ],
)
def test_invalid_layout_is_refused_by_name(
    stages: tuple[StagePlacement, ...], tasks: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Layout(stages, 4, tasks)
