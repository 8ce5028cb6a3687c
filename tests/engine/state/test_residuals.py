"""Residuals are processed exactly once, when they are due, and hold until then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from arcbeam.engine.rows.keyspace import RowKind, prefix
from arcbeam.engine.state.residuals import Remainder, Residuals, Restriction
from arcbeam.engine.state.restrictiontotals import RestrictionTotals, TooManyRestrictions
from arcbeam.engine.watermarks.holds import HolderKind, Holds, Side
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.testing.views import MemoryView

_OUTPUTS = ("main", "errors")
_TIMES = st.sampled_from([MIN_TIMESTAMP, *map(Timestamp, range(0, 50, 7)), MAX_TIMESTAMP])
_WATERMARKS = st.dictionaries(st.sampled_from(_OUTPUTS), _TIMES)
_DUE = st.none() | st.integers(0, 30).map(Timestamp)


class ResidualsMachine(RuleBasedStateMachine):
    """Restrictions are sets of numbers here. Each number is processed once, in any shard, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.views = [MemoryView(), MemoryView()]
        self.shards = [Residuals(view, 5, _OUTPUTS, bound=3) for view in self.views]
        self.now = Timestamp(0)
        self.admitted = 0
        self.done: list[int] = []
        self.running: list[tuple[int, Restriction, set[int], bool]] = []
        self.dues: dict[bytes, Timestamp] = {}

    shard = st.integers(0, 1)

    def _remainder(self, work: set[int], due: Timestamp | None, watermarks: dict) -> Remainder:
        return Remainder(",".join(map(str, sorted(work))).encode(), float(len(work)), due, watermarks)

    def _work(self, restriction: Restriction) -> set[int]:
        return {int(each) for each in restriction.remainder.element.split(b",")}

    def _note(self, restriction: Restriction | None, due: Timestamp | None) -> None:
        assert restriction is not None
        assert restriction.due == (self.now if due is None else due)
        self.dues[restriction.id] = restriction.due

    @rule(shard=shard, count=st.integers(1, 6), due=_DUE, watermarks=_WATERMARKS)
    def admit(self, shard: int, count: int, due: Timestamp | None, watermarks: dict) -> None:
        work = set(range(self.admitted, self.admitted + count))
        root = f"root{self.admitted}"
        self.admitted += count
        self._note(self.shards[shard].admit(root, self._remainder(work, due, watermarks), self.now), due)

    @rule(by=st.integers(1, 9))
    def wait(self, by: int) -> None:
        self.now = Timestamp(self.now + by)

    @rule(shard=shard)
    def take(self, shard: int) -> None:
        waiting = {r.id for r in self.shards[shard].all()} - {r.id for _, r, _, _ in self.running}
        taken = self.shards[shard].take(self.now)
        dues = [self.dues[id] for id in waiting if self.dues[id] <= self.now]
        assert (taken.due if taken else None) == min(dues, default=None)
        if taken is not None:
            self.running.append((shard, taken, self._work(taken), False))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), due=_DUE, watermarks=_WATERMARKS)
    def split(self, data: st.DataObject, due: Timestamp | None, watermarks: dict) -> None:
        at = data.draw(st.integers(0, len(self.running) - 1))
        shard, restriction, work, _ = self.running[at]
        if len(work) < 2:
            return
        given = {number for number in work if number >= sorted(work)[len(work) // 2]}
        residual = self.shards[shard].split(restriction.id, self._remainder(given, due, watermarks), self.now)
        self._note(residual, due)
        self.running[at] = (shard, restriction, work - given, True)

    @precondition(lambda self: self.running)
    @rule(done=st.integers(0, 6), due=_DUE, watermarks=_WATERMARKS)
    def finish(self, done: int, due: Timestamp | None, watermarks: dict) -> None:
        shard, restriction, work, _ = self.running.pop(0)
        processed = set(sorted(work)[:done])
        self.done += processed
        left = work - processed
        deferred = self._remainder(left, due, watermarks) if left else None
        residual = self.shards[shard].finish(restriction.id, deferred, self.now)
        if left:
            self._note(residual, due)
        else:
            assert residual is None

    @precondition(lambda self: self.running)
    @rule()
    def put_back(self) -> None:
        shard, restriction, _, touched = self.running[-1]
        if not touched:
            self.running.pop()
            self.shards[shard].put_back(restriction.id)

    @precondition(lambda self: not self.running)
    @rule(shard=shard, data=st.data())
    def rebalance(self, shard: int, data: st.DataObject) -> None:
        restrictions = list(self.shards[shard].all())
        if restrictions:
            moved = data.draw(st.sampled_from(restrictions))
            assert self.shards[1 - shard].adopt(self.shards[shard].hand_over(moved.id)) == moved

    @precondition(lambda self: not self.running)
    @rule()
    def restart(self) -> None:
        for shard in self.shards:
            shard.settled()
        self.views = [MemoryView(view.snapshot()) for view in self.views]
        self.shards = [Residuals(view, 5, _OUTPUTS, bound=3) for view in self.views]

    @precondition(lambda self: not self.running)
    @rule(shard=shard, cut=st.booleans())
    def truncate(self, shard: int, cut: bool) -> None:
        restriction = next(self.shards[shard].untruncated(), None)
        if restriction is None:
            return
        work = self._work(restriction)
        kept = set() if cut else work
        self.done += work - kept  # truncated work counts as done
        remainder = self._remainder(kept, Timestamp(99), {}) if kept else None
        left = self.shards[shard].truncate(restriction.id, remainder, self.now)
        if left is not None:
            assert left.truncated
            self._note(left, None)

    def _held(self, shard: int, restriction: Restriction, output: str) -> Timestamp:
        name = f"{restriction.root}~{restriction.id.hex()}"
        holds = Holds(self.views[shard], 5, Side.INPUT).all()
        return next(hold.time for hold in holds if (hold.name, hold.output) == (name, output))

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        waiting = [
            number
            for shard in self.shards
            for restriction in shard.all()
            if restriction.id not in {r.id for _, r, _, _ in self.running}
            for number in self._work(restriction)
        ]
        running = [number for _, _, work, _ in self.running for number in work]
        assert sorted([*waiting, *running, *self.done]) == list(range(self.admitted))
        for shard in self.shards:
            shard.validate()
            for crowded in shard.crowded():
                assert crowded.live > 3
                assert shard.splits_left(crowded.root) == 0

    def teardown(self) -> None:
        for shard, restriction, work, _ in self.running:
            self.done += work
            self.shards[shard].finish(restriction.id, None, self.now)
        for shard in self.shards:
            while restriction := shard.take(MAX_TIMESTAMP):
                self.done += self._work(restriction)
                shard.finish(restriction.id, None, MAX_TIMESTAMP)
        assert sorted(self.done) == list(range(self.admitted))
        assert all(len(view) == 0 for view in self.views)


TestResiduals = ResidualsMachine.TestCase
TestResiduals.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

_NOW = Timestamp(1_000_000)


def _one(outputs: tuple[str, ...] = ("main",)) -> tuple[MemoryView, Residuals, Restriction]:
    view = MemoryView()
    residuals = Residuals(view, 0, outputs)
    residuals.admit("orders", Remainder(b"0-100", 100.0, watermarks={"main": Timestamp(10)}), _NOW)
    taken = residuals.take(_NOW)
    assert taken is not None
    return view, residuals, taken


@pytest.mark.contract("SDF-05", "SDF-04")
def test_split_and_deferral_are_stored_once_each() -> None:
    _, residuals, taken = _one()
    split = residuals.split(taken.id, Remainder(b"50-100", watermarks={"main": Timestamp(30)}), _NOW)
    soon = Timestamp(_NOW + 1)
    deferred = residuals.finish(taken.id, Remainder(b"20-50", due=soon, watermarks={"main": Timestamp(20)}), _NOW)
    assert deferred is not None
    assert split.id != deferred.id
    assert residuals.take(_NOW) == split
    assert residuals.take(_NOW) is None
    assert residuals.next_due() == soon
    assert residuals.take(soon) == deferred
    with pytest.raises(ValueError, match="is not running: it is unknown"):
        residuals.finish(taken.id, None, _NOW)


@pytest.mark.contract("SDF-04")
def test_due_times_keep_microseconds_after_restart() -> None:
    view, residuals, taken = _one()
    residuals.finish(taken.id, Remainder(b"rest", due=Timestamp(_NOW + 1_234_567)), _NOW)
    again = Residuals(MemoryView(view.snapshot()), 0, ("main",))
    assert again.next_due() == _NOW + 1_234_567
    assert again.take(Timestamp(_NOW + 1_234_566)) is None
    assert again.take(Timestamp(_NOW + 1_234_567)) is not None


@pytest.mark.contract("SDF-02", "SDF-11")
def test_each_output_is_held_until_replacing_commit() -> None:
    view, residuals, taken = _one(("main", "errors"))
    committed = view.snapshot()
    holds = Holds(view, 0, Side.INPUT)
    marks = {"main": Timestamp(40), "errors": Timestamp(35)}
    rest = residuals.finish(taken.id, Remainder(b"rest", watermarks=marks), _NOW)
    assert rest is not None
    assert [holds.earliest(output).time for output in ("main", "errors")] == [40, 35]
    assert residuals.take(_NOW) == rest
    marks = {"main": Timestamp(50), "errors": Timestamp(20)}
    rest = residuals.finish(rest.id, Remainder(b"rest", watermarks=marks), _NOW)
    assert rest is not None
    # A watermark promised for the whole holds for the rest.
    assert [holds.earliest(output).time for output in ("main", "errors")] == [50, 35]
    before = Holds(MemoryView(committed), 0, Side.INPUT)
    assert [before.earliest(output).time for output in ("main", "errors")] == [10, MIN_TIMESTAMP]


@pytest.mark.contract("SDF-10")
def test_output_without_watermark_is_held_at_beginning() -> None:
    view, residuals, taken = _one(("main", "errors"))
    rest = residuals.finish(taken.id, Remainder(b"rest", watermarks={"main": Timestamp(50)}), _NOW)
    assert rest is not None
    held = Holds(view, 0, Side.INPUT).earliest("errors")
    assert held is not None
    assert (held.time, held.kind) == (MIN_TIMESTAMP, HolderKind.RESIDUAL)
    assert held.name.startswith("orders~")
    assert rest.silent(("main", "errors")) == ("errors",)
    assert residuals.totals() == RestrictionTotals(1, Fraction(rest.remainder.size), {"errors": 1})
    assert residuals.ready(_NOW, 9) == 1
    residuals.admit("late", Remainder(b"all", 7.0, Timestamp(_NOW + 1), {"main": _NOW, "errors": _NOW}), _NOW)
    assert residuals.totals() == RestrictionTotals(2, Fraction(rest.remainder.size + 7.0), {"errors": 1})
    assert residuals.ready(_NOW, 9) == 1
    assert residuals.ready(Timestamp(_NOW + 1), 9) == 2
    assert residuals.ready(Timestamp(_NOW + 1), 1) == 1


@pytest.mark.contract("SDF-05")
def test_crowded_root_is_reported_but_kept() -> None:
    residuals = Residuals(MemoryView(), 0, ("main",), bound=2)
    residuals.admit("orders", Remainder(b"all"), _NOW)
    taken = residuals.take(_NOW)
    assert taken is not None
    assert residuals.splits_left("orders") == 1
    for _ in range(2):
        residuals.split(taken.id, Remainder(b"part"), _NOW)
    assert residuals.splits_left("orders") == 0
    assert list(residuals.crowded()) == [TooManyRestrictions("orders", 3, 2)]
    assert "3 restrictions of 'orders'" in str(residuals.crowded()[0])
    residuals.finish(taken.id, None, _NOW)
    assert residuals.crowded() == ()


@pytest.mark.parametrize("size", [2.5, math.inf, math.nan])
def test_totals_are_known_without_reading_all_rows(size: float) -> None:
    view = MemoryView()
    residuals = Residuals(view, 0, ("main",))
    residuals.admit("a", Remainder(b"all", size), _NOW)
    residuals.admit("b", Remainder(b"all", 4.0), _NOW)
    residuals.validate()
    taken = residuals.take(_NOW)
    assert taken is not None
    residuals.finish(taken.id, None, _NOW)
    totals = Residuals(view, 0, ("main",)).totals()
    assert (totals.live, totals.silent) == (1, {"main": 1})
    left = next(residuals.all()).remainder.size
    assert totals.size == left or math.isnan(left)
    residuals.hand_over(next(residuals.all()).id)
    assert view.snapshot() == {}


def test_small_sizes_survive_removal_of_huge_one() -> None:
    view = MemoryView()
    residuals = Residuals(view, 0, ("main",))
    residuals.admit("a", Remainder(b"all", 100.0, Timestamp(_NOW + 1)), _NOW)
    residuals.admit("huge", Remainder(b"all", float(1 << 63)), _NOW)
    residuals.admit("endless", Remainder(b"all", math.inf), _NOW)
    residuals.admit("b", Remainder(b"all", 0.1, Timestamp(_NOW + 1)), _NOW)
    while (taken := residuals.take(_NOW)) is not None:
        assert residuals.totals().size >= float(1 << 63)
        residuals.finish(taken.id, None, _NOW)
        residuals.validate()
    assert Residuals(view, 0, ("main",)).totals().size == 100.1
    for root in ("c", "d"):
        residuals.admit(root, Remainder(b"all", 1.7e308), _NOW)
    assert residuals.totals().size == math.inf


class _Scans(MemoryView):
    """Counts the rows that are read."""

    seen = 0

    def scan(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for entry in super().scan(start, end):
            self.seen += 1
            yield entry


@pytest.mark.parametrize("size", [math.inf, math.nan])
def test_nonfinite_size_needs_no_read_of_all_rows(size: float) -> None:
    view = _Scans()
    residuals = Residuals(view, 0, ("main",))
    residuals.admit("first", Remainder(b"all", size), _NOW)
    for n in range(50):
        residuals.admit(f"root {n}", Remainder(b"all", 2.0), _NOW)
        residuals.totals()
    assert view.seen < 50
    residuals.validate()


@pytest.mark.contract("SDF-02")
@pytest.mark.parametrize("outputs", [("renamed",), ("main", "errors", "more"), ("main",), ("errors", "more"), ()])
def test_waiting_restrictions_hold_current_outputs(outputs: tuple[str, ...]) -> None:
    view = MemoryView()
    residuals = Residuals(view, 0, ("main", "errors"))
    had = {"both": {"main": Timestamp(9), "errors": Timestamp(5)}, "one": {"main": Timestamp(7)}, "none": {}}
    for root, watermarks in had.items():
        residuals.admit(root, Remainder(b"all", 2.0, watermarks=watermarks), _NOW)
    again = Residuals(view, 0, outputs)
    again.adapt()
    again.validate()
    assert again.totals().live == 3
    kept = {each.root: each.remainder.watermarks for each in again.all()}
    for root, watermarks in had.items():
        # A silent output had no watermark: neither has a new one.
        earliest = min(watermarks.get(output, MIN_TIMESTAMP) for output in ("main", "errors"))
        for output in outputs:
            expected = watermarks.get(output, MIN_TIMESTAMP) if output in ("main", "errors") else earliest
            assert kept[root].get(output, MIN_TIMESTAMP) == expected
    rows = view.snapshot()
    Residuals(view, 0, outputs).adapt()
    assert view.snapshot() == rows
    while (taken := again.take(_NOW)) is not None:
        again.finish(taken.id, None, _NOW)
    again.validate()
    assert view.snapshot() == {}


def test_rows_without_totals_are_counted() -> None:
    view = MemoryView()
    residuals = Residuals(view, 0, ("main",))
    residuals.admit("a", Remainder(b"all", 3.0, None, {"main": _NOW}), _NOW)
    residuals.admit("b", Remainder(b"all", 4.0), _NOW)
    view.delete(prefix(RowKind.ROOT, 0))
    again = Residuals(view, 0, ("main",))
    assert again.totals() == RestrictionTotals(2, Fraction(7), {"main": 1})
    again.admit("c", Remainder(b"all", 1.0), _NOW)
    again.validate()


@pytest.mark.contract("SDF-11")
def test_ids_depend_only_on_parts() -> None:
    def ids() -> list[bytes]:
        _, residuals, taken = _one()
        split = residuals.split(taken.id, Remainder(b"x"), _NOW)
        rest = residuals.finish(taken.id, Remainder(b"y"), Timestamp(_NOW + 5))
        assert rest is not None
        return [taken.id, split.id, rest.id]

    assert ids() == ids()
    assert len(set(ids())) == 3


def test_micro_batch_with_running_restriction_cannot_end() -> None:
    _, residuals, taken = _one()
    with pytest.raises(ValueError, match="running: orders~"):
        residuals.settled()
    residuals.put_back(taken.id)
    residuals.settled()
    assert residuals.take(_NOW) == taken
    residuals.split(taken.id, Remainder(b"part"), _NOW)
    with pytest.raises(ValueError, match="was split: it cannot be put back"):
        residuals.put_back(taken.id)


def test_duplicate_restriction_is_refused() -> None:
    _, residuals, taken = _one()
    with pytest.raises(ValueError, match="root 'orders' exists"):
        residuals.admit("orders", replace(taken.remainder), _NOW)
    residuals.put_back(taken.id)
    other = Residuals(MemoryView(), 0, ("main",))
    handed = residuals.hand_over(taken.id)
    other.adopt(handed)
    with pytest.raises(ValueError, match="handed over twice"):
        other.adopt(handed)
    with pytest.raises(ValueError, match="is not waiting: it is unknown"):
        residuals.hand_over(taken.id)


def test_truncated_restriction_is_due_at_once() -> None:
    view = MemoryView()
    residuals = Residuals(view, 0, ("main",))
    waiting = residuals.admit("orders", Remainder(b"0-inf", due=Timestamp(_NOW + 10**12)), _NOW)
    kept = residuals.truncate(waiting.id, Remainder(b"0-5", watermarks={"main": Timestamp(3)}), _NOW)
    assert list(residuals.untruncated()) == []
    assert residuals.take(_NOW) == kept
    assert kept is not None
    rest = residuals.finish(kept.id, Remainder(b"2-5", due=Timestamp(_NOW + 7)), _NOW)
    assert rest is not None
    assert rest.truncated
    assert rest.due == _NOW + 7
    with pytest.raises(ValueError, match="is truncated already"):
        residuals.truncate(rest.id, None, _NOW)


@pytest.mark.contract("SDF-08")
def test_all_but_one_restriction_are_movable() -> None:
    residuals = Residuals(MemoryView(), 5, _OUTPUTS)
    for root in ("a", "b", "c", "d"):
        residuals.admit(root, Remainder(b"x" * 100), Timestamp(0))
    taken = residuals.take(Timestamp(0))
    assert taken is not None
    offered = list(residuals.movable(10, 10_000))
    assert len(offered) == 2
    assert taken.id not in {restriction.id for restriction, _ in offered}
    assert len(list(residuals.movable(1, 10_000))) == 1
    assert len(list(residuals.movable(10, 200))) == 1
    for restriction, handed in offered:
        assert residuals.hand_over(restriction.id) == handed
    assert list(residuals.movable(10, 10_000)) == []
