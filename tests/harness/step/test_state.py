"""User state in a view: as user code reads it, and when it is there."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from apache_beam.coders import BytesCoder, StrUtf8Coder
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import GlobalWindow

from arcbeam.harness.state import bags
from arcbeam.harness.step import state
from arcbeam.harness.step.windows import Windows
from arcbeam.testing.views import MemoryView

bags.register()
state.register()
SPEC = BagStateSpec("bag", BytesCoder())


@pytest.fixture
def handler() -> state.ViewState:
    made = state.ViewState({}, {("t", "bag"): "bag"})
    made.forms = Windows(GlobalWindowCoder())
    return made


def context_of(handler: state.ViewState) -> Any:
    return bundle_processor.FnApiUserStateContext(handler, "t", StrUtf8Coder(), GlobalWindowCoder())


def test_what_a_call_has_changed_is_in_the_view_when_it_is_committed(handler: state.ViewState) -> None:
    context, view = context_of(handler), MemoryView()
    handler.work_on(view, 3)
    handler.enter(b"k")
    context.get_state(SPEC, "k", GlobalWindow()).add(b"1")
    assert len(view) == 0
    handler.commit()
    assert len(view) == 1
    before = view.written
    handler.commit()
    assert view.written == before
    handler.enter(b"other")
    assert list(context.get_state(SPEC, "other", GlobalWindow()).read()) == []
    # Another step, with what it left.
    handler.work_on(MemoryView(view.snapshot()), 3)
    handler.enter(b"k")
    assert list(context.get_state(SPEC, "k", GlobalWindow()).read()) == [b"1"]


@pytest.mark.parametrize("size", [10, 600_000])
@pytest.mark.parametrize("change", ["add", "clear"])
def test_what_was_read_stays_what_it_was_though_the_bag_changes(
    handler: state.ViewState, size: int, change: str
) -> None:
    context = context_of(handler)
    handler.work_on(MemoryView(), 3)
    handler.enter(b"k")
    values = [b"%d" % n * size for n in range(4)]
    for value in values:
        context.get_state(SPEC, "k", GlobalWindow()).add(value)
    handler.commit()
    bag = context.get_state(SPEC, "k", GlobalWindow())
    read = bag.read()
    half = iter(read)
    assert next(half) == values[0]
    if change == "add":
        bag.add(b"more")
    else:
        bag.clear()
    handler.commit()
    assert list(half) == values[1:]
    assert list(read) == values
    assert pickle.loads(pickle.dumps(read)) == values
    assert list(context.get_state(SPEC, "k", GlobalWindow()).read()) == ([*values, b"more"] if change == "add" else [])
