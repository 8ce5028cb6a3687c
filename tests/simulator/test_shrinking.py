"""The shortest story of a failure has what makes it fail, and little else."""

from __future__ import annotations

from dataclasses import replace

from simulator import Failure, Fault, FaultKind, Request, RequestKind, Scenario, scenario_of, shrunk
from simulator.__main__ import main
from simulator.mutations import MUTATIONS
from simulator.scenario.kinds import Source


def _large() -> Scenario:
    faults = tuple(Fault(kind, at) for at, kind in enumerate(FaultKind))
    requests = tuple(Request(kind, at) for at, kind in enumerate(RequestKind))
    return replace(scenario_of(2), faults=faults, requests=requests)


def _events(scenario: Scenario) -> int:
    return sum(len(stage.kind.events) for stage in scenario.pipeline.stages if isinstance(stage.kind, Source))


def test_what_is_not_needed_is_left_out() -> None:
    def play(scenario: Scenario) -> Failure | None:
        fails = any(fault.kind is FaultKind.HOST_LOST for fault in scenario.faults) and _events(scenario) >= 2
        return Failure(scenario, "wrong", "here", ()) if fails else None

    found = shrunk(Failure(_large(), "wrong", "here", ()), play)
    assert [fault.kind for fault in found.scenario.faults] == [FaultKind.HOST_LOST]
    assert not found.scenario.requests
    assert _events(found.scenario) == 2
    assert len(found.scenario.pipeline.stages) == 1
    assert found.scenario.pipeline.shards == 1


def test_another_failure_is_not_taken_for_this_one() -> None:
    large = Failure(_large(), "wrong", "here", ())
    assert shrunk(large, lambda scenario: Failure(scenario, "wrong", "there", ())) is large


def test_no_more_is_tried_than_may_be() -> None:
    played = []

    def play(scenario: Scenario) -> None:
        played.append(scenario)

    shrunk(Failure(_large(), "wrong", "here", ()), play, tries=7)
    assert len(played) == 7


def test_a_real_story_is_told(capsys) -> None:
    with MUTATIONS["a residual kept twice"]():
        assert main(["--seeds", "3..5"]) == 1
    told = capsys.readouterr().out
    assert "proposes micro-batch" in told
    assert "once too often" in told


def test_a_seed_without_a_failure_says_what_happened(capsys) -> None:
    assert main(["--seed", "3"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
