"""Play 100 whole systems from seeds, with faults of every kind.

To play a failing seed again, run `python -m simulator --seed N`. It also searches for the shortest story.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simulator import Failure, FaultKind, RequestKind, Scenario, World, failure_of, scenario_of, shrunk
from simulator.__main__ import main
from simulator.judging.requests import REFUSED, WHILE_COMMITTING
from simulator.shrinking import played

SEEDS = (*range(100), 134)
"""The last is the first that resumes from an earlier savepoint. `make fresh` tries 300 others."""


@pytest.fixture(scope="module")
def found() -> dict[int, World | Failure]:
    """Return the final world, or the failure, of each seed."""
    return {seed: played(scenario_of(seed)) for seed in SEEDS}


@pytest.fixture(scope="module")
def happened(found: dict[int, World | Failure]) -> Counter[str]:
    """Count the notable events of all seeds."""
    return sum((world.happened for world in found.values() if isinstance(world, World)), Counter())


@pytest.mark.contract(
    "ENG-01", "ENG-02", "ENG-03", "ENG-04", "ENG-05", "ENG-06", "ENG-08", "ENG-10", "ENG-11", "ENG-12"
)
@pytest.mark.contract("ENG-13", "STORE-01", "STORE-02", "STORE-03", "STORE-04", "STORE-05", "STORE-07")
@pytest.mark.contract("STORE-12")
@pytest.mark.contract("SDF-02", "SDF-04", "SDF-05", "SDF-08", "SDF-10", "SDF-11")
@pytest.mark.contract("END-01", "END-02", "END-03", "END-04", "WM-03", "WM-09")
def test_faults_never_lose_duplicate_or_delay_data(found: dict[int, World | Failure]) -> None:
    failures = [failure for failure in found.values() if isinstance(failure, Failure)]
    if failures:
        seeds = ", ".join(str(failure.scenario.seed) for failure in failures)
        pytest.fail(f"seeds {seeds} fail; the first:\n{shrunk(failures[0], tries=100)}")


@pytest.mark.parametrize("kind", [*FaultKind, *RequestKind], ids=lambda kind: kind.name)
def test_each_fault_and_request_happens(kind: FaultKind | RequestKind, happened: Counter[str]) -> None:
    assert happened[kind.value]


@pytest.mark.parametrize(
    "what",
    [
        "CommitUnknown",
        "CommitRefused",
        "CommitConflicted",
        "an ended job was finished",
        "could not take over",
        "preparing made new work",
        "sweeps",
        "tasks were rescaled",
        "state was rescaled",
        "a stage with several watermarks was rescaled",
        "state was moved to other levels",
        "unpublished committables were taken over",
        "late panes",
        "panes by the clock",
        WHILE_COMMITTING,
        REFUSED,
    ],
)
def test_notable_event_happens(what: str, happened: Counter[str]) -> None:
    assert happened[what]


def test_seed_is_reproducible() -> None:
    stories = [_event_log(scenario_of(7)) for _ in range(2)]
    assert stories[0] == stories[1]


def test_driver_may_die_in_a_micro_batch_that_has_waited() -> None:
    assert failure_of(scenario_of(1420)) is None


def _event_log(scenario: Scenario) -> list[str]:
    world = played(scenario)
    assert isinstance(world, World)
    return world.event_log


@pytest.mark.parametrize("seeds", ["5", "x..3", "5..3", ".."])
def test_malformed_seeds_are_refused(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert "is not of the form A..B" in capsys.readouterr().err
