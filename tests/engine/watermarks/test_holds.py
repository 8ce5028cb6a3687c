"""The earliest hold is known, by name, after any sequence of set, move and clear."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arcbeam.engine.rows.keyspace import name
from arcbeam.engine.watermarks.holds import ALL, Hold, Holder, HolderKind, Holds, Side
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_TIMES = st.sampled_from([MIN_TIMESTAMP, Timestamp(-1), Timestamp(0), Timestamp(7), MAX_TIMESTAMP])
_KEYS = st.sampled_from([None, b"", b"\0", b"k", b"k\0\1", b"l" * 200])
_WINDOWS = st.sampled_from([b"", b"w", b"\0\1"])
_OUTPUTS = st.sampled_from([ALL, "main", "errors"])
_HOLDERS = st.builds(
    lambda kind, name, key, window: Holder(kind, name, key, window if key is not None else b""),
    st.sampled_from(HolderKind),
    st.sampled_from(["", "a", "b\0\1", "n" * 100]),
    _KEYS,
    _WINDOWS,
)


class HoldsMachine(RuleBasedStateMachine):
    """Both sides of two stages over one view, against dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.view = MemoryView()
        self.real = {(stage, side): Holds(self.view, stage, side) for stage in (0, 256) for side in Side}
        self.model: dict = {place: {} for place in self.real}

    places = st.tuples(st.sampled_from([0, 256]), st.sampled_from(Side))

    @rule(place=places, holder=_HOLDERS, time=_TIMES, output=_OUTPUTS, reported=_TIMES)
    def set(self, place: tuple, holder: Holder, time: Timestamp, output: str, reported: Timestamp) -> None:
        self.model[place][holder, output] = max(time, reported)
        assert self.real[place].set(holder, time, output, reported) == max(time, reported)

    @rule(place=places, holder=_HOLDERS, output=_OUTPUTS)
    def clear(self, place: tuple, holder: Holder, output: str) -> None:
        self.model[place].pop((holder, output), None)
        self.real[place].clear(holder, output)
        assert self.real[place].get(holder, output) is None

    @rule(place=places, holder=_HOLDERS)
    def clear_all(self, place: tuple, holder: Holder) -> None:
        model = self.model[place]
        held = {name(known[1]): model.pop(known) for known in list(model) if known[0] == holder}
        assert self.real[place].clear_all(holder) == held

    @invariant()
    def the_earliest_is_known(self) -> None:
        for place, real in self.real.items():
            real.validate()
            model = self.model[place]
            for output in (None, ALL, "main", "errors"):
                concerned = [time for (_, o), time in model.items() if output is None or o in (ALL, output)]
                found = real.earliest(output)
                assert (found.time if found else None) == min(concerned, default=None)
            assert sorted(hold.time for hold in real.all()) == sorted(model.values())

    def teardown(self) -> None:
        for place, real in self.real.items():
            for holder, output in self.model[place]:
                real.clear(holder, output)
        assert not self.view.snapshot()


TestHolds = HoldsMachine.TestCase
TestHolds.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.contract("ENG-01")
def test_hold_names_its_holder() -> None:
    holds = Holds(MemoryView(), 3)
    holds.set(Holder(HolderKind.STATE, "pane", b"user7", b"w"), Timestamp(5))
    holds.set(Holder(HolderKind.RESIDUAL, "r1"), Timestamp(4), "errors")
    assert holds.earliest("main") == Hold(Timestamp(5), HolderKind.STATE, "pane", ALL, "user7")
    assert str(holds.earliest("main")) == "state 'pane' of key 'user7'"
    assert str(holds.earliest("errors")) == "restriction 'r1'"
    assert holds.earliest() == holds.earliest("errors")
    assert str(Hold(Timestamp(5), HolderKind.BLOCKED, "11191cfd@800004d2")) == "blocked element"


def test_long_subject_of_restriction_is_one_short_line() -> None:
    hold = Hold(Timestamp(5), HolderKind.RESIDUAL, "1.0.0~ab", about="Element(\n  text='" + "x" * 90)
    assert str(hold) == f"restriction of element Element( text='{'x' * 44}…"


@pytest.mark.contract("ENG-01")
def test_hold_does_not_decrease_reported_watermark() -> None:
    holds = Holds(MemoryView(), 0)
    late = Holder(HolderKind.STATE, "pane", b"k", b"w")
    assert holds.set(late, Timestamp(3), reported=Timestamp(10)) == 10
    assert holds.get(late) == 10


def test_holds_survive_in_the_view() -> None:
    view = MemoryView()
    Holds(view, 0).set(Holder(HolderKind.RESIDUAL, "r"), Timestamp(1))
    again = MemoryView(view.snapshot())
    assert [hold.time for hold in Holds(again, 0).all()] == [1]
