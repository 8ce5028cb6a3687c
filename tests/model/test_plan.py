"""The values of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from arcbeam.model.plan import (
    Channel,
    Firings,
    Plan,
    Remote,
    RemotePort,
    Routing,
    SideInput,
    Stage,
    TimeDomain,
    TimerFamily,
    Transform,
)

EVENT = TimerFamily("t", "family", TimeDomain.EVENT)


def stage(id: str, **of: Any) -> Stage:
    return Stage(id, f"name of {id}", (Transform("t", "T", "urn"),), b"opaque payload", 0, (1,), **of)


def test_stage_is_found_by_id() -> None:
    plan = Plan("job", (stage("s0"), stage("s1"), stage("s2")), ())
    assert [plan.stage(f"s{n}").name for n in range(3)] == ["name of s0", "name of s1", "name of s2"]
    with pytest.raises(KeyError):
        plan.stage("s3")


def test_plan_is_bounded_unless_stated() -> None:
    plan = Plan("job", (), ())
    assert (plan.bounded, plan.finite, plan.script, plan.warnings) == (True, False, None, ())


@pytest.mark.parametrize(
    ("states", "timers", "stateful"),
    [((), (), False), ((("t", "count"),), (), True), ((), (EVENT,), True), ((("t", "count"),), (EVENT,), True)],
)
def test_stage_with_state_or_timers_is_stateful(states: Any, timers: Any, stateful: bool) -> None:
    assert stage("s0", states=states, timers=timers).stateful is stateful


def test_side_channels_are_by_transform_and_tag() -> None:
    sides = (SideInput("t", "a", 4), SideInput("u", "a", 5, lateness=7, eager=True, firings=Firings.LAST))
    assert stage("s0", side_inputs=sides).side_channels == {("t", "a"): 4, ("u", "a"): 5}
    assert (sides[0].lateness, sides[0].eager, sides[0].firings) == (0, False, Firings.ALL)


def test_timer_family_follows_its_clock_or_expiration() -> None:
    assert EVENT.follows == "event time"
    assert TimerFamily("t", "family", TimeDomain.PROCESSING).follows == "processing time"
    assert TimerFamily("t", "family", TimeDomain.EVENT, expiration=True).follows == "window expiration"


def test_opaque_bytes_are_not_shown() -> None:
    port = RemotePort("p", "coder", "ours")
    shown = repr(stage("s0", remote=Remote(b"the environment", b"the components", port, {"out": port})))
    assert not any(text in shown for text in ("opaque payload", "the environment", "the components"))


def test_equal_descriptions_are_equal_values() -> None:
    assert Channel(0, "c", Routing.KEYED, producers=("s0",)) == Channel(0, "c", Routing.KEYED, "", "", ("s0",), ())
    assert Channel(0, "c", Routing.KEYED) != Channel(0, "c", Routing.GROUPED)
    assert stage("s0") == stage("s0")
    assert stage("s0") != stage("s0", splittable=True)


def _plan(*stages: Stage, routings: list[Routing], local_bytes: int = 1, bounded: bool = True) -> Plan:
    """Return a plan whose channels have the producers and consumers that its stages name."""
    channels = tuple(
        Channel(
            index,
            f"c{index}",
            routing,
            producers=tuple(each.id for each in stages if index in each.sinks),
            consumers=tuple(each.id for each in stages if each.source == index),
        )
        for index, routing in enumerate(routings)
    )
    return Plan("job", stages, channels, bounded=bounded, local_bytes=local_bytes)


def _stage(id: str, source: int | None, *sinks: int, **of: Any) -> Stage:
    return Stage(id, id, (), b"", source, sinks, **of)


def _local(plan: Plan, **of: Any) -> list[str]:
    return [each.id for each in plan.local_stages(**of)]


@pytest.mark.contract("BAT-07")
def test_stages_that_read_each_other_share_a_task() -> None:
    stages = (_stage("s0", None, 0), _stage("s1", 0, 1), _stage("s2", 1, 2), _stage("s3", 2))
    routings = [Routing.SPREAD, Routing.GROUPED, Routing.FORWARD]
    assert _local(_plan(*stages, routings=routings)) == ["s0", "s1", "s2", "s3"]
    assert _local(_plan(*stages, routings=routings, local_bytes=0)) == []
    assert _local(_plan(*stages, routings=routings, bounded=False)) == []
    assert _local(_plan(*stages, routings=routings), without={"s1"}) == []
    assert _local(_plan(*stages, routings=routings), done={"s0", "s1"}) == ["s2", "s3"]


@pytest.mark.contract("BAT-07")
@pytest.mark.parametrize("kind", ["reshuffle", "splittable", "stable"])
def test_some_stages_have_tasks_of_their_own_and_so_what_reads_them(kind: str) -> None:
    of = {} if kind == "reshuffle" else {kind: True}
    stages = (_stage("s0", None, 0), _stage("s1", 0, 1), _stage("s2", 1, 2, **of), _stage("s3", 2))
    routings = [Routing.GROUPED, Routing.SPREAD if kind == "reshuffle" else Routing.KEYED, Routing.GROUPED]
    plan = _plan(*stages, routings=routings)
    assert _local(plan) == ["s0", "s1"]
    # Once it is done, what it has written may be little. Alone, a stage saves no exchange.
    assert _local(plan, done={"s0", "s1", "s2"}) == []


@pytest.mark.contract("BAT-07")
def test_stages_without_an_exchange_save_nothing_unless_they_are_all() -> None:
    stages = (_stage("s0", None, 0), _stage("s1", 0, 1), _stage("s2", 1))
    assert _local(_plan(*stages, routings=[Routing.SPREAD, Routing.SPREAD])) == []
    assert _local(_plan(*stages[:2], routings=[Routing.SPREAD, Routing.SPREAD])) == ["s0", "s1"]


@pytest.mark.contract("BAT-07")
def test_side_input_is_local_if_its_producers_are_or_if_it_is_complete() -> None:
    side = SideInput("t", "side", 1)
    stages = (_stage("s0", None, 0), _stage("s1", None, 1, splittable=True), _stage("s2", 0, side_inputs=(side,)))
    plan = _plan(*stages, routings=[Routing.GROUPED, Routing.SIDE])
    assert _local(plan) == []
    assert _local(plan, ready={1}) == ["s0", "s2"]
    assert _local(plan, done={"s1"}) == ["s0", "s2"]
