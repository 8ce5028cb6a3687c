"""Watermarks of a plan are the least of what all shards say, never go back, and can say why they are where they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.engine.watermarks.clocks import Local, OutputTime, Port
from arcbeam.engine.watermarks.holdreasons import Complete, Held, Unreported
from arcbeam.engine.watermarks.holds import Hold, HolderKind
from arcbeam.engine.watermarks.stages import StageFlow, Times, Watermarks, upstream_watermarks
from arcbeam.model.observers import Observer
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp

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
def test_they_are_at_the_beginning_until_all_shards_have_spoken_and_at_the_end_when_nothing_is_left() -> None:
    marks = Watermarks(_STAGES)
    assert set(marks.advance().inputs.values()) == {MIN_TIMESTAMP}
    assert marks.explain("sum").cause == Unreported(0)
    _all(marks)
    times = marks.advance()
    assert set(times.inputs.values()) | set(times.outputs.values()) == {MAX_TIMESTAMP}
    assert str(marks.explain("sum")).startswith("input of 'sum' is at the end of time: ")
    assert marks.explain("sum").cause == Complete()


@pytest.mark.contract("ENG-01")
def test_the_cause_is_found_over_stages_and_named_in_one_line() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    marks.report("read", 1, _local(_STAGES[0], hold=_hold(1_000_000)))
    assert marks.advance().inputs["sum"] == 1_000_000
    why = marks.explain("sum")
    assert why.cause == Held(_hold(1_000_000), 1)
    assert str(why) == (
        "input of 'sum' is at 1970-01-01T00:00:01Z: output 'main' of 'join': output 'main' of 'read': "
        "held by state 'pane' of key 'user7' in shard 1"
    )


@pytest.mark.contract("ENG-01")
def test_a_parked_element_leads_to_what_the_side_input_waits_for() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    parked = _hold(4, HolderKind.PARKED, "", "user7")
    marks.report("join", 0, Local(parked, {"main": OutputTime(parked)}, _RATES))
    marks.report("rates", 0, _local(_STAGES[1], hold=_hold(9, HolderKind.TIMER, "poll", None)))
    times = marks.advance()
    assert times.inputs["sum"] == 4
    why = marks.explain("sum")
    assert why.cause == Held(_hold(9, HolderKind.TIMER, "poll", None), 0)
    assert str(why).endswith(
        "held by parked element of key 'user7' in shard 0, waiting for output 'main' of 'rates', which is at "
        "1970-01-01T00:00:00.000009Z: held by timer 'poll' in shard 0"
    )


@pytest.mark.contract("SDF-10")
def test_a_restriction_that_reports_no_watermark_is_told() -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    silent = _hold(MIN_TIMESTAMP, HolderKind.RESIDUAL, "orders~1", None)
    marks.report("read", 0, _local(_STAGES[0], pending=silent))
    marks.advance()
    assert str(marks.explain_output(_READ)) == (
        "output 'main' of 'read' is at the beginning of time: "
        "held by residual 'orders~1' in shard 0, which reports no watermark"
    )


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
def test_they_never_go_back_and_are_the_least_of_all(micro_batches: list[list[tuple]]) -> None:
    marks = Watermarks(_STAGES)
    _all(marks)
    said: dict = {}
    before = Times()
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
            upstream = min((said[port] for port in stage.inputs), default=MAX_TIMESTAMP)
            raw = [now[stage.name, shard] for shard in range(stage.shards)]
            pending = min([upstream, *(p.time for p, _ in raw if p)])
            said[stage.name] = max(pending, said.get(stage.name, MIN_TIMESTAMP))
            out = min([pending, *(hold.time for _, hold in raw if hold)])
            for output in stage.outputs:
                port = Port(stage.name, output)
                said[port] = max(out, said.get(port, MIN_TIMESTAMP))
        assert {**times.inputs, **times.outputs} == said
        # Whatever is told keeps it: it is no later than the watermark itself.
        for stage in _STAGES:
            why = marks.explain(stage.name)
            match why.cause:
                case Held(hold):
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


def _seen(marks: Watermarks, shard: int, latest: int | None, said: int = MIN_TIMESTAMP) -> None:
    seen = {} if latest is None else {"clicks": Timestamp(latest)}
    hold = OutputTime(_hold(said))
    marks.report("read", shard, Local(_hold(said), {"main": hold, "errors": hold}, None, seen))


@pytest.mark.contract("WM-01", "WM-03")
def test_an_observed_output_is_at_the_latest_that_any_shard_has_seen_less_the_delay_from_the_commit_on() -> None:
    marks = Watermarks(_OBSERVED)
    _seen(marks, 0, 50)
    _seen(marks, 1, 70)
    marks.report("sum", 0, _local(_OBSERVED[1]))
    times = marks.advance()
    assert times.outputs[_READ] == 60
    assert times.outputs[Port("read", "errors")] == MIN_TIMESTAMP
    assert times.inputs["sum"] == MIN_TIMESTAMP, "in the micro-batch in which it was seen nobody has heard of it"
    assert times.seen == {"clicks": 70}
    assert str(marks.explain_output(_READ)) == (
        "output 'main' of 'read' is at 1970-01-01T00:00:00.000060Z: observed by 'clicks', which has seen "
        "1970-01-01T00:00:00.000070Z, less 0:00:00.000010"
    )
    resumed = Watermarks(_OBSERVED, times)
    _seen(resumed, 0, None)
    _seen(resumed, 1, 30)
    resumed.report("sum", 0, _local(_OBSERVED[1]))
    assert resumed.advance().outputs[_READ] == 60
    assert resumed.times().inputs["sum"] == 60
    _seen(resumed, 0, None, MAX_TIMESTAMP)
    _seen(resumed, 1, None, MAX_TIMESTAMP)
    assert resumed.advance().outputs[_READ] == MAX_TIMESTAMP
    assert resumed.times().inputs["sum"] == MAX_TIMESTAMP, "the end is told in the micro-batch itself"


@pytest.mark.contract("WM-04")
def test_where_only_what_is_silent_says_anything_what_was_seen_counts_and_that_is_no_end() -> None:
    impatient = Observer("clicks", Duration(10), idle_after=Duration(1))
    marks = Watermarks([StageFlow("read", (), ("main",), 2, {"main": (impatient,)})])
    silent = OutputTime(_hold(5, HolderKind.RESIDUAL), quiet=True)
    marks.report("read", 0, Local(silent.pending, {"main": silent}, None, {"clicks": Timestamp(50)}))
    marks.report("read", 1, Local(None, {"main": OutputTime()}))
    assert marks.advance().outputs[_READ] == 40
    marks.report("read", 0, Local(None, {"main": OutputTime()}))
    assert marks.advance().outputs[_READ] == MAX_TIMESTAMP


@pytest.mark.contract("ENG-01")
def test_a_task_hears_the_least_of_all_markers_and_not_before_all_have_come() -> None:
    markers = [{_READ: Timestamp(5)}, {_READ: Timestamp(3), _RATES: Timestamp(9)}]
    tasks = {_READ: 2, _RATES: 1}
    assert upstream_watermarks(markers, tasks, {}) == {_READ: 3, _RATES: 9}
    assert upstream_watermarks(markers, tasks, {_READ: Timestamp(4)}) == {_READ: 4, _RATES: 9}
    with pytest.raises(ValueError, match=r"1 markers tell of the output 'main' of 'read', which 2 tasks have"):
        upstream_watermarks(markers[:1], {_READ: 2}, {})


def test_a_watermark_that_went_back_is_named() -> None:
    times = Times({"sum": Timestamp(1)}, {_READ: Timestamp(2)})
    with pytest.raises(ValueError, match=r"the output 'main' of 'read' went back from 1970\S* to the beginning"):
        Times({"sum": Timestamp(1)}, {_READ: MIN_TIMESTAMP}).check_after(times)


def test_what_is_not_there_is_named_beside_what_is() -> None:
    marks = Watermarks(_STAGES)
    known = ", ".join(repr(stage.name) for stage in _STAGES)
    for ask in (
        lambda: marks.explain("nope"),
        lambda: marks.explain_output(Port("nope", "main")),
        lambda: marks.report("nope", 0, Local()),
    ):
        with pytest.raises(ValueError, match=f"there is no stage 'nope'; there are: {known}"):
            ask()
    stage = _STAGES[0]
    with pytest.raises(ValueError, match=f"stage '{stage.name}' has no output 'nope'; it has '{stage.outputs[0]}'"):
        marks.explain_output(Port(stage.name, "nope"))
    for shard in (-1, stage.shards):
        with pytest.raises(ValueError, match=f"'{stage.name}' has {stage.shards} shards: there is no shard {shard}"):
            marks.report(stage.name, shard, Local())


def test_a_plan_that_makes_no_sense_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'sum' reads output 'main' of 'join', which no stage before it has"):
        Watermarks([_STAGES[3]])
    with pytest.raises(ValueError, match="two stages are named 'rates'"):
        Watermarks([_STAGES[1], _STAGES[1]])
