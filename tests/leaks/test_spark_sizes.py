"""What a job in micro-batches on Spark keeps on its host: files, threads, open files, and memory of its driver."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.chain import known, read_newest
from tests.runner.test_steering import Job, expected
from tests.spark.streaming.fed import feed
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")

FEW, TIMES = 12, 10
"""Windows of ten numbers, each of which is a micro-batch or more. By then Spark's pools of threads (100 and 100 of its
block manager) are full, and the first sweeps have been."""
LAST = 3
"""Sizes go up and down, files by the micro-batches since the last sweep: the largest of this many windows counts."""
ALLOWED = {
    "files of the job": 150,
    "files in temporary folders": 40,
    "threads": 25,
    "open files": 30,
    "MB of the driver's Python": 60,
    "MB of the JVM's heap": 80,
}
"""So much more may there be after ten times the work: what goes up and down, and what is made once, later."""


def sizes(job: Job, names: set[str], spark: SparkSession) -> Counter[str]:
    found: Counter[str] = Counter()
    found["files of the job"] = sum(len(files) for _, _, files in os.walk(job.state))
    for root in Path(tempfile.gettempdir()).glob("arcbeam-*"):
        for folder, _, files in os.walk(root):
            if any(name in folder for name in names):
                found["files in temporary folders"] += len(files)
    for process in descendants(os.getpid()):
        try:
            found["threads"] += len(os.listdir(f"/proc/{process}/task"))
            found["open files"] += len(os.listdir(f"/proc/{process}/fd"))
        except FileNotFoundError:
            continue  # it has ended
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    found["MB of the driver's Python"] = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    found["MB of the JVM's heap"] = (runtime.totalMemory() - runtime.freeMemory()) >> 20
    return found


def descendants(process: int) -> Iterator[int]:
    """A process, and all that it has begun."""
    yield process
    try:
        children = [
            int(child)
            for path in Path(f"/proc/{process}/task").glob("*/children")
            for child in path.read_text().split()
        ]
    except FileNotFoundError:
        return
    for child in children:
        yield from descendants(child)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="threads and open files are read from /proc")
def test_host_does_not_grow_after_tenfold_work(tmp_path: Path) -> None:
    job = Job(tmp_path)
    feed(job.source, 5)
    result = job.submit()
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    taken = []
    for windows in range(1, FEW * TIMES + 1):
        feed(job.source, 10 * windows + 5)
        while_running(result, lambda windows=windows: len(job.panes()) >= 3 * windows)  # type: ignore[misc]
        if any(at - LAST < windows <= at for at in (FEW, FEW * TIMES)):
            names = {result.job_id, known(read_newest(FolderBlobs(job.state))).job}  # type: ignore[arg-type]
            taken.append(sizes(job, names, spark))
    feed(job.source, 10 * FEW * TIMES + 10, end=True)
    assert result.wait_until_finish() == "DONE"
    assert job.panes() == expected(0, 10 * FEW * TIMES + 10)
    few, many = Counter[str](), Counter[str]()
    for first, last in zip(taken[:LAST], taken[LAST:], strict=True):
        few, many = few | first, many | last
    assert few["files in temporary folders"]
    assert {what: (few[what], many[what]) for what, more in ALLOWED.items() if many[what] > few[what] + more} == {}
