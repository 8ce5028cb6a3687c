"""Blocked elements are pending work: a lot is unblocked as a whole, once, and no watermark passes it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.watermarks.holds import HolderKind, Holds, Side
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_LOTS = st.builds(
    SideInputWindow, st.sampled_from(["rates", "s\0", "l" * 60]), st.sampled_from([b"", b"\0\xff", b"w" * 70])
)
_ELEMENTS = st.builds(
    BlockedElement,
    st.sampled_from([MIN_TIMESTAMP, Timestamp(-1), Timestamp(5), MAX_TIMESTAMP]),
    st.sampled_from([b"", b"e", b"x" * 900]),
)


class BlockedElementsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.view = MemoryView()
        self.blocked_elements = BlockedElements(self.view, 1)
        BlockedElements(self.view, 2).add(SideInputWindow("rates", b""), BlockedElement(Timestamp(0), b""))
        self.model: dict[SideInputWindow, list[BlockedElement]] = {}

    @rule(lot=_LOTS, element=_ELEMENTS)
    def add(self, lot: SideInputWindow, element: BlockedElement) -> None:
        self.blocked_elements.add(lot, element)
        self.model.setdefault(lot, []).append(element)

    @rule(lot=_LOTS)
    def take(self, lot: SideInputWindow) -> None:
        assert list(self.blocked_elements.take(lot)) == self.model.pop(lot, [])

    @rule()
    def restart(self) -> None:
        self.view = MemoryView(self.view.snapshot())
        self.blocked_elements = BlockedElements(self.view, 1)

    @invariant()
    def the_earliest_holds(self) -> None:
        times = {lot: min(each.time for each in elements) for lot, elements in self.model.items()}
        assert dict(self.blocked_elements.lots()) == times
        holds = Holds(self.view, 1, Side.INPUT)
        holds.validate()
        earliest = holds.earliest()
        assert (earliest.time if earliest else None) == min(times.values(), default=None)

    def teardown(self) -> None:
        for lot in self.model:
            list(self.blocked_elements.take(lot))
        assert len(self.view) == 4  # the other stage's: its lot, one element, and a hold with its entry


TestBlockedElements = BlockedElementsMachine.TestCase
TestBlockedElements.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.contract("ENG-03")
def test_blocked_elements_stay_until_whole_lot_is_taken() -> None:
    view = MemoryView()
    blocked_elements, lot = BlockedElements(view, 0), SideInputWindow("rates", b"w")
    for time in (3, 2):
        blocked_elements.add(lot, BlockedElement(Timestamp(time), b"%d" % time))
    taken = blocked_elements.take(lot)
    assert next(taken) == BlockedElement(Timestamp(3), b"3")
    held = Holds(view, 0, Side.INPUT).earliest()
    assert held is not None
    assert (held.time, held.kind, held.name) == (2, HolderKind.BLOCKED, "rates@77")
    assert list(taken) == [BlockedElement(Timestamp(2), b"2")]
    assert Holds(view, 0, Side.INPUT).earliest() is None
