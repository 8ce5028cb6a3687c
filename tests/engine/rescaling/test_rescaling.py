"""State in another number of shards: each key has the same rows in its new shard; nothing is lost or doubled."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.grouping.sortedruns import SortedRuns
from arcbeam.engine.rescaling.rescaling import LevelRescaling, RescaledStage
from arcbeam.engine.rescaling.sink import Put
from arcbeam.engine.rows import sequences
from arcbeam.engine.rows.keyspace import END, NAME_LIMIT, RowKind, Section, moment, name, part, prefix, put_format
from arcbeam.engine.state.blocked import BlockedElement, BlockedElements, SideInputWindow
from arcbeam.engine.state.cells import BagCell, Cells, OrderedListCell
from arcbeam.engine.state.keyqueue import Element, SortedInput
from arcbeam.engine.state.residuals import Remainder, Residuals
from arcbeam.engine.state.timers import Timers
from arcbeam.engine.watermarks.clocks import Clock
from arcbeam.engine.watermarks.holds import WINDOW_END, Holder, HolderKind, Holds, Side
from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermarks
from arcbeam.errors import ArcbeamError
from arcbeam.model.plan import TimeDomain
from arcbeam.model.rows import key_hash
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

pytestmark = pytest.mark.contract("STORE-12")

_KEYED, _FREE, _GONE = 0x0102, 0x0100, 0x0103
_STAGES = {_KEYED: RescaledStage("keyed", True), _FREE: RescaledStage("free", False)}
_FAMILIES = {"event": TimeDomain.EVENT, "clock": TimeDomain.PROCESSING, WINDOW_END: TimeDomain.EVENT}
_WINDOWS = [b"", b"\0\1", b"w" * 90]
_OUTPUTS = ("out", "late\0")

SHARDS = st.integers(1, 128)
KEYS = st.lists(
    st.sampled_from([b"", b"a", b"b", b"a\0\1\2", b"\xff\xff", b"\0", b"\0l" * 200, b"u" * 89]) | st.binary(max_size=6),
    max_size=12,
    unique=True,
)


def rescale(old: Sequence[MemoryView], shards: int, stages: Mapping[int, RescaledStage] = _STAGES) -> list[MemoryView]:
    """Return the new shards; a row that is put twice fails. Several that share the work have the same result."""
    new, together = ([MemoryView() for _ in range(shards)] for _ in range(2))

    def put_into(new: list[MemoryView]) -> Put:
        def put(shard: int, row: bytes, value: bytes) -> None:
            assert new[shard].get(row) is None, f"{row!r} is put twice"
            new[shard].put(row, value)

        return put

    level = LevelRescaling(len(old), shards, stages, put_into(new))
    for source, view in enumerate(old):
        level.take(source, view)
    timers = level.end()
    movers = [LevelRescaling(len(old), shards, stages, put_into(together)) for _ in range(2)]
    joining = LevelRescaling(len(old), shards, stages, put_into(together))
    for source, view in enumerate(old):
        joining.join(source, view)
        movers[source % 2].move(source, view)
    for mover in movers:
        joining.adopt(pickle.loads(pickle.dumps(mover.moved())))
    assert joining.end() == timers
    assert [view.snapshot() for view in together] == [view.snapshot() for view in new]
    return new


def fresh(shards: int) -> list[MemoryView]:
    views = [MemoryView() for _ in range(shards)]
    for view in views:
        put_format(view)
    return views


def rows_of(key: bytes) -> Mapping[bytes, bytes]:
    """Return rows of each kind that has a user key."""
    view = MemoryView()
    cells = Cells(view, _KEYED)
    timers = Timers(view, _KEYED, _FAMILIES)
    ordered = SortedInput(view, _KEYED)
    for window in _WINDOWS:
        BagCell(cells, "bag").extend(key, window, [b"v" * 2000] * 3)
        OrderedListCell(cells, "list").add(key, window, Timestamp(1), b"v")
        for side in Side:
            Holds(view, _KEYED, side).set(Holder(HolderKind.STATE, "pane", key, window), Timestamp(2), "out\0")
        for tag in ("", "t\0", "u" * 150):
            timers.set(key, window, "event", Timestamp(5), Timestamp(5), tag)
            timers.set(key, window, "event", Timestamp(5), Timestamp(3), tag + "2")
            timers.set(key, window, "clock", Timestamp(5), Timestamp(3), tag)
        assert ordered.add(Element(key, window, Timestamp(4), b"v"), MIN_TIMESTAMP) is None
    view.put(prefix(RowKind.GROUPING, _KEYED) + len(key).to_bytes(4, "big") + key + b"w", b"record")
    view.delete(prefix(RowKind.ARRIVALS, _KEYED))
    return view.snapshot()


def placed(keys: Sequence[bytes], shards: int) -> list[MemoryView]:
    views = [MemoryView() for _ in range(shards)]
    for key in keys:
        shard = key_hash(key) % shards
        put_format(views[shard])
        for row, value in rows_of(key).items():
            views[shard].put(row, value)
    return views


def contents(views: Sequence[MemoryView]) -> list[dict[bytes, bytes]]:
    return [view.snapshot() for view in views]


@settings(max_examples=40, deadline=None)
@given(KEYS, st.lists(SHARDS, min_size=2, max_size=4))
def test_all_rows_of_a_key_move_to_its_shard(keys: list[bytes], numbers: list[int]) -> None:
    views = placed(keys, numbers[0])
    for number in (*numbers[1:], numbers[0]):
        views = rescale(views, number)
        assert contents(views) == contents(placed(keys, number))


@pytest.mark.parametrize("key", [b"\0l" * 200, b"k" * 89])
def test_rows_that_lack_a_long_key_are_refused(key: bytes) -> None:
    views = fresh(2)
    cells = Cells(views[0], _KEYED)
    BagCell(cells, "bag").add(key, b"", b"v")
    views[0].delete(cells.start(key, b"")[:-1] + bytes((Section.KEY,)) + END)  # as an earlier version
    with pytest.raises(ArcbeamError, match=r"'keyed' cannot be rescaled.*long key"):
        rescale(views, 3)


@pytest.mark.parametrize("key", [b"\0l" * 200, b"k" * 89])
def test_cells_have_their_long_key(key: bytes) -> None:
    views = fresh(2)
    BagCell(Cells(views[key_hash(key) % 2], _KEYED), "bag").add(key, b"", b"v")
    OrderedListCell(Cells(views[key_hash(key) % 2], _KEYED), "list").add(key, b"w", Timestamp(1), b"v")
    cells = Cells(rescale(views, 7)[key_hash(key) % 7], _KEYED)
    assert list(BagCell(cells, "bag").read(key, b"")) == [b"v"]
    assert list(OrderedListCell(cells, "list").read(key, b"w")) == [(1, b"v")]


def test_blocked_element_has_the_long_key_of_a_cell() -> None:
    views, key = fresh(2), b"k" * 89
    cells = Cells(views[key_hash(key) % 2], _KEYED)
    BagCell(cells, "bag").add(key, b"", b"v")
    cells.view.delete(cells.start(key, b"")[:-1] + bytes((Section.KEY,)) + END)
    element = b"".join(map(sequences.framed, (key, b"", b"v")))
    BlockedElements(views[key_hash(key) % 2], _KEYED).add(_LOTS[0], BlockedElement(Timestamp(1), element))
    new = rescale(views, 3)[key_hash(key) % 3]
    assert list(BagCell(Cells(new, _KEYED), "bag").read(key, b"")) == [b"v"]


def test_rows_of_other_formats_are_refused() -> None:
    view = MemoryView({bytes((RowKind.FORMAT,)): b"\0\7"})
    with pytest.raises(ArcbeamError, match="shard 0 has format 7"):
        rescale([view], 3)


def test_rows_of_removed_stages_are_left_out() -> None:
    views = fresh(2)
    BagCell(Cells(views[0], _GONE), "bag").add(b"k", b"", b"v")
    assert contents(rescale(views, 3)) == [{}, {}, {}]


def test_idle_time_of_equal_watermarks_is_kept() -> None:
    views, row = fresh(2), prefix(RowKind.OUTPUT, _FREE) + name("out")
    for view, since in zip(views, (8, 9), strict=True):
        view.put(row, moment(Timestamp(1)) + moment(Timestamp(since)))
    assert [view.get(row) for view in rescale(views, 3)] == [moment(Timestamp(1)) + moment(Timestamp(9))] * 3
    views[1].put(row, moment(Timestamp(2)) + moment(Timestamp(9)))
    assert [view.get(row) for view in rescale(views, 3)] == [None] * 3
    assert [view.get(row) for view in rescale(views, 4)] == [views[shard % 2].get(row) for shard in range(4)]


# Blocked elements.

_LOTS = [SideInputWindow("side\0", b"\0\1"), SideInputWindow("side\0", b"w" * 90), SideInputWindow("commit", b"")]
BLOCKED = st.lists(
    st.tuples(st.sampled_from(_LOTS), st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(-5, 5), st.booleans()),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(BLOCKED, SHARDS, SHARDS)
def test_blocked_elements_stay_in_order_of_their_key(
    blocked: list[tuple[SideInputWindow, bytes, int, bool]], had: int, shards: int
) -> None:
    views = fresh(had)
    expected: dict[tuple[SideInputWindow, bytes], list[BlockedElement]] = defaultdict(list)
    for number, (lot, key, time, is_long) in enumerate(blocked):
        value = b"%d" % number * (700 if is_long else 1)
        element = BlockedElement(Timestamp(time), b"".join(map(sequences.framed, (key, b"window", value))))
        expected[lot, key].append(element)
        BlockedElements(views[key_hash(key) % had], _KEYED).add(lot, element)
    found: dict[tuple[SideInputWindow, bytes], list[BlockedElement]] = defaultdict(list)
    for shard, view in enumerate(rescale(views, shards)):
        Holds(view, _KEYED, Side.INPUT).validate()
        elements = BlockedElements(view, _KEYED)
        for lot, first in list(elements.lots()):
            taken = list(elements.take(lot))
            assert first == min(element.time for element in taken)
            for element in taken:
                key = next(sequences.unframed(element.value))
                assert key_hash(key) % shards == shard
                found[lot, key].append(element)
        assert Holds(view, _KEYED, Side.INPUT).earliest() is None
    assert found == expected


def test_blocked_elements_without_key_are_dealt_to_all_shards() -> None:
    views = fresh(2)
    for number in range(40):
        element = b"".join(map(sequences.framed, (b"", b"window", b"%d" % number)))
        BlockedElements(views[number % 2], _FREE).add(_LOTS[0], BlockedElement(Timestamp(number), element))
    taken = [list(BlockedElements(view, _FREE).take(_LOTS[0])) for view in rescale(views, 5)]
    assert [len(of) for of in taken] == [8] * 5
    assert sorted(element.time for of in taken for element in of) == list(range(40))


# Restrictions.

RESTRICTIONS = st.lists(
    st.tuples(
        st.sampled_from(["r", "root" * 20, "1.2.3"]),
        st.integers(0, 9),
        st.sampled_from([1.0, 0.1, float("inf"), float("nan")]),
        st.dictionaries(st.sampled_from(_OUTPUTS), st.integers(-9, 9).map(Timestamp)),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(RESTRICTIONS, SHARDS, SHARDS)
def test_restrictions_keep_their_times_and_counts(
    made: list[tuple[str, int, float, dict[str, Timestamp]]], had: int, shards: int
) -> None:
    views = fresh(had)
    for number, (root, due, size, watermarks) in enumerate(made):
        remainder = Remainder(b"%d" % number, size, Timestamp(due), watermarks)
        Residuals(views[number % had], _FREE, _OUTPUTS).admit(f"{root}{number}", remainder, Timestamp(0))
    handed = sorted(
        Residuals(view, _FREE, _OUTPUTS).hand_over(restriction.id)
        for view in (MemoryView(each.snapshot()) for each in views)
        for restriction in list(Residuals(view, _FREE, _OUTPUTS).all())
    )
    found = []
    for view in rescale(views, shards):
        residuals = Residuals(view, _FREE, _OUTPUTS)
        if residuals.totals().live:
            residuals.validate()
            before = view.snapshot()
            residuals.adapt()
            assert view.snapshot() == before, "totals are counted again"
        found += [Residuals(view, _FREE, _OUTPUTS).hand_over(each.id) for each in list(residuals.all())]
        assert not any(row[0] != RowKind.FORMAT for row, _ in view.scan(b""))
    assert sorted(found) == handed


def test_totals_of_other_outputs_are_counted_again() -> None:
    views = fresh(2)
    Residuals(views[0], _FREE, ("out",)).admit("a", Remainder(b"a"), Timestamp(0))
    Residuals(views[1], _FREE, ("other",)).admit("b", Remainder(b"b"), Timestamp(0))
    (view,) = rescale(views, 1)
    residuals = Residuals(view, _FREE, ("out",))
    residuals.adapt()
    residuals.validate()
    assert residuals.totals().live == 2


def test_hold_of_a_script_stays_in_its_shard() -> None:
    views = fresh(2)
    clock = Clock(views[0], _FREE, ("out",))
    clock.follow(Timestamp(3))
    first, *others = rescale(views, 3)
    assert Clock(first, _FREE, ("out",)).advance(Timestamp(9)) == 3
    assert contents(others) == [{}, {}]


# Buffered windows.

RUNS = st.lists(
    st.tuples(
        st.sampled_from(_WINDOWS),
        st.dictionaries(st.sampled_from([b"", b"a", b"bb", b"c"]), st.integers(1, 3), min_size=1),
        st.booleans(),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(RUNS, SHARDS, SHARDS)
def test_buffered_windows_keep_payloads_in_order(
    runs: list[tuple[bytes, dict[bytes, int], bool]], had: int, shards: int
) -> None:
    views = fresh(had)
    expected: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    number = 0
    for window, groups, is_long in runs:
        by_shard: dict[int, dict[bytes, list[bytes]]] = defaultdict(dict)
        for key, many in groups.items():
            payloads = [b"%d-%d" % (number, each) * (4000 if is_long else 1) for each in range(many)]
            by_shard[key_hash(key) % had][key] = payloads
            expected[window, key] += payloads
            number += 1
        for shard, of in by_shard.items():
            SortedRuns(views[shard], _place(window)).add(of)
            Timers(views[shard], _KEYED, _FAMILIES).set(b"", window, WINDOW_END, Timestamp(7), Timestamp(7))
    found: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    for shard, view in enumerate(rescale(views, shards)):
        Timers(view, _KEYED, _FAMILIES).validate()
        timers = sorted(fired.window for fired in Timers(view, _KEYED, _FAMILIES).pending())
        assert timers == sorted(window for window in _WINDOWS if not SortedRuns(view, _place(window)).empty)
        for window in timers:
            of = SortedRuns(view, _place(window))
            for key, payloads in of.merged({}):
                assert key_hash(key) % shards == shard
                assert (window, key) not in found, "runs are sorted, so a key comes once"
                found[window, key] += payloads
            of.clear()
        assert not any(row[0] == RowKind.GROUPING for row, _ in view.scan(b""))
    assert found == expected


def test_runs_of_an_old_shard_are_sorted_runs_in_the_new_one() -> None:
    views = fresh(1)
    older = SortedRuns(views[0], _place(b"w"))
    older.add({b"b": [b"long" * 30_000]})
    older.add({b"a": [b"1"], b"b": [b"2"]})
    Timers(views[0], _KEYED, _FAMILIES).set(b"", b"w", WINDOW_END, Timestamp(7), Timestamp(7))
    (view,) = rescale(views, 1)
    assert list(SortedRuns(view, _place(b"w")).merged({})) == [(b"a", [b"1"]), (b"b", [b"long" * 30_000, b"2"])]


def _place(window: bytes) -> bytes:
    return prefix(RowKind.GROUPING, _KEYED) + b"\xff" + part(window, NAME_LIMIT)


def test_change_of_window_timers_is_reported() -> None:
    views = fresh(1)
    SortedRuns(views[0], _place(b"w")).add({b"%d" % key: [b"payload"] for key in range(20)})
    Timers(views[0], _KEYED, _FAMILIES).set(b"", b"w", WINDOW_END, Timestamp(7), Timestamp(7))
    level = LevelRescaling(1, 3, _STAGES, lambda shard, row, value: None)
    level.take(0, views[0])
    assert level.end() == {_KEYED: 2}


# Watermarks.

TIMES = st.lists(st.integers(1, 5).map(Timestamp), min_size=1, max_size=12)
_UPSTREAM = Timestamp(5)
_AT_THE_HEAD = {number: replace(of, upstream=_UPSTREAM) for number, of in _STAGES.items()}


def behind(times: Sequence[Timestamp]) -> list[MemoryView]:
    """Return shards whose input watermarks are at these times: up to there, something is pending."""
    views = fresh(len(times))
    for shard, (view, time) in enumerate(zip(views, times, strict=True)):
        key = next(key for key in (b"%d" % each for each in range(1000)) if key_hash(key) % len(times) == shard)
        for stage in _STAGES:
            if time < _UPSTREAM:
                Holds(view, stage, Side.INPUT).set(Holder(HolderKind.STATE, "waits", key, b"w"), time)
            assert Clock(view, stage, ()).advance(_UPSTREAM) == time
            assert (view.get(prefix(RowKind.CLOCK, stage)) is None) == (time in (_UPSTREAM, MIN_TIMESTAMP))
    return views


def clock_of(view: MemoryView) -> Timestamp:
    """Return where the input watermark of a shard is, before it runs; a shard without a row is at the head's."""
    head = MIN_TIMESTAMP if view.get(prefix(RowKind.CLOCK, _KEYED)) else _UPSTREAM
    return Clock(view, _KEYED, (), head).input


@settings(max_examples=60, deadline=None)
@given(TIMES, st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_lateness_of_a_key_never_changes(times: list[Timestamp], numbers: list[int]) -> None:
    views = behind(times)
    for number in numbers:
        views = rescale(views, number, _AT_THE_HEAD)
        clocks = list(map(clock_of, views))
        # Those of some shards may be later now: their keys were all in later shards.
        assert min(clocks) >= min(times)
        for key in (b"%d" % each for each in range(50)):
            shard = key_hash(key) % number
            late = max(clocks[shard], KeyRangeWatermarks(views[shard], _KEYED).of(key))
            assert late == times[key_hash(key) % len(times)]
        assert not any(KeyRangeWatermarks(view, _FREE) for view in views)
    for view in views:
        ranges = KeyRangeWatermarks(view, _KEYED)
        ranges.passed(MAX_TIMESTAMP)
        assert not KeyRangeWatermarks(view, _KEYED)


def test_floors_that_are_passed_are_dropped() -> None:
    (view,) = rescale(behind([Timestamp(1), Timestamp(2), Timestamp(5)]), 1, _AT_THE_HEAD)
    keys = {key_hash(key) % 3: key for key in (b"%d" % each for each in range(50))}
    assert [KeyRangeWatermarks(view, _KEYED).of(keys[shard]) for shard in range(3)] == [MIN_TIMESTAMP, 2, 5]
    KeyRangeWatermarks(view, _KEYED).passed(Timestamp(2))
    assert [KeyRangeWatermarks(view, _KEYED).of(keys[shard]) for shard in range(3)] == [MIN_TIMESTAMP, MIN_TIMESTAMP, 5]


def test_shards_without_pending_work_stay_without_rows() -> None:
    views = behind([_UPSTREAM, Timestamp(2), _UPSTREAM])
    assert [view.get(prefix(RowKind.CLOCK, _KEYED)) is None for view in views] == [True, False, True]
    assert clock_of(rescale(views, 2, _AT_THE_HEAD)[0]) == 2
    for number in (6, 4, 1):
        assert contents(rescale([*fresh(2), MemoryView()], number, _AT_THE_HEAD)) == [{}] * number


def test_pending_work_without_watermark_holds_new_shards() -> None:
    (view,) = rescale(behind([_UPSTREAM, MIN_TIMESTAMP]), 1, _AT_THE_HEAD)
    assert clock_of(view) == MIN_TIMESTAMP
    keys = {key_hash(key) % 2: key for key in (b"%d" % each for each in range(9))}
    assert [KeyRangeWatermarks(view, _KEYED).of(keys[shard]) for shard in range(2)] == [_UPSTREAM, MIN_TIMESTAMP]


def test_arrivals_continue_after_all_that_came() -> None:
    views = fresh(2)
    for shard, count in enumerate((3, 5)):
        view = views[shard]
        key = next(key for key in (b"%d" % each for each in range(9)) if key_hash(key) % 2 == shard)
        ordered = SortedInput(view, _KEYED)
        for _ in range(count):
            assert ordered.add(Element(key, b"", Timestamp(4), b"v"), MIN_TIMESTAMP) is None
    for view in rescale(views, 3):
        assert view.get(prefix(RowKind.ARRIVALS, _KEYED)) == (5).to_bytes(8, "big")


def test_every_kind_of_row_is_covered() -> None:
    views = fresh(2)
    view = views[0]
    for row, value in rows_of(b"a").items():
        view.put(row, value)
    for kind in set(RowKind) - {RowKind(row[0]) for row, _ in view.scan(b"")}:
        assert kind in {
            RowKind.FREE,
            RowKind.BLOCKED,
            RowKind.RESIDUAL,
            RowKind.DUE,
            RowKind.ROOT,
            RowKind.CLOCK,
            RowKind.ARRIVALS,
            RowKind.KEY_RANGES,
            RowKind.OUTPUT,
        }
    unknown = MemoryView({b"\x7f\0\0": b""})
    with pytest.raises(ValueError, match="127"):
        rescale([unknown], 1)
