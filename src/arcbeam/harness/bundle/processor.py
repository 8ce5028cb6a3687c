"""A stage in a worker: builds the SDK's bundle processor, begins and ends tasks, runs bundles, collects metrics.

The only module that uses the SDK's `BundleProcessor`; a contract test covers the internals that it relies on. Owns the
life of a processor: opened once per (job, stage) and worker, used by many tasks, discarded after any failure. The
caller decides which elements a task's bundles process, and in which order: an input driver of a bounded stage
(`harness.batch.batchstage`), or a micro-batch (`harness.streaming`). Must not know Spark.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.worker import bundle_processor
from apache_beam.runners.worker.data_sampler import DataSampler

from arcbeam.harness.bundle import observedtimes, restrictionoperation, workerwindows
from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.harness.bundle.graceful import GracefulDoFns
from arcbeam.harness.bundle.metrics import MetricsTable, forget_gauges
from arcbeam.harness.bundle.sampling import StateSampling
from arcbeam.harness.encoding import keycoders, prefixed, windowcoder
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.encoding.codererrors import name_what_is_sampled
from arcbeam.harness.files import recordlists
from arcbeam.harness.operations import lateoperation, publishoperation, read, writes
from arcbeam.harness.operations.read import ReadOperation
from arcbeam.harness.operations.taskcontext import OperationContext, TaskSettings
from arcbeam.harness.state.statehandler import StateHandler
from arcbeam.harness.stateful import statefulvectorization
from arcbeam.harness.transforms import batches, chains, combine, precombine, values, vectorization
from arcbeam.model import texts
from arcbeam.model.plan import Stage
from arcbeam.model.rows import BundleReport, Outbox, SideStore
from arcbeam.sizes import threshold

_LOG = logging.getLogger("arcbeam.teardown")

read.register()
keycoders.register()
prefixed.register()
windowcoder.register()
writes.register()
lateoperation.register()
publishoperation.register()
precombine.register()
combine.register()
batches.register()
vectorization.register()
statefulvectorization.register()
restrictionoperation.register()
observedtimes.register()
workerwindows.register()

_instructions = itertools.count()

_TIMERS = threshold(32)
"""Timers that are fired between two checks of the clock."""


class StageProcessor:
    """One stage, ready to process bundles in this process.

    A task is `begin_task`, any number of bundles, and `end_task`. If anything in it fails, it ends with `abandon_task`,
    and the processor is not used again.

    Args:
        stage: the stage to run.
        settings: the job's settings.
        state: user state and side inputs.
        sampler: receives the first elements of each output; None: nothing does.
    """

    def __init__(
        self, stage: Stage, settings: TaskSettings, state: StateHandler, sampler: DataSampler | None = None
    ) -> None:
        self.stage = stage
        self.settings = settings
        self.context = OperationContext(settings)
        self.state = state
        self.sdk: Any = bundle_processor.BundleProcessor(
            frozenset(), _descriptor(stage, settings), self.state, self.context, sampler
        )
        self.root: ReadOperation = next(op for op in self.sdk.ops.values() if isinstance(op, ReadOperation))
        ops = self.sdk.ops.values()
        name_what_is_sampled(ops)
        if settings.loops:
            chains.join(op for op in ops if isinstance(op, values.ValueOperation))
        self.state.steps = {op.name_context.transform_id: op.name_context.step_name for op in ops}
        self.bundles = Bundles(self)
        self._publishers = publishoperation.publish_operations(self.sdk.ops)
        self.graceful = GracefulDoFns(self.sdk.ops, self.sdk.process_bundle_descriptor)
        self._prepared = False
        self._needs_teardown: bool | None = None

    def begin_task(
        self, outbox: Outbox, partition: int, side_writer: Any = None, sides: SideStore | None = None
    ) -> None:
        """Begin a task. No bundle is open yet.

        Args:
            outbox: receives the rows that the stage writes.
            partition: the task's Spark partition, or its first shard.
            side_writer: creates a writer for an iterable side input, by channel.
            sides: the side inputs that the task's bundles read; None if the stage has none.
        """
        context, self._began, self._prepared = self.context, time.monotonic(), False
        context.outbox, context.partition, context.side_writer = outbox, partition, side_writer
        context.elements_out, context.passed, context.side_files = {}, {}, []
        self.state.read_sides(sides)
        for op in context.writers:
            op.begin_task()  # type: ignore[attr-defined]
        # Discard what a failed task has collected.
        self.committables()
        self.bundles.begin_task()

    def end_task(self, report: BundleReport) -> None:
        """End a task: close its bundle, write what writers still hold, and complete the report.

        Args:
            report: the task's report. The caller adds the fields that only it knows.
        """
        context, bundles = self.context, self.bundles
        bundles.close()
        for op in context.writers:
            op.drain()  # type: ignore[attr-defined]
        bundles.end_task()
        report.metrics = bundles.metrics()
        report.bundles, report.elements_in = bundles.count, bundles.elements
        report.elements_out, report.side_files = context.elements_out, context.side_files
        report.passed = context.passed
        report.seconds = time.monotonic() - self._began
        report.committables = self.committables()
        report.needs_teardown = self.needs_teardown()
        report.graceful = self.graceful.steps

    def prepare(self) -> None:
        """Call `prepare_to_shutdown` of the DoFns that implement it, in a bundle, once per task."""
        if self.graceful.prepares and not self._prepared:
            self._prepared = True
            self.bundles.open()
            self.graceful.prepare()

    def committables(self) -> dict[str, list[bytes]]:
        """Return the encoded committables that publishers have received since the last call, by their names."""
        return publishoperation.collected(self._publishers)

    def abandon_task(self) -> None:
        """End a task that has failed."""
        self.bundles.abandon()

    def running_step(self, frame: FrameType | None = None) -> str:
        """See `arcbeam.model.interfaces.OpenStage`: from the SDK's state sampler."""
        context = self.sdk.state_sampler.current_state().name_context
        in_frame = None if frame is None else getattr(context, "step_name_in", None)
        name = getattr(context, "step_name", "") if in_frame is None else in_frame(frame)
        return str(name or "")

    def finalize(self) -> None:
        """Run the bundle finalization callbacks. Call this when the task's output is safe."""
        self.bundles.callbacks.run()

    def needs_teardown(self) -> bool:
        """Return whether a DoFn or CombineFn overrides teardown."""
        if self._needs_teardown is None:
            self._needs_teardown = precombine.overrides_teardown(self.sdk.ops.values())
        return self._needs_teardown

    def close(self) -> list[str]:
        """Tear down all operations, consumers first. The processor is not used again.

        Returns:
            The errors that were raised, as messages.
        """
        errors: list[str] = []
        # SUBTLE: the SDK's own shutdown is not used: it begins with producers, and ends at the first error.
        for operation in reversed(list(self.sdk.ops.values())):
            try:
                operation.teardown()
            except Exception as e:
                name = operation.name_context.step_name
                _LOG.warning("teardown of %r failed", name, exc_info=True)
                message = texts.safe_text(str, e).removesuffix(f" [while running {name!r}]")
                errors.append(f"{name!r} has raised {type(e).__name__}: {message}")
        return errors


class Bundles:
    """The bundles of a processor: opens, fills, cuts and closes them.

    Invariant: at most one bundle is open; metrics of closed bundles are kept until the task ends.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self._sdk = processor.sdk
        self._limit = max(1, processor.settings.bundle_elements)
        self._seconds = processor.settings.bundle_seconds
        self._ops = list(self._sdk.ops.values())
        self._sampling = StateSampling(self._sdk.state_sampler)
        self._open = False
        self.instruction = ""
        self.callbacks = Callbacks()
        self.begin_task()

    def begin_task(self) -> None:
        """Reset the counts."""
        self.count = 0
        self.elements = 0
        self._metrics = MetricsTable()
        self.callbacks.drop()

    @property
    def is_open(self) -> bool:
        """Whether a bundle is open."""
        return self._open

    def take_deferrals(self) -> list[Any]:
        """Return what splittable DoFns have deferred in the open bundle so far, as `DelayedBundleApplication`s.

        The caller owns them. They may continue in the same bundle, because a task's output is committed as a whole.
        """
        if not self._open:
            return []
        deferred, self._context.delayed_applications = self._context.delayed_applications, []
        return [self._sdk.delayed_bundle_application(op, residual) for op, residual in deferred]

    def open(self) -> None:
        """Start a bundle, unless one is open."""
        if self._open:
            return
        sdk = self._sdk
        self.instruction = f"{self._processor.stage.id}-{next(_instructions)}"
        self._context = bundle_processor.ExecutionContext(instruction_id=self.instruction)
        sdk.current_instruction_id = self.instruction
        self._sampling.begin()
        self._open = True
        self._started = time.monotonic()
        self._in_bundle = 0
        for op in reversed(self._ops):
            op.execution_context = self._context
            op.start()

    def close(self) -> list[Any]:
        """Finish the open bundle, if any.

        Returns:
            What its splittable DoFns have deferred: `DelayedBundleApplication`s.
        """
        if not self._open:
            return []
        sdk = self._sdk
        try:
            for op in self._ops:
                op.finish()
                # SUBTLE: the SDK flushes buffered batches before an operation's `finish_bundle`, but not after it.
                for receiver in op.receivers:
                    receiver.flush()
            deferred = [
                sdk.delayed_bundle_application(op, residual) for op, residual in self._context.delayed_applications
            ]
        finally:
            self._end_bundle()
        self._metrics.add(info for info in sdk.monitoring_infos() if not recordlists.is_added(info))
        self.count += 1
        self.callbacks.keep_from(sdk.reset)
        for op in self._ops:
            forget_gauges(op.metrics_container)
        return deferred

    def abandon(self) -> None:
        """End the task without finishing its bundle, after a failure."""
        if self._open:
            self._end_bundle()
        self.end_task()

    def end_task(self) -> None:
        """Stop sampling: no bundle is opened until the next task."""
        self._sampling.end()

    def _end_bundle(self) -> None:
        self._open = False
        with self._sdk.splitting_lock:
            self._sdk.current_instruction_id = None

    def emit(self, elements: list[Any]) -> None:
        """Pass windowed values to the stage's root; cut bundles at the settings' limits."""
        if elements:
            self.emit_block(Block.of(elements))

    def emit_block(self, block: Block) -> None:
        """Pass a block to the stage's root; cut bundles at the settings' limits."""
        self.put(self._processor.root.output_blocks.emit, block)

    def put(self, take: Callable[[Block], None], block: Block) -> None:
        """Pass a block to a function instead of the root; cut bundles at the settings' limits."""
        position, total = 0, len(block)
        if self._open and self._in_bundle + total < self._limit:
            take(block)
            self.took(total)
            return
        while position < total:
            self.open()
            taken = min(self._limit - self._in_bundle, total - position)
            take(block if taken == total else block.slice(position, position + taken))
            position += taken
            self.took(taken)

    def fire(self, fire: Callable[..., None], *timer: Any) -> None:
        """Fire a timer by a call. For the size of bundles it counts like an element."""
        self.open()
        fire(*timer)
        self._in_bundle += 1
        self._cut()

    def room(self) -> int:
        """Return how many elements fit into the open bundle; if none is open, into the next one."""
        return self._limit - self._in_bundle if self._open else self._limit

    def took(self, elements: int) -> None:
        """Count elements that were processed in the open bundle: at most as many as `room` allows."""
        self._in_bundle += elements
        self.elements += elements
        self._cut()

    def fire_each(self, fire: Callable[[Iterator[Any]], int], timers: Iterator[Any]) -> None:
        """Fire timers; cut bundles at the settings' limits.

        Args:
            fire: an operation's function. It fires each timer before it takes the next, and returns their number.
            timers: the operation's timers.
        """
        for first in timers:
            self.open()
            some = min(self._limit - self._in_bundle, _TIMERS)
            self._in_bundle += fire(itertools.chain((first,), itertools.islice(timers, some - 1)))
            self._cut()

    def _cut(self) -> None:
        if self._in_bundle >= self._limit or time.monotonic() - self._started > self._seconds:
            self.close()

    def metrics(self) -> list[bytes]:
        """Return serialized monitoring infos of all closed bundles of the task."""
        return self._metrics.serialized()


def _descriptor(stage: Stage, settings: TaskSettings) -> Any:
    components = runner_pb.Components.FromString(stage.payload)
    if settings.record_lists:
        recordlists.rewrite(components)
    for transform in components.transforms.values():
        observedtimes.claim(transform)
    if settings.value_chains:
        vectorization.claim(components.transforms)
        for transform in components.transforms.values():
            combine.claim(transform)
            statefulvectorization.claim(transform)
            restrictionoperation.claim(transform)
    return fn_pb.ProcessBundleDescriptor(
        id=stage.id,
        transforms=components.transforms,
        pcollections=components.pcollections,
        coders=components.coders,
        windowing_strategies=components.windowing_strategies,
        environments=components.environments,
    )
