"""User state in a view: what user code reads, and when changes are in the view."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from apache_beam.coders import BytesCoder, StrUtf8Coder, TupleCoder, VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import GlobalWindow

from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.state import bags
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.harness.streaming import state
from arcbeam.testing.views import MemoryView

bags.register()
state.register()
SPEC = BagStateSpec("bag", BytesCoder())


@pytest.fixture
def handler() -> state.ViewState:
    made = state.ViewState({}, {("t", "bag"): "bag", ("t", "list"): "list"})
    made.forms = Windows(GlobalWindowCoder())
    return made


def context_of(handler: state.ViewState) -> Any:
    return bundle_processor.FnApiUserStateContext(handler, "t", StrUtf8Coder(), GlobalWindowCoder())


def test_changes_of_call_are_in_view_after_commit(handler: state.ViewState) -> None:
    context, view = context_of(handler), MemoryView()
    handler.work_on(view, 3)
    handler.enter(b"k")
    context.get_state(SPEC, "k", GlobalWindow()).add(b"1")
    assert len(view) == 0
    handler.commit()
    assert len(view) > 0
    before = view.written
    handler.commit()
    assert view.written == before
    handler.enter(b"other")
    assert list(context.get_state(SPEC, "other", GlobalWindow()).read()) == []
    # The next micro-batch, with the state of the first.
    handler.work_on(MemoryView(view.snapshot()), 3)
    handler.enter(b"k")
    assert list(context.get_state(SPEC, "k", GlobalWindow()).read()) == [b"1"]


@pytest.mark.parametrize("size", [10, 600_000])
@pytest.mark.parametrize("change", ["add", "clear"])
def test_returned_elements_do_not_change_with_bag(handler: state.ViewState, size: int, change: str) -> None:
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


@pytest.mark.parametrize("seed", range(20))
def test_both_storages_behave_equally(seed: int, handler: state.ViewState) -> None:
    chance, memory = random.Random(seed), InProcessStateHandler({})
    handler.work_on(MemoryView(), 3)
    bag, ordered = ("t", "bag", b""), ("t", "list", b"")
    coder, pairs = BytesCoder().get_impl(), TupleCoder([VarIntCoder(), BytesCoder()]).get_impl()
    kept: list[tuple[Any, list[Any]]] = []
    for number in range(60):
        key = chance.choice([b"k", b"\0other"])
        handler.enter(key)
        between = chance.choice([None, tuple(sorted((chance.randrange(-9, 9), chance.randrange(-9, 9))))])
        values = [b"%d" % number * chance.choice([0, 1, 300, 200_000]) for _ in range(chance.randrange(3))]
        entries = [(chance.randrange(-9, 9), value) for value in values]
        match chance.randrange(7):
            case 0 | 1:
                for each in (memory, handler):
                    each.extend_bag(key, bag, coder, values)
            case 2 | 3:
                for each in (memory, handler):
                    each.extend_list(key, ordered, pairs, entries)
            case 6 if values:
                for each in (memory, handler):
                    each.replace_bag(key, bag, coder, values)
            case 4 if chance.random() < 0.3:
                for each in (memory, handler):
                    each.clear_bag(key, bag)
            case _:
                for each in (memory, handler):
                    each.clear_list(key, ordered, between)
        found = handler.read_bag(key, bag, coder)
        expected = list(memory.read_bag(key, bag, coder))
        assert list(found) == expected
        kept.append((found, expected))
        there, here = (list(each.read_list(key, ordered, pairs, between)) for each in (memory, handler))
        assert here == there
    assert all(list(found) == expected for found, expected in kept)
