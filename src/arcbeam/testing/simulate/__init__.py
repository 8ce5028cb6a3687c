"""A whole system from one seed: pipeline, store, drivers, tasks, faults, on a virtual clock."""

from arcbeam.testing.simulate.judging.records import Broken
from arcbeam.testing.simulate.playing.world import World, play
from arcbeam.testing.simulate.scenario.choosing import scenario_of
from arcbeam.testing.simulate.scenario.scenarios import Fault, FaultKind, Request, RequestKind, Scenario
from arcbeam.testing.simulate.shrinking import Failure, failure_of, shrunk

__all__ = [
    "Broken",
    "Failure",
    "Fault",
    "FaultKind",
    "Request",
    "RequestKind",
    "Scenario",
    "World",
    "failure_of",
    "play",
    "scenario_of",
    "shrunk",
]
