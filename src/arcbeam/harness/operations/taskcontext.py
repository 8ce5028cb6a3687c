"""What our operations receive when the SDK's factory creates them: settings of the job, and where rows go.

Owns the object that is passed through the SDK's `data_channel_factory` argument. The SDK passes it unchanged to the
registered constructors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arcbeam.model.files import SideFile
from arcbeam.model.rows import Outbox, Passed, Row


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Settings of a job that its tasks need; units are in the names.

    Attributes:
        shards: number of shards of every exchange.
        bundle_elements: elements after which a bundle is cut.
        bundle_seconds: seconds after which a bundle is cut.
        group_memory_bytes: memory for the grouping buffers of one task.
        sdf_round_seconds: time that a task may spend on restrictions before it returns the rest.
        shutdown_seconds: time for the `shutdown` calls of all DoFns after the job's end.
        micro_batch_seconds: target duration of a micro-batch.
        backlog_micro_batch_seconds: target duration of a micro-batch while the job lags; not less.
        value_chains: whether transforms that only read values run block by block.
        loops: whether consecutive transforms of this kind share a compiled loop.
        record_lists: whether bounded sources emit lists of records.
        folds: whether known CombineFns accumulate without a call for each element.
        giving_up: whether a precombine drops a table that combines almost nothing.
        batches: whether batches of user code are passed on as batches.
        bulk_values: whether an exchange writes values in bulk where possible.
        packed_blobs: whether blobs are compressed where that makes them smaller.
        quick_tasks: whether tasks change Spark's worker for speed: garbage collection, acknowledgements.
        driver_publishing: whether the driver publishes what takes it only milliseconds.
        event_times: whether tasks report event times and bytes of their outputs, and the elements that accumulators
            stand for.
    """

    shards: int = 2
    bundle_elements: int = 500_000
    bundle_seconds: float = 30.0
    group_memory_bytes: int = 128 << 20
    sdf_round_seconds: float = 10.0
    shutdown_seconds: float = 60.0
    micro_batch_seconds: float = 0.5
    backlog_micro_batch_seconds: float = 5.0
    value_chains: bool = True
    loops: bool = True
    record_lists: bool = True
    folds: bool = True
    giving_up: bool = True
    batches: bool = True
    bulk_values: bool = True
    packed_blobs: bool = True
    quick_tasks: bool = True
    driver_publishing: bool = True
    event_times: bool = False


class _Nowhere:
    def put(self, row: Row) -> None:
        raise RuntimeError("a row was written outside of a task")


@dataclass(slots=True)
class OperationContext:
    """Settings and outputs of the operations of one processor.

    Attributes:
        settings: the job's settings.
        outbox: receives rows; set for every task.
        partition: Spark partition of the running task, or its first shard: the place of what it forwards, and an offset
            of round-robin, so that small outputs spread.
        elements_out: elements written by channel in this task.
        passed: more figures about them, if the settings request it.
        side_files: side-input files that this task has completed.
        writers: the write operations, which the task flushes after its last bundle.
    """

    settings: TaskSettings
    outbox: Outbox = field(default_factory=_Nowhere)
    partition: int = 0
    elements_out: dict[int, int] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    side_files: list[SideFile] = field(default_factory=list)
    writers: list[object] = field(default_factory=list)
    side_writer: object = None
