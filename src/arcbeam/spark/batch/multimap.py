"""The task that writes exchanged groups to multimap side input files. Runs in the Python worker, without the SDK."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from arcbeam.harness.encoding.frames import COUNT, key_groups
from arcbeam.model.rows import BundleReport, Row
from arcbeam.spark.tasks.task import TaskRows, arrow
from arcbeam.store.jobtemp.location import JobLocation


@dataclass(frozen=True, slots=True)
class MultimapTask:
    """Writes the groups of one shard to one file.

    Attributes:
        channel: the SIDE_KEYED channel.
        location: the job's temporary location.
        memory: bytes of groups to keep in memory.
    """

    channel: int
    location: JobLocation
    memory: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task: `mapInArrow` calls this."""
        rows = TaskRows(batches)
        first = next(rows, None)
        if first is None:
            yield from arrow(rows.passed)
            return
        # SUBTLE: not the partition number: several actions share a Spark job, which numbers all their partitions.
        report = self.written(first.shard, rows.starting_with(first))
        yield from arrow([*rows.passed, report.to_row()])

    def written(self, shard: int, rows: Iterable[Row]) -> BundleReport:
        """Write the file of a shard, from its rows in ascending order of bucket; return the report that names it."""
        from arcbeam.store.jobtemp.sidefiles import MultimapWriter

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        writer: Any = MultimapWriter(self.location, self.channel, shard, f"{shard}-{attempt}")
        for key, windows in key_groups(rows, self.memory):
            for window, chunks in windows.items():
                for payload in chunks:
                    writer.put(window, key, payload[COUNT.size :])
        report = BundleReport(stage=f"side-{self.channel}", shard=shard, attempt=attempt, worker=socket.gethostname())
        done = writer.close()
        if done is not None:
            report.side_files.append(done)
        return report
