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
