"""What a driver does per micro-batch in a job with many idle shards: a small run of benchmarks/driver.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from arcbeam.store.blobs.objects import ObjectBlobs

_BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def driving(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(_BENCHMARKS)
    from bench.engine import driving

    return driving


def test_driver_of_many_shards_makes_few_requests(driving: Any) -> None:
    size = driving.Size(shards=40, levels=3, tasks=10, partitions=60, live=4_000, active=0.5)
    inner = ObjectBlobs(MemoryStore(), "memory")
    blobs, tasks = driving.CountedBlobs(inner), driving.Tasks(size, inner)
    job = driving.DrivenJob(size, blobs, tasks)
    costs = [job.micro_batch() for _ in range(21)]
    usual = [of.requests for number, of in enumerate(costs, 1) if number % 10]
    assert max(usual) <= 2, "the manifest, and now and then a look for another driver"
    # Sweeps delete hundreds of files with few requests, and read no manifest.
    assert max(of.requests for of in costs) <= 30
    assert sum(1 for _ in inner.list("shards")) < tasks.files - 300
    again = driving.DrivenJob(size, blobs, tasks)
    assert again.log.head.micro_batch == job.log.head.micro_batch + 1
    assert again.micro_batch().requests <= 2
