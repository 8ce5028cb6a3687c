"""The shortest story of a failure has the faults and requests that it needs, and little else."""

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


def test_needless_steps_are_removed() -> None:
    def play(scenario: Scenario) -> Failure | None:
        fails = any(fault.kind is FaultKind.HOST_LOST for fault in scenario.faults) and _events(scenario) >= 2
        return Failure(scenario, "wrong", "here", ()) if fails else None

    found = shrunk(Failure(_large(), "wrong", "here", ()), play)
    assert [fault.kind for fault in found.scenario.faults] == [FaultKind.HOST_LOST]
    assert not found.scenario.requests
    assert _events(found.scenario) == 2
    assert len(found.scenario.pipeline.stages) == 1
    assert found.scenario.pipeline.shards == 1


def test_other_failure_is_not_accepted() -> None:
    large = Failure(_large(), "wrong", "here", ())
    assert shrunk(large, lambda scenario: Failure(scenario, "wrong", "there", ())) is large


def test_shrinking_respects_limit_of_tries() -> None:
    played = []

    def play(scenario: Scenario) -> None:
        played.append(scenario)

    shrunk(Failure(_large(), "wrong", "here", ()), play, tries=7)
    assert len(played) == 7


def test_failing_seed_prints_its_event_log(capsys) -> None:
    with MUTATIONS["a residual kept twice"]():
        assert main(["--seeds", "5..5"]) == 1
    printed = capsys.readouterr().out
    assert "proposes micro-batch" in printed
    assert "once too often" in printed


def test_passing_seed_prints_what_happened(capsys) -> None:
    assert main(["--seed", "3"]) == 0
    assert "seed 3: passed" in capsys.readouterr().out
