"""A stage in a worker: builds the SDK's bundle processor, begins and ends tasks, runs bundles, collects metrics.

The one module that touches the SDK's `BundleProcessor`; a contract test holds what it leans on. Owns the life of a
processor: opened once per (job, stage) and worker, used by many tasks, thrown away on any failure. What elements go
through a task's bundles, and in which order, is the business of who drives it: an input driver of a bounded stage
(`harness.batch.batchstage`) or a step (`harness.streaming`). Must not know Spark.
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

from arcbeam.harness.bundle import observedtimes, restrictionoperation
from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.harness.bundle.graceful import GracefulDoFns
from arcbeam.harness.bundle.metrics import MetricsTable
from arcbeam.harness.bundle.sampling import Sampling
from arcbeam.harness.encoding import keycoders, windowcoder
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.encoding.codererrors import name_what_is_sampled
from arcbeam.harness.files import recordlists
from arcbeam.harness.operations import lateoperation, publishoperation, read, writes
from arcbeam.harness.operations.read import ReadOperation
from arcbeam.harness.operations.taskcontext import OperationContext, Settings
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

_instructions = itertools.count()

_TIMERS = threshold(32)
"""Timers that are fired between two looks at the clock."""


class StageProcessor:
    """One stage, ready to process bundles in this process.

    A task is `begin_task`, any number of bundles, and `end_task`, or `abandon_task` if anything in it has failed: then
    the processor is not used again.

    Args:
        stage: what to run.
        settings: of the job.
        state: user state and side inputs.
    """

    def __init__(self, stage: Stage, settings: Settings, state: StateHandler) -> None:
        self.stage = stage
        self.settings = settings
        self.context = OperationContext(settings)
        self.state = state
        self.sdk: Any = bundle_processor.BundleProcessor(
            frozenset(), _descriptor(stage, settings), self.state, self.context
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
        self._began = 0.0

    def begin_task(
        self, outbox: Outbox, partition: int, side_writer: Any = None, sides: SideStore | None = None
    ) -> None:
        """Begins a task; no bundle is open yet.

        Args:
            outbox: takes what the stage writes.
            partition: the task's Spark partition.
            side_writer: makes a writer for an iterable side input, by channel.
            sides: the side inputs that the task's bundles read; None if the stage has none.
        """
        context, self._began, self._prepared = self.context, time.monotonic(), False
        context.outbox, context.partition, context.side_writer = outbox, partition, side_writer
        context.elements_out, context.passed, context.side_files = {}, {}, []
        self.state.read_sides(sides)
        for op in context.writers:
            op.begin_task()  # type: ignore[attr-defined]
        # What a task collected that failed is nobody's.
        self.committables()
        self.bundles.begin_task()

    def end_task(self, report: BundleReport) -> None:
        """Ends a task: closes its bundle, hands over all that writes still hold, and tells what the bundles did.

        Args:
            report: of the task; whatever only its driver knows is there, or will be added.
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
        """Calls `prepare_to_shutdown` of the DoFns that offer it, in a bundle; the first time in a task."""
        if self.graceful.prepares and not self._prepared:
            self._prepared = True
            self.bundles.open()
            self.graceful.prepare()

    def committables(self) -> dict[str, list[bytes]]:
        """What has come to publishers since this was asked before, encoded, by their names."""
        return publishoperation.collected(self._publishers)

    def abandon_task(self) -> None:
        """Ends a task that has failed."""
        self.bundles.abandon()

    def running_step(self, frame: FrameType | None = None) -> str:
        """See `arcbeam.model.interfaces.OpenStage`: what the SDK's state sampler says."""
        context = self.sdk.state_sampler.current_state().name_context
        in_frame = None if frame is None else getattr(context, "step_name_in", None)
        name = getattr(context, "step_name", "") if in_frame is None else in_frame(frame)
        return str(name or "")

    def finalize(self) -> None:
        """Runs the bundle finalization callbacks; call when the task's output is safe."""
        self.bundles.callbacks.run()

    def needs_teardown(self) -> bool:
        """Whether a DoFn's or CombineFn's teardown is the user's own."""
        if self._needs_teardown is None:
            self._needs_teardown = precombine.overrides_teardown(self.sdk.ops.values())
        return self._needs_teardown

    def close(self) -> list[str]:
        """Tears down, consumers first, all of them; the processor is not used again.

        Returns:
            What they have raised, for people.
        """
        errors: list[str] = []
        # SUBTLE: not the SDK's own: that begins with the producers, and ends with the first error.
        for operation in reversed(list(self.sdk.ops.values())):
            try:
                operation.teardown()
            except Exception as e:
                name = operation.name_context.step_name
                _LOG.warning("teardown of %r failed", name, exc_info=True)
                said = texts.said(str, e).removesuffix(f" [while running {name!r}]")
                errors.append(f"{name!r} has raised {type(e).__name__}: {said}")
        return errors


class Bundles:
    """The running bundle of a processor: opens, fills, cuts and closes bundles.

    Invariant: at most one bundle is open; metrics of closed bundles are kept until the task ends.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self._sdk = processor.sdk
        self._limit = max(1, processor.settings.bundle_elements)
        self._seconds = processor.settings.bundle_seconds
        self._ops = list(self._sdk.ops.values())
        self._sampling = Sampling(self._sdk.state_sampler)
        self._open = False
        self.instruction = ""
        self.callbacks = Callbacks()
        self.begin_task()

    def begin_task(self) -> None:
        """Counts start anew."""
        self.count = 0
        self.elements = 0
        self._metrics = MetricsTable()
        self.callbacks.drop()

    @property
    def is_open(self) -> bool:
        """Whether a bundle is open."""
        return self._open

    def take_deferrals(self) -> list[Any]:
        """What splittable DoFns have deferred in the open bundle so far, as `DelayedBundleApplication`s.

        They are the caller's now and may go on in the same bundle: what a task puts out is taken as a whole or not.
        """
        if not self._open:
            return []
        deferred, self._context.delayed_applications = self._context.delayed_applications, []
        return [self._sdk.delayed_bundle_application(op, residual) for op, residual in deferred]

    def open(self) -> None:
        """Starts a bundle if none is open."""
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
        """Finishes the open bundle, if any.

        Returns:
            What its splittable DoFns deferred: `DelayedBundleApplication`s.
        """
        if not self._open:
            return []
        sdk = self._sdk
        try:
            for op in self._ops:
                op.finish()
                # SUBTLE: the SDK flushes what waits for an operation of batches before `finish_bundle`, not after it.
                for receiver in op.receivers:
                    receiver.flush()
            deferred = [
                sdk.delayed_bundle_application(op, residual) for op, residual in self._context.delayed_applications
            ]
        finally:
            self._leave()
        self._metrics.add(info for info in sdk.monitoring_infos() if not recordlists.is_added(info))
        self.count += 1
        self.callbacks.keep_from(sdk.reset)
        return deferred

    def abandon(self) -> None:
        """Ends the task without finishing its bundle (after a failure)."""
        if self._open:
            self._leave()
        self.end_task()

    def end_task(self) -> None:
        """No bundle will be opened until the next task."""
        self._sampling.end()

    def _leave(self) -> None:
        self._open = False
        with self._sdk.splitting_lock:
            self._sdk.current_instruction_id = None

    def emit(self, elements: list[Any]) -> None:
        """Feeds windowed values to the stage's root, cutting bundles as the settings say."""
        if elements:
            self.emit_block(Block.of(elements))

    def emit_block(self, block: Block) -> None:
        """Feeds a block to the stage's root, cutting bundles as the settings say."""
        self.put(self._processor.root.output_blocks.emit, block)

    def put(self, take: Callable[[Block], None], block: Block) -> None:
        """Feeds a block to what takes it in place of the root, cutting bundles as the settings say."""
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
        """Fires a timer by a call; where bundles are cut it counts like an element."""
        self.open()
        fire(*timer)
        self._in_bundle += 1
        self._cut()

    def room(self) -> int:
        """How many elements the open bundle may still have, or the next one, if none is open."""
        return self._limit - self._in_bundle if self._open else self._limit

    def took(self, elements: int) -> None:
        """Counts elements, at most as many as there was room for, that something has taken in the open bundle."""
        self._in_bundle += elements
        self.elements += elements
        self._cut()

    def fire_each(self, fire: Callable[[Iterator[Any]], int], timers: Iterator[Any]) -> None:
        """Fires timers, cutting bundles as the settings say.

        Args:
            fire: of an operation: fires timers, each before it asks for the next, and says how many these were.
            timers: of that operation.
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
        """Serialized monitoring infos of all closed bundles of the task."""
        return self._metrics.serialized()


def _descriptor(stage: Stage, settings: Settings) -> Any:
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
