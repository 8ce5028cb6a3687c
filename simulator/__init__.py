"""A whole system from one seed: pipeline, store, drivers, tasks, faults, on a virtual clock."""

from simulator.judging.records import Broken
from simulator.playing.world import World, play
from simulator.scenario.choosing import scenario_of
from simulator.scenario.scenarios import Fault, FaultKind, Request, RequestKind, Scenario
from simulator.shrinking import Failure, failure_of, shrunk

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
