"""One stage in one shard in a micro-batch: what all kinds share, and restrictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.engine.grouping.composites import AfterWatermark, Repeatedly
from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.protocol.microbatchplan import Handover
from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.protocol.stagekinds import Grouped, Plain, Splittable, StageSpec, Stateful
from arcbeam.engine.state.residuals import Remainder
from arcbeam.engine.task.bundles import BundleResult, CallResult, RestrictionResult
from arcbeam.engine.watermarks.clocks import output_time
from arcbeam.engine.watermarks.stages import StageFlow
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW, MAX_TIMESTAMP, Timestamp
from tests.engine.task.world import DECODE, RATES, World, end_of


def test_contradictory_stage_is_refused_by_name() -> None:
    strategy = Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE)
    with pytest.raises(ValueError, match="'it' groups and has side inputs"):
        World(strategy, (("rates", RATES),))
    with pytest.raises(ValueError, match=r"'it' has side inputs: .*`decode`"):
        StageSpec(StagePlacement(StageFlow("it", (), ("main",)), 1, 0, (("rates", RATES),)), Plain())
    with pytest.raises(ValueError, match="a timer family of 'it' has an empty name"):
        World(Stateful({"": TimeDomain.EVENT}, DECODE, end_of))


@pytest.mark.contract("WM-01")
def test_latest_seen_time_is_reported() -> None:
    world = World(Plain())
    world.closed = BundleResult(seen={"clicks": Timestamp(6), "views": Timestamp(3)})
    assert world.micro_batch(8, 6, 7).local.seen == {"clicks": 6, "views": 3}
    world.closed = BundleResult()
    assert world.micro_batch(9).local.seen == {}


@pytest.mark.contract("WM-01", "ENG-10")
@pytest.mark.parametrize("grouped", [True, False])
def test_observed_times_decide_lateness_in_next_micro_batch(grouped: bool) -> None:
    kind = Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE) if grouped else Stateful({}, DECODE, end_of)
    world = World(kind, reads=(RATES,))
    world.micro_batch(5, 1)
    # In that micro-batch its input was at 5; the times seen in it have then moved the input to 12.
    world.committed_outputs[RATES] = Timestamp(12)
    report = world.micro_batch(12, 2, 15)
    assert [drop.watermark for drop in world.drops] == [12]
    assert report.counts.late == 1
    assert world.calls() == (["pane 1"] if grouped else ["process 1", "process 15"])
    assert world.micro_batch(30, 16).counts.late == 0, "its input was at 12 when the element arrived"


# Restrictions.


@pytest.mark.contract("SDF-04", "SDF-05", "SDF-11")
def test_restrictions_run_once_and_residuals_hold() -> None:
    def rest(element: bytes, due: int | None, mark: int) -> Remainder:
        return Remainder(element, 1.0, None if due is None else Timestamp(due), {"main": Timestamp(mark)})

    world = World(Splittable())
    world.on = {"resume 3": RestrictionResult((rest(b"half", None, 5),), rest(b"later", 150, 6), CallResult(4), made=2)}
    report = world.micro_batch(MAX_TIMESTAMP, 3, now=100)
    assert world.calls() == ["resume 3"]
    assert report.leftover
    assert report.next_due == 100
    assert report.input == 5, "the part split off before the estimator advanced holds the earlier time"
    assert (report.restrictions.live, report.restrictions.size) == (2, 2.0)
    assert report.counts == Counts(read=1, written=4, resumed=1, made=2)
    report = world.micro_batch(MAX_TIMESTAMP, now=149)
    assert world.calls() == ["resume half"]
    assert (report.leftover, report.next_due, report.input) == (False, 150, 6)
    report = world.micro_batch(MAX_TIMESTAMP, now=150)
    assert world.calls() == ["resume later"]
    assert (report.input, report.restrictions.live) == (MAX_TIMESTAMP, 0)


def test_at_least_one_restriction_runs_without_budget() -> None:
    world = World(Splittable())
    world.looks = 0
    report = world.micro_batch(MAX_TIMESTAMP, 3, 4, 5)
    assert len(world.calls()) == 1
    assert report.leftover
    assert report.restrictions.live == 2
    world.looks = 1000
    world.micro_batch(MAX_TIMESTAMP)
    assert len(world.calls()) == 2


@pytest.mark.contract("SDF-02", "STORE-05")
@pytest.mark.parametrize("outputs", [("renamed",), ("main", "more"), ("more", "main"), ()])
def test_job_resumes_with_other_outputs_of_restriction(outputs: tuple[str, ...]) -> None:
    world = World(Splittable())
    deferred = Remainder(b"5", 2.0, Timestamp(1000), {"main": Timestamp(7)})
    world.on["resume"] = RestrictionResult(deferred=deferred, call=CallResult(1))
    before = world.micro_batch(MAX_TIMESTAMP, 5)
    assert output_time(MAX_TIMESTAMP, before.local, "main") == 7
    flow = StageFlow("it", (), outputs)
    world.spec = replace(world.spec, placed=replace(world.spec.placed, flow=flow))
    waits = world.micro_batch(MAX_TIMESTAMP, now=10)
    assert [output_time(MAX_TIMESTAMP, waits.local, output) for output in outputs] == [7] * len(outputs)
    assert (waits.input, waits.restrictions.silent) == (MAX_TIMESTAMP if not outputs else 7, ())
    watermarks = {output: Timestamp(8) for output in outputs}
    world.on["resume"] = RestrictionResult(deferred=Remainder(b"5", 2.0, Timestamp(3000), watermarks))
    may_resume = world.micro_batch(MAX_TIMESTAMP, now=2000)
    assert [output_time(MAX_TIMESTAMP, may_resume.local, output) for output in outputs] == [8] * len(outputs)
    del world.on["resume"]
    over = world.micro_batch(MAX_TIMESTAMP, now=4000)
    assert (over.restrictions.live, over.input) == (0, MAX_TIMESTAMP), "a removed output has no hold"
    assert [output_time(MAX_TIMESTAMP, over.local, output) for output in outputs] == [MAX_TIMESTAMP] * len(outputs)


@pytest.mark.contract("SDF-08", "SDF-11")
def test_moved_restriction_holds_and_runs_in_new_shard() -> None:
    world, other = World(Splittable()), World(Splittable())
    later = Remainder(b"later", 3.0, Timestamp(50), {"main": Timestamp(4)})
    world.on = {"resume 3": RestrictionResult((later,), later)}
    report = world.micro_batch(MAX_TIMESTAMP, 3)
    (movable,) = report.restrictions.movable
    assert movable.size == 3
    move = Handover("it", movable.id, 3, 4, movable.handed)
    here = world.micro_batch(MAX_TIMESTAMP, moves=(move, Handover("else", b"", 3, 4, b"")))
    there = other.micro_batch(MAX_TIMESTAMP, shard=4, moves=(move,))
    assert (here.restrictions.live, there.restrictions.live) == (1, 1)
    assert (here.restrictions.movable, there.input, there.next_due) == ((), 4, 50)
    other.micro_batch(MAX_TIMESTAMP, shard=4, now=50)
    assert other.calls() == ["resume later"]


@pytest.mark.contract("END-02")
def test_drain_truncates_each_restriction_once() -> None:
    world = World(Splittable())
    world.on = {"resume 3": RestrictionResult((), Remainder(b"later", due=Timestamp(900)))}
    world.micro_batch(MAX_TIMESTAMP, 3)
    world.on = {"truncate later": Remainder(b"kept")}
    report = world.micro_batch(MAX_TIMESTAMP, 4, drain=True)
    assert world.calls() == ["resume 3", "truncate later", "truncate 4", "resume kept"]
    assert report.restrictions.live == 0
    assert not report.leftover


@pytest.mark.contract("END-05")
def test_prepare_to_shutdown_is_called_last() -> None:
    world = World(Grouped(Strategy(Repeatedly(AfterWatermark())), DECODE), prepares=True)
    world.micro_batch(0, 7)
    world.micro_batch(MAX_TIMESTAMP, prepare=True)
    assert world.calls() == ["pane 7"]
    world.micro_batch(MAX_TIMESTAMP, 8, prepare=True, preparing=frozenset({"it"}))
    assert world.calls() == ["prepare"]


@pytest.mark.contract("END-05")
def test_unprepared_stage_holds_end_of_global_window() -> None:
    for prepares in (False, True):
        world = World(Plain(), prepares=prepares)
        report = world.micro_batch(MAX_TIMESTAMP, 7)
        assert report.unprepared is prepares
        assert report.input == MAX_TIMESTAMP
        assert output_time(MAX_TIMESTAMP, report.local, "main") == (END_OF_GLOBAL_WINDOW if prepares else MAX_TIMESTAMP)
        assert output_time(Timestamp(5), report.local, "main") == 5
        report = world.micro_batch(MAX_TIMESTAMP, prepare=True, preparing=frozenset({"it"}))
        assert not report.unprepared
        assert output_time(MAX_TIMESTAMP, report.local, "main") == MAX_TIMESTAMP


@pytest.mark.contract("SDF-04", "SDF-06")
def test_deferred_part_with_progress_resumes_in_same_micro_batch() -> None:
    world = World(Splittable())
    world.on = {
        "resume 3": RestrictionResult((Remainder(b"split"),), Remainder(b"rest"), may_resume=True),
        "resume rest": RestrictionResult((), Remainder(b"vain")),
    }
    report = world.micro_batch(MAX_TIMESTAMP, 3, 4, 5)
    calls = world.calls()
    assert sorted(calls) == ["resume 3", "resume 4", "resume 5", "resume rest"]
    assert calls.index("resume 3") < calls.index("resume rest")
    assert (report.restrictions.live, report.leftover) == (2, True)
    world.micro_batch(MAX_TIMESTAMP)
    assert sorted(world.calls()) == ["resume split", "resume vain"]
