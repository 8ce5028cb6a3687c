"""Watermarks of a plan are the minimum of all shards, never decrease, and have a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holdreasons import Complete, ShardHold, Unreported
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, Watermarks, WatermarkTimes, upstream_watermarks
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from tests.golden.texts import check_message

_READ, _RATES, _JOIN = Port("read", "main"), Port("rates", "main"), Port("join", "main")
_STAGES = (
    StageFlow("read", (), ("main", "errors"), 2),
    StageFlow("rates", (), ("main",), 1),
    StageFlow("join", (_READ,), ("main",), 2),
    StageFlow("sum", (_JOIN, Port("read", "errors")), (), 3),
)


def _hold(time: int, kind: HolderKind = HolderKind.STATE, name: str = "pane", key: str | None = "user7") -> Hold:
    return Hold(Timestamp(time), kind, name, key=key)


def _local(stage: StageFlow, **main: object) -> Local:
    outputs = {output: OutputTime() for output in stage.outputs}
    if main:
        outputs["main"] = OutputTime(**main)  # type: ignore[arg-type]
    return Local(main.get("pending"), outputs)  # type: ignore[arg-type]


def _all(marks: Watermarks) -> None:
    for stage in _STAGES:
        for shard in range(stage.shards):
            marks.report(stage.name, shard, _local(stage))


@pytest.mark.contract("ENG-01")
def test_watermarks_wait_for_all_shards_and_reach_end() -> None:
    marks = Watermarks(_STAGES)
    assert set(marks.advance().inputs.values()) == {MIN_TIMESTAMP}
    assert marks.explain("sum").cause == Unreported(0)
    _all(marks)
    times = marks.advance()
    assert set(times.inputs.values()) | set(times.outputs.values()) == {MAX_TIMESTAMP}
    assert marks.explain("sum").cause == Complete()


@pytest.mark.contract("ENG-01")
def test_cause_is_found_over_stages() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    marks.report("read", 1, _local(_STAGES[0], hold=_hold(1_000_000)))
    assert marks.advance().inputs["sum"] == 1_000_000
    why = marks.explain("sum")
    assert why.cause == ShardHold(_hold(1_000_000), 1)
    check_message("watermark-held-upstream", str(why))


@pytest.mark.contract("ENG-01")
def test_blocked_element_leads_to_cause_of_side_input() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    blocked = _hold(4, HolderKind.BLOCKED, "", "user7")
    marks.report("join", 0, Local(blocked, {"main": OutputTime(blocked)}, _RATES))
    marks.report("rates", 0, _local(_STAGES[1], hold=_hold(9, HolderKind.TIMER, "poll", None)))
    times = marks.advance()
    assert times.inputs["sum"] == 4
    why = marks.explain("sum")
    assert why.cause == ShardHold(_hold(9, HolderKind.TIMER, "poll", None), 0)
    check_message("watermark-held-by-blocked-element", str(why))


@pytest.mark.contract("SDF-10")
def test_restriction_without_watermark_is_named() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    silent = _hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "orders~1", None)
    marks.report("read", 0, _local(_STAGES[0], pending=silent))
    marks.advance()
    check_message("watermark-held-by-silent-restriction", str(marks.explain_output(_READ)))


_TIMES = st.sampled_from([MIN_TIMESTAMP, *map(Timestamp, range(-5, 30, 3)), MAX_TIMESTAMP])
_HOLDS = st.none() | _TIMES.map(lambda time: _hold(time))
_REPORTS = st.lists(
    st.tuples(
        st.sampled_from([(stage, shard) for stage in _STAGES for shard in range(stage.shards)]),
        st.tuples(_HOLDS, _HOLDS),
    ),
    max_size=12,
)


@pytest.mark.contract("ENG-01")
@settings(max_examples=60, deadline=None)
@given(st.lists(_REPORTS, max_size=6))
def test_watermarks_are_minimum_and_never_decrease(micro_batches: list[list[tuple]]) -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    reported: dict = {}
    before = WatermarkTimes()
    now: dict = {(stage.name, shard): (None, None) for stage in _STAGES for shard in range(stage.shards)}
    for reports in micro_batches:
        for (stage, shard), (pending, hold) in reports:
            now[stage.name, shard] = (pending, hold)
            known = OutputTime(pending, hold)
            marks.report(stage.name, shard, Local(pending, dict.fromkeys(stage.outputs, known)))
        times = marks.advance()
        times.check_after(before)
        before = times
        for stage in _STAGES:
            upstream = min((reported[port] for port in stage.inputs), default=MAX_TIMESTAMP)
            raw = [now[stage.name, shard] for shard in range(stage.shards)]
            pending = min([upstream, *(p.time for p, _ in raw if p)])
            reported[stage.name] = max(pending, reported.get(stage.name, MIN_TIMESTAMP))
            out = min([pending, *(hold.time for _, hold in raw if hold)])
            for output in stage.outputs:
                port = Port(stage.name, output)
                reported[port] = max(out, reported.get(port, MIN_TIMESTAMP))
        assert {**times.inputs, **times.outputs} == reported
        # The named cause really limits the watermark: it is no later than the watermark itself.
        for stage in _STAGES:
            why = marks.explain(stage.name)
            match why.cause:
                case ShardHold(hold):
                    assert hold.time <= times.inputs[stage.name]
                case Complete():
                    assert times.inputs[stage.name] == MAX_TIMESTAMP
            assert "\n" not in str(why)
    resumed = Watermarks(_STAGES, before)
    assert resumed.times().inputs == {**resumed.times().inputs, **before.inputs}
    resumed.advance().check_after(before)


_CLICKS = Observer("clicks", Duration(10))
_OBSERVED = (
    StageFlow("read", (), ("main", "errors"), 2, {"main": (_CLICKS,)}),
    StageFlow("sum", (_READ,), ("main",), 1),
)


def _seen(marks: Watermarks, shard: int, latest: int | None, reported: int = MIN_TIMESTAMP) -> None:
    seen = {} if latest is None else {"clicks": Timestamp(latest)}
    hold = OutputTime(_hold(reported))
    marks.report("read", shard, Local(_hold(reported), {"main": hold, "errors": hold}, None, seen))


@pytest.mark.contract("WM-01", "WM-03")
def test_observed_output_is_at_seen_maximum_after_commit() -> None:
    marks = Watermarks(_OBSERVED)
    _seen(marks, 0, 50)
    _seen(marks, 1, 70)
    marks.report("sum", 0, _local(_OBSERVED[1]))
    times = marks.advance()
    assert times.outputs[_READ] == 60
    assert times.outputs[Port("read", "errors")] == MIN_TIMESTAMP
    assert times.inputs["sum"] == MIN_TIMESTAMP, "the readers learn of it in the next micro-batch"
    assert times.seen == {"clicks": 70}
    check_message("watermark-observed", str(marks.explain_output(_READ)))
    resumed = Watermarks(_OBSERVED, times)
    _seen(resumed, 0, None)
    _seen(resumed, 1, 30)
    resumed.report("sum", 0, _local(_OBSERVED[1]))
    assert resumed.advance().outputs[_READ] == 60
    assert resumed.times().inputs["sum"] == 60
    _seen(resumed, 0, None, MAX_TIMESTAMP)
    _seen(resumed, 1, None, MAX_TIMESTAMP)
    assert resumed.advance().outputs[_READ] == MAX_TIMESTAMP
    assert resumed.times().inputs["sum"] == MAX_TIMESTAMP, "the end reaches readers in the same micro-batch"


@pytest.mark.contract("WM-04")
def test_seen_time_counts_if_all_active_shards_have_ended() -> None:
    impatient = Observer("clicks", Duration(10), idle_after=Duration(1))
    marks = Watermarks([StageFlow("read", (), ("main",), 2, {"main": (impatient,)})])
    silent = OutputTime(_hold(5, HolderKind.RESIDUAL), quiet=True)
    marks.report("read", 0, Local(silent.pending, {"main": silent}, None, {"clicks": Timestamp(50)}))
    marks.report("read", 1, Local(None, {"main": OutputTime()}))
    assert marks.advance().outputs[_READ] == 40
    marks.report("read", 0, Local(None, {"main": OutputTime()}))
    assert marks.advance().outputs[_READ] == MAX_TIMESTAMP


@pytest.mark.contract("ENG-01")
def test_task_receives_minimum_of_all_markers() -> None:
    markers = [{_READ: Timestamp(5)}, {_READ: Timestamp(3), _RATES: Timestamp(9)}]
    tasks = {_READ: 2, _RATES: 1}
    assert upstream_watermarks(markers, tasks, {}) == {_READ: 3, _RATES: 9}
    assert upstream_watermarks(markers, tasks, {_READ: Timestamp(4)}) == {_READ: 4, _RATES: 9}
    with pytest.raises(ValueError, match=r"^1 markers .* the output 'main' of 'read', which 2 tasks have"):
        upstream_watermarks(markers[:1], {_READ: 2}, {})


def test_decreasing_watermark_is_named() -> None:
    times = WatermarkTimes({"sum": Timestamp(1)}, {_READ: Timestamp(2)})
    with pytest.raises(ValueError, match=r"the output 'main' of 'read' .* from 1970\S* to the beginning"):
        WatermarkTimes({"sum": Timestamp(1)}, {_READ: MIN_TIMESTAMP}).check_after(times)


def test_unknown_name_is_refused_with_known_names() -> None:
    marks = Watermarks(_STAGES)
    known = ", ".join(repr(stage.name) for stage in _STAGES)
    for ask in (
        lambda: marks.explain("nope"),
        lambda: marks.explain_output(Port("nope", "main")),
        lambda: marks.report("nope", 0, Local()),
    ):
        with pytest.raises(ValueError, match=f"no stage 'nope'.*: {known}"):
            ask()
    stage = _STAGES[0]
    with pytest.raises(ValueError, match=f"stage '{stage.name}' has no output 'nope'.* '{stage.outputs[0]}'"):
        marks.explain_output(Port(stage.name, "nope"))
    for shard in (-1, stage.shards):
        with pytest.raises(ValueError, match=f"'{stage.name}' has {stage.shards} shards.* {shard}"):
            marks.report(stage.name, shard, Local())


def test_invalid_plan_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'sum' reads output 'main' of 'join'"):
        Watermarks([_STAGES[3]])
    with pytest.raises(ValueError, match="two stages are named 'rates'"):
        Watermarks([_STAGES[1], _STAGES[1]])
