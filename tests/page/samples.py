"""Jobs as the page knows them: a status, and records of a plan and a history, without a driver."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from arcbeam.engine.protocol.reports import Counts
from arcbeam.engine.state.statemetrics import StateMetrics
from arcbeam.engine.watermarks.clocks import shown_time
from arcbeam.explain import plan_record
from arcbeam.model.commits import CommitMode
from arcbeam.model.plan import Plan, Routing
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.page.sources import Listed, Source
from arcbeam.store.log.drivernote import DriverNote
from arcbeam.streaming.status.reasons import Cause, CauseKind
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.snapshot import Since
from arcbeam.streaming.status.status import OutputStatus, StageStatus, Status
from tests.explain.plans import Builder

NOW = 1_767_607_203_000_000
"""2026-01-05T10:00:03Z"""


_STEPS = ("Delays/Count per hour/Group", "Weather/Join", "Late/Top/CombinePerKey", "Routes/Sessions/Group")


def plan(stages: int) -> Plan:
    """Return a plan of chains that start at one source, and are joined at the end."""
    builder = Builder("flights")
    source = builder.add("Read/Poll/Process", routing=Routing.SPREAD)
    routings = (Routing.KEYED, Routing.GROUPED, Routing.SPREAD)
    ends = [source] * min(3, max(1, stages - 2))
    for number in range(stages - 2):
        at = number % len(ends)
        ends[at] = builder.add(f"{_STEPS[number % len(_STEPS)]} {number}", ends[at], routings[number % 3])
    builder.end("Write/WriteParts", ends[0])
    return builder.plan()


def plan_of(stages: int) -> dict[str, Any]:
    """Return the record of that plan."""
    made = plan(stages)
    record = plan_record(made, {(stage.id, sink): f"out {sink}" for stage in made.stages for sink in stage.sinks})
    for stage in record["stages"]:
        stage["uid"] = stage["name"]
    return record


def status(stages: int = 5, now: int = NOW, seed: int = 0, **changes: Any) -> Status:
    """Return the status of a running job."""
    draw = random.Random(seed)
    found = [_stage(of, Timestamp(now), draw) for of in plan_of(stages)["stages"]]
    held, watermark = found[0].stage, Timestamp(now - 200_000_000)
    since = Since(40, Timestamp(now - 190_000_000))
    cause = Cause(
        kind=CauseKind.RESTRICTION,
        stage=held,
        shard=3,
        name="1.0.0~9f",
        key=None,
        time=watermark,
        since=since,
        due=None,
        by_clock=False,
        text=f"the watermark of the input of '{held}' is at {shown_time(watermark)}, since micro-batch 40 "
        f"({shown_time(since.time)}): restriction "
        "of element 'EWR' in shard 3 (of 4 that are not done) has deferred itself until 2026-01-05T11:00:03Z",
        released_when="the clock reaches 2026-01-05T11:00:03Z, when it is processed again",
        stages=tuple(of.stage for of in found),
    )
    made = Status(
        micro_batch=41,
        mode=CommitMode.RUNNING,
        time=Timestamp(now),
        watermark=watermark,
        behind=Duration(200_000_000),
        elapsed=Duration(1_000_000),
        rate=1234.5,
        restrictions=4,
        backlog=17.0,
        seconds={"seconds": 0.51, "plan": 0.01, "spark": 0.2, "user": 0.28, "commit": 0.02},
        stages=tuple(found),
        causes=(cause,),
        state_bytes={1: 123_456},
        state_entries={1: 777},
        driver=driver(now),
        name="flights",
        committed=Timestamp(now),
        folder="/data/flights",
    )
    return replace(made, **{"committed": changes.get("time", made.committed), **changes})


def driver(now: int = NOW, **changes: Any) -> DriverNote:
    """Return the note of its driver."""
    since, doing = Timestamp(now - 3_600_000_000), "running micro-batch 42 for 0 s"
    return replace(DriverNote(1, "host-1:flights", 4711, since, Timestamp(now), 10.0, doing), **changes)


def with_cause(of: Status, **changes: Any) -> Status:
    """Return a status with its cause changed."""
    return replace(of, causes=(replace(of.causes[0], **changes),))


def with_stage(of: Status, number: int, **changes: Any) -> Status:
    """Return a status with one stage changed."""
    changed = replace(of.stages[number], **changes)
    return replace(of, stages=(*of.stages[:number], changed, *of.stages[number + 1 :]))


def _stage(of: Record, now: Timestamp, draw: random.Random) -> StageStatus:
    read, since = draw.randrange(2_000), Since(40, Timestamp(now - 190_000_000))
    counts = Counts(read=read, written=read, fired=3)
    return StageStatus(
        stage=of["uid"],
        level=1,
        upstream=now,
        input=Timestamp(now - draw.randrange(1, 200) * 1_000_000),
        input_since=since,
        outputs=tuple(
            OutputStatus(
                output=output,
                watermark=Timestamp(now - draw.randrange(1, 200) * 1_000_000),
                since=since,
                elements=read,
                bytes=31 * read,
                least=Timestamp(now - 60_000_000),
                mean=Timestamp(now - 5_000_000),
                most=now,
            )
            for output in of["outputs"]
        ),
        why=f"{of['uid']} waits for Read/Poll/Process",
        micro_batch=counts,
        total=replace(counts, late=draw.choice([0, 0, 0, 12])),
        bytes_in=31 * read,
        next_event=Timestamp(now + 60_000_000),
        state_rows=draw.randrange(1_000),
        state_bytes=(size := draw.randrange(1_000_000)),
        state_shards=2,
        state_median=size // 3,
        state_largest=((3, size - size // 3), (1, size // 3)),
        behind=Duration(5_000_000),
        read_rate=float(read),
        written_rate=float(read),
        made_rate=0.0,
        kept=StateMetrics(windows=12, event_timers=3),
    )


def history(now: int = NOW, points: int = 400) -> dict[str, Any]:
    """Return a history of that job."""
    draw, rings = random.Random(1), []
    behind = 3e6
    for width in (1_000_000, 10_000_000, 300_000_000):
        found = []
        for at in range(min(points, 400 * 1_000_000 // width)):
            behind = max(1e6, behind + draw.uniform(-4e6, 5e6))
            job = {
                "behind": [behind, behind + 1e6, behind],
                "watermark": [now - 400_000_000 + at * width - behind - part for part in (1e6, 0, 0)],
                "backlog": [float(at % 37)] * 3,
                "state_bytes": [1000.0 * at] * 3,
                "micro_batch": [1000.0 + 2 * at, 1001.0 + 2 * at, 1001.0 + 2 * at],
                "micro_batches": 2.0,
                "seconds": draw.uniform(0.4, 0.9),
                "plan": 0.01,
                "spark": 0.2,
                "user": draw.uniform(0.1, 0.3),
                "commit": 0.02,
                "held": f"restriction Read/Poll/Process 1.0.0~{at}"
                if at % 200 < 120
                else "elements Delays/Count per hour/Group 0",
            }
            stages = {"Read/Poll/Process": {"read": draw.randrange(900, 1_300), "late": 0}}
            time = now - 400_000_000 + at * width
            found.append({"time": time - time % width, "job": job, "stages": stages})
        rings.append({"width": width, "points": found})
    events = [
        {"time": now - 390_000_000, "kind": "start", "text": "at micro-batch 0"},
        {"time": now - 200_000_000, "kind": "trouble", "text": "micro-batch 20 failed: a worker died"},
        {"time": now - 120_000_000, "kind": "savepoint", "text": "before-upgrade at micro-batch 31"},
    ]
    return {"rings": rings, "events": events}


class Jobs(Source):
    """Jobs with given records, which a test may change.

    Args:
        found: the jobs.
        plans, histories, details: by the id of a job.

    Attributes:
        away: what is wrong with the source; () if nothing is.
    """

    def __init__(
        self,
        *found: Listed,
        plans: dict[str, Record] | None = None,
        histories: dict[str, Record] | None = None,
        details: dict[str, Record] | None = None,
    ) -> None:
        self.found = {each.id: each for each in found}
        self.plans, self.histories, self._details = plans or {}, histories or {}, details or {}
        self.away: tuple[str, ...] = ()

    @override
    def jobs(self) -> Iterator[Listed]:
        yield from list(self.found.values())

    @override
    def notices(self) -> Sequence[str]:
        return self.away

    @override
    def job(self, id: str) -> Listed | None:
        return self.found.get(id)

    @override
    def history(self, id: str) -> Record | None:
        return self.histories.get(id)

    @override
    def details(self, id: str) -> Record | None:
        return self._details.get(id)

    @override
    def plan(self, id: str) -> Record | None:
        return self.plans.get(id)


def now() -> int:
    """Return the time in microseconds since 1970."""
    return round(time.time() * 1e6)
