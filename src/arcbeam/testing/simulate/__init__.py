"""A whole system from one seed: pipeline, store, drivers, tasks, faults, on a virtual clock."""

from arcbeam.testing.simulate.choosing import scenario_of
from arcbeam.testing.simulate.records import Broken
from arcbeam.testing.simulate.scenarios import Fault, FaultKind, Request, RequestKind, Scenario
from arcbeam.testing.simulate.shrinking import Failure, failure_of, shrunk
from arcbeam.testing.simulate.world import World, play

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
