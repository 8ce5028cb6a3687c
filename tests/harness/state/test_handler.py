"""The state handler, used through the SDK's own state and side-input objects."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam import coders, pvalue
from apache_beam.coders import coders as window_coders
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.runners.worker import bundle_processor
from apache_beam.transforms import userstate
from apache_beam.transforms.combiners import CountCombineFn
from apache_beam.transforms.window import GlobalWindow, IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.errors import ArcbeamError
from arcbeam.harness.state import cells
from arcbeam.harness.state import statehandler as module
from arcbeam.harness.state.handler import InProcessStateHandler, KeyState

INTS = coders.VarIntCoder()
TEXTS = coders.StrUtf8Coder()
GLOBAL = window_coders.GlobalWindowCoder()

BAG = userstate.BagStateSpec("bag", INTS)
SET = userstate.SetStateSpec("set", INTS)
VALUE = userstate.ReadModifyWriteStateSpec("value", TEXTS)
COUNT = userstate.CombiningValueStateSpec("count", INTS, CountCombineFn())
ORDERED = userstate.OrderedListStateSpec("ordered", TEXTS)


class Bundles:
    """The SDK's state context with a handler; `commit` ends a bundle."""

    def __init__(self, handler: InProcessStateHandler, window_coder: Any = GLOBAL) -> None:
        self._context = bundle_processor.FnApiUserStateContext(handler, "t", TEXTS, window_coder)

    def __call__(self, spec: Any, key: str = "k", window: Any = None) -> Any:
        return self._context.get_state(spec, key, window or GlobalWindow())

    def commit(self) -> None:
        self._context.commit()
        self._context.reset()


@pytest.fixture
def handler() -> InProcessStateHandler:
    return InProcessStateHandler({}, None)


@pytest.fixture
def state(handler: InProcessStateHandler) -> Bundles:
    return Bundles(handler)


def encoded(key: str) -> bytes:
    nested: bytes = TEXTS.encode_nested(key)
    return nested


def bag_key(key: str = "k", name: str = "bag", window: bytes = b"") -> Any:
    return fn_pb.StateKey(
        bag_user_state=fn_pb.StateKey.BagUserState(
            transform_id="t", user_state_id=name, window=window, key=encoded(key)
        )
    )


class TestCells:
    def test_bag_keeps_elements_of_all_bundles(self, state: Bundles) -> None:
        for bundle in ([1, 2], [3], []):
            for value in bundle:
                state(BAG).add(value)
            state.commit()
        assert list(state(BAG).read()) == [1, 2, 3]
        state(BAG).add(4)
        assert list(state(BAG).read()) == [1, 2, 3, 4]
        state(BAG).clear()
        state(BAG).add(5)
        state.commit()
        assert list(state(BAG).read()) == [5]

    def test_keys_windows_and_names_are_separate(self, handler: InProcessStateHandler) -> None:
        state = Bundles(handler, window_coders.IntervalWindowCoder())
        first, second = IntervalWindow(0, 10), IntervalWindow(10, 20)
        state(BAG, "a", first).add(1)
        state(BAG, "b", first).add(2)
        state(BAG, "a", second).add(3)
        state(userstate.BagStateSpec("other", INTS), "a", first).add(4)
        state.commit()
        assert list(state(BAG, "a", first).read()) == [1]
        assert list(state(BAG, "b", first).read()) == [2]
        assert list(state(BAG, "a", second).read()) == [3]
        assert handler.windows(encoded("a")) == {window_coders.IntervalWindowCoder().encode(w) for w in (first, second)}
        assert sorted(handler.keys()) == sorted([encoded("a"), encoded("b")])

    def test_value_is_replaced_and_cleared(self, state: Bundles) -> None:
        assert state(VALUE).read() is None
        for value in ("a", "b"):
            state(VALUE).write(value)
            state.commit()
            assert state(VALUE).read() == value
        state(VALUE).clear()
        state.commit()
        assert state(VALUE).read() is None

    def test_combining_value_counts(self, state: Bundles) -> None:
        for _ in range(10):
            for _ in range(5):
                state(COUNT).add("x")
            state.commit()
        assert state(COUNT).read() == 50

    @pytest.mark.parametrize("seed", range(5))
    def test_set_holds_each_element_once(self, state: Bundles, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(random, "random", random.Random(seed).random)  # the SDK compacts randomly
        for values in ([1, 2, 2], [2, 3], [1]):
            for value in values:
                state(SET).add(value)
            state.commit()
        assert state(SET).read() == {1, 2, 3}
        state(SET).clear()
        state(SET).add(9)
        state.commit()
        assert state(SET).read() == {9}

    def test_an_ordered_list_by_range(self, state: Bundles, handler: InProcessStateHandler) -> None:
        def entries(low: int, high: int) -> list[tuple[int, str]]:
            found = state(ORDERED).read_range(Timestamp(low), Timestamp(high))
            return [(int(ts.seconds()), value) for ts, value in found]

        for second, value in [(5, "e"), (-2, "z"), (3, "c")]:
            state(ORDERED).add((Timestamp(second), value))
        state.commit()
        for second, value in [(4, "d"), (1, "a"), (5, "f")]:
            state(ORDERED).add((Timestamp(second), value))
        state.commit()
        assert entries(-100, 100) == [(-2, "z"), (1, "a"), (3, "c"), (4, "d"), (5, "e"), (5, "f")]
        assert entries(3, 5) == [(3, "c"), (4, "d")]
        state(ORDERED).clear_range(Timestamp(3), Timestamp(5))
        assert entries(-100, 5) == [(-2, "z"), (1, "a")]
        state.commit()
        assert entries(-100, 100) == [(-2, "z"), (1, "a"), (5, "e"), (5, "f")]
        state(ORDERED).clear()
        state.commit()
        assert entries(-100, 100) == []
        assert handler.keys() == []

    @settings(max_examples=40, deadline=None)
    @given(
        bundles=st.lists(
            st.lists(
                st.one_of(
                    st.tuples(st.just("add"), st.integers(-9, 9), st.integers(1, 30)),
                    st.tuples(st.just("clear"), st.integers(-9, 9), st.integers(-9, 9)),
                    st.tuples(st.just("read"), st.integers(-9, 9), st.integers(-9, 9)),
                ),
                max_size=6,
            ),
            max_size=5,
        )
    )
    def test_ordered_list_equals_sorted_list(self, bundles: list[list[tuple[str, int, int]]]) -> None:
        state = Bundles(InProcessStateHandler({}, None))
        model: list[tuple[int, str]] = []
        serial = iter(range(10**6))
        for bundle in bundles:
            for what, low, high in bundle:
                if what == "add":
                    for _ in range(high):  # more than a few entries are merged in another way
                        value = f"{next(serial):06}"
                        state(ORDERED).add((Timestamp(micros=low), value))
                        model.append((low, value))
                elif what == "clear":
                    state(ORDERED).clear_range(Timestamp(micros=low), Timestamp(micros=high))
                    model = [e for e in model if not low <= e[0] < high]
                else:
                    found = state(ORDERED).read_range(Timestamp(micros=low), Timestamp(micros=high))
                    assert [(ts.micros, v) for ts, v in found] == sorted(e for e in model if low <= e[0] < high)
            state.commit()
        assert [(ts.micros, v) for ts, v in state(ORDERED).read()] == sorted(model)

    def test_elements_with_empty_encodings_are_counted(self, handler: InProcessStateHandler) -> None:
        nothing = coders.TupleCoder(()).get_impl()
        handler.extend(bag_key(), nothing, [(), (), ()])
        assert list(handler.blocking_get(bag_key(), nothing)) == [(), (), ()]

    def test_state_is_independent_of_written_object(self, handler: InProcessStateHandler) -> None:
        impl = coders.ListCoder(INTS).get_impl()
        value = [1]
        handler.extend(bag_key(), impl, [value])
        value.append(2)
        (found,) = handler.blocking_get(bag_key(), impl)
        found.append(3)
        assert list(handler.blocking_get(bag_key(), impl)) == [[1]]

    def test_running_iteration_ignores_later_writes(self, handler: InProcessStateHandler) -> None:
        impl = TEXTS.get_impl()
        for text in "ab":
            handler.extend(bag_key(), impl, [text])
        running = iter(handler.blocking_get(bag_key(), impl))
        assert next(running) == "a"
        handler.extend(bag_key(), impl, ["c"])
        handler.clear(bag_key())
        assert list(running) == ["b"]
        assert list(handler.blocking_get(bag_key(), impl)) == []

    def test_large_bag_is_stored_in_chunks(
        self, handler: InProcessStateHandler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cells, "_CHUNK_BYTES", 100)
        impl = TEXTS.get_impl()
        texts = [f"text {i}" for i in range(200)]
        handler.extend(bag_key(), impl, texts)
        ((_, chunks),) = handler.snapshot(encoded("k")).cells
        assert len(chunks) > 10
        assert list(handler.blocking_get(bag_key(), impl)) == texts

    def test_unsupported_request_fails(self, handler: InProcessStateHandler) -> None:
        key = fn_pb.StateKey(runner=fn_pb.StateKey.Runner(key=b"x"))
        requests: list[Callable[[], object]] = [
            lambda: handler.blocking_get(key, None),
            lambda: handler.extend(key, None, []),
            lambda: handler.clear(key),
        ]
        for request in requests:
            with pytest.raises(ArcbeamError, match="'runner'"):
                request()

    def test_instruction_has_no_effect(self, handler: InProcessStateHandler) -> None:
        impl = coders.StrUtf8Coder().get_impl()
        handler.extend(bag_key(), impl, ["a"])
        with handler.process_instruction_id("i", []):
            assert list(handler.blocking_get(bag_key(), impl)) == ["a"]
            handler.clear(bag_key()).get()
        assert list(handler.blocking_get(bag_key(), impl)) == []


class TestKeys:
    def test_dropped_key_has_no_state(self, handler: InProcessStateHandler, state: Bundles) -> None:
        for key in "ab":
            state(BAG, key).add(1)
        state.commit()
        handler.drop_key(encoded("a"))
        handler.drop_key(encoded("never seen"))
        assert handler.keys() == [encoded("b")]
        assert list(state(BAG, "a").read()) == []
        handler.clear_all()
        assert handler.keys() == []

    def test_one_window_is_dropped(self, handler: InProcessStateHandler) -> None:
        impl = INTS.get_impl()
        for window in (b"1", b"2"):
            handler.extend(bag_key(window=window), impl, [1])
        handler.drop_key(encoded("k"), b"1")
        assert handler.windows(encoded("k")) == {b"2"}
        handler.drop_key(encoded("k"), b"2")
        assert encoded("k") not in list(handler.keys())

    def test_emptied_key_leaves_nothing(self, handler: InProcessStateHandler) -> None:
        handler.extend(bag_key(), INTS.get_impl(), [1])
        handler.clear(bag_key())
        handler.clear(bag_key())
        handler.extend(bag_key(), INTS.get_impl(), [])
        assert encoded("k") not in list(handler.keys())

    def test_snapshot_is_independent(self, handler: InProcessStateHandler, state: Bundles) -> None:
        state(BAG).add(1)
        state(ORDERED).add((Timestamp(3), "c"))
        state.commit()
        snapshot = pickle.loads(pickle.dumps(handler.snapshot(encoded("k"))))
        state(BAG).add(2)
        state.commit()
        assert list(state(BAG).read()) == [1, 2]
        handler.restore(encoded("k"), snapshot)
        state.commit()
        assert list(state(BAG).read()) == [1]
        assert list(state(ORDERED).read()) == [(Timestamp(3), "c")]
        other = InProcessStateHandler({}, None)
        other.restore(encoded("k"), snapshot)
        assert other.snapshot(encoded("k")) == snapshot
        other.restore(encoded("k"), KeyState(()))
        assert encoded("k") not in list(other.keys())
        assert handler.snapshot(encoded("none")) == KeyState(())


class TestSuspendedKeys:
    @pytest.mark.parametrize("budget", [0, 1000, 1 << 20])
    def test_suspended_key_is_restored_by_use(self, budget: int) -> None:
        handler = InProcessStateHandler({}, None, suspended_bytes=budget)
        impl = INTS.get_impl()
        for i in range(30):
            handler.extend(bag_key(f"k{i}"), impl, [i])
            handler.suspend(encoded(f"k{i}"))
        assert len(handler.keys()) == 30
        for i in range(0, 30, 2):
            assert list(handler.blocking_get(bag_key(f"k{i}"), impl)) == [i]
        for i in range(1, 30, 4):
            handler.extend(bag_key(f"k{i}"), impl, [100])
        for i in range(3, 30, 4):
            handler.clear(bag_key(f"k{i}"))
        expected = {i: [i] if i % 2 == 0 else [i, 100] for i in range(30) if i % 4 != 3}
        assert len(handler.keys()) == len(expected)
        for i, values in expected.items():
            assert list(handler.blocking_get(bag_key(f"k{i}"), impl)) == values

    def test_suspended_key_is_dropped_and_restored(self) -> None:
        handler = InProcessStateHandler({}, None, suspended_bytes=0)
        handler.extend(bag_key(), INTS.get_impl(), [1])
        snapshot = handler.snapshot(encoded("k"))
        handler.suspend(encoded("k"))
        handler.suspend(encoded("k"))
        assert encoded("k") in list(handler.keys())
        handler.drop_key(encoded("k"))
        assert encoded("k") not in list(handler.keys())
        handler.suspend(encoded("k"))
        handler.restore(encoded("k"), snapshot)
        handler.suspend(encoded("k"))
        assert handler.snapshot(encoded("k")) == snapshot

    def test_memory_stays_in_its_budget_and_the_file_is_reused(self) -> None:
        budget = 20_000
        handler = InProcessStateHandler({}, None, suspended_bytes=budget)
        suspended = handler._suspended
        impl = coders.BytesCoder().get_impl()
        chance = random.Random(7)
        model: dict[str, bytes] = {}
        largest = 0
        for _ in range(1000):
            key = f"k{chance.randrange(60)}"
            if chance.random() < 0.3:
                handler.drop_key(encoded(key))
                model.pop(key, None)
            else:
                model[key] = chance.randbytes(chance.randrange(2000))
                handler.clear(bag_key(key))
                handler.extend(bag_key(key), impl, [model[key]])
                handler.suspend(encoded(key))
            assert suspended._held <= budget
            assert suspended._held == sum(state.size for state in suspended._memory.values())
            largest = max(largest, suspended._end)
        assert sorted(map(encoded, model)) == sorted(handler.keys())
        for key, value in model.items():
            assert list(handler.blocking_get(bag_key(key), impl)) == [value]
        assert 0 < largest < 4 * 60 * 2000
        handler.done()
        assert handler.keys() == []


class Sides:
    """A `SideStore` in memory that counts reads."""

    def __init__(self, content: dict[tuple[Any, ...], list[bytes]]) -> None:
        self.content = content
        self.read = 0

    def _find(self, *id: Any) -> Iterator[bytes]:
        for chunk in self.content.get(id, []):
            self.read += 1
            yield chunk

    def chunks(self, channel: int, window: bytes) -> Iterator[bytes]:
        return self._find(channel, window)

    def values(self, channel: int, window: bytes, key: bytes) -> Iterator[bytes]:
        return self._find(channel, window, key)

    def keys(self, channel: int, window: bytes) -> Iterator[bytes]:
        return self._find(channel, window, None)


def nested(coder: Any, *values: Any) -> bytes:
    return b"".join(coder.get_impl().encode_nested(value) for value in values)


def side_map(handler: InProcessStateHandler, urn: str, coder: Any) -> Any:
    data = pvalue.SideInputData(urn, lambda window: window, lambda view: view)
    return bundle_processor.StateBackedSideInputMap(
        handler, "t", "side0", data, coders.WindowedValueCoder(coder, GLOBAL)
    )


ITERABLE = common_urns.side_inputs.ITERABLE.urn
MULTIMAP = common_urns.side_inputs.MULTIMAP.urn


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the cache large enough, whatever the sizes of this process."""
    monkeypatch.setattr(module, "_CACHED_SIDE_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_CACHED_SIDES_BYTES", 1 << 20)


class TestSideInputs:
    @pytest.mark.usefixtures("room")
    def test_iterable_is_read_and_cached(self) -> None:
        sides = Sides({(7, b""): [nested(TEXTS, "a", "b"), nested(TEXTS, "c")]})
        handler = InProcessStateHandler({("t", "side0"): 7}, sides)
        for _ in range(3):
            view = side_map(handler, ITERABLE, TEXTS)[GlobalWindow()]
            assert list(view) == ["a", "b", "c"]
            assert list(view) == ["a", "b", "c"]
        assert sides.read == 2

    @pytest.mark.usefixtures("room")
    def test_side_inputs_are_those_of_the_task(self) -> None:
        one, other = (Sides({(7, b""): [nested(TEXTS, text)]}) for text in ("one", "other"))
        handler = InProcessStateHandler({("t", "side0"): 7})
        for sides, expected, reads in ((one, "one", 1), (one, "one", 1), (other, "other", 1), (one, "one", 2)):
            handler.read_sides(sides)
            assert list(side_map(handler, ITERABLE, TEXTS)[GlobalWindow()]) == [expected]
            assert sides.read == reads

    def test_large_iterable_is_streamed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_CACHED_SIDE_BYTES", 4)
        sides = Sides({(7, b""): [nested(TEXTS, f"text {i}") for i in range(100)]})
        handler = InProcessStateHandler({("t", "side0"): 7}, sides)
        view = side_map(handler, ITERABLE, TEXTS)[GlobalWindow()]
        running = iter(view)
        assert [next(running) for _ in range(10)] == [f"text {i}" for i in range(10)]
        assert sides.read <= 11
        assert list(view) == [f"text {i}" for i in range(100)]  # again from the start
        assert list(running) == [f"text {i}" for i in range(10, 100)]

    @pytest.mark.usefixtures("room")
    def test_multimap_is_looked_up(self) -> None:
        coder = coders.TupleCoder((TEXTS, INTS))
        sides = Sides({(7, b"", encoded("a")): [nested(INTS, 1, 2), nested(INTS, 3)]})
        handler = InProcessStateHandler({("t", "side0"): 7}, sides)
        for _ in range(2):
            view = side_map(handler, MULTIMAP, coder)[GlobalWindow()]
            assert list(view["a"]) == [1, 2, 3]
            assert list(view["b"]) == []
        assert sides.read == 2

    def test_keys_of_multimap(self) -> None:
        handler = InProcessStateHandler({("t", "side0"): 7}, Sides({(7, b"", None): [encoded("a"), encoded("b")]}))
        key = fn_pb.StateKey(
            multimap_keys_side_input=fn_pb.StateKey.MultimapKeysSideInput(transform_id="t", side_input_id="side0")
        )
        assert list(handler.blocking_get(key, TEXTS.get_impl())) == ["a", "b"]

    def test_cache_distinguishes_windows_and_keys(self) -> None:
        places = [(window, key) for window in (b"", b"w", b"v") for key in ("a", "b")]
        content = {(7, window, encoded(key)): [nested(TEXTS, f"{window!r} {key}")] for window, key in places}
        content |= {(7, window): [nested(TEXTS, f"{window!r}")] for window in (b"", b"w", b"v")}
        handler = InProcessStateHandler({("t", "side0"): 7}, Sides(content))
        for _ in range(2):
            for window, key in places:
                named = {"transform_id": "t", "side_input_id": "side0", "window": window}
                of_key = fn_pb.StateKey.MultimapSideInput(**named, key=encoded(key))
                values = handler.blocking_get(fn_pb.StateKey(multimap_side_input=of_key), TEXTS.get_impl())
                assert list(values) == [f"{window!r} {key}"]
                whole = fn_pb.StateKey.IterableSideInput(**named)
                values = handler.blocking_get(fn_pb.StateKey(iterable_side_input=whole), TEXTS.get_impl())
                assert list(values) == [f"{window!r}"]

    def test_cache_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_CACHED_SIDES_BYTES", 3 * module._ENTRY_OVERHEAD)
        sides = Sides({(7, b"", encoded(str(i))): [nested(INTS, i)] for i in range(10)})
        handler = InProcessStateHandler({("t", "side0"): 7}, sides)
        view = side_map(handler, MULTIMAP, coders.TupleCoder((TEXTS, INTS)))[GlobalWindow()]
        for _ in range(2):
            for i in range(10):
                assert list(view[str(i)]) == [i]
        assert len(handler._decoded._lists) == 2
        assert sides.read == 20

    @pytest.mark.parametrize("sides", [None, Sides({})])
    def test_error_names_unknown_side_input(self, sides: Sides | None) -> None:
        handler = InProcessStateHandler({("t", "other"): 7}, sides)
        with pytest.raises(ArcbeamError, match="'side0' is not a side input of transform 't'"):
            list(side_map(handler, ITERABLE, TEXTS)[GlobalWindow()])
