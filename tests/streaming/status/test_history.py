"""Figures over time: rings, and their downsampling against an oracle."""

from __future__ import annotations

import itertools
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcbeam.store.log.historyfile import StoredHistory, decode, encode
from arcbeam.streaming.status.history import (
    JOB_COUNTERS,
    JOB_GAUGES,
    RINGS,
    STAGE_COUNTERS,
    STAGE_GAUGES,
    History,
    Ring,
    Sample,
    history_record,
    job_record,
    points_of,
)

pytestmark = pytest.mark.contract("OPS-07")

_FIGURES = st.one_of(st.just(nan), st.integers(0, 1000).map(float))
_SAMPLES = st.lists(st.tuples(st.integers(0, 40), _FIGURES, st.integers(0, 9), st.sampled_from("ab")), max_size=300)


def sample(time: int, backlog: float, read: float, held: str = "a", stages: tuple[str, ...] = ("Read",)) -> Sample:
    """A sample whose job and stages have the same backlog."""
    job = np.zeros(len(JOB_GAUGES) + len(JOB_COUNTERS))
    job[JOB_GAUGES.index("backlog")], job[len(JOB_GAUGES)] = backlog, 1.0
    job[JOB_GAUGES.index("held")] = 1.0
    figures = np.zeros((len(stages), len(STAGE_GAUGES) + len(STAGE_COUNTERS)))
    figures[:, STAGE_GAUGES.index("backlog")], figures[:, len(STAGE_GAUGES)] = backlog, read
    figures[:, STAGE_GAUGES.index("held")] = 1.0
    return Sample(time, stages, job, figures, ("another", held))


@given(_SAMPLES)
def test_points_are_those_of_an_oracle(steps: list[tuple[int, float, int, str]]) -> None:
    ring, now, samples = Ring(10, 10_000), 0, list[tuple[int, float, int, str]]()
    for step, backlog, read, held in steps:
        now += step
        samples.append((now, backlog, read, held))
        ring.add(sample(now, backlog, read, held))
    points = [point for chunk in ring.chunks() for point in points_of(chunk)]
    expected = []
    for start, group in itertools.groupby(samples, lambda each: each[0] - each[0] % 10):
        of = list(group)
        known = [backlog for _, backlog, _, _ in of if not isnan(backlog)]
        gauge = [min(known), max(known), known[-1]] if known else [None] * 3
        expected.append((start, gauge, sum(read for _, _, read, _ in of), of[-1][3], len(of)))
    assert [
        (
            point["time"],
            point["stages"]["Read"]["backlog"],
            point["stages"]["Read"]["read"],
            point["stages"]["Read"]["held"],
            point["job"]["micro_batches"],
        )
        for point in points
    ] == expected


def test_record_of_job_has_sums_of_stages() -> None:
    history = History.after(StoredHistory())
    for at in range(100):
        history.add(sample(at * 1_000_000, nan if at % 7 else 3.0, float(at), stages=("Read", "Join")))
    history.event(5, "start", "at micro-batch 0")
    stored = history.stored()
    whole, summed = history_record(stored), job_record(stored)
    for ring in whole["rings"]:
        for point in ring["points"]:
            counters = {name: sum(of[name] for of in point["stages"].values()) for name in STAGE_COUNTERS}
            point["stages"] = {"": counters}
    assert summed == whole


def test_clock_that_steps_back_makes_no_earlier_point() -> None:
    ring = Ring(10, 100)
    for time in (50, 20, 60):
        ring.add(sample(time, 1, 2))
    points = [point for chunk in ring.chunks() for point in points_of(chunk)]
    assert [(point["time"], point["stages"]["Read"]["read"]) for point in points] == [(50, 4), (60, 2)]


def test_resumed_history_continues_with_other_stages() -> None:
    history = History.after(StoredHistory())
    history.add(sample(1_000_000, 3, 4))
    history.event(1_500_000, "end", "killed")
    again = History.after(decode(encode(history.stored())))
    again.add(sample(2_000_000, 5, 6, stages=("Join", "Read")))
    record = history_record(again.stored())
    assert [[*point["stages"]] for point in record["rings"][0]["points"]] == [["Read"], ["Join", "Read"]]
    assert [event["kind"] for event in record["events"]] == ["end"]
    assert [ring["width"] for ring in record["rings"]] == [width for width, _ in RINGS]


def test_size_is_bounded() -> None:
    ring = Ring(1, 100)
    for time in range(1000):
        ring.add(sample(time, time, 1))
    points = [point["time"] for chunk in ring.chunks() for point in points_of(chunk)]
    assert 100 <= len(points) < 220
    assert points[-1] == 999
    history = History.after(StoredHistory())
    for number in range(2000):
        history.event(number, "trouble", "x" * 10_000)
    assert len(history.events) == 500
    assert max(len(event.text) for event in history.events) == 300
