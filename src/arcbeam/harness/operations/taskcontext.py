"""What our operations get when the SDK's factory builds them: settings of the task and where rows go.

Owns the one object that is smuggled through the SDK's `data_channel_factory` argument, which its operations hand to the
registered constructors untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arcbeam.model.files import SideFile
from arcbeam.model.rows import Outbox, Passed, Row


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a job that its tasks need; units in the names.

    Attributes:
        shards: number of shards of every exchange.
        bundle_elements: elements after which a bundle is cut.
        bundle_seconds: seconds after which a bundle is cut.
        group_memory_bytes: what grouping buffers of one task may hold.
        sdf_round_seconds: what a task may spend on restrictions before it gives the rest back.
        shutdown_seconds: what `shutdown` of all DoFns may take when the job has ended.
        micro_batch_seconds: how long a micro-batch should take.
        backlog_step_seconds: how long one of a job that is behind should take; not less.
        value_chains: whether transforms that look at values only run block by block.
        loops: whether such transforms in a row share a compiled loop.
        record_lists: whether bounded sources hand on lists of records.
        folds: whether CombineFns that are known are added to without a call for each element.
        giving_up: whether a precombine stops keeping a table that combines next to nothing.
        batches: whether batches of user code go on as batches.
        bulk_values: whether an exchange writes values in bulk where it can.
        packed_blobs: whether blobs travel packed where that makes them smaller.
        quick_tasks: whether tasks change what Spark's worker would do around them: garbage, acknowledgements.
        event_times: whether tasks tell the event times and bytes of what leaves them.
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
    event_times: bool = False


class _Nowhere:
    def put(self, row: Row) -> None:
        raise RuntimeError("a row was written outside of a task")


@dataclass(slots=True)
class OperationContext:
    """Where the operations of one processor read their settings and put their rows.

    Attributes:
        settings: of the job.
        outbox: set anew for every task.
        partition: Spark partition of the running task; staggers round-robin so that small outputs spread.
        elements_out: elements written by channel in this task.
        passed: more about them, if the settings ask for it.
        side_files: side-input files that this task completed.
        writers: the write operations, so that the task can flush what they hold after its last bundle.
    """

    settings: Settings
    outbox: Outbox = field(default_factory=_Nowhere)
    partition: int = 0
    elements_out: dict[int, int] = field(default_factory=dict)
    passed: dict[int, Passed] = field(default_factory=dict)
    side_files: list[SideFile] = field(default_factory=list)
    writers: list[object] = field(default_factory=list)
    side_writer: object = None
